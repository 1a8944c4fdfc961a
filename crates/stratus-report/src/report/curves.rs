//! Curves over the iterations, with a bounded number of points.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, IterationRow};
use stratus_run::timeline::{Iteration, Purpose, TimelineReader};

use super::tree::{LayerTree, MAX_BLOCKS};
use crate::Result;
use crate::accounting::Accounting;
use crate::rows::{SlotIndex, SlotTarget};

/// Maximum number of points of a curve; with more iterations, points are means over equal buckets.
pub(super) const MAX_POINTS: usize = 1000;

/// Maximum number of points of curves per layer.
const MAX_LAYER_POINTS: usize = 300;

/// Maximum number of points of the histories of all layers together.
const MAX_HISTORY_VALUES: usize = 20_000;

/// The curves of a run over its iterations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Curves {
    /// The last iteration of each point.
    pub iteration: Vec<u64>,
    /// Mean training loss; `None` if any of its losses is not finite.
    pub loss: Curve,
    /// The lowest finite loss of each point.
    pub loss_min: Curve,
    /// The highest finite loss of each point.
    pub loss_max: Curve,
    /// The number of iterations whose loss is not finite.
    pub non_finite_losses: u64,
    /// Mean accuracy.
    pub accuracy: Curve,
    /// Mean learning rate.
    pub learning_rate: Curve,
    /// Mean milliseconds per iteration of waiting for data.
    pub data_ms: Curve,
    /// Mean milliseconds per iteration, including waiting.
    pub iteration_ms: Curve,
    /// Seconds of all iterations up to each point.
    pub elapsed_s: Vec<f64>,
    /// The number of iterations per point; the last point may have fewer.
    pub iterations_per_point: u64,
    /// The last iteration of each epoch.
    #[serde(skip)]
    pub epoch_ends: BTreeMap<u32, u64>,
    /// The last iteration of each point of the curves per layer.
    pub layer_iteration: Vec<u64>,
    /// The number of iterations per point of the curves per layer.
    pub layer_iterations_per_point: u64,
    /// Mean milliseconds of the forward pass of all layers.
    pub forward_ms: Curve,
    /// Mean milliseconds of the backward pass and update of all layers.
    pub backward_ms: Curve,
    /// The curves of blocks of layers, the longest first: together all layers, unless too many are outside of
    /// blocks.
    pub layers: Vec<LayerCurve>,
    /// The time of each layer over the iterations.
    pub history: LayerHistory,
}

/// One value per point, if there is one.
pub type Curve = Vec<Option<f64>>;

/// The time of each layer over the iterations. The number of points decreases with that of the layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerHistory {
    /// The last iteration of each point.
    pub iteration: Vec<u64>,
    /// The number of iterations per point; the last point may have fewer.
    pub iterations_per_point: u64,
    /// Mean milliseconds per iteration, by the row of the layer in the accounting; of more than ten thousand
    /// layers only the first ones.
    pub ms: Vec<Vec<Option<f32>>>,
}

/// The time of a block or a layer over the iterations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerCurve {
    /// The path of the block, or the layer as in the accounting.
    pub layer: String,
    /// Mean milliseconds per iteration of the forward pass.
    pub forward_ms: Curve,
    /// Mean milliseconds per iteration of the backward pass and update.
    pub backward_ms: Curve,
}

impl Curves {
    /// Reads `iterations.csv` of a run in one pass, without the curves per layer; empty if it is missing.
    pub(super) fn read_iterations(run: &RunDir) -> Result<Self> {
        let path = run.iterations();
        if !path.exists() {
            return Ok(Self::default());
        }
        let mut builder = IterationCurves::default();
        for row in CsvReader::<IterationRow>::open(&path)? {
            builder.push(&row?);
        }
        Ok(builder.points_from(0))
    }

    /// Adds the curves per layer: reads the timeline of the run in one pass.
    pub(super) fn read_layers(
        &mut self,
        run: &RunDir,
        accounting: &Accounting,
        tree: &LayerTree,
    ) -> Result<()> {
        let mut drawn = tree.cut(MAX_BLOCKS);
        drawn.sort_by_key(|node| std::cmp::Reverse(tree.nodes[*node].time.total_ns));
        drawn.truncate(MAX_BLOCKS);
        if drawn.is_empty() {
            return Ok(());
        }
        // The curve of each row of the accounting.
        let mut curve_of: Vec<Option<usize>> = vec![None; accounting.layers.len()];
        for (curve, &node) in drawn.iter().enumerate() {
            tree.rows(node).into_iter().for_each(|row| curve_of[row] = Some(curve));
        }
        let known: HashMap<(&[String], &str), usize> = accounting
            .layers
            .iter()
            .enumerate()
            .map(|(row, layer)| ((&layer.layers[..], layer.device.as_str()), row))
            .collect();
        let mut reader = TimelineReader::open(&run.timeline())?;
        let (mut rows, mut iteration) = (SlotIndex::default(), Iteration::default());
        // The rows of the accounting by those of the timeline.
        let mut counted: Vec<Option<usize>> = Vec::new();
        // Forward and backward of each curve, then of all layers.
        let all = 2 * drawn.len();
        let mut means = BucketedMeans::new(all + 2, MAX_LAYER_POINTS);
        let mut now = vec![0.0; all + 2];
        let layers = accounting.layers.len().min(MAX_HISTORY_VALUES / 2);
        let points = (MAX_HISTORY_VALUES / layers.max(1)).clamp(2, MAX_LAYER_POINTS);
        let mut history = BucketedMeans::new(layers, points);
        let mut layers_now = vec![0.0; layers];
        while reader.read(&mut iteration)? {
            if reader.programs()[iteration.program].purpose != Purpose::Train {
                continue;
            }
            rows.update(reader.programs());
            for row in &rows.layers[counted.len()..] {
                counted.push(known.get(&(&row.layers[..], row.device.as_str())).copied());
            }
            now.fill(0.0);
            layers_now.fill(0.0);
            for (target, &ns) in rows.targets[iteration.program].iter().zip(&iteration.ns) {
                let SlotTarget::Layer(row, column) = *target else { continue };
                let (ms, part) = (ns as f64 / 1e6, usize::from(!column.is_forward()));
                now[all + part] += ms;
                let Some(row) = counted[row] else { continue };
                if let Some(curve) = curve_of[row] {
                    now[2 * curve + part] += ms;
                }
                if let Some(sum) = layers_now.get_mut(row) {
                    *sum += ms;
                }
            }
            means.push(iteration.iteration, &now);
            history.push(iteration.iteration, &layers_now);
        }
        self.layer_iterations_per_point = means.bucket_length;
        let (numbers, columns) = means.finish();
        self.layer_iteration = numbers;
        let mut columns = columns.into_iter();
        let mut next = || columns.next().unwrap_or_default();
        self.layers = drawn
            .iter()
            .map(|&node| LayerCurve {
                layer: tree.nodes[node].name.clone(),
                forward_ms: next(),
                backward_ms: next(),
            })
            .collect();
        (self.forward_ms, self.backward_ms) = (next(), next());
        let (iteration, columns) = history.finish();
        // Seven digits are enough for a drawing, and half as long.
        let short = |curve: Curve| curve.into_iter().map(|ms| ms.map(|ms| ms as f32)).collect();
        self.history = LayerHistory {
            iteration,
            iterations_per_point: history.bucket_length,
            ms: columns.into_iter().map(short).collect(),
        };
        Ok(())
    }
}

/// The curves of `iterations.csv`, row by row, with the memory of a bounded number of points.
///
/// A new row changes the last point or adds one. When there would be too many points, pairs of them are
/// merged: [`IterationCurves::iterations_per_point`] doubles, and all points change.
#[derive(Clone, Debug)]
pub struct IterationCurves {
    means: BucketedMeans,
    epoch_ends: BTreeMap<u32, u64>,
    non_finite_losses: u64,
}

impl Default for IterationCurves {
    fn default() -> Self {
        let means = BucketedMeans::new(5, MAX_POINTS);
        Self { means, epoch_ends: BTreeMap::new(), non_finite_losses: 0 }
    }
}

impl IterationCurves {
    /// Adds the next row.
    pub fn push(&mut self, row: &IterationRow) {
        self.epoch_ends.insert(row.epoch, row.iteration);
        self.non_finite_losses += u64::from(!row.loss.is_finite());
        let wall = row.data_s + row.train_s + row.unattributed_s;
        let accuracy = row.accuracy.unwrap_or(f64::NAN);
        let values = [row.loss, accuracy, row.learning_rate, 1e3 * row.data_s, 1e3 * wall];
        self.means.push(row.iteration, &values);
    }

    /// The number of points.
    #[must_use]
    pub fn points(&self) -> usize {
        self.means.buckets.len()
    }

    /// The number of iterations per point.
    #[must_use]
    pub fn iterations_per_point(&self) -> u64 {
        self.means.bucket_length
    }

    /// The points from number `first`, without those of layers.
    #[must_use]
    pub fn points_from(&self, first: usize) -> Curves {
        let (iteration, columns) = self.means.values_from(first);
        let [loss, accuracy, learning_rate, data_ms, iteration_ms] =
            columns.try_into().unwrap_or([const { Vec::new() }; 5]);
        let ranges = self.means.ranges.get(first..).unwrap_or_default();
        let bound = |side: usize| ranges.iter().map(move |range| Some(range[side]).filter(|v| v.is_finite()));
        let mut elapsed_s: Vec<f64> = Vec::with_capacity(self.points());
        for sums in self.means.sums.chunks_exact(self.means.columns) {
            elapsed_s.push(elapsed_s.last().unwrap_or(&0.0) + sums[4] / 1e3);
        }
        Curves {
            iteration,
            loss,
            loss_min: bound(0).collect(),
            loss_max: bound(1).collect(),
            non_finite_losses: self.non_finite_losses,
            accuracy,
            learning_rate,
            data_ms,
            iteration_ms,
            elapsed_s: elapsed_s.split_off(first.min(elapsed_s.len())),
            iterations_per_point: self.means.bucket_length,
            epoch_ends: self.epoch_ends.clone(),
            ..Curves::default()
        }
    }
}

/// Means over buckets of equal length, which doubles whenever there would be too many buckets.
#[derive(Clone, Debug)]
pub(super) struct BucketedMeans {
    columns: usize,
    limit: usize,
    /// Iterations per bucket.
    bucket_length: u64,
    /// The last iteration and the number of iterations of each bucket.
    buckets: Vec<(u64, u64)>,
    /// The sums of all columns, bucket by bucket.
    sums: Vec<f64>,
    /// The lowest and the highest finite value of the first column in each bucket.
    ranges: Vec<[f64; 2]>,
}

/// The range of no values.
const EMPTY_RANGE: [f64; 2] = [f64::INFINITY, f64::NEG_INFINITY];

impl BucketedMeans {
    pub(super) fn new(columns: usize, limit: usize) -> Self {
        let (buckets, sums, ranges) = (Vec::new(), Vec::new(), Vec::new());
        Self { columns, limit, bucket_length: 1, buckets, sums, ranges }
    }

    pub(super) fn push(&mut self, iteration: u64, values: &[f64]) {
        if self.buckets.last().is_none_or(|(_, count)| *count == self.bucket_length) {
            if self.buckets.len() == self.limit {
                self.merge_pairs();
            }
            if self.buckets.last().is_none_or(|(_, count)| *count == self.bucket_length) {
                self.buckets.push((iteration, 0));
                self.sums.resize(self.sums.len() + self.columns, 0.0);
                self.ranges.push(EMPTY_RANGE);
            }
        }
        let first = self.sums.len() - self.columns;
        for (sum, value) in self.sums[first..].iter_mut().zip(values) {
            *sum += value;
        }
        if let Some(last) = self.buckets.last_mut() {
            *last = (iteration, last.1 + 1);
        }
        if let (Some(range), Some(value)) = (self.ranges.last_mut(), values.first())
            && value.is_finite()
        {
            *range = [range[0].min(*value), range[1].max(*value)];
        }
    }

    /// Merges pairs of adjacent buckets.
    fn merge_pairs(&mut self) {
        let joined = self.buckets.len().div_ceil(2);
        for to in 0..joined {
            let (a, b) = (2 * to, 2 * to + 1);
            let second = self.buckets.get(b).copied();
            let (end, count) = self.buckets[a];
            self.buckets[to] = second.map_or((end, count), |(last, more)| (last, count + more));
            for column in 0..self.columns {
                let more = second.map_or(0.0, |_| self.sums[b * self.columns + column]);
                self.sums[to * self.columns + column] = self.sums[a * self.columns + column] + more;
            }
            let (range, other) = (self.ranges[a], self.ranges.get(b).unwrap_or(&EMPTY_RANGE));
            self.ranges[to] = [range[0].min(other[0]), range[1].max(other[1])];
        }
        self.buckets.truncate(joined);
        self.sums.truncate(joined * self.columns);
        self.ranges.truncate(joined);
        self.bucket_length *= 2;
    }

    /// The last iteration of each bucket, and the means by column. Non-finite means are `None`.
    pub(super) fn finish(&self) -> (Vec<u64>, Vec<Curve>) {
        self.values_from(0)
    }

    /// As [`BucketedMeans::finish`], without the first buckets.
    fn values_from(&self, first: usize) -> (Vec<u64>, Vec<Curve>) {
        let mean = |bucket: usize, column: usize| {
            let mean = self.sums[bucket * self.columns + column] / self.buckets[bucket].1 as f64;
            mean.is_finite().then_some(mean)
        };
        let columns = (0..self.columns)
            .map(|column| (first..self.buckets.len()).map(|bucket| mean(bucket, column)).collect())
            .collect();
        let lasts = self.buckets.get(first..).unwrap_or_default();
        (lasts.iter().map(|(last, _)| *last).collect(), columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_exact_and_bounded() {
        let mut means = BucketedMeans::new(2, 4);
        for iteration in 1..=11_u64 {
            means.push(iteration, &[iteration as f64, f64::NAN]);
        }
        let (numbers, columns) = means.finish();
        assert_eq!(numbers, [4, 8, 11]);
        assert_eq!(columns[0], [Some(2.5), Some(6.5), Some(10.0)]);
        assert_eq!(columns[1], [None; 3]);
        assert_eq!(means.ranges, [[1.0, 4.0], [5.0, 8.0], [9.0, 11.0]]);
        for iterations in [0, 1, 4, 5, 8, 9, 1000] {
            let mut means = BucketedMeans::new(1, 4);
            (1..=iterations).for_each(|iteration| means.push(iteration, &[1.0]));
            let (numbers, columns) = means.finish();
            assert!(numbers.len() <= 4 && numbers.last().copied().unwrap_or(0) == iterations);
            assert!(columns[0].iter().all(|mean| *mean == Some(1.0)));
        }
    }

    /// Points that are appended one by one are those of the whole file.
    #[test]
    fn appended_points_equal_those_of_all_rows() {
        let row = |iteration: u64| IterationRow {
            epoch: 1,
            iteration,
            loss: if iteration.is_multiple_of(7) { f64::NAN } else { iteration as f64 },
            train_s: 0.5,
            ..IterationRow::default()
        };
        let mut curves = IterationCurves::default();
        let mut shown = curves.points_from(0);
        for iteration in 1..=2500 {
            curves.push(&row(iteration));
            let first = match shown.iterations_per_point == curves.iterations_per_point() {
                true => shown.iteration.len().saturating_sub(1),
                false => 0,
            };
            let new = curves.points_from(first);
            shown.iterations_per_point = new.iterations_per_point;
            shown.iteration.splice(first.., new.iteration);
            shown.loss_max.splice(first.., new.loss_max);
            shown.elapsed_s.splice(first.., new.elapsed_s);
        }
        let all = curves.points_from(0);
        assert_eq!((all.iteration.len(), all.iterations_per_point), (625, 4));
        assert_eq!((shown.iteration, &shown.loss_max), (all.iteration, &all.loss_max));
        assert_eq!(shown.elapsed_s, all.elapsed_s);
        assert_eq!(all.elapsed_s.last(), Some(&1250.0));
        assert_eq!(all.loss_max[1], Some(8.0), "the loss of iteration 7 is not finite");
        assert_eq!((all.loss[1], all.non_finite_losses), (None, 357));
        assert!(curves.points_from(9999).iteration.is_empty());
    }
}
