//! Successive halving: stops cells early that perform worse than others.
//!
//! K. Jamieson, A. Talwalkar: "Non-stochastic best arm identification and hyperparameter optimization", 2016
//! (arXiv:1502.07943). All cells are trained for `epochs` epochs, the best of them for `factor` times that
//! number, and so on; the remaining cells are trained to their end.
//!
//! ```text
//! epochs = 2, factor = 3, of 9 cells, 20 epochs:    9 cells to epoch 2, 3 to epoch 6, 1 to epoch 20
//! ```
//!
//! A cell is ranked by the mean of its repetitions' metric after the epoch that all have reached, so the
//! decision does not depend on when a sweep was interrupted.

use std::ops::Range;

use stratus_experiment::{Direction, EpochMetric, Experiment};
use toml::de::{DeTable, DeValue};

use crate::value::parse_count;

/// The settings of `[sweep.halving]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halving {
    /// Keeps one of `factor` cells; at least 2.
    pub factor: usize,
    /// The epoch after which cells are first ranked; at least 1.
    pub epochs: u64,
    /// The metric that ranks cells.
    pub metric: EpochMetric,
    /// True if a cell continues as soon as it is among the best of those that got as far.
    pub is_asynchronous: bool,
}

impl Halving {
    /// Reads `[sweep.halving]`. An error is a byte range in the file and a message.
    pub(crate) fn read(table: &DeTable<'_>) -> Result<Self, (Range<usize>, String)> {
        let (mut factor, mut epochs, mut metric, mut is_asynchronous) = (2, 1, None, false);
        for (name, value) in table {
            let invalid = |problem: String| (name.span(), problem);
            match name.get_ref().as_ref() {
                "factor" => {
                    factor = parse_count(value.get_ref())
                        .filter(|factor| (2..=1000).contains(factor))
                        .ok_or_else(|| {
                            invalid("`sweep.halving.factor` must be an integer from 2 to 1000".to_owned())
                        })?;
                }
                "epochs" => {
                    let number = parse_count(value.get_ref()).filter(|&number| number >= 1);
                    epochs = number.ok_or_else(|| {
                        invalid("`sweep.halving.epochs` must be a positive integer".to_owned())
                    })? as u64;
                }
                "asynchronous" => {
                    let DeValue::Boolean(value) = value.get_ref() else {
                        return Err(invalid("`sweep.halving.asynchronous` must be true or false".to_owned()));
                    };
                    is_asynchronous = *value;
                }
                "metric" => {
                    let known = match value.get_ref() {
                        DeValue::String(text) => EpochMetric::from_name(text),
                        _ => None,
                    };
                    metric = Some(known.ok_or_else(|| {
                        invalid(format!(
                            "`sweep.halving.metric` must be one of {}",
                            EpochMetric::NAMES.join(", ")
                        ))
                    })?);
                }
                other => return Err(invalid(format!("unknown key `sweep.halving.{other}`"))),
            }
        }
        let Some(metric) = metric else {
            let at = table.iter().next().map_or(0..0, |(name, _)| name.span());
            return Err((at, "`sweep.halving.metric` is not set".to_owned()));
        };
        Ok(Self { factor, epochs, metric, is_asynchronous })
    }

    /// Checks that the experiment has the metric at the epochs at which cells are ranked.
    pub(crate) fn check(&self, experiment: &Experiment) -> Result<(), String> {
        let every = experiment.validation.every_epochs;
        let validates = !self.metric.as_str().starts_with("train_");
        if validates && !self.epochs.is_multiple_of(every.max(1)) {
            return Err(format!(
                "cells are ranked by {} after epoch {}, but it is computed every {every} epochs",
                self.metric.as_str(),
                self.epochs
            ));
        }
        Ok(())
    }

    /// The epochs at which cells are ranked in training of `epochs` epochs.
    #[must_use]
    pub fn rungs(&self, epochs: u64) -> Vec<u64> {
        let next = |epoch: &u64| epoch.checked_mul(self.factor as u64);
        std::iter::successors(Some(self.epochs), next).take_while(|&epoch| epoch < epochs).collect()
    }

    /// The indices of the cells that continue, given the metric of each cell. Cells without a metric rank
    /// last; ties keep their order.
    #[must_use]
    pub fn survivors(&self, metrics: &[Option<f64>]) -> Vec<usize> {
        let mut order = self.ranking(metrics);
        order.truncate(metrics.len().div_ceil(self.factor));
        order.sort_unstable();
        order
    }

    /// The indices of the cells, the best first, given the metric of each cell. Cells without a metric rank
    /// last; ties keep their order.
    #[must_use]
    pub(crate) fn ranking(&self, metrics: &[Option<f64>]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..metrics.len()).collect();
        let key = |at: usize| {
            let value = metrics[at].filter(|value| value.is_finite());
            match self.metric.direction() {
                Direction::LowerIsBetter => value.unwrap_or(f64::INFINITY),
                Direction::HigherIsBetter => -value.unwrap_or(f64::NEG_INFINITY),
            }
        };
        order.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halving(factor: usize, epochs: u64) -> Halving {
        Halving { factor, epochs, metric: EpochMetric::ValTop1, is_asynchronous: false }
    }

    #[test]
    fn rungs_are_powers_below_the_end() {
        assert_eq!(halving(3, 2).rungs(20), [2, 6, 18]);
        assert!(halving(2, 4).rungs(4).is_empty());
        assert_eq!(halving(1000, u64::MAX / 2).rungs(u64::MAX), [u64::MAX / 2]);
    }

    #[test]
    fn best_cells_survive_in_their_order() {
        let highest = halving(2, 1);
        assert_eq!(highest.survivors(&[Some(0.5), Some(0.9), None, Some(0.7), Some(0.9)]), [1, 3, 4]);
        assert_eq!(highest.survivors(&[Some(f64::NAN), Some(0.1)]), [1]);
        assert_eq!(highest.survivors(&[None, None, None]), [0, 1]);
        let lowest = Halving { metric: EpochMetric::ValLoss, ..highest };
        assert_eq!(lowest.survivors(&[Some(0.5), Some(0.9), None, Some(0.7)]), [0, 3]);
        assert!(highest.survivors(&[]).is_empty());
    }
}
