// SPDX-License-Identifier: GPL-2.0-or-later
//! The emulated PMU's connection: receives requests over a socket whose other end is a serial port of the guest, and
//! answers them.
//!
//! QEMU listens at the socket for the guest's port; the plugin connects as soon as it does. A separate thread handles
//! requests, so that no vCPU ever waits for the guest to read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nearfar_timing::pmu::{REQUEST_MAX, Request};

use crate::clock::wait;
use crate::state::Plugin;

/// Interval and number of attempts to connect: QEMU listens before its guest runs, or there is no such port.
const AGAIN_NS: u64 = 20_000_000;
const TRIES: usize = 3_000;

/// Starts answering requests at `socket`.
pub(crate) fn serve(plugin: &'static Plugin, socket: &'static Path) {
    // Without the thread the guest finds a port that does not answer, and reports that.
    let _ = std::thread::Builder::new().name("pmu".to_owned()).spawn(move || {
        for _ in 0..TRIES {
            if let Ok(stream) = UnixStream::connect(socket) {
                let _ = answer(plugin, &stream);
                return;
            }
            wait(AGAIN_NS);
        }
    });
}

fn answer(plugin: &Plugin, mut stream: &UnixStream) -> std::io::Result<()> {
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let length = requests.by_ref().take(REQUEST_MAX as u64).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        let Some((token, request)) = std::str::from_utf8(&line).ok().and_then(Request::parse)
        else {
            continue;
        };
        stream.write_all(plugin.machine.ask_pmu(request).text(token).as_bytes())?;
    }
}
