//! The most probable coefficients for measured step times, and their uncertainty.
//!
//! Minimised over the logarithms θ of the coefficients:
//!
//! ```text
//! Σ over samples  ρ(ln(predicted / measured) / σ)  +  ½ Σ over terms ((θ - prior) / deviation)²
//! ```
//!
//! ρ is the Huber loss: quadratic up to 1.5, then linear, so that a few outliers do not dominate. The minimum
//! is found by Levenberg–Marquardt from the prior, with a fixed order of sums: the same samples give
//! bit-identical results.

use super::{Coefficients, Matrix, TERM_COUNT, Terms, Vector, predict};

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The terms of the step.
    pub terms: Terms,
    /// Its measured seconds.
    pub seconds: f64,
}

/// The prior distribution of the coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Means of the logarithms.
    pub log: Vector,
    /// Their standard deviations.
    pub deviation: Vector,
}

/// The residual from which on the Huber loss is linear, in standard deviations.
const HUBER_THRESHOLD: f64 = 1.5;
/// Number of samples that count as one independent sample, since errors of samples of the same network are
/// correlated.
const SAMPLES_PER_INDEPENDENT: f64 = 9.0;
/// Maximum number of iterations of the minimisation.
const MAX_ITERATIONS: usize = 60;
/// Maximum number of tries per iteration, each with a shorter step.
const MAX_DAMPING_TRIES: usize = 8;
/// Maximum change of a logarithm per iteration.
const MAX_LOG_STEP: f64 = 1.0;

/// Fits coefficients; `sigma` is the expected standard deviation of the log error of the model.
#[must_use]
pub fn fit(samples: &[Sample], prior: &Prior, sigma: f64) -> Coefficients {
    let mut log = prior.log;
    let mut damping = 1e-2;
    let mut current = NormalEquations::at(&log, samples, prior, sigma);
    for _ in 0..MAX_ITERATIONS {
        let mut better = None;
        for _ in 0..MAX_DAMPING_TRIES {
            let mut damped = current.curvature.clone();
            for (at, row) in damped.iter_mut().enumerate() {
                row[at] *= 1.0 + damping;
            }
            let Some(step) = solve(&damped, &current.gradient) else { break };
            let moved = std::array::from_fn(|at| log[at] - step[at].clamp(-MAX_LOG_STEP, MAX_LOG_STEP));
            let state = NormalEquations::at(&moved, samples, prior, sigma);
            if state.objective < current.objective {
                better = Some((moved, state));
                break;
            }
            damping *= 5.0;
        }
        let Some((moved, state)) = better else { break };
        let gained = current.objective - state.objective;
        (log, current) = (moved, state);
        damping = f64::max(damping / 5.0, 1e-8);
        if gained < 1e-6 * current.objective {
            break;
        }
    }
    Coefficients { log, covariance: covariance(&current, prior) }
}

/// The inverse of the curvature, with samples weighted by 1 / [`SAMPLES_PER_INDEPENDENT`].
fn covariance(state: &NormalEquations, prior: &Prior) -> Box<Matrix> {
    let mut curvature = state.curvature.clone();
    for (at, row) in curvature.iter_mut().enumerate() {
        let prior_weight = prior.deviation[at].powi(-2);
        row[at] -= prior_weight;
        row.iter_mut().for_each(|entry| *entry /= SAMPLES_PER_INDEPENDENT);
        row[at] += prior_weight;
    }
    let mut inverse = Box::new([[0.0; TERM_COUNT]; TERM_COUNT]);
    for column in 0..TERM_COUNT {
        let mut unit = [0.0; TERM_COUNT];
        unit[column] = 1.0;
        // The prior makes the matrix positive definite.
        if let Some(solved) = solve(&curvature, &unit) {
            for row in 0..TERM_COUNT {
                inverse[row][column] = solved[row];
            }
        }
    }
    inverse
}

/// The objective at a point, with its gradient and Gauss–Newton curvature.
struct NormalEquations {
    objective: f64,
    gradient: Vector,
    curvature: Box<Matrix>,
}

impl NormalEquations {
    fn at(log: &Vector, samples: &[Sample], prior: &Prior, sigma: f64) -> Self {
        let mut state = NormalEquations {
            objective: 0.0,
            gradient: [0.0; TERM_COUNT],
            curvature: Box::new([[0.0; TERM_COUNT]; TERM_COUNT]),
        };
        for sample in samples {
            let (seconds, gradient) = predict(log, &sample.terms);
            let residual = (seconds / sample.seconds).ln();
            let off = residual.abs() / sigma;
            let (objective, weight) = if off < HUBER_THRESHOLD {
                (0.5 * off * off, 1.0)
            } else {
                (HUBER_THRESHOLD * (off - 0.5 * HUBER_THRESHOLD), HUBER_THRESHOLD / off)
            };
            let weight = weight / (sigma * sigma);
            state.objective += objective;
            for row in 0..TERM_COUNT {
                let scaled = weight * gradient[row];
                state.gradient[row] += scaled * residual;
                for (entry, part) in state.curvature[row][..=row].iter_mut().zip(&gradient) {
                    *entry += scaled * part;
                }
            }
        }
        for (row, value) in log.iter().enumerate() {
            let off = (value - prior.log[row]) / prior.deviation[row];
            state.objective += 0.5 * off * off;
            state.gradient[row] += off / prior.deviation[row];
            state.curvature[row][row] += prior.deviation[row].powi(-2);
            for column in 0..row {
                state.curvature[column][row] = state.curvature[row][column];
            }
        }
        state
    }
}

/// Solves `a x = b` by Cholesky decomposition; `None` if `a` is not positive definite.
fn solve(a: &Matrix, b: &Vector) -> Option<Vector> {
    let mut lower = Box::new([[0.0; TERM_COUNT]; TERM_COUNT]);
    for row in 0..TERM_COUNT {
        for column in 0..=row {
            let mut rest = a[row][column];
            for inner in 0..column {
                rest -= lower[row][inner] * lower[column][inner];
            }
            if row == column {
                if !(rest > 0.0 && rest.is_finite()) {
                    return None;
                }
                lower[row][row] = rest.sqrt();
            } else {
                lower[row][column] = rest / lower[column][column];
            }
        }
    }
    let mut x = *b;
    for row in 0..TERM_COUNT {
        for inner in 0..row {
            x[row] -= lower[row][inner] * x[inner];
        }
        x[row] /= lower[row][row];
    }
    for row in (0..TERM_COUNT).rev() {
        for inner in row + 1..TERM_COUNT {
            x[row] -= lower[inner][row] * x[inner];
        }
        x[row] /= lower[row][row];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Term;

    /// Samples generated from known coefficients, each with few terms.
    fn made_up(known: &Vector, count: usize) -> Vec<Sample> {
        let terms = |sample: usize| {
            // Numbers without a regular pattern.
            let part = |at: usize| ((sample * 7919 + at * 104_729 + sample * at * 31) % 97) as f64;
            Terms(std::array::from_fn(
                |at| if (sample + at).is_multiple_of(3) { 1e-4 * part(at) } else { 0.0 },
            ))
        };
        (0..count)
            .map(|sample| {
                let terms = terms(sample);
                Sample { terms, seconds: predict(known, &terms).0 }
            })
            .filter(|sample| sample.seconds > 0.0)
            .collect()
    }

    fn known() -> Vector {
        std::array::from_fn(|at| 0.4 * (at as f64 % 5.0) - 0.8)
    }

    const WIDE: Prior = Prior { log: [0.0; TERM_COUNT], deviation: [3.0; TERM_COUNT] };

    #[test]
    fn recovers_known_coefficients() {
        let known = known();
        let fitted = fit(&made_up(&known, 400), &WIDE, 0.01);
        for term in Term::ALL.into_iter().filter(|term| !term.is_host()) {
            let (found, was) = (fitted.log[term as usize], known[term as usize]);
            assert!((found - was).abs() < 0.01, "{}: {found}, expected {was}", term.name());
        }
    }

    #[test]
    fn outliers_do_not_dominate_the_fit() {
        let known = known();
        let mut samples = made_up(&known, 400);
        for sample in samples.iter_mut().step_by(40) {
            sample.seconds *= 5.0;
        }
        let fitted = fit(&samples, &WIDE, 0.01);
        let off = samples.iter().filter(|sample| {
            let (seconds, _) = predict(&fitted.log, &sample.terms);
            (seconds / sample.seconds).ln().abs() > 0.05
        });
        assert!(off.count() <= 20);
    }

    #[test]
    fn without_samples_the_prior_remains() {
        let prior = Prior { log: known(), deviation: [0.3; TERM_COUNT] };
        let fitted = fit(&[], &prior, 0.1);
        assert_eq!(fitted.log, prior.log);
        assert!((fitted.covariance[3][3] - 0.09).abs() < 1e-12 && fitted.covariance[3][4] == 0.0);
    }

    #[test]
    fn measurements_reduce_the_variance() {
        let fitted = fit(&made_up(&known(), 400), &WIDE, 0.05);
        let at = Term::NormBytes as usize;
        assert!(fitted.covariance[at][at] < 1.0);
        assert_eq!(fit(&made_up(&known(), 400), &WIDE, 0.05), fitted);
    }
}
