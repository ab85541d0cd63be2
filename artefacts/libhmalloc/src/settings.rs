//! What is in force: where memory comes from, and where mappings go.
//!
//! Settings are never changed and never freed. `update_env` makes new ones, or takes up those that were made for the same
//! before, and one pointer says which are in force: no function ever waits for another thread or, in a child of fork, for one
//! that is no more. So there are as many settings and kinds as there were different things to ask for; kinds may have
//! live memory, and stay.
#![expect(unsafe_code, reason = "settings are shared by a pointer")]

use core::ffi::c_int;
use core::ptr::{self, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::io::Write as _;
use std::iter;

use crate::nearfar::{self, Kind};
use crate::policy::Policy;
use crate::variables::{self, Refused};

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// libc.
    Libc,
    /// A kind of libnearfar's.
    Pool(Kind),
    /// Nowhere: what was asked for can't be had, and this errno says why.
    Nowhere(c_int),
}

/// What the variables came to.
#[derive(Debug)]
pub(crate) struct Settings {
    pool: bool,
    pub(crate) source: Source,
    /// Where mappings go, and the pool's memory; an errno if what was asked for can't be had.
    pub(crate) policy: Result<Option<Policy>, c_int>,
    made_before: Option<&'static Settings>,
}

/// Those in force.
static NOW: AtomicPtr<Settings> = AtomicPtr::new(null_mut());
/// Those made last; each knows the ones made before it.
static MADE: AtomicPtr<Settings> = AtomicPtr::new(null_mut());

/// Reads the variables as the library is loaded, so that what the program does to them later changes nothing.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Err(refused) = take().1 else { return };
    let what = if variables::pool() { "hmalloc and hmmap fail" } else { "hmmap fails" };
    // All that the program sees is an errno; who started it needs the words. Later, standard error may be another file.
    let _ = writeln!(std::io::stderr(), "hmalloc: {}; {what}", refused.words);
}

/// The settings in force.
#[inline]
pub(crate) fn now() -> &'static Settings {
    // Other libraries may allocate before this one is told that it is loaded.
    at(&NOW).unwrap_or_else(|| take().0)
}

fn at(place: &AtomicPtr<Settings>) -> Option<&'static Settings> {
    // SAFETY: null, or settings, which are never freed and don't change once they are known.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

/// Puts in force what the variables say. What is refused is in force, too: as errors.
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
        // Without the pool a policy is for mappings alone.
        Err(_) if !pool => Source::Libc,
        Err(refused) => Source::Nowhere(refused.errno),
    };
    let same = made().find(|old| old.pool == pool && old.source == source && old.policy == policy);
    let now = same.unwrap_or_else(|| keep(Settings { pool, source, policy, made_before: None }));
    NOW.store(ptr::from_ref(now).cast_mut(), Ordering::Release);
    (now, found.map(|_| ()))
}

/// The kind with a policy: a new one only if there is none yet.
fn kind_for(policy: Option<&Policy>) -> Result<Kind, Refused> {
    let known = made().find_map(|old| match (old.source, &old.policy) {
        (Source::Pool(kind), Ok(has)) if has.as_ref() == policy => Some(kind),
        _ => None,
    });
    // A kind of its own without a policy, too: so its memory is told from libc's.
    known.map_or_else(|| nearfar::kind(&policy.map_or("default".into(), Policy::kind)), Ok)
}

fn made() -> impl Iterator<Item = &'static Settings> {
    iter::successors(at(&MADE), |settings| settings.made_before)
}

/// Makes settings known; two threads at once may make the same, which does no harm.
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
