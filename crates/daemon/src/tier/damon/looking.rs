//! The addresses of a node that a scan covers.

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_policy::tiering::Scan;

use nearfar_policy::tiering::segments::TieredNode;

/// Effect of a scan's pass on a node.
#[derive(Clone, Copy)]
pub(super) enum LookAt {
    Nothing,
    /// Clears the accessed bits of pages at these addresses, or of all.
    Forget(Option<AddrRange>),
    /// Counts referenced pages at these addresses, or all.
    Count(Option<AddrRange>),
}

/// The addresses that a scan clears or counts (`then`): by age, of near nodes those that demotion covered last; else
/// all.
pub(super) fn looked_at(
    look: Scan,
    then: fn(Option<AddrRange>) -> LookAt,
) -> impl Fn(&TieredNode, bool) -> LookAt {
    move |node, near| match (near && look.by_age, node.covered()) {
        (false, _) => then(None),
        (true, Some(behind)) => then(Some(behind)),
        (true, None) => LookAt::Nothing,
    }
}
