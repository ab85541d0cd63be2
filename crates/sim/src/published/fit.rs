//! Least squares: parameters refitted to some of the published rows, to predict a row that is left out.
//!
//! Levenberg's and Marquardt's method on the logarithms of the parameters, which are all positive, with derivatives by
//! small steps. It starts from the parameters in use and finds the minimum next to them; a direction without
//! influence stays at the start, and one along which errors fall for ever gives no result. Not here: the rows.

/// A parameter that ends this many times above or below its start is not determined.
const APART: f64 = 4.0;
/// Most iterations; some ten suffice.
const STEPS_MAX: usize = 60;
/// Step of a logarithm for a derivative.
const SMALL: f64 = 1e-4;
/// Largest change of a logarithm in an iteration.
const FAR: f64 = 0.3;
/// The iteration ends once the sum of squares falls by less than this share,
const STILL: f64 = 1e-7;
/// or with the damping at this value.
const STIFF: f64 = 1e8;

/// The parameters with the least sum of squared `errors` next to `start`. `None` if one of them ends more than
/// [`APART`]-fold from its start: then the errors do not determine it.
pub(super) fn fit(start: &[f64], errors: &dyn Fn(&[f64]) -> Vec<f64>) -> Option<Vec<f64>> {
    let mut at: Vec<f64> = start.iter().map(|one| one.ln()).collect();
    let of = |at: &[f64]| errors(&at.iter().map(|one| one.exp()).collect::<Vec<f64>>());
    let mut now = of(&at);
    let mut damping = 1e-3;
    for _ in 0..STEPS_MAX {
        let slopes: Vec<Vec<f64>> = (0..at.len())
            .map(|which| {
                let mut beside = at.clone();
                beside[which] += SMALL;
                of(&beside).iter().zip(&now).map(|(then, now)| (then - now) / SMALL).collect()
            })
            .collect();
        let before = squares(&now);
        let mut is_done = true;
        while damping < STIFF {
            let step = step(&slopes, &now, damping);
            let there: Vec<f64> =
                at.iter().zip(&step).map(|(at, step)| at + step.clamp(-FAR, FAR)).collect();
            let then = of(&there);
            if squares(&then) < before {
                is_done = squares(&then) > before * (1.0 - STILL);
                (at, now, damping) = (there, then, damping / 5.0);
                break;
            }
            damping *= 4.0;
        }
        if is_done {
            break;
        }
    }
    let found: Vec<f64> = at.iter().map(|one| one.exp()).collect();
    let is_near = |(found, start): (&f64, &f64)| (1.0 / APART..=APART).contains(&(found / start));
    found.iter().zip(start).all(is_near).then_some(found)
}

/// The sum of squares; infinite if an error is no number.
fn squares(errors: &[f64]) -> f64 {
    let sum: f64 = errors.iter().map(|one| one * one).sum();
    if sum.is_finite() { sum } else { f64::INFINITY }
}

/// The solution of the damped normal equations.
fn step(slopes: &[Vec<f64>], errors: &[f64], damping: f64) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let count = slopes.len();
    let mut rows: Vec<Vec<f64>> = slopes
        .iter()
        .enumerate()
        .map(|(at, own)| {
            let mut row: Vec<f64> = slopes.iter().map(|other| dot(own, other)).collect();
            row[at] += damping * row[at] + 1e-9;
            row.push(-dot(own, errors));
            row
        })
        .collect();
    // Gaussian elimination; the matrix is positive definite, so no pivoting is needed.
    for pivot in 0..count {
        let lead = rows[pivot].clone();
        for row in rows.iter_mut().skip(pivot + 1) {
            let part = row[pivot] / lead[pivot];
            row.iter_mut().zip(&lead).for_each(|(cell, lead)| *cell -= part * lead);
        }
    }
    let mut found = vec![0.0; count];
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|other| rows[at][other] * found[other]).sum();
        found[at] = (rows[at][count] - known) / rows[at][at];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_curve_are_found_again_from_its_points() {
        let curve = |of: &[f64], x: f64| of[0] * x.powf(of[1]) / (1.0 + of[2] * x);
        let truth = [3.0, 1.7, 0.4];
        let points: Vec<f64> = (1..9).map(f64::from).collect();
        let errors = |of: &[f64]| {
            points.iter().map(|x| curve(of, *x) / curve(&truth, *x) - 1.0).collect::<Vec<f64>>()
        };
        let found = fit(&[1.0, 1.0, 1.0], &errors).unwrap();
        for (found, truth) in found.iter().zip(truth) {
            assert!((found / truth - 1.0).abs() < 1e-3, "{found} {truth}");
        }
    }

    #[test]
    fn parameters_that_the_errors_do_not_determine_are_not_returned() {
        assert_eq!(fit(&[1.0], &|of: &[f64]| vec![1.0 / of[0]]), None);
    }

    #[test]
    fn a_fit_keeps_parameters_without_influence_and_rejects_nan_errors() {
        let errors = |of: &[f64]| vec![if of[0] > 5.0 { f64::NAN } else { of[0] - 3.0 }];
        let found = fit(&[1.0, 7.0], &errors).unwrap();
        assert!((found[0] - 3.0).abs() < 1e-3 && (found[1] - 7.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_step_without_damping_solves_linear_errors_at_once() {
        // Errors 3 + a + b and 5 + 2 a: no error at a = -2.5, b = -0.5.
        let found = step(&[vec![1.0, 2.0], vec![1.0, 0.0]], &[3.0, 5.0], 0.0);
        assert!((found[0] + 2.5).abs() < 1e-6 && (found[1] + 0.5).abs() < 1e-6, "{found:?}");
        // Damping of 1 halves the step of a lone parameter.
        let found = step(&[vec![2.0]], &[6.0], 1.0);
        assert!((found[0] + 1.5).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_sum_of_squares_with_a_nan_is_infinite() {
        assert!((squares(&[3.0, -4.0]) - 25.0).abs() < 1e-12);
        assert!(squares(&[1.0, f64::NAN]).is_infinite() && squares(&[f64::MAX]).is_infinite());
    }
}
