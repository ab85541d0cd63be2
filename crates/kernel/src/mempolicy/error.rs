//! Reasons why the kernel refuses a policy.

use std::io;

use super::Policy;

/// A policy the kernel refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The kernel does not know the mode.
    #[error("{policy}: this kernel lacks {feature} (it needs Linux {since} or later)")]
    Unsupported {
        /// The requested policy.
        policy: Policy,
        /// The feature, as `nearfar doctor` names it.
        feature: &'static str,
        /// The first release with it.
        since: &'static str,
    },
    /// This process may not use the nodes.
    #[error(
        "{policy}: the kernel refused ({source}); no node of these has memory that this process may use (Mems_allowed_list \
         in /proc/self/status)"
    )]
    Nodes {
        /// The requested policy.
        policy: Policy,
        /// The errno.
        source: io::Error,
    },
    /// A sandbox refuses the call.
    #[error(
        "{policy}: {call} is not permitted here ({source}): a seccomp profile refuses it, as a container's default profile does; \
         allow the container CAP_SYS_NICE (docker run --cap-add SYS_NICE), or place it from outside (nearfar oci-runtime, \
         docs/containers.md)"
    )]
    Refused {
        /// The requested policy.
        policy: Policy,
        /// The call.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// Any other error.
    #[error("{policy}: {call} failed: {source}")]
    Call {
        /// The requested policy.
        policy: Policy,
        /// The call.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// The current policy is unknown to this version.
    #[error("the policy in force has the unknown mode {mode}")]
    Unknown {
        /// The number.
        mode: i32,
    },
    /// The current policy could not be read.
    #[error("can't read the memory policy: {0}")]
    Get(io::Error),
}
