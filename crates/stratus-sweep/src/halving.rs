//! Successive halving: cells that do badly early are not trained to their end.
//!
//! K. Jamieson, A. Talwalkar: "Non-stochastic best arm identification and hyperparameter optimization", 2016
//! (arXiv:1502.07943). All cells are trained for some epochs, the best of them for `factor` times as many,
//! and so on; the last that are left are trained to their end.
//!
//! ```text
//! epochs = 2, factor = 3, of 9 cells, 20 epochs:    9 cells to epoch 2, 3 to epoch 6, 1 to epoch 20
//! ```
//!
//! A cell is judged by the mean of its repetitions' measure after the epoch that all have reached, so that
//! what is decided does not depend on when a sweep was interrupted.

use std::ops::Range;

use stratus_train::Experiment;
use stratus_train::experiment::{Better, Measure};
use toml::de::{DeTable, DeValue};

use crate::definition::whole;

/// How cells are stopped early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halving {
    /// One cell of so many goes on; from 2.
    pub factor: usize,
    /// Epochs after which cells are judged first; from 1.
    pub epochs: u64,
    /// What they are judged by.
    pub metric: Measure,
}

impl Halving {
    /// Reads `[sweep.halving]`; an error says where it is and what is wrong.
    pub(crate) fn read(table: &DeTable<'_>) -> Result<Self, (Range<usize>, String)> {
        let (mut factor, mut epochs, mut metric) = (2, 1, None);
        for (name, value) in table {
            let wrong = |problem: String| (name.span(), problem);
            match name.get_ref().as_ref() {
                "factor" => {
                    factor = whole(value.get_ref()).filter(|factor| (2..=1000).contains(factor)).ok_or_else(
                        || wrong("`sweep.halving.factor` is no whole number from 2 to 1000".to_owned()),
                    )?;
                }
                "epochs" => {
                    let number = whole(value.get_ref()).filter(|&number| number >= 1);
                    epochs = number
                        .ok_or_else(|| wrong("`sweep.halving.epochs` is no whole number from 1".to_owned()))?
                        as u64;
                }
                "metric" => {
                    let measure = match value.get_ref() {
                        DeValue::String(text) => Measure::named(text),
                        _ => None,
                    };
                    metric = Some(measure.ok_or_else(|| {
                        wrong(format!("`sweep.halving.metric` is none of {}", Measure::NAMES.join(", ")))
                    })?);
                }
                other => return Err(wrong(format!("unknown key `sweep.halving.{other}`"))),
            }
        }
        let Some(metric) = metric else {
            let at = table.iter().next().map_or(0..0, |(name, _)| name.span());
            return Err((at, "`sweep.halving.metric` is not set".to_owned()));
        };
        Ok(Self { factor, epochs, metric })
    }

    /// Whether an experiment measures what its cells are judged by, when they are.
    pub(crate) fn check(&self, experiment: &Experiment) -> Result<(), String> {
        let every = experiment.validation.every_epochs;
        let validates = !self.metric.as_str().starts_with("train_");
        if validates && !self.epochs.is_multiple_of(every.max(1)) {
            return Err(format!(
                "cells are judged by {} after epoch {}, but it is measured every {every} epochs",
                self.metric.as_str(),
                self.epochs
            ));
        }
        Ok(())
    }

    /// The epochs at which cells are judged, of a training of `epochs`.
    #[must_use]
    pub fn rungs(&self, epochs: u64) -> Vec<u64> {
        let next = |epoch: &u64| epoch.checked_mul(self.factor as u64);
        std::iter::successors(Some(self.epochs), next).take_while(|&epoch| epoch < epochs).collect()
    }

    /// Which of some cells go on, given what each measured; those without a measure come last. Of equal ones
    /// the first.
    #[must_use]
    pub fn survivors(&self, measured: &[Option<f64>]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..measured.len()).collect();
        let key = |at: usize| {
            let value = measured[at].filter(|value| value.is_finite());
            match self.metric.better() {
                Better::Less => value.unwrap_or(f64::INFINITY),
                Better::More => -value.unwrap_or(f64::NEG_INFINITY),
            }
        };
        order.sort_by(|&a, &b| key(a).total_cmp(&key(b)));
        order.truncate(measured.len().div_ceil(self.factor));
        order.sort_unstable();
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halving(factor: usize, epochs: u64) -> Halving {
        Halving { factor, epochs, metric: Measure::ValTop1 }
    }

    #[test]
    fn rungs_are_powers_below_the_end() {
        assert_eq!(halving(3, 2).rungs(20), [2, 6, 18]);
        assert!(halving(2, 4).rungs(4).is_empty());
        assert_eq!(halving(1000, u64::MAX / 2).rungs(u64::MAX), [u64::MAX / 2]);
    }

    #[test]
    fn the_best_survive_in_their_order() {
        let more = halving(2, 1);
        assert_eq!(more.survivors(&[Some(0.5), Some(0.9), None, Some(0.7), Some(0.9)]), [1, 3, 4]);
        assert_eq!(more.survivors(&[Some(f64::NAN), Some(0.1)]), [1]);
        assert_eq!(more.survivors(&[None, None, None]), [0, 1]);
        let less = Halving { metric: Measure::ValLoss, ..more };
        assert_eq!(less.survivors(&[Some(0.5), Some(0.9), None, Some(0.7)]), [0, 3]);
        assert!(more.survivors(&[]).is_empty());
    }
}
