// SPDX-License-Identifier: GPL-2.0-or-later
//! lab-plugin: a QEMU TCG plugin that gives the guest's memory the latencies of the lab's machine.
//!
//! It only forwards: nearfar-timing decides the cost of an access, the current time and the length of waits. Here are
//! the used part of QEMU's plugin interface (`api`), two internal function slots of QEMU by which the guest's clock
//! shows modelled time (`internals`), the guest's page tables and flushes (`translation`), the callbacks (`callbacks`),
//! their shared state (`state`), the connection on which the guest requests counts and samples (`pmu`), the end of the
//! boot (`begin`), and the host's clock (`clock`). Argument: `config=FILE`, the settings described in nearfar-timing's
//! `config.rs`.
//!
//! QEMU plugins are under QEMU's licence, hence this crate is too. Built by `cargo build -p nearfar-lab-plugin
//! --profile abi`; the lab's tests, which boot guests, test it.
#![expect(unsafe_code, reason = "QEMU's plugin interface is C")]

use std::ffi::{CStr, c_char, c_int};

mod api;
mod begin;
mod callbacks;
mod clock;
mod code;
mod internals;
mod pmu;
mod state;
mod translation;

/// The version of QEMU's plugin interface this plugin is written for (QEMU 9.2 and later).
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = 4;

/// QEMU calls this when it loads the plugin, before there are vCPUs. Returns nonzero on failure.
///
/// # Safety
/// To be called by QEMU alone: `info` points to its description of itself, `argv` to `argc` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: api::PluginId,
    info: *const api::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a description that outlives this call.
    let info = unsafe { &*info };
    let arguments: Vec<String> = (0..usize::try_from(argc).unwrap_or(0))
        .map(|index| {
            // SAFETY: `argv` has `argc` entries, here and below.
            let entry = unsafe { argv.add(index) };
            // SAFETY: as above.
            let argument = unsafe { *entry };
            // SAFETY: each entry is a string that QEMU keeps while the plugin is loaded.
            unsafe { CStr::from_ptr(argument) }.to_string_lossy().into_owned()
        })
        .collect();
    match state::set_up(id, info, &arguments) {
        Ok(()) => {
            callbacks::register(id);
            0
        }
        Err(refusal) => {
            state::complain(&refusal);
            1
        }
    }
}
