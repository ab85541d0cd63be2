//! Policies by name: names and policies correspond, and a policy for two tiers refuses other machines.

use nearfar_sim::policy::{POLICIES, Policy};
use nearfar_sim::workload::Unsuited;
use proptest::prelude::*;

use crate::machines::{alike, any_machine, two_tiers};

#[test]
fn every_policy_parses_from_its_name_and_has_a_description() {
    for (name, policy, about) in POLICIES {
        assert_eq!(name.parse(), Ok(policy));
        assert_eq!(policy.name(), name);
        assert!(!about.is_empty() && !about.ends_with('.'), "{name}: {about}");
    }
}

#[test]
fn an_unknown_policy_is_rejected_with_the_list_of_policies() {
    for name in ["", "Oracle", "oracle ", "first touch"] {
        let text = name.parse::<Policy>().unwrap_err().to_string();
        assert!(text.starts_with(&format!("there is no policy {name}")), "{text}");
        assert!(POLICIES.iter().all(|(known, ..)| text.contains(known)), "{text}");
    }
}

#[test]
fn static_placements_alone_have_no_controller() {
    let without: Vec<&str> = POLICIES
        .iter()
        .filter(|(_, policy, _)| policy.controller().is_none())
        .map(|(name, ..)| *name)
        .collect();
    assert_eq!(without, ["first-touch", "interleave", "oracle"]);
}

#[test]
fn a_two_tier_controller_rejects_other_machines_by_name() {
    for policy in [Policy::Colloid, Policy::Tiering] {
        assert_eq!(policy.suits(&two_tiers(16, 16)), Ok(()));
        let error = policy.suits(&alike(2, 16)).unwrap_err();
        assert!(matches!(&error, Unsuited::Policy { policy: name, .. } if *name == policy.name()));
        let text = error.to_string();
        assert!(text.contains("machine drawn") && text.contains("of which one has CPUs"), "{text}");
    }
}

proptest! {
    #[test]
    fn other_policies_suit_any_machine(machine in any_machine()) {
        for (name, policy, _) in POLICIES {
            let is_for_tiers = matches!(policy, Policy::Colloid | Policy::Tiering);
            prop_assert!(is_for_tiers || policy.suits(&machine).is_ok(), "{}", name);
        }
    }
}
