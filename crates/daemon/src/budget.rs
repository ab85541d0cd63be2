//! Budgets of near memory: keeps the memory of cgroups on near nodes within limits, by migrating their pages.
//!
//! A budget names a cgroup and the most (`near_max`) and least (`near_min`) near memory that it and its descendants are to
//! have. Ten times a second the service reads how much each has (`memory.numa_stat`), asks the policy
//! (`nearfar_policy::budget`) and migrates pages of the cgroup's own processes by move_pages(2): those that the kernel
//! regards as idle first ([`pages`]). Other cgroups are never touched.
//!
//! Budgets come from the command line and, if asked for, from extended attributes of the cgroups themselves
//! (`user.nearfar.near_max`, `user.nearfar.near_min`; cgroup version 2). A container runtime can set these, and they end
//! with the cgroup: nothing is left to be removed ([`groups`]).
//!
//! It runs in place of the loop of [`crate::tier`], under the same claim. Limits: page cache that no process maps can't
//! be migrated by this call; it counts, and the status reports it. Programs allocate before the
//! service sees it: a group that allocates more than 2 % of its limit within a tenth of a second exceeds it that long.

pub mod groups;
pub mod pages;
pub mod service;
pub mod state;
