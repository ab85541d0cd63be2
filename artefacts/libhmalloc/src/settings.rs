//! The current settings: the source of memory, and the placement of mappings.
//!
//! Settings are never changed and never freed. `update_env` creates new ones, or reuses existing equal ones, and one
//! pointer selects the current ones: no function ever waits for another thread or, in a child of fork, for one that
//! does not exist. So there are as many settings and kinds as different requests; kinds may have live memory, so they
//! stay.
#![expect(unsafe_code, reason = "settings are shared by a pointer")]

use core::ffi::c_int;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::io::Write as _;
use std::iter;

use crate::nearfar::{self, Kind};
use crate::policy::Policy;
use crate::variables::{self, Refused};

/// The source of allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// libc.
    Libc,
    /// A kind of libnearfar.
    Pool(Kind),
    /// None: the request can't be satisfied, with this errno.
    Nowhere(c_int),
}

/// The settings that result from the variables.
#[derive(Debug)]
pub(crate) struct Settings {
    pool: bool,
    pub(crate) source: Source,
    /// The policy of mappings and of the pool's memory; an errno if the request can't be satisfied.
    pub(crate) policy: Result<Option<Policy>, c_int>,
    made_before: Option<&'static Settings>,
}

/// The current settings.
static NOW: AtomicPtr<Settings> = AtomicPtr::new(null_mut());
/// The settings created last; each refers to those created before it.
static MADE: AtomicPtr<Settings> = AtomicPtr::new(null_mut());

/// Reads the variables as the library is loaded, so that later changes by the program have no effect.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Err(refused) = take().1 else { return };
    let what = if variables::pool() { "hmalloc and hmmap fail" } else { "hmmap fails" };
    // The program only sees an errno; the user needs the message. Later, standard error may be another file.
    let _ = writeln!(std::io::stderr(), "hmalloc: {}; {what}", refused.words);
}

/// The settings in force.
#[inline]
pub(crate) fn now() -> &'static Settings {
    // Other libraries may allocate before this library's constructor runs.
    at(&NOW).unwrap_or_else(|| take().0)
}

fn at(place: &AtomicPtr<Settings>) -> Option<&'static Settings> {
    // SAFETY: null, or settings, which are never freed and do not change once they are published.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Applies the variables. A refused request is applied, too, as an error.
#[cold]
pub(crate) fn take() -> (&'static Settings, Result<(), Refused>) {
    let pool = variables::pool();
    let asked = variables::policy();
    let policy = asked.clone().map_err(|refused| refused.errno);
    let found = match asked {
        Err(refused) => Err(refused),
        Ok(_) if !pool => Ok(Source::Libc),
        Ok(policy) => kind_for(policy.as_ref()).map(Source::Pool),
    };
    let source = match &found {
        Ok(source) => *source,
        // Without the pool a policy only affects mappings.
        Err(_) if !pool => Source::Libc,
        Err(refused) => Source::Nowhere(refused.errno),
    };
    let same = made().find(|old| old.pool == pool && old.source == source && old.policy == policy);
    let now = same.unwrap_or_else(|| keep(Settings { pool, source, policy, made_before: None }));
    NOW.store(ptr::from_ref(now).cast_mut(), Ordering::Release);
    (now, found.map(|_| ()))
}

/// The kind with a policy, created only if it does not exist.
fn kind_for(policy: Option<&Policy>) -> Result<Kind, Refused> {
    let known = made().find_map(|old| match (old.source, &old.policy) {
        (Source::Pool(kind), Ok(has)) if has.as_ref() == policy => Some(kind),
        _ => None,
    });
    // Without a policy there is a separate kind, too, so that its memory is distinguished from libc's.
    known.map_or_else(|| nearfar::kind(&policy.map_or("default".into(), Policy::kind)), Ok)
}

fn made() -> impl Iterator<Item = &'static Settings> {
    iter::successors(at(&MADE), |settings| settings.made_before)
}

/// Publishes settings; two threads may publish equal ones, which is harmless.
fn keep(settings: Settings) -> &'static Settings {
    let settings = Box::leak(Box::new(settings));
    loop {
        settings.made_before = at(&MADE);
        let before = settings.made_before.map_or(null_mut(), |last| ptr::from_ref(last).cast_mut());
        let new = ptr::from_mut(settings);
        if MADE.compare_exchange(before, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return settings;
        }
    }
}
