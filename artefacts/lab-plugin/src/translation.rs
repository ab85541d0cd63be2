// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest's address translation as the model needs it: its page tables, and the instructions that change it.
//!
//! The plugin interface can read registers, but physical memory only from QEMU 10.2 on. So page tables are read through
//! `cpu_physical_memory_map`, which QEMU exports for its own modules: once for each 2 MiB of the guest's RAM, it gives
//! the address of that RAM in this process, where it stays. Ranges that are not plain RAM are never mapped.
#![expect(unsafe_code, reason = "reads the guest's registers and memory")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};

use nearfar_timing::config::Config;
use nearfar_timing::{Change, GuestMemory, Machine};

use crate::api;
use crate::internals::function;
use crate::state::{complain, seat};

/// Bytes that are mapped at once, as a shift.
const CHUNK_SHIFT: u32 = 21;
const CHUNK: u64 = 1 << CHUNK_SHIFT;

/// Gives the host address of guest-physical memory, and how much there is of the length asked for.
type Map = unsafe extern "C" fn(u64, *mut u64, bool) -> *mut c_void;

/// The guest's RAM.
#[derive(Debug)]
struct Ram {
    map: Map,
    ranges: Vec<(u64, u64)>,
    /// Host address of each chunk: null before it is mapped, [`UNMAPPED`] if it can't be.
    chunks: Box<[AtomicPtr<u8>]>,
}

/// A place in this process that no guest RAM is at.
static UNMAPPED: u8 = 0;

impl Ram {
    /// The RAM in the ranges of `config`.
    ///
    /// # Errors
    /// The name of the function that this QEMU lacks.
    fn new(config: &Config) -> Result<Self, String> {
        // SAFETY: every QEMU that exports this function has it with this type.
        let map: Map = unsafe { function(c"cpu_physical_memory_map") }?;
        let ranges: Vec<_> = config.ranges.iter().map(|range| (range.start, range.end)).collect();
        let end = ranges.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let chunks = usize::try_from(end >> CHUNK_SHIFT).unwrap_or(0);
        let chunks = (0..chunks).map(|_| AtomicPtr::default()).collect();
        Ok(Self { map, ranges, chunks })
    }

    #[cold]
    fn map(&self, chunk: u64) -> *mut u8 {
        let start = chunk << CHUNK_SHIFT;
        let unmapped = (&raw const UNMAPPED).cast_mut();
        if !self.ranges.iter().any(|range| range.0 <= start && start + CHUNK <= range.1) {
            return unmapped;
        }
        let mut length = CHUNK;
        // SAFETY: may be called on a vCPU's thread; it takes the locks it needs. The mapping is kept for good.
        let host = unsafe { (self.map)(start, &raw mut length, false) };
        if host.is_null() || length < CHUNK { unmapped } else { host.cast() }
    }
}

impl GuestMemory for Ram {
    fn read(&self, physical_address: u64) -> Option<u64> {
        let chunk = physical_address >> CHUNK_SHIFT;
        let known = self.chunks.get(usize::try_from(chunk).ok()?)?;
        let mut host = known.load(Relaxed);
        if host.is_null() {
            host = self.map(chunk);
            known.store(host, Relaxed);
        }
        if host.cast_const() == &raw const UNMAPPED {
            return None;
        }
        let offset = usize::try_from(physical_address & (CHUNK - 1) & !7).ok()?;
        // SAFETY: the chunk is mapped as a whole, and `offset` is within it, a multiple of 8.
        let word = unsafe { host.add(offset) };
        // SAFETY: aligned, and mapped for good; the guest's own accesses are atomic too.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) }.load(Relaxed))
    }
}

/// The machine, with page tables if it has TLBs, and the reason if they can't be read.
pub(crate) fn machine(config: Config) -> Result<(Machine, Option<String>), String> {
    if config.processor.tlb_entries == 0 {
        return Ok((Machine::new(config)?, None));
    }
    let (ram, registers) = (Ram::new(&config), Functions::get());
    let machine = Machine::new(config)?;
    match ram.and_then(|ram| registers.map(|_| ram)) {
        Ok(ram) => Ok((machine.with_guest_memory(Box::new(ram)), None)),
        Err(lack) => {
            complain(&format!("page walks cost nothing: {lack}"));
            Ok((machine, Some(lack)))
        }
    }
}

/// A GArray or GByteArray of GLib's.
#[repr(C)]
struct Array {
    data: *mut u8,
    length: c_uint,
}

/// QEMU's description of a register.
#[repr(C)]
struct Description {
    handle: *mut c_void,
    name: *const c_char,
    feature: *const c_char,
}

type GetRegisters = unsafe extern "C" fn() -> *mut Array;
type ReadRegister = unsafe extern "C" fn(*mut c_void, *mut Array) -> c_int;
type NewBytes = unsafe extern "C" fn() -> *mut Array;
type FreeBytes = unsafe extern "C" fn(*mut Array, c_int) -> *mut u8;

/// QEMU's and GLib's functions for registers.
struct Functions {
    registers: GetRegisters,
    read: ReadRegister,
    new: NewBytes,
    free: FreeBytes,
}

static FUNCTIONS: LazyLock<Option<Functions>> = LazyLock::new(|| {
    Some(Functions {
        // SAFETY: every QEMU and every GLib has these functions with these types, here and below.
        registers: unsafe { function(c"qemu_plugin_get_registers") }.ok()?,
        // SAFETY: as above.
        read: unsafe { function(c"qemu_plugin_read_register") }.ok()?,
        // SAFETY: as above.
        new: unsafe { function(c"g_byte_array_new") }.ok()?,
        // SAFETY: as above.
        free: unsafe { function(c"g_byte_array_free") }.ok()?,
    })
});

/// The error where QEMU lacks them.
const NO_REGISTERS: &str = "this QEMU shows no registers to plugins";

impl Functions {
    /// # Errors
    /// This QEMU lacks them.
    fn get() -> Result<&'static Self, String> {
        FUNCTIONS.as_ref().ok_or_else(|| NO_REGISTERS.to_owned())
    }
}

/// The registers that name pages: the general ones by number, then CR4.
const NAMES: [&CStr; 17] = [
    c"rax", c"rcx", c"rdx", c"rbx", c"rsp", c"rbp", c"rsi", c"rdi", c"r8", c"r9", c"r10", c"r11",
    c"r12", c"r13", c"r14", c"r15", c"cr4",
];
const CR4: usize = 16;
/// Bit of CR4: page tables have five levels.
const FIVE_LEVELS: u64 = 1 << 12;

/// Their handles, which are the same for all vCPUs.
static HANDLES: OnceLock<[AtomicPtr<c_void>; 17]> = OnceLock::new();

/// Looks up the registers; called as a vCPU appears.
///
/// # Errors
/// Which register or function this QEMU lacks.
pub(crate) fn look_up_registers() -> Result<(), String> {
    if HANDLES.get().is_some() {
        return Ok(());
    }
    let functions = Functions::get()?;
    // SAFETY: called on the thread of a vCPU that exists.
    let array = unsafe { (functions.registers)() };
    if array.is_null() {
        return Err(NO_REGISTERS.to_owned());
    }
    // SAFETY: a GArray of descriptions, which stays as it is; it is not freed, once in a run.
    let array = unsafe { &*array };
    // SAFETY: as above.
    let known = unsafe {
        std::slice::from_raw_parts(array.data.cast::<Description>(), array.length as usize)
    };
    let handles: [AtomicPtr<c_void>; 17] = Default::default();
    for (handle, name) in handles.iter().zip(NAMES) {
        let found = known.iter().find(|register| {
            // SAFETY: each name is a string of QEMU's, kept for good.
            !register.name.is_null() && unsafe { CStr::from_ptr(register.name) } == name
        });
        let found = found.ok_or_else(|| format!("this QEMU shows no register {name:?}"))?;
        handle.store(found.handle, Relaxed);
    }
    let _ = HANDLES.set(handles);
    Ok(())
}

/// The value of a register of the calling vCPU.
fn register(number: usize) -> Option<u64> {
    let functions = Functions::get().ok()?;
    let handle = HANDLES.get()?.get(number)?.load(Relaxed);
    // SAFETY: makes an empty array.
    let bytes = unsafe { (functions.new)() };
    // SAFETY: called in a callback that was registered to read registers; QEMU appends to the array.
    let length = unsafe { (functions.read)(handle, bytes) };
    // SAFETY: the array is ours.
    let array = unsafe { &*bytes };
    let value = (length == 8 && array.length == 8).then(|| {
        // SAFETY: eight bytes, as just checked.
        u64::from_ne_bytes(unsafe { *array.data.cast::<[u8; 8]>() })
    });
    // SAFETY: frees the array with its data; no reference to it is used any more.
    unsafe { (functions.free)(bytes, 1) };
    value
}

/// Makes an instruction report its change of translations.
pub(crate) fn watch(insn: *mut api::Insn, change: Change) {
    // The change is the user data itself, not a place.
    let data = std::ptr::without_provenance_mut(usize::try_from(change.to_bits()).unwrap_or(0));
    // SAFETY: `insn` is being translated; the callback takes `data` for a number.
    unsafe {
        api::qemu_plugin_register_vcpu_insn_exec_cb(insn, on_change, api::READS_REGISTERS, data)
    };
}

/// Called before the instruction is executed: its operands are in registers.
extern "C" fn on_change(vcpu: c_uint, data: *mut c_void) {
    let Some(seat) = seat(vcpu) else { return };
    match Change::from_bits(data.addr() as u64) {
        Change::Root(from) => {
            if let (Some(cr3), Some(cr4)) = (register(from.into()), register(CR4)) {
                seat.with_vcpu(|vcpu| vcpu.load_cr3(cr3, cr4 & FIVE_LEVELS != 0));
            }
        }
        Change::Page { base, index, scale_log2, displacement } => {
            let value = |number: Option<u8>| match number {
                None => Some(0),
                Some(number) => register(number.into()),
            };
            let page = value(base).zip(value(index)).map(|(base, index)| {
                let index = index << scale_log2;
                base.wrapping_add(index).wrapping_add_signed(displacement.into())
            });
            seat.with_vcpu(|vcpu| vcpu.flush_tlb(page));
        }
        Change::All => seat.with_vcpu(|vcpu| vcpu.flush_tlb(None)),
    }
}
