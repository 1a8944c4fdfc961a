//! The time model: the time of a step on a machine, from its work and the peaks of the machine.
//!
//! ```text
//! kernel   = arithmetic / peak + bytes / bandwidth + cost of few rows and columns + launch
//! device   = Σ kernels
//! host     = a constant + the launch of each kernel by the process
//! step     = (device⁴ + host⁴)^¼          a smooth maximum, since both work at the same time
//! ```
//!
//! Each part is a [`Term`]: its seconds at the peak rates of the machine, times a coefficient. The
//! coefficients are fitted to measured steps ([`mod@fit`]) with a prior, as logarithms, so that they are
//! positive and errors are relative.

pub mod fit;
mod prior;
mod terms;

pub use prior::Framework;
pub use terms::{Peaks, TERM_COUNT, Term, Terms};

use serde::Serialize;
use terms::dot;

/// The exponent of the norm that combines host and device time.
const OVERLAP: i32 = 4;

/// One number per [`Term`].
pub type Vector = [f64; TERM_COUNT];
/// A symmetric matrix over terms.
pub type Matrix = [[f64; TERM_COUNT]; TERM_COUNT];

/// Coefficients with their uncertainty.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficients {
    /// Natural logarithms of the coefficients.
    pub log: Vector,
    /// The covariance of the logarithms.
    pub covariance: Box<Matrix>,
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds.
    pub seconds: f64,
    /// The standard deviation of the logarithm of the time, due to the coefficients.
    pub deviation: f64,
    /// The composition of the time.
    pub shares: Shares,
}

/// Fractions of the time of the device, which sum to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Arithmetic.
    pub arithmetic: f64,
    /// Memory traffic.
    pub memory: f64,
    /// Launching kernels.
    pub launch: f64,
    /// True if launching kernels takes the host longer than the device takes to run them.
    pub host: bool,
}

/// The bottleneck of a step or of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Arithmetic.
    Arithmetic,
    /// Memory traffic.
    Memory,
    /// Launching kernels.
    Launch,
}

impl Shares {
    /// The bottleneck of a step with these shares.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        if self.host || self.launch > self.arithmetic.max(self.memory) {
            Bottleneck::Launch
        } else if self.memory > self.arithmetic {
            Bottleneck::Memory
        } else {
            Bottleneck::Arithmetic
        }
    }
}

impl Coefficients {
    /// The time of a step with these terms.
    #[must_use]
    pub fn estimate(&self, terms: &Terms) -> Estimate {
        let (seconds, gradient) = predict(&self.log, terms);
        let spread: Vector = std::array::from_fn(|row| dot(&self.covariance[row], &gradient));
        let deviation = dot(&spread, &gradient).max(0.0).sqrt();
        Estimate { seconds, deviation, shares: self.shares(terms) }
    }

    fn shares(&self, terms: &Terms) -> Shares {
        let mut shares = Shares::default();
        let (mut host, mut device) = (0.0, 0.0);
        for term in Term::ALL {
            let seconds = self.log[term as usize].exp() * terms.0[term as usize];
            if term.is_host() {
                host += seconds;
                continue;
            }
            device += seconds;
            match term.bottleneck() {
                Bottleneck::Arithmetic => shares.arithmetic += seconds,
                Bottleneck::Memory => shares.memory += seconds,
                Bottleneck::Launch => shares.launch += seconds,
            }
        }
        if device > 0.0 {
            shares.arithmetic /= device;
            shares.memory /= device;
            shares.launch /= device;
        }
        shares.host = host > device;
        shares
    }
}

/// Seconds, and the gradient of their logarithm with respect to the logarithms of the coefficients.
pub(crate) fn predict(log: &Vector, terms: &Terms) -> (f64, Vector) {
    let parts: Vector = std::array::from_fn(|at| log[at].exp() * terms.0[at]);
    let (mut host, mut device) = (0.0, 0.0);
    for term in Term::ALL {
        let part = parts[term as usize];
        if term.is_host() { host += part } else { device += part }
    }
    let longest = host.max(device);
    if longest <= 0.0 {
        return (0.0, [0.0; TERM_COUNT]);
    }
    let power = |seconds: f64| (seconds / longest).powi(OVERLAP);
    let seconds = longest * (power(host) + power(device)).powf(1.0 / f64::from(OVERLAP));
    let weight = |side: f64| (side / seconds).powi(OVERLAP - 1) / seconds;
    let (host_weight, device_weight) = (weight(host), weight(device));
    let mut gradient = parts;
    for term in Term::ALL {
        gradient[term as usize] *= if term.is_host() { host_weight } else { device_weight };
    }
    (seconds, gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradient_equals_finite_differences() {
        let terms = Terms(std::array::from_fn(|at| 1e-3 * (1.0 + at as f64)));
        let log: Vector = std::array::from_fn(|at| 0.1 * at as f64 - 1.0);
        let (_, gradient) = predict(&log, &terms);
        for at in 0..TERM_COUNT {
            let mut moved = log;
            moved[at] += 1e-6;
            let (up, _) = predict(&moved, &terms);
            moved[at] -= 2e-6;
            let (down, _) = predict(&moved, &terms);
            let difference = (up / down).ln() / 2e-6;
            assert!((difference - gradient[at]).abs() < 1e-6, "{at}: {difference} {}", gradient[at]);
        }
        // Scaling all parts scales the step equally.
        assert!((gradient.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn no_work_takes_no_time() {
        assert_eq!(predict(&[0.0; TERM_COUNT], &Terms([0.0; TERM_COUNT])).0, 0.0);
    }
}
