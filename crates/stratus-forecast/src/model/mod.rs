//! The time model: what a step takes on a machine, from its work and the machine's peaks.
//!
//! ```text
//! kernel   = arithmetic / peak + bytes / bandwidth + rows, columns that do not fill the machine + launch
//! device   = Σ kernels
//! host     = a constant + what starting each kernel costs the process
//! step     = (device⁴ + host⁴)^¼          both work at the same time: the slower of the two, rounded off
//! ```
//!
//! Each part is a [`Term`]: seconds that it would take at the machine's full peaks, times a coefficient. The
//! coefficients are fitted to measured steps ([`mod@fit`]), from a prior that says what is known without any.
//! They are fitted as logarithms, so that they are positive and an error is a factor.

pub mod fit;
mod prior;
mod terms;

pub use prior::Framework;
pub use terms::{COUNT, Peaks, Term, Terms};

use terms::dot;

/// The norm by which host and device time are joined.
const OVERLAP: i32 = 4;

/// One number per [`Term`].
pub type Vector = [f64; COUNT];
/// A symmetric matrix over terms.
pub type Matrix = [[f64; COUNT]; COUNT];

/// Coefficients with what is uncertain of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Coefficients {
    /// Natural logarithms.
    pub log: Vector,
    /// Their covariance.
    pub covariance: Box<Matrix>,
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds.
    pub seconds: f64,
    /// The standard deviation of its logarithm that follows from the coefficients.
    pub deviation: f64,
    /// Shares of the device's time, and whether the host is what takes longest.
    pub shares: Shares,
}

/// What the device's time goes to; they add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Operations.
    pub arithmetic: f64,
    /// Bytes.
    pub memory: f64,
    /// Starting kernels.
    pub launch: f64,
    /// Whether the process that starts kernels is slower than the device.
    pub host: bool,
}

impl Coefficients {
    /// What a step of these terms takes.
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
            match term.limit() {
                terms::Limit::Arithmetic => shares.arithmetic += seconds,
                terms::Limit::Memory => shares.memory += seconds,
                terms::Limit::Launch => shares.launch += seconds,
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

/// Seconds, and the derivative of their logarithm by the logarithms of the coefficients.
pub(crate) fn predict(log: &Vector, terms: &Terms) -> (f64, Vector) {
    let parts: Vector = std::array::from_fn(|at| log[at].exp() * terms.0[at]);
    let (mut host, mut device) = (0.0, 0.0);
    for term in Term::ALL {
        let part = parts[term as usize];
        if term.is_host() { host += part } else { device += part }
    }
    let longest = host.max(device);
    if longest <= 0.0 {
        return (0.0, [0.0; COUNT]);
    }
    let power = |seconds: f64| (seconds / longest).powi(OVERLAP);
    let seconds = longest * (power(host) + power(device)).powf(1.0 / f64::from(OVERLAP));
    let weight = |seconds_of: f64| (seconds_of / seconds).powi(OVERLAP - 1) / seconds;
    let (of_host, of_device) = (weight(host), weight(device));
    let mut gradient = parts;
    for term in Term::ALL {
        gradient[term as usize] *= if term.is_host() { of_host } else { of_device };
    }
    (seconds, gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_that_of_differences() {
        let terms = Terms(std::array::from_fn(|at| 1e-3 * (1.0 + at as f64)));
        let log: Vector = std::array::from_fn(|at| 0.1 * at as f64 - 1.0);
        let (_, gradient) = predict(&log, &terms);
        for at in 0..COUNT {
            let mut moved = log;
            moved[at] += 1e-6;
            let (up, _) = predict(&moved, &terms);
            moved[at] -= 2e-6;
            let (down, _) = predict(&moved, &terms);
            let difference = (up / down).ln() / 2e-6;
            assert!((difference - gradient[at]).abs() < 1e-6, "{at}: {difference} {}", gradient[at]);
        }
        // A step is as long as its parts: a percent of each is a percent of all.
        assert!((gradient.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn no_work_takes_no_time() {
        assert_eq!(predict(&[0.0; COUNT], &Terms([0.0; COUNT])).0, 0.0);
    }
}
