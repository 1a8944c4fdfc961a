//! Search: cells drawn from ranges and lists instead of every combination.
//!
//! ```toml
//! [sweep]
//! search = "tpe"                          # or "random"
//! trials = 30
//! objective = "val_top1"
//!
//! [sweep.keys]
//! "optimiser.learning_rate" = { log_uniform = [1e-4, 1e-1] }
//! "train.batch_size" = { choice = [64, 128, 256] }
//! ```
//!
//! A cell is a function of the seed, its number and, with TPE after the first [`STARTUP_TRIALS`], the results
//! of the cells before it. Cells of a random search are therefore known from the start, like those of a grid.
//! Those of TPE are recorded in `cells.csv` before they are started, so a resumed sweep never changes one.

mod range;
mod space;
mod tpe;

pub(crate) use range::NumberRange;
pub(crate) use space::{Dimension, Domain, Space};
pub(crate) use tpe::Observation;

use stratus_experiment::{Direction, EpochMetric};
use stratus_random::{Purpose, Stream};

/// Random trials before TPE proposes from results.
pub(crate) const STARTUP_TRIALS: usize = 10;

/// Draws of a trial, until one is a valid experiment and differs from earlier cells.
pub(crate) const MAX_ATTEMPTS: u32 = 1000;

/// The attempts at which TPE falls back to random points: it may propose the same cell again and again.
const MAX_TPE_ATTEMPTS: u32 = 20;

/// How cells are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchMethod {
    /// Independent uniform draws.
    Random,
    /// The tree-structured Parzen estimator, which prefers values near those of good cells.
    Tpe,
}

impl SearchMethod {
    /// The name in sweep files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Tpe => "tpe",
        }
    }
}

/// The search of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// How cells are drawn.
    pub method: SearchMethod,
    /// The number of cells.
    pub trials: usize,
    /// The seed of the draws.
    pub seed: u64,
    /// The metric whose best epoch is a cell's result; always known with TPE.
    pub objective: Option<EpochMetric>,
    pub(crate) space: Space,
}

impl Search {
    /// The cells that follow from the seed alone.
    pub(crate) fn initial_trials(&self) -> usize {
        match self.method {
            SearchMethod::Random => self.trials,
            SearchMethod::Tpe => self.trials.min(STARTUP_TRIALS),
        }
    }

    /// Draws the values of a trial, from 1; `observations` are the cells before it, empty for the initial
    /// ones.
    pub(crate) fn draw(&self, trial: usize, attempt: u32, observations: &[Observation]) -> Vec<String> {
        let is_random = trial <= self.initial_trials() || attempt >= MAX_TPE_ATTEMPTS;
        let mut stream = Stream::new(self.seed, Purpose::Search, trial as u64, attempt);
        let point = match is_random {
            true => self.space.random_point(&mut stream),
            false => tpe::propose(&self.space, observations, &mut stream),
        };
        self.space.values_at(&point)
    }

    /// The observation of a cell with a value of the objective, `None` if it has none; `None` if its values
    /// are not in the space.
    pub(crate) fn observe(&self, values: &[String], objective: Option<f64>) -> Option<Observation> {
        let direction = self.objective.map(EpochMetric::direction);
        let loss = match (objective.filter(|value| value.is_finite()), direction) {
            (Some(value), Some(Direction::HigherIsBetter)) => -value,
            (Some(value), _) => value,
            (None, _) => f64::INFINITY,
        };
        Some(Observation { point: self.space.point_of(values)?, loss })
    }
}

#[cfg(test)]
mod tests;
