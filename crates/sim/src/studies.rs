//! Studies of controllers over time: contention in phases ([`tiers`]) and adverse conditions ([`adversaries`]).

pub mod adversaries;
pub mod tiers;
