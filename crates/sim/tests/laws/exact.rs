//! Exact mean value analysis: networks worked out by hand, symmetries, and the error of the approximate solver.

use nearfar_sim::flow::exact::{Inexact, flow, solve};
use nearfar_sim::flow::network::{self, Class, Station};
use nearfar_sim::machine::Waiting;
use proptest::prelude::*;

use crate::machines::{CURVE, class, close, ring};

fn station(service_ns: f64) -> Station {
    Station { service_ns, waiting: Waiting::Queue, background: 0.0, with_access: 0.0 }
}

#[test]
fn two_lines_queue_with_the_probability_that_one_is_in_service() {
    let (service, base) = (10.0, 60.0);
    // One line is in service for 10 of 60 ns, so the other waits 10 / 6 ns on average.
    let found = solve(&[station(service)], &[class(2.0, base, &[1.0])]).unwrap();
    assert!(close(found.wait_ns[0][0], 10.0 / 6.0, 1e-12), "{found:?}");
    assert!(close(found.per_ns[0], 2.0 / (60.0 + 10.0 / 6.0), 1e-12), "{found:?}");
    // Three: the queue of two is 2 (10 + 10 / 6) / (60 + 10 / 6).
    let queue = 2.0 * (10.0 + 10.0 / 6.0) / (60.0 + 10.0 / 6.0);
    let found = solve(&[station(service)], &[class(3.0, base, &[1.0])]).unwrap();
    assert!(close(found.wait_ns[0][0], 10.0 * queue, 1e-12), "{found:?}");
}

#[test]
fn a_single_line_never_waits_and_two_classes_of_one_line_do() {
    let one = solve(&[station(10.0)], &[class(1.0, 60.0, &[1.0])]).unwrap();
    assert!(close(one.per_ns[0], 1.0 / 60.0, 1e-12) && one.wait_ns[0][0].abs() < 1e-12);
    let two = vec![class(1.0, 60.0, &[1.0]), class(1.0, 60.0, &[1.0])];
    let two = solve(&[station(10.0)], &two).unwrap();
    assert!(close(two.wait_ns[0][0], 10.0 / 6.0, 1e-12), "{two:?}");
}

#[test]
fn a_balanced_network_without_delay_matches_the_closed_form() {
    // A balanced network: throughput is N / (s (N + M - 1)), where each line visits each of M stations once.
    for (lines, count) in [(1.0, 3_usize), (5.0, 3), (12.0, 4)] {
        let stations = vec![station(7.0); count];
        let visits = vec![1.0; count];
        let more = f64::from(u32::try_from(count).unwrap());
        let found = solve(&stations, &[class(lines, 7.0 * more, &visits)]).unwrap();
        assert!(close(found.per_ns[0], lines / (7.0 * (lines + more - 1.0)), 1e-12), "{found:?}");
    }
}

#[test]
fn asynchronous_lines_use_capacity_of_a_station() {
    let probed = Station { with_access: 0.5, ..station(4.0) };
    let found = solve(&[probed], &[class(3.0, 100.0, &[1.0])]).unwrap();
    let plain = solve(&[station(4.0)], &[class(3.0, 100.0, &[1.0])]).unwrap();
    assert!(found.settled && found.per_ns[0] < plain.per_ns[0], "{found:?}");
    assert!(close(found.utilisation[0], 4.0 * 1.5 * found.per_ns[0], 1e-9), "{found:?}");
}

#[test]
fn fractional_lines_curves_and_large_populations_are_rejected() {
    let one = class(1.0, 60.0, &[1.0]);
    let part = Class { lines: 1.5, ..one.clone() };
    assert_eq!(solve(&[station(1.0)], &[part]), Err(Inexact::Part(1.5)));
    let curve = Station { waiting: CURVE, ..station(1.0) };
    assert_eq!(solve(&[curve], std::slice::from_ref(&one)), Err(Inexact::Curve(0)));
    for lines in [1e7, 1e300] {
        let large = Class { lines, ..one.clone() };
        assert_eq!(solve(&[station(1.0)], &[large]), Err(Inexact::Large));
    }
}

#[test]
fn the_exact_solution_of_a_machine_matches_its_stations() {
    let demand = |row| nearfar_sim::flow::Demand {
        row,
        lines: 4.0,
        think_ns: 20.0,
        reads: 1.0,
        shares: vec![0.7, 0.1, 0.1, 0.1],
    };
    let demands: Vec<_> = (0..4).map(demand).collect();
    let machine = ring(4, &[8.0]);
    let exact = flow(&machine, &demands).unwrap();
    let about = nearfar_sim::flow::solve(&machine, &demands, &[]);
    for (exact, about) in exact.served.iter().zip(&about.served) {
        let ratio = about.latency_ns / exact.latency_ns;
        assert!(ratio > 1.0 && ratio < 1.08, "the approximation waits a little too long: {ratio}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn classes_alike_are_one_class_with_the_lines_of_all(service in 0.5f64..30.0, a in 1u32..6, b in 1u32..6, base in 30.0f64..400.0) {
        let stations = [station(service), station(0.5 * service)];
        let of = |lines: u32| class(f64::from(lines), base, &[0.6, 0.4]);
        let two = solve(&stations, &[of(a), of(b)]).unwrap();
        let one = solve(&stations, &[of(a + b)]).unwrap();
        prop_assert!(close(two.per_ns[0] + two.per_ns[1], one.per_ns[0], 1e-9));
        prop_assert!(close(two.per_ns[0] * f64::from(b), two.per_ns[1] * f64::from(a), 1e-9));
    }

    #[test]
    fn the_approximation_is_within_15_per_cent_of_the_exact_solution(service in 0.5f64..30.0, lines in 1u32..30, base in 30.0f64..400.0) {
        let of = [class(f64::from(lines), base, &[1.0])];
        let exact = solve(&[station(service)], &of).unwrap().per_ns[0];
        let about = network::solve(&[station(service)], &of).per_ns[0];
        prop_assert!(about <= exact * (1.0 + 1e-9), "it never has more throughput: {about} {exact}");
        prop_assert!(about > 0.85 * exact, "{about} {exact}");
    }

    #[test]
    fn throughput_is_between_the_bounds_of_a_balanced_network_and_of_the_bottleneck(services in prop::collection::vec(0.5f64..30.0, 2..5), lines in 1u32..20, think in 0.0f64..200.0) {
        let stations: Vec<Station> = services.iter().map(|ns| station(*ns)).collect();
        let (sum, most) = (services.iter().sum::<f64>(), services.iter().copied().fold(0.0, f64::max));
        let of = Class { think_ns: think, ..class(f64::from(lines), sum, &vec![1.0; services.len()]) };
        let found = solve(&stations, &[of]).unwrap().per_ns[0];
        let n = f64::from(lines);
        // At best nobody waits, at worst every line waits for all others at every station.
        prop_assert!(found <= (n / (think + sum)).min(1.0 / most) * (1.0 + 1e-9));
        prop_assert!(found >= n / (think + sum * n) * (1.0 - 1e-9));
    }

    #[test]
    fn each_additional_line_adds_less_throughput(service in 0.5f64..30.0, base in 30.0f64..400.0, other in 0u32..5) {
        let stations = [station(service), station(0.7 * service)];
        let per_ns = |lines: u32| {
            let others = class(f64::from(other), base, &[0.3, 0.7]);
            solve(&stations, &[class(f64::from(lines), base, &[1.0, 0.4]), others]).unwrap().per_ns[0]
        };
        let found: Vec<f64> = (0..8).map(per_ns).collect();
        let added: Vec<f64> = found.windows(2).map(|pair| pair[1] - pair[0]).collect();
        prop_assert!(added.iter().all(|more| *more > 0.0), "{found:?}");
        prop_assert!(added.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-9)), "{added:?}");
    }

    #[test]
    fn the_order_of_classes_and_of_stations_does_not_matter(a in 1u32..6, b in 1u32..6, base in 60.0f64..400.0) {
        let stations = [station(5.0), station(12.0)];
        let [one, other] = [class(f64::from(a), base, &[1.0, 0.2]), class(f64::from(b), base, &[0.1, 0.9])];
        let plain = solve(&stations, &[one.clone(), other.clone()]).unwrap();
        let turned = |of: &Class| Class { visits: of.visits.iter().rev().copied().collect(), ..of.clone() };
        let found = solve(&[station(12.0), station(5.0)], &[turned(&other), turned(&one)]).unwrap();
        prop_assert!(close(plain.per_ns[0], found.per_ns[1], 1e-9) && close(plain.per_ns[1], found.per_ns[0], 1e-9));
        prop_assert!(close(plain.utilisation[0], found.utilisation[1], 1e-9));
    }
}
