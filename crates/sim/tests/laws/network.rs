//! The queueing network: simple networks match results that were worked out by hand.

use nearfar_sim::flow::network::{Station, solve};
use nearfar_sim::machine::Waiting;
use proptest::prelude::*;

use crate::machines::{CURVE, class, close};

fn station(service_ns: f64, waiting: Waiting) -> Station {
    Station { service_ns, waiting, background: 0.0, with_access: 0.0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // Latency without waiting holds one service, so it is not less.
    #[test]
    fn throughput_is_bounded_by_the_lines_and_by_the_station(service in 0.5f64..30.0, lines in 0.1f64..300.0, base in 30.0f64..400.0) {
        for waiting in [Waiting::Queue, CURVE] {
            let found = solve(&[station(service, waiting.clone())], &[class(lines, base, &[1.0])]);
            prop_assert!(found.per_ns[0] <= lines / base * (1.0 + 1e-9));
            prop_assert!(found.per_ns[0] <= 1.0 / service * (1.0 + 1e-6));
        }
    }

    #[test]
    fn a_station_that_nobody_visits_changes_nothing(service in 0.5f64..30.0, lines in 0.1f64..300.0, base in 20.0f64..400.0) {
        for waiting in [Waiting::Queue, CURVE] {
            let alone = solve(&[station(service, waiting.clone())], &[class(lines, base, &[1.0])]);
            let beside = solve(&[station(service, waiting.clone()), station(9.0, Waiting::Queue)], &[class(lines, base, &[1.0, 0.0])]);
            prop_assert!(close(alone.per_ns[0], beside.per_ns[0], 1e-8));
            prop_assert!(beside.utilisation[1].abs() < 1e-12);
        }
    }

    #[test]
    fn equal_classes_are_served_equally(service in 0.5f64..30.0, lines in 1.0f64..100.0, base in 20.0f64..400.0, classes in 2usize..5) {
        for waiting in [Waiting::Queue, CURVE] {
            let found = solve(&[station(service, waiting.clone())], &vec![class(lines, base, &[1.0]); classes]);
            prop_assert!(found.per_ns.iter().all(|one| close(*one, found.per_ns[0], 1e-6)), "{:?}", found.per_ns);
        }
    }

    #[test]
    fn two_equally_used_stations_are_never_slower_than_one(service in 0.5f64..30.0, lines in 2.0f64..300.0, base in 20.0f64..400.0) {
        for waiting in [Waiting::Queue, CURVE] {
            let stations = vec![station(service, waiting.clone()); 2];
            let one = solve(&stations, &[class(lines, base, &[1.0, 0.0])]).per_ns[0];
            let both = solve(&stations, &[class(lines, base, &[0.5, 0.5])]);
            prop_assert!(both.per_ns[0] >= one * (1.0 - 1e-6));
            prop_assert!(close(both.utilisation[0], both.utilisation[1], 1e-6));
        }
    }

    #[test]
    fn background_takes_its_share_of_a_station(service in 0.5f64..10.0, lines in 1.0f64..100.0, base in 20.0f64..400.0, part in 0.0f64..0.8) {
        for waiting in [Waiting::Queue, CURVE] {
            let quiet = solve(&[station(service, waiting.clone())], &[class(lines, base, &[1.0])]);
            let loaded = Station { background: part / service, ..station(service, waiting.clone()) };
            let found = solve(&[loaded], &[class(lines, base, &[1.0])]);
            prop_assert!(found.per_ns[0] <= quiet.per_ns[0] * (1.0 + 1e-6));
            prop_assert!(close(found.utilisation[0], found.per_ns[0] * service + part, 1e-6));
        }
    }

    #[test]
    fn the_wait_of_a_curve_is_its_value_at_the_utilisation(service in 0.5f64..30.0, lines in 1.0f64..300.0, base in 20.0f64..400.0, factor in 0.5f64..20.0, power in 0.5f64..5.0) {
        let curve = Waiting::Curve { factor_ns: factor, power };
        let found = solve(&[station(service, curve)], &[class(lines, base, &[1.0])]);
        let u = found.utilisation[0];
        prop_assume!(u < 0.999);
        prop_assert!(close(found.wait_ns[0][0], factor * u.powf(power) / (1.0 - u), 1e-3), "{} at {u}", found.wait_ns[0][0]);
    }
}
