//! Plans and results for tests.

use super::plan::{Besides, Length, Loop, Plan};
use super::results::{Asking, Found};
use super::spec::{Shape, Spec, Workload};
use super::tally::Kind;

/// Two threads, no rate, values verified; over a thousand keys, unless it is a trace.
pub(crate) fn plan(workload: &str, mix: Option<&str>, operations: u64) -> Plan {
    let spec: Spec = workload.parse().unwrap();
    let mix = mix.map(|mix| mix.parse().unwrap());
    let keys = (!workload.starts_with("trace:")).then_some(1000);
    let shape = Shape { keys, mix, ..Shape::default() };
    let workload = Workload::load(&spec, shape, 1).unwrap();
    let length = Length { seconds: None, warm_up: 0.0, operations: Some(operations) };
    let besides = Besides { preload: false, verify: true };
    let pace = Loop::Closed;
    Plan { spec, workload, seed: 1, threads: 2, pace, length, besides, server: None }
}

/// The same for a server.
pub(crate) fn asked(plan: Plan, depth: u32, multiget: u32) -> Plan {
    Plan { server: Some(Asking { connections: 1, depth, multiget }), ..plan }
}

/// Operations of a kind, and the number of them that found their key.
pub(crate) fn of(found: &Found, kind: Kind) -> (u64, u64) {
    let of = found.kinds.iter().find(|of| of.kind == kind);
    of.map_or((0, 0), |of| (of.operations, of.found))
}
