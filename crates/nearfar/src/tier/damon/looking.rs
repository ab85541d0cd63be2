//! What of a node a look is at.

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_policy::tiering::Look;

use super::super::node::Watched;

/// What is done with a node in a pass that looks.
#[derive(Clone, Copy)]
pub(super) enum LookAt {
    Nothing,
    /// Its pages are forgotten to have been used: those at these addresses, or all.
    Forget(Option<AddrRange>),
    /// They are counted.
    Count(Option<AddrRange>),
}

/// Which pages of a node are forgotten or counted, as `then` says: by age, of near ones those that demotion has come by last.
pub(super) fn looked_at(
    look: Look,
    then: fn(Option<AddrRange>) -> LookAt,
) -> impl Fn(&Watched, bool) -> LookAt {
    move |node, near| match (near && look.by_age, node.behind) {
        (false, _) => then(None),
        (true, Some(behind)) => then(Some(behind)),
        (true, None) => LookAt::Nothing,
    }
}
