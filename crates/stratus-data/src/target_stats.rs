//! Statistics of targets: labels and numbers.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;

use crate::dataset::Dataset;

/// The statistics of one target over a data set. Missing targets count only in [`missing`](Self::missing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TargetStatistics {
    /// Samples with this target.
    pub count: u64,
    /// Samples without it.
    pub missing: u64,
    /// The mean; 0 without samples.
    pub mean: f64,
    /// The standard deviation of the population, not of a sample; 0 without samples.
    pub deviation: f64,
    /// The smallest; 0 without samples.
    pub min: f64,
    /// The largest; 0 without samples.
    pub max: f64,
    /// Samples whose target is above 0.5: those with the label.
    pub positives: u64,
}

impl TargetStatistics {
    /// True if the target has the same value in all samples that have it, or no sample has it: nothing can be
    /// learned about it.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.count == 0 || self.min.to_bits() == self.max.to_bits()
    }
}

/// The statistics of each target, in the unit of the data set, over all samples in their order. Samples whose
/// targets cannot be read are missing.
#[must_use]
pub fn target_statistics(dataset: &dyn Dataset) -> Vec<TargetStatistics> {
    let mut all = vec![TargetStatistics::default(); dataset.classes()];
    // Means first: their deviations are then sums of squares that do not cancel.
    for_each_target(dataset, &mut all, |statistics, target| {
        let Some(target) = target else {
            statistics.missing += 1;
            return;
        };
        let is_first = statistics.count == 0;
        statistics.count += 1;
        statistics.mean += target;
        statistics.min = if is_first { target } else { statistics.min.min(target) };
        statistics.max = if is_first { target } else { statistics.max.max(target) };
        statistics.positives += u64::from(target > 0.5);
    });
    for statistics in &mut all {
        statistics.mean /= statistics.count.max(1) as f64;
    }
    for_each_target(dataset, &mut all, |statistics, target| {
        statistics.deviation += target.map_or(0.0, |target| (target - statistics.mean).powi(2));
    });
    for statistics in &mut all {
        statistics.deviation = (statistics.deviation / statistics.count.max(1) as f64).sqrt();
        if statistics.is_constant() {
            // The mean of equal numbers may be rounded.
            (statistics.mean, statistics.deviation) = (statistics.min, 0.0);
        }
    }
    all
}

/// Calls `add` with the statistics of each target of each sample, and with the target if there is one.
fn for_each_target(
    dataset: &dyn Dataset,
    all: &mut [TargetStatistics],
    mut add: impl FnMut(&mut TargetStatistics, Option<f64>),
) {
    for index in 0..dataset.len() {
        let targets = dataset.targets(index).unwrap_or_default();
        for (at, statistics) in all.iter_mut().enumerate() {
            let target = targets.get(at).copied().filter(|target| !target.is_nan());
            add(statistics, target.map(f64::from));
        }
    }
}

/// Two labels, and the number of samples that have both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LabelPair {
    /// The labels, the lower index first.
    pub labels: [usize; 2],
    /// The samples with both.
    pub samples: u64,
}

/// The labels whose pairs are counted: the most frequent ones.
const MAX_PAIRED_LABELS: usize = 1000;

/// The pairs of labels that occur together most often, at most `count`, among the thousand most frequent
/// labels. Equally frequent pairs are in the order of the labels.
#[must_use]
pub fn frequent_pairs(dataset: &dyn Dataset, count: usize) -> Vec<LabelPair> {
    let statistics = target_statistics(dataset);
    let mut frequent: Vec<usize> = (0..statistics.len()).collect();
    frequent.sort_by_key(|&label| Reverse(statistics[label].positives));
    frequent.truncate(MAX_PAIRED_LABELS);
    frequent.sort_unstable();
    let mut pairs: HashMap<[usize; 2], u64> = HashMap::new();
    let mut present = Vec::new();
    for index in 0..dataset.len() {
        let targets = dataset.targets(index).unwrap_or_default();
        let is_present = |label: &usize| targets.get(*label).is_some_and(|target| *target > 0.5);
        present.clear();
        present.extend(frequent.iter().copied().filter(is_present));
        for (at, &first) in present.iter().enumerate() {
            present[at + 1..].iter().for_each(|&second| *pairs.entry([first, second]).or_default() += 1);
        }
    }
    let mut sorted: Vec<LabelPair> =
        pairs.into_iter().map(|(labels, samples)| LabelPair { labels, samples }).collect();
    sorted.sort_unstable_by_key(|pair| (Reverse(pair.samples), pair.labels));
    sorted.truncate(count);
    sorted
}
