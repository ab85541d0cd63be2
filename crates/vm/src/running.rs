//! Memory of a running QEMU: its backends, the placement that was requested for each, and the one it has.
//!
//! QEMU's monitor ([`qmp`]) reports requests: `query-memdev` has the options that a backend was created with, even if the
//! kernel has bound its memory to fewer nodes (it drops absent ones silently), or QEMU was given others later. The
//! kernel reports facts: the policy and the nodes of the mappings of QEMU's process. Both are joined by the host
//! address of each block of guest memory ([`blocks`]) and compared ([`verify`]). [`list`] finds virtual machines, [`resize`] changes the size of a virtio-mem device, and with it the share of a tier.
//!
//! Not here: starting a virtual machine.

pub mod blocks;
pub mod list;
pub mod machine;
pub mod qmp;
pub mod resize;
pub mod verify;
