// SPDX-License-Identifier: GPL-2.0-or-later
//! The callbacks for QEMU: a vCPU appears, idles or wakes, code is translated, memory is accessed.
//!
//! Problem: a callback costs far more than the instruction that it observes. Approach: translated code adds its cost to
//! a counter by itself, and calls only at accesses, at the end of a quantum, and at blocks while loads are in flight; a
//! hit in the first-level cache is decided here. Limit: accesses near the top of the stack are never seen.
#![expect(unsafe_code, reason = "calls QEMU's plugin interface")]

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

use nearfar_timing::{
    Access, DEVICE_ACCESS_PS, Instruction, Kind, Origin, change, decode, may_go_back,
};

use crate::api::{self, Block, Insn, MemInfo, PluginId};
use crate::begin;
use crate::code;
use crate::state::{Plugin, Seat, complain, plugin, seat};
use crate::translation;

/// Registers all of them.
pub(crate) fn register(id: PluginId) {
    // SAFETY: `id` is ours; QEMU expects registration at load. The same holds for the four below.
    unsafe { api::qemu_plugin_register_vcpu_init_cb(id, on_vcpu) };
    // SAFETY: as above.
    unsafe { api::qemu_plugin_register_vcpu_idle_cb(id, on_idle) };
    // SAFETY: as above.
    unsafe { api::qemu_plugin_register_vcpu_resume_cb(id, on_resume) };
    // SAFETY: as above.
    unsafe { api::qemu_plugin_register_vcpu_tb_trans_cb(id, on_block) };
    // SAFETY: as above.
    unsafe { api::qemu_plugin_register_atexit_cb(id, on_exit, null_mut()) };
}

extern "C" fn on_vcpu(_: PluginId, vcpu: c_uint) {
    let Some(plugin) = plugin() else { return };
    match plugin.settle_time().and_then(|()| Seat::take(plugin, vcpu)) {
        Ok(seat) => seat.wake(plugin),
        Err(refusal) => {
            complain(&format!("vCPU {vcpu}: {refusal}"));
            #[expect(clippy::exit, reason = "QEMU has no other way of being told")]
            std::process::exit(1);
        }
    }
}

extern "C" fn on_idle(_: PluginId, vcpu: c_uint) {
    if let (Some(plugin), Some(seat)) = (plugin(), seat(vcpu)) {
        seat.rest(plugin);
    }
}

extern "C" fn on_resume(_: PluginId, vcpu: c_uint) {
    if let (Some(plugin), Some(seat)) = (plugin(), seat(vcpu)) {
        seat.wake(plugin);
    }
}

extern "C" fn on_exit(_: PluginId, _: *mut c_void) {
    if let Some(Err(lost)) = plugin().map(|plugin| plugin.write_stats(true)) {
        complain(&lost);
    }
}

extern "C" fn on_block(_: PluginId, block: *mut Block) {
    let Some(plugin) = plugin() else { return };
    // SAFETY: `block` is the one being translated, for this and the calls below.
    let count = unsafe { api::qemu_plugin_tb_n_insns(block) };
    let mut cost_ps = count as u64 * plugin.machine.config().processor.instruction_ps;
    let mut closes_loop = true;
    // While the guest boots, instructions take time and memory accesses none.
    let is_booting = begin::is_booting();
    let overlap = !is_booting && plugin.machine.config().processor.reorder_buffer > 0;
    let has_tlb = plugin.machine.config().processor.tlb_entries > 0;
    let mut code = code::Code::default();
    let mut insns = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: `index` is below the block's count.
        let insn = unsafe { api::qemu_plugin_tb_get_insn(block, index) };
        let mut bytes = [0u8; 16];
        let bytes = bytes_of(insn, &mut bytes);
        let instruction = decode(bytes);
        cost_ps += instruction.extra_ps();
        closes_loop = may_go_back(bytes);
        if is_booting {
            continue;
        }
        code.push(bytes);
        if has_tlb && let Some(change) = change(bytes) {
            translation::watch(insn, change);
        }
        insns.push((insn, instruction));
    }
    let origins = if overlap { code.origins() } else { &[] };
    for (at, (insn, instruction)) in insns.into_iter().enumerate() {
        instrument(insn, instruction, origins.get(at));
    }
    charge(plugin, block, cost_ps);
    if let Some(first) = origins.first() {
        follow(plugin, block, first);
    }
    if closes_loop {
        look_around(plugin, block);
    }
}

/// Makes a block of code bring the places of values up to date while loads are in flight.
fn follow(plugin: &Plugin, block: *mut Block, first: &'static Origin<'static>) {
    let data = std::ptr::from_ref(first).cast_mut().cast();
    // SAFETY: `block` is being translated; the counter is ours and kept for good, as is the origin, which is only read.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            block,
            on_block_while_ahead,
            api::NO_REGISTERS,
            api::AT_LEAST,
            plugin.ahead(),
            1,
            data,
        );
    }
}

/// Reads an instruction's bytes into `bytes`.
fn bytes_of(insn: *const Insn, bytes: &mut [u8; 16]) -> &[u8] {
    // SAFETY: `insn` is being translated; at most `bytes.len()` bytes are written.
    let length =
        unsafe { api::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len()) };
    &bytes[..length.min(bytes.len())]
}

/// Makes a block of code add its cost when it runs.
fn charge(plugin: &Plugin, block: *mut Block, cost_ps: u64) {
    let pending = plugin.pending;
    // SAFETY: `block` is being translated; the counter is ours and kept for good.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, api::ADD, pending, cost_ps);
    }
}

/// Makes a block of code synchronise with the other vCPUs when a quantum has passed.
fn look_around(plugin: &Plugin, block: *mut Block) {
    let pending = plugin.pending;
    // SAFETY: `block` is being translated; the counter is ours and kept for good; the callback takes no user data.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            block,
            on_quantum,
            api::NO_REGISTERS,
            api::AT_LEAST,
            pending,
            plugin.quantum_ps(),
            null_mut(),
        );
    }
}

/// Makes an instruction report its memory accesses.
fn instrument(insn: *mut Insn, instruction: Instruction, origin: Option<&'static Origin<'static>>) {
    if instruction == Instruction::ChangesTranslations {
        // SAFETY: `insn` is being translated, here and below; the callback takes no user data.
        unsafe {
            api::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                on_new_translations,
                api::NO_REGISTERS,
                null_mut(),
            );
        }
    }
    if instruction == Instruction::Stack {
        return;
    }
    let on_write =
        if instruction == Instruction::NonTemporalStore { on_store_past_caches } else { on_store };
    let data = origin.map_or(null_mut(), |origin| std::ptr::from_ref(origin).cast_mut().cast());
    // SAFETY: as above; the origin is kept for good and only read.
    unsafe {
        api::qemu_plugin_register_vcpu_mem_cb(insn, on_load, api::NO_REGISTERS, api::READS, data)
    };
    // SAFETY: as above.
    unsafe {
        api::qemu_plugin_register_vcpu_mem_cb(insn, on_write, api::NO_REGISTERS, api::WRITES, data)
    };
}

/// The origin that a callback was registered with.
#[inline]
fn origin(data: *mut c_void) -> Option<Origin<'static>> {
    // SAFETY: null, or a reference to an origin that is kept for good (`instrument`, `follow`).
    unsafe { data.cast::<Origin<'static>>().as_ref() }.copied()
}

extern "C" fn on_block_while_ahead(vcpu: c_uint, data: *mut c_void) {
    if let (Some(plugin), Some(seat), Some(first)) = (plugin(), seat(vcpu), origin(data)) {
        let now_ps = seat.now_ps();
        seat.stall(seat.with_vcpu(|vcpu| plugin.machine.begin(vcpu, now_ps, first.flow)));
        seat.note_ahead();
    }
}

extern "C" fn on_quantum(vcpu: c_uint, _: *mut c_void) {
    if let (Some(plugin), Some(seat)) = (plugin(), seat(vcpu)) {
        seat.synchronise(plugin);
    }
}

extern "C" fn on_new_translations(vcpu: c_uint, _: *mut c_void) {
    if let Some(seat) = seat(vcpu) {
        seat.with_vcpu(nearfar_timing::Vcpu::forget_translations);
    }
}

extern "C" fn on_load(vcpu: c_uint, info: MemInfo, address: u64, data: *mut c_void) {
    let Some(seat) = seat(vcpu) else { return };
    if !seat.with_vcpu(|vcpu| vcpu.first_level.can_load(address)) {
        miss(seat, Kind::Load, (info, address), data);
    } else if seat.is_ahead()
        && let Some(origin) = origin(data)
    {
        let now_ps = seat.now_ps();
        seat.with_vcpu(|vcpu| vcpu.take_over(now_ps, address, origin));
    }
}

extern "C" fn on_store(vcpu: c_uint, info: MemInfo, address: u64, data: *mut c_void) {
    let Some(seat) = seat(vcpu) else { return };
    if seat.is_ahead()
        && let Some(origin) = origin(data)
    {
        let now_ps = seat.now_ps();
        seat.with_vcpu(|vcpu| vcpu.pass_on(now_ps, address, origin));
    }
    if !seat.with_vcpu(|vcpu| vcpu.first_level.can_store(address)) {
        miss(seat, Kind::Store, (info, address), data);
    }
}

extern "C" fn on_store_past_caches(vcpu: c_uint, info: MemInfo, address: u64, data: *mut c_void) {
    if let Some(seat) = seat(vcpu)
        && !seat.with_vcpu(|vcpu| vcpu.gathers(address))
    {
        miss(seat, Kind::NonTemporalStore, (info, address), data);
    }
}

/// Handles an access beyond the first-level cache. Device registers are neither cached nor on a memory path.
#[cold]
fn miss(seat: &Seat, kind: Kind, (info, virtual_address): (MemInfo, u64), data: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    // SAFETY: called within the memory callback that received `info` and the address.
    let hwaddr = unsafe { api::qemu_plugin_get_hwaddr(info, virtual_address) };
    if hwaddr.is_null() {
        return;
    }
    // SAFETY: the handle is valid until the callback returns, here and below.
    if unsafe { api::qemu_plugin_hwaddr_is_io(hwaddr) } {
        return seat.stall(DEVICE_ACCESS_PS);
    }
    // SAFETY: as above.
    let physical_address = unsafe { api::qemu_plugin_hwaddr_phys_addr(hwaddr) };
    let access = Access { kind, virtual_address, physical_address };
    let now_ps = seat.now_ps();
    let stall_ps = seat.with_vcpu(|vcpu| plugin.machine.access(vcpu, now_ps, access, origin(data)));
    seat.stall(stall_ps);
    seat.note_ahead();
}
