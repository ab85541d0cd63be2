//! A batch: pages of one process, queried, migrated, queried again.

use libc::c_int;
use nearfar_topology::NodeId;

use super::{Calls, Done, Outcome, Owner, Request};

/// No result for a page: no node, and no errno.
const UNSAID: c_int = c_int::MIN;

/// A page to be migrated.
struct Going {
    /// Its index among the requests, and its address.
    index: usize,
    address: usize,
    to: c_int,
}

/// Migrates pages, all of `owner`'s; returns the outcome of each, and the number of calls.
pub(super) fn carry_out(
    calls: &mut impl Calls,
    owner: &Owner,
    requests: &[Request],
) -> (Vec<Done>, u64) {
    let all = |request: &Request| Done { request: *request, from: None, outcome: Outcome::Absent };
    let mut done: Vec<Done> = requests.iter().map(all).collect();
    if !owner.is_same() {
        done.iter_mut().for_each(|one| one.outcome = Outcome::Gone);
        return (done, 0);
    }
    let mut going = set_out(calls, owner, &mut done);
    // Pages for one node form one group, with one TLB flush.
    going.sort_by_key(|page| (page.to, page.address));
    let mut made = 0;
    let mut rest = going.as_slice();
    let mut doubtful = Vec::new();
    while !rest.is_empty() {
        made += 1;
        let behind = attempt(calls, owner, rest, &mut |page, outcome| {
            done[page.index].outcome = outcome;
            if outcome.passes() {
                doubtful.push((page.index, page.address, page.to));
            }
        });
        rest = rest.get(behind..).unwrap_or_default();
    }
    look_again(calls, owner, &doubtful, &mut done);
    if made > 0 && !owner.is_same() {
        let left = done.iter_mut().filter(|one| one.outcome != Outcome::Moved);
        left.for_each(|one| one.outcome = Outcome::Gone);
    }
    (done, made)
}

/// Queries the nodes of pages; returns those that are elsewhere and may migrate.
fn set_out(calls: &mut impl Calls, owner: &Owner, done: &mut [Done]) -> Vec<Going> {
    let allowed = calls.allowed(owner);
    let mut asked: Vec<(usize, usize)> = Vec::new();
    for (index, one) in done.iter_mut().enumerate() {
        // Without knowledge of the allowed nodes nothing is migrated.
        if !allowed.as_ref().is_some_and(|nodes| nodes.contains(one.request.to)) {
            one.outcome = Outcome::NotAllowed;
        } else if let Some(address) = one.request.address() {
            asked.push((index, address));
        }
    }
    let addresses: Vec<usize> = asked.iter().map(|(_, address)| *address).collect();
    let mut status = vec![UNSAID; addresses.len()];
    if let Err(error) = calls.places(owner, &addresses, &mut status) {
        let outcome = of_call(error.raw_os_error());
        asked.iter().for_each(|(index, _)| done[*index].outcome = outcome);
        return Vec::new();
    }
    let mut going = Vec::new();
    for ((index, address), place) in asked.into_iter().zip(status) {
        let one = &mut done[index];
        let Some(from) = u16::try_from(place).ok().map(NodeId) else {
            one.outcome = of_page(place);
            continue;
        };
        one.from = Some(from);
        if from == one.request.to {
            one.outcome = Outcome::There;
        } else if one.request.from.is_some_and(|wanted| wanted != from) {
            one.outcome = Outcome::Elsewhere;
        } else {
            going.push(Going { index, address, to: c_int::from(one.request.to.0) });
        }
    }
    going
}

/// Makes one call; returns the number of `pages`, from the first on, with a final outcome. At least one.
fn attempt(
    calls: &mut impl Calls,
    owner: &Owner,
    pages: &[Going],
    settle: &mut impl FnMut(&Going, Outcome),
) -> usize {
    let addresses: Vec<usize> = pages.iter().map(|page| page.address).collect();
    let nodes: Vec<c_int> = pages.iter().map(|page| page.to).collect();
    let mut status = vec![UNSAID; pages.len()];
    let said = calls.go(owner, &addresses, &nodes, &mut status);
    let why = match &said {
        // Nothing more is known about the pages left.
        Ok(_) => Outcome::Unmoved,
        Err(error) => of_call(error.raw_os_error()),
    };
    let mut settled = 0;
    let mut failed = None;
    for (page, status) in pages.iter().zip(status) {
        let outcome = match status {
            // The group that failed; one page of the next, also without a result, may follow it directly.
            UNSAID if failed.is_none_or(|to| to == page.to) => {
                failed = Some(page.to);
                why
            }
            UNSAID => break,
            node if node == page.to => Outcome::Moved,
            node if node >= 0 => Outcome::Unmoved,
            errno => of_page(errno),
        };
        settled += 1;
        settle(page, outcome);
        // Pages after the failed group were not attempted.
        if failed.is_some() && status != UNSAID {
            break;
        }
    }
    settled.max(1)
}

/// Pages that were busy or left may have been migrated nevertheless: with the huge page that contains them, or before
/// the call gave up.
fn look_again(
    calls: &mut impl Calls,
    owner: &Owner,
    doubtful: &[(usize, usize, c_int)],
    done: &mut [Done],
) {
    let addresses: Vec<usize> = doubtful.iter().map(|(_, address, _)| *address).collect();
    let mut status = vec![UNSAID; addresses.len()];
    if addresses.is_empty() || calls.places(owner, &addresses, &mut status).is_err() {
        return;
    }
    for ((index, _, to), place) in doubtful.iter().zip(status) {
        if place == *to {
            done[*index].outcome = Outcome::Moved;
        }
    }
}

/// The outcome for an errno of a page.
fn of_page(status: c_int) -> Outcome {
    match -status {
        libc::EACCES => Outcome::Shared,
        libc::EBUSY | libc::EAGAIN => Outcome::Busy,
        libc::ENOMEM => Outcome::Full,
        // EFAULT: a page of zeros, or no mapping; ENOENT: no page.
        _ => Outcome::Absent,
    }
}

/// The outcome of pages without a result, for an errno of the whole call.
fn of_call(errno: Option<c_int>) -> Outcome {
    match errno {
        Some(libc::ENOMEM) => Outcome::Full,
        Some(libc::ESRCH) => Outcome::Gone,
        Some(libc::EPERM) => Outcome::Denied,
        Some(libc::EACCES | libc::ENODEV) => Outcome::NotAllowed,
        _ => Outcome::Unmoved,
    }
}
