// SPDX-License-Identifier: GPL-2.0-or-later
//! Control of the guest's clock: two function slots in a class of QEMU's that plain TCG leaves empty.
//!
//! QEMU asks its accelerator for the virtual clock and for the time-stamp counter, if the accelerator has a function
//! for that, and otherwise shows real time. The plugin interface offers no way to set the clock that works under TCG,
//! but Debian's QEMU exports the functions that its own modules need, which suffices: the class is found by name. Each
//! slot is found by putting our function into one empty slot after the other until QEMU, asked for its time, calls it.
//! Nothing is assumed about the order of the slots. A missing function or slot is reported, and the caller falls back
//! to real waits.
//!
//! The functions are looked up when QEMU loads the plugin. The slots can be probed only once the accelerator is active,
//! which is when the first vCPU appears. QEMU announces that with its big lock held, before the vCPU has run; every
//! user of those slots holds the same lock, so no other thread reads them during the probe.
#![expect(unsafe_code, reason = "calls and changes QEMU's internals")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// QEMU's number for its virtual clock.
const VIRTUAL_CLOCK: c_int = 1;
/// All timers, whatever their attributes.
const ALL_TIMERS: c_int = -1;
/// A class begins with its parent's dozen words, and this one has never had more than 32 of its own.
const SLOTS: std::ops::Range<usize> = 12..44;

type ClassByName = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Getter = unsafe extern "C" fn() -> i64;
type Deadline = unsafe extern "C" fn(c_int, c_int) -> i64;
type Notify = unsafe extern "C" fn(c_int);

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn malloc_usable_size(block: *mut c_void) -> usize;
}

/// A function that QEMU calls for the time, in nanoseconds.
pub(crate) type ShowTime = extern "C" fn() -> i64;

/// QEMU's functions for the guest's clock.
#[derive(Clone, Copy)]
pub(crate) struct Internals {
    class_by_name: ClassByName,
    clock: Getter,
    ticks: Getter,
    deadline: Deadline,
    notify: Notify,
}

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// A placeholder that is installed while slots are probed: it only records that it was called.
extern "C" fn take_note() -> i64 {
    ASKED.set(true);
    0
}

/// Looks up an exported function of this process, as a pointer of type `F`.
///
/// # Safety
/// `F` is a function pointer type, and the one of that function.
pub(crate) unsafe fn function<F: Copy>(name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a null handle (RTLD_DEFAULT) searches all loaded objects; `name` is a C string.
    let address = unsafe { dlsym(ptr::null_mut(), name.as_ptr()) };
    if address.is_null() {
        return Err(format!("this QEMU does not export {}", name.to_string_lossy()));
    }
    // SAFETY: not null, of the same size, and by the caller's promise of that type.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

impl Internals {
    /// Looks up the functions.
    ///
    /// # Errors
    /// The name of the function that this QEMU lacks.
    pub(crate) fn look_up() -> Result<Self, String> {
        // SAFETY: every QEMU that exports this function has it with this type; likewise the four below.
        let class_by_name: ClassByName = unsafe { function(c"object_class_by_name") }?;
        // SAFETY: as above.
        let clock: Getter = unsafe { function(c"cpus_get_virtual_clock") }?;
        // SAFETY: as above.
        let ticks: Getter = unsafe { function(c"cpus_get_elapsed_ticks") }?;
        // SAFETY: as above.
        let deadline: Deadline = unsafe { function(c"qemu_clock_deadline_ns_all") }?;
        // SAFETY: as above.
        let notify: Notify = unsafe { function(c"qemu_clock_notify") }?;
        Ok(Self { class_by_name, clock, ticks, deadline, notify })
    }

    /// Makes QEMU call `show` for the virtual clock and the time-stamp counter; the module's head states when this may
    /// be called.
    ///
    /// # Errors
    /// The part that this QEMU lacks; then nothing is changed.
    pub(crate) fn take_over(self, show: ShowTime) -> Result<(), String> {
        // SAFETY: looks a class up by its name.
        let class = unsafe { (self.class_by_name)(c"tcg-accel-ops".as_ptr()) };
        if class.is_null() {
            return Err("this QEMU has no class tcg-accel-ops".to_owned());
        }
        let slots = Slots::of(class);
        // The first getter works without an accelerator, the second does not: once the first has called our function,
        // this class is known to be the active one.
        let clock =
            slots.find(self.clock).ok_or("its virtual clock is not asked of tcg-accel-ops")?;
        let ticks =
            slots.find(self.ticks).ok_or("its tick counter is not asked of tcg-accel-ops")?;
        clock.store(show as *mut c_void, Ordering::Release);
        ticks.store(show as *mut c_void, Ordering::Release);
        Ok(())
    }

    /// The virtual clock as QEMU shows it.
    pub(crate) fn shown_ns(self) -> i64 {
        // SAFETY: reads a clock.
        unsafe { (self.clock)() }
    }

    /// Nanoseconds until the next timer of the guest's devices is due, by the virtual clock as the caller sees it;
    /// negative if there is none.
    pub(crate) fn due_ns(self) -> i64 {
        // SAFETY: takes the locks it needs itself, and none while it asks for the time; the list of timer lists does
        // not change once the guest runs.
        unsafe { (self.deadline)(VIRTUAL_CLOCK, ALL_TIMERS) }
    }

    /// Makes QEMU's main loop check its timers.
    pub(crate) fn wake_main_loop(self) {
        // SAFETY: may be called from any thread; as above for the list.
        unsafe { (self.notify)(VIRTUAL_CLOCK) }
    }
}

/// The words of a class.
struct Slots(&'static [AtomicPtr<c_void>]);

impl Slots {
    fn of(class: *mut c_void) -> Self {
        // SAFETY: QEMU allocates classes with the C library's malloc and never frees them.
        let bytes = unsafe { malloc_usable_size(class) };
        let words = (bytes / size_of::<*mut c_void>()).min(SLOTS.end);
        // SAFETY: the block has at least that many words, aligned, and no other thread changes them (head of this
        // file).
        Self(unsafe { std::slice::from_raw_parts(class.cast::<AtomicPtr<c_void>>(), words) })
    }

    /// The empty slot that `getter` uses. Leaves all slots as they were.
    fn find(&self, getter: Getter) -> Option<&'static AtomicPtr<c_void>> {
        self.0.iter().skip(SLOTS.start).find(|slot| {
            let vacant = slot.load(Ordering::Acquire).is_null();
            vacant && {
                ASKED.set(false);
                slot.store(take_note as ShowTime as *mut c_void, Ordering::Release);
                // SAFETY: reads a clock.
                unsafe { getter() };
                slot.store(ptr::null_mut(), Ordering::Release);
                ASKED.get()
            }
        })
    }
}
