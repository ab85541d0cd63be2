//! The state that all handles of a tier share.

use core::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use super::admit::Admission;
use super::log::Log;
use super::sets::Sets;
use super::stats::Counters;
use super::superblock::Superblock;

/// State shared by all handles.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) log: Log,
    pub(super) sets: Option<Sets>,
    pub(super) admission: Arc<Admission>,
    pub(super) counters: Arc<Counters>,
    pub(super) superblock: Mutex<Superblock>,
    pub(super) free_regions: usize,
    pub(super) now: AtomicU32,
    pub(super) closed: AtomicBool,
}
