//! Proposals by the tree-structured Parzen estimator.
//!
//! J. Bergstra, R. Bardenet, Y. Bengio, B. Kégl: "Algorithms for hyper-parameter optimization", NIPS 2011.
//! The cells are split into good and bad ones. Of candidates drawn near the good ones, the one with the
//! greatest ratio of the good cells' density to that of the bad cells is proposed. As in BOHB (S. Falkner,
//! A. Klein, F. Hutter, ICML 2018), a cell's kernel covers all dimensions together, so that a learning rate
//! is not combined with the batch size of another good cell.

use std::f64::consts::TAU;

use stratus_random::Stream;

use super::space::{Dimension, Domain, Space, unit};

/// The fraction of cells that count as good, rounded up.
const GOOD_FRACTION: f64 = 0.15;

/// The candidates of a proposal.
const CANDIDATES: usize = 24;

/// The standard deviation of a kernel of one cell, as a fraction of a range. Scott's rule shrinks it.
const BANDWIDTH: f64 = 0.18;

/// The probability that a kernel gives to other choices than its own (J. Aitchison, C. Aitken, 1976).
const OTHER_CHOICES: f64 = 0.3;

/// Draws of a normal number until it is within the range; at least every second one is.
const MAX_DRAWS: usize = 64;

/// A cell with its result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Observation {
    /// The cell's point in the space.
    pub(crate) point: Vec<f64>,
    /// The result, lower is better; infinite if the cell has none.
    pub(crate) loss: f64,
}

/// Proposes a point: a function of the arguments.
pub(crate) fn propose(space: &Space, observations: &[Observation], stream: &mut Stream) -> Vec<f64> {
    let mut sorted: Vec<&Observation> = observations.iter().collect();
    // Stable, so that ties are in the order of trials.
    sorted.sort_by(|a, b| a.loss.total_cmp(&b.loss));
    let known = sorted.iter().take_while(|cell| cell.loss.is_finite()).count();
    let good = ((sorted.len() as f64 * GOOD_FRACTION).ceil() as usize).min(known);
    let (good, bad) = sorted.split_at(good);
    let [good, bad] = [good, bad].map(|cells| Density::new(space, cells));
    let mut best = (f64::NEG_INFINITY, space.random_point(stream));
    for _ in 0..CANDIDATES {
        let point = good.sample(stream);
        let ratio = good.ln_at(&point) - bad.ln_at(&point);
        if ratio > best.0 {
            best = (ratio, point);
        }
    }
    best.1
}

/// A mixture of a kernel for each cell and the uniform density, all of equal weight.
struct Density<'a> {
    space: &'a Space,
    cells: &'a [&'a Observation],
    bandwidth: f64,
}

impl<'a> Density<'a> {
    fn new(space: &'a Space, cells: &'a [&'a Observation]) -> Self {
        let dimensions = space.dimensions.len() as f64;
        let bandwidth = BANDWIDTH * (cells.len().max(1) as f64).powf(-1.0 / (dimensions + 4.0));
        Self { space, cells, bandwidth }
    }

    fn sample(&self, stream: &mut Stream) -> Vec<f64> {
        let kernel = (unit(stream) * (self.cells.len() + 1) as f64) as usize;
        let Some(cell) = self.cells.get(kernel) else { return self.space.random_point(stream) };
        let dimensions = self.space.dimensions.iter().zip(&cell.point);
        dimensions.map(|(dimension, &centre)| self.sample_near(dimension, centre, stream)).collect()
    }

    fn sample_near(&self, dimension: &Dimension, centre: f64, stream: &mut Stream) -> f64 {
        match &dimension.domain {
            Domain::Choices(_) if unit(stream) < OTHER_CHOICES => unit(stream) * dimension.extent(),
            Domain::Choices(_) => centre,
            Domain::Range(_) => {
                let draws = (0..MAX_DRAWS).map(|_| centre + self.bandwidth * normal(stream));
                draws.into_iter().find(|position| (0.0..1.0).contains(position)).unwrap_or(centre)
            }
        }
    }

    /// The logarithm of the density at a point.
    fn ln_at(&self, point: &[f64]) -> f64 {
        let uniform: f64 = self.space.dimensions.iter().map(|dimension| 1.0 / dimension.extent()).product();
        let kernels: f64 = self.cells.iter().map(|cell| self.kernel_at(&cell.point, point)).sum();
        ((uniform + kernels) / (self.cells.len() + 1) as f64).ln()
    }

    fn kernel_at(&self, centre: &[f64], point: &[f64]) -> f64 {
        let positions = centre.iter().zip(point);
        let factor = |(dimension, (&centre, &position)): (&Dimension, (&f64, &f64))| match &dimension.domain {
            Domain::Choices(choices) => {
                let others = OTHER_CHOICES / choices.len() as f64;
                if centre.floor() == position.floor() { 1.0 - OTHER_CHOICES + others } else { others }
            }
            Domain::Range(_) => {
                let distance = (position - centre) / self.bandwidth;
                (-0.5 * distance * distance).exp() / (self.bandwidth * TAU.sqrt())
            }
        };
        self.space.dimensions.iter().zip(positions).map(factor).product()
    }
}

/// A standard normal number, by the Box–Muller transform.
fn normal(stream: &mut Stream) -> f64 {
    let radius = (-2.0 * (1.0 - unit(stream)).ln()).sqrt();
    radius * (TAU * unit(stream)).cos()
}
