//! The most probable coefficients for measured step times, and how far they are uncertain.
//!
//! Minimised over the logarithms θ of the coefficients:
//!
//! ```text
//! Σ over samples  ρ(ln(predicted / measured) / σ)  +  ½ Σ over terms ((θ - prior) / deviation)²
//! ```
//!
//! ρ is Huber's: a square up to 1.5, then straight, so that a few odd samples do not carry the rest. By
//! Levenberg–Marquardt from the prior, in a fixed order of sums: the same samples give the same bits.

use super::{COUNT, Coefficients, Matrix, Terms, Vector, predict};

/// A measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its terms.
    pub terms: Terms,
    /// What it took.
    pub seconds: f64,
}

/// What is known before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Means of the logarithms.
    pub log: Vector,
    /// Their standard deviations.
    pub deviation: Vector,
}

/// Where Huber's function becomes straight.
const STRAIGHT_FROM: f64 = 1.5;
/// Samples of one network err alike: as much is learnt of nine as of one that stands alone.
const ALIKE: f64 = 9.0;
/// Steps of the minimisation at most.
const MOST_STEPS: usize = 60;
/// Attempts at one step, each shorter than the one before.
const ATTEMPTS: usize = 8;
/// The most that a logarithm moves in a step.
const LONGEST_MOVE: f64 = 1.0;

/// Fits coefficients; `sigma` is the error of logarithms that the model is expected to have.
#[must_use]
pub fn fit(samples: &[Sample], prior: &Prior, sigma: f64) -> Coefficients {
    let mut log = prior.log;
    let mut damping = 1e-2;
    let mut now = State::at(&log, samples, prior, sigma);
    for _ in 0..MOST_STEPS {
        let mut better = None;
        for _ in 0..ATTEMPTS {
            let mut damped = now.curvature.clone();
            for (at, row) in damped.iter_mut().enumerate() {
                row[at] *= 1.0 + damping;
            }
            let Some(step) = solve(&damped, &now.gradient) else { break };
            let moved = std::array::from_fn(|at| log[at] - step[at].clamp(-LONGEST_MOVE, LONGEST_MOVE));
            let state = State::at(&moved, samples, prior, sigma);
            if state.objective < now.objective {
                better = Some((moved, state));
                break;
            }
            damping *= 5.0;
        }
        let Some((moved, state)) = better else { break };
        let gained = now.objective - state.objective;
        (log, now) = (moved, state);
        damping = f64::max(damping / 5.0, 1e-8);
        if gained < 1e-6 * now.objective {
            break;
        }
    }
    Coefficients { log, covariance: covariance(&now, prior) }
}

/// The inverse of the curvature, in which samples count a [`ALIKE`]th.
fn covariance(state: &State, prior: &Prior) -> Box<Matrix> {
    let mut curvature = state.curvature.clone();
    for (at, row) in curvature.iter_mut().enumerate() {
        let of_prior = prior.deviation[at].powi(-2);
        row[at] -= of_prior;
        row.iter_mut().for_each(|entry| *entry /= ALIKE);
        row[at] += of_prior;
    }
    let mut inverse = Box::new([[0.0; COUNT]; COUNT]);
    for column in 0..COUNT {
        let mut unit = [0.0; COUNT];
        unit[column] = 1.0;
        // The prior alone makes it positive definite.
        if let Some(solved) = solve(&curvature, &unit) {
            for row in 0..COUNT {
                inverse[row][column] = solved[row];
            }
        }
    }
    inverse
}

/// The objective at a point, its gradient and its curvature (Gauss–Newton's).
struct State {
    objective: f64,
    gradient: Vector,
    curvature: Box<Matrix>,
}

impl State {
    fn at(log: &Vector, samples: &[Sample], prior: &Prior, sigma: f64) -> Self {
        let mut state =
            State { objective: 0.0, gradient: [0.0; COUNT], curvature: Box::new([[0.0; COUNT]; COUNT]) };
        for sample in samples {
            let (seconds, gradient) = predict(log, &sample.terms);
            let residual = (seconds / sample.seconds).ln();
            let off = residual.abs() / sigma;
            let (objective, weight) = if off < STRAIGHT_FROM {
                (0.5 * off * off, 1.0)
            } else {
                (STRAIGHT_FROM * (off - 0.5 * STRAIGHT_FROM), STRAIGHT_FROM / off)
            };
            let weight = weight / (sigma * sigma);
            state.objective += objective;
            for row in 0..COUNT {
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

/// Solves `a x = b` for a symmetric positive definite matrix by Cholesky's decomposition; `None` if it is
/// none.
fn solve(a: &Matrix, b: &Vector) -> Option<Vector> {
    let mut lower = Box::new([[0.0; COUNT]; COUNT]);
    for row in 0..COUNT {
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
    for row in 0..COUNT {
        for inner in 0..row {
            x[row] -= lower[row][inner] * x[inner];
        }
        x[row] /= lower[row][row];
    }
    for row in (0..COUNT).rev() {
        for inner in row + 1..COUNT {
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

    /// Samples of known coefficients, each of few terms.
    fn made_up(known: &Vector, count: usize) -> Vec<Sample> {
        let terms = |sample: usize| {
            // Numbers without a pattern that the fit could follow.
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

    const WIDE: Prior = Prior { log: [0.0; COUNT], deviation: [3.0; COUNT] };

    #[test]
    fn known_coefficients_are_recovered() {
        let known = known();
        let fitted = fit(&made_up(&known, 400), &WIDE, 0.01);
        for term in Term::ALL.into_iter().filter(|term| !term.is_host()) {
            let (found, was) = (fitted.log[term as usize], known[term as usize]);
            assert!((found - was).abs() < 0.01, "{}: {found} instead of {was}", term.name());
        }
    }

    #[test]
    fn odd_samples_do_not_carry_the_rest() {
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
    fn without_samples_the_prior_is_left() {
        let prior = Prior { log: known(), deviation: [0.3; COUNT] };
        let fitted = fit(&[], &prior, 0.1);
        assert_eq!(fitted.log, prior.log);
        assert!((fitted.covariance[3][3] - 0.09).abs() < 1e-12 && fitted.covariance[3][4] == 0.0);
    }

    #[test]
    fn what_was_measured_is_more_certain() {
        let fitted = fit(&made_up(&known(), 400), &WIDE, 0.05);
        let at = Term::NormBytes as usize;
        assert!(fitted.covariance[at][at] < 1.0);
        assert_eq!(fit(&made_up(&known(), 400), &WIDE, 0.05), fitted);
    }
}
