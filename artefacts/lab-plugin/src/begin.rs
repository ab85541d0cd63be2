// SPDX-License-Identifier: GPL-2.0-or-later
//! The end of the boot: until the lab says that the guest is up, instructions alone take time.
//!
//! Problem: emulating memory more than doubles the time of a boot, and nobody measures one. Approach: while the guest
//! boots, translated code only counts instructions; then all translations are discarded, and code is translated again
//! with its memory accesses. Limit: the caches of the model are empty at that time.
#![expect(unsafe_code, reason = "calls QEMU's plugin interface")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::api::{self, PluginId};
use crate::callbacks;

/// Memory is modelled.
const MODELLED: u8 = 0;
/// The guest boots.
const BOOTING: u8 = 1;
/// The lab has said that it is up.
const ASKED: u8 = 2;
/// Translations are being discarded.
const SWITCHING: u8 = 3;

static STAGE: AtomicU8 = AtomicU8::new(MODELLED);

/// Lets the guest boot without a model of memory until the lab says so on this socket. If nobody listens there, memory
/// is modelled from the start.
pub(crate) fn wait_for(socket: &Path) {
    let Ok(mut lab) = UnixStream::connect(socket) else { return };
    STAGE.store(BOOTING, Relaxed);
    let listen = move || {
        let mut word = [0];
        // A lab that has ended ends this process, too.
        if lab.read_exact(&mut word).is_ok() {
            STAGE.store(ASKED, Relaxed);
            // The lab starts the guest's command when this has arrived.
            let _ = lab.write_all(&word);
        }
    };
    // Without the thread the lab gets no answer, and reports that.
    let _ = std::thread::Builder::new().name("begin".to_owned()).spawn(listen);
}

/// Whether code is to be translated without its memory accesses.
pub(crate) fn is_booting() -> bool {
    STAGE.load(Relaxed) != MODELLED
}

/// Begins to model memory if the lab has asked for it; called by a vCPU's thread while the vCPU runs.
#[inline]
pub(crate) fn if_asked(id: PluginId) {
    if STAGE.load(Relaxed) == ASKED
        && STAGE.compare_exchange(ASKED, SWITCHING, Relaxed, Relaxed).is_ok()
    {
        // SAFETY: `id` is ours. QEMU stops all vCPUs, discards translations and callbacks, and then calls `on_reset`.
        unsafe { api::qemu_plugin_reset(id, on_reset) };
    }
}

extern "C" fn on_reset(id: PluginId) {
    STAGE.store(MODELLED, Relaxed);
    callbacks::register(id);
}
