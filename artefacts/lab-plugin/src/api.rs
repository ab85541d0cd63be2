// SPDX-License-Identifier: GPL-2.0-or-later
//! The part of QEMU's plugin interface, version 4, that is used; declared by hand from its documentation.
//!
//! Handles are opaque, and valid only during the callback that received them.
#![expect(unsafe_code, reason = "declares C functions")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// QEMU's identifier of a loaded plugin.
pub(crate) type PluginId = u64;
/// QEMU's description of a memory access.
pub(crate) type MemInfo = u32;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $name {
            _opaque: [u8; 0],
        }
    )* };
}

opaque! {
    /// A block of guest code during translation.
    Block
    /// An instruction in it.
    Insn
    /// The physical address of an access.
    Hwaddr
    /// Counters, an element per vCPU.
    Scoreboard
}

/// A counter in a scoreboard's elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Counter {
    pub(crate) scoreboard: *mut Scoreboard,
    pub(crate) offset: usize,
}

/// QEMU's description of itself.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    pub(crate) target_name: *const c_char,
    pub(crate) version_min: c_int,
    pub(crate) version_cur: c_int,
    pub(crate) system_emulation: bool,
    pub(crate) smp_vcpus: c_int,
    pub(crate) max_vcpus: c_int,
}

/// The callback needs no guest registers.
pub(crate) const NO_REGISTERS: c_int = 0;
/// The callback reads guest registers.
pub(crate) const READS_REGISTERS: c_int = 1;
/// Reading accesses.
pub(crate) const READS: c_int = 1;
/// Writing accesses.
pub(crate) const WRITES: c_int = 2;
/// Operation: add to a counter.
pub(crate) const ADD: c_int = 0;
/// Condition: call if a counter is at least a value.
pub(crate) const AT_LEAST: c_int = 7;

pub(crate) type OnVcpu = extern "C" fn(PluginId, c_uint);
pub(crate) type OnReset = extern "C" fn(PluginId);
pub(crate) type OnBlock = extern "C" fn(PluginId, *mut Block);
pub(crate) type OnExecution = extern "C" fn(c_uint, *mut c_void);
pub(crate) type OnAccess = extern "C" fn(c_uint, MemInfo, u64, *mut c_void);
pub(crate) type OnExit = extern "C" fn(PluginId, *mut c_void);

unsafe extern "C" {
    pub(crate) fn qemu_plugin_reset(id: PluginId, callback: OnReset);
    pub(crate) fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: OnVcpu);
    pub(crate) fn qemu_plugin_register_vcpu_idle_cb(id: PluginId, callback: OnVcpu);
    pub(crate) fn qemu_plugin_register_vcpu_resume_cb(id: PluginId, callback: OnVcpu);
    pub(crate) fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: OnBlock);
    pub(crate) fn qemu_plugin_register_atexit_cb(id: PluginId, callback: OnExit, user: *mut c_void);
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Block,
        operation: c_int,
        counter: Counter,
        amount: u64,
    );
    pub(crate) fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        block: *mut Block,
        callback: OnExecution,
        registers: c_int,
        condition: c_int,
        counter: Counter,
        amount: u64,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        callback: OnExecution,
        registers: c_int,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        callback: OnAccess,
        registers: c_int,
        accesses: c_int,
        user: *mut c_void,
    );
    pub(crate) fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub(crate) fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Insn;
    pub(crate) fn qemu_plugin_insn_data(insn: *const Insn, to: *mut c_void, length: usize)
    -> usize;
    pub(crate) fn qemu_plugin_get_hwaddr(info: MemInfo, address: u64) -> *mut Hwaddr;
    pub(crate) fn qemu_plugin_hwaddr_is_io(hwaddr: *const Hwaddr) -> bool;
    pub(crate) fn qemu_plugin_hwaddr_phys_addr(hwaddr: *const Hwaddr) -> u64;
    pub(crate) fn qemu_plugin_scoreboard_new(element: usize) -> *mut Scoreboard;
    pub(crate) fn qemu_plugin_scoreboard_find(board: *mut Scoreboard, vcpu: c_uint) -> *mut c_void;
}
