//! The software queue behind a file: the other end of a pipe or socket to which a driver writes descriptors.
//!
//! It reads whole descriptors and hands them to a [`SoftwareDevice`] of the same process: addresses mean the same to both.
//! When the device is full it stops reading; when the pipe is full too, the writer learns that the queue is.
#![expect(unsafe_code, reason = "descriptors are read from a file and believed")]

use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use super::device::SoftwareDevice;
use crate::copy::dsa::format::{DESCRIPTOR_BYTES, Descriptor};

/// Starts a thread that reads from `file`, which blocks, until the other end is closed.
///
/// # Safety
/// What is written to the other end are descriptors, written by this process, under the terms of
/// [`Submit::submit`](crate::copy::dsa::Submit::submit).
pub unsafe fn serve_pipe(file: OwnedFd, device: &SoftwareDevice) -> JoinHandle<()> {
    let device = device.clone();
    thread::spawn(move || serve(&file, &device))
}

fn serve(file: &OwnedFd, device: &SoftwareDevice) {
    let mut bytes = [0; 4096];
    loop {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut bytes));
        let Ok(read @ 1..) = read else { return };
        let chunks = bytes[..read].as_chunks::<DESCRIPTOR_BYTES>().0;
        let descriptors: Vec<Descriptor> = chunks.iter().map(Descriptor::from_bytes).collect();
        let mut rest = &descriptors[..];
        while !rest.is_empty() {
            // SAFETY: the promise of `serve_pipe`: whoever wrote them keeps to it.
            match unsafe { device.take(rest) } {
                Ok(0) if device.wait_for_room() => {}
                Ok(0) | Err(_) => return,
                Ok(taken) => rest = &rest[taken..],
            }
        }
    }
}
