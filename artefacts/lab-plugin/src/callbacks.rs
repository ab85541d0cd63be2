// SPDX-License-Identifier: GPL-2.0-or-later
//! What QEMU calls: when a vCPU appears, idles and wakes, when code is translated, and on every access to memory.
#![expect(unsafe_code, reason = "calls QEMU's plugin interface")]

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

use nearfar_timing::{Access, DEVICE_ACCESS_PS, Instruction, Kind, decode, may_go_back};

use crate::api::{self, Block, Insn, MemInfo, PluginId};
use crate::state::{Plugin, Seat, complain, plugin, seat};

/// Registers all of them.
pub(crate) fn register(id: PluginId) {
    // SAFETY: `id` is ours; registering at load is what QEMU expects. The same holds for the four below.
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
    for index in 0..count {
        // SAFETY: `index` is below the block's count.
        let insn = unsafe { api::qemu_plugin_tb_get_insn(block, index) };
        let mut bytes = [0u8; 16];
        let bytes = bytes_of(insn, &mut bytes);
        let instruction = decode(bytes);
        cost_ps += instruction.extra_ps();
        closes_loop = may_go_back(bytes);
        instrument(insn, instruction);
    }
    charge(plugin, block, cost_ps);
    if closes_loop {
        look_around(plugin, block);
    }
}

/// An instruction's bytes, read into `bytes`.
fn bytes_of(insn: *const Insn, bytes: &mut [u8; 16]) -> &[u8] {
    // SAFETY: `insn` is being translated; at most as many bytes are written as there are.
    let length =
        unsafe { api::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), bytes.len()) };
    &bytes[..length.min(bytes.len())]
}

/// Has a block of code add its cost when it runs.
fn charge(plugin: &Plugin, block: *mut Block, cost_ps: u64) {
    let pending = plugin.pending;
    // SAFETY: `block` is being translated; the counter is ours and kept for good.
    unsafe {
        api::qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, api::ADD, pending, cost_ps);
    }
}

/// Has a block of code look at the other vCPUs when a quantum has come together.
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

/// Has an instruction report what it does to memory.
fn instrument(insn: *mut Insn, instruction: Instruction) {
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
    // SAFETY: as above.
    unsafe {
        api::qemu_plugin_register_vcpu_mem_cb(
            insn,
            on_load,
            api::NO_REGISTERS,
            api::READS,
            null_mut(),
        )
    };
    // SAFETY: as above.
    unsafe {
        api::qemu_plugin_register_vcpu_mem_cb(
            insn,
            on_write,
            api::NO_REGISTERS,
            api::WRITES,
            null_mut(),
        )
    };
}

extern "C" fn on_quantum(vcpu: c_uint, _: *mut c_void) {
    if let (Some(plugin), Some(seat)) = (plugin(), seat(vcpu)) {
        seat.synchronise(plugin);
    }
}

extern "C" fn on_new_translations(vcpu: c_uint, _: *mut c_void) {
    if let Some(seat) = seat(vcpu) {
        seat.with_vcpu(|vcpu| vcpu.first_level.clear());
    }
}

extern "C" fn on_load(vcpu: c_uint, info: MemInfo, address: u64, _: *mut c_void) {
    if let Some(seat) = seat(vcpu)
        && !seat.with_vcpu(|vcpu| vcpu.first_level.can_load(address))
    {
        miss(seat, Kind::Load, info, address);
    }
}

extern "C" fn on_store(vcpu: c_uint, info: MemInfo, address: u64, _: *mut c_void) {
    if let Some(seat) = seat(vcpu)
        && !seat.with_vcpu(|vcpu| vcpu.first_level.can_store(address))
    {
        miss(seat, Kind::Store, info, address);
    }
}

extern "C" fn on_store_past_caches(vcpu: c_uint, info: MemInfo, address: u64, _: *mut c_void) {
    if let Some(seat) = seat(vcpu)
        && !seat.with_vcpu(|vcpu| vcpu.gathers(address))
    {
        miss(seat, Kind::NonTemporalStore, info, address);
    }
}

/// An access beyond the first-level cache. Device registers are in no cache and on no path.
#[cold]
fn miss(seat: &Seat, kind: Kind, info: MemInfo, virtual_address: u64) {
    let Some(plugin) = plugin() else { return };
    // SAFETY: called from the memory callback that was given `info` and the address.
    let hwaddr = unsafe { api::qemu_plugin_get_hwaddr(info, virtual_address) };
    if hwaddr.is_null() {
        return;
    }
    // SAFETY: the handle is good until the callback returns, here and below.
    if unsafe { api::qemu_plugin_hwaddr_is_io(hwaddr) } {
        return seat.stall(DEVICE_ACCESS_PS);
    }
    // SAFETY: as above.
    let physical_address = unsafe { api::qemu_plugin_hwaddr_phys_addr(hwaddr) };
    let access = Access { kind, virtual_address, physical_address };
    let now_ps = seat.now_ps();
    seat.stall(seat.with_vcpu(|vcpu| plugin.machine.access(vcpu, now_ps, access)));
}
