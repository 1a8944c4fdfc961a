//! Curves over the iterations, in a bounded number of points.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, IterationRow};
use stratus_run::timeline::{Iteration, Purpose, TimelineReader};

use crate::Result;
use crate::accounting::Accounting;
use crate::rows::{Place, Rows};

/// Points of a curve at most; a curve of more iterations shows means over equal stretches of them.
pub(super) const POINTS: usize = 1000;

/// Points at most of the curves by layer, of which there are many.
const LAYER_POINTS: usize = 300;

/// Layers with a curve of their own: those that take longest.
const LAYERS: usize = 24;

/// A run's curves over its iterations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Curves {
    /// The number of the last iteration of each point's stretch.
    pub iteration: Vec<u64>,
    /// Mean training loss; none where one of its iterations has a loss that is not finite.
    pub loss: Curve,
    /// The number of iterations whose loss is not finite.
    pub non_finite_losses: u64,
    /// Mean share of right answers.
    pub accuracy: Curve,
    /// Mean learning rate.
    pub learning_rate: Curve,
    /// Mean milliseconds that an iteration waits for data.
    pub data_ms: Curve,
    /// Mean milliseconds of an iteration, waiting included.
    pub iteration_ms: Curve,
    /// The number of iterations that a point is the mean of; the last point may have fewer.
    pub iterations_per_point: u64,
    /// The last iteration of each epoch.
    #[serde(skip)]
    pub epoch_ends: BTreeMap<u32, u64>,
    /// The number of the last iteration of each point of the curves by layer.
    pub layer_iteration: Vec<u64>,
    /// The number of iterations that a point of the curves by layer is the mean of.
    pub layer_iterations_per_point: u64,
    /// Mean milliseconds of all layers: forward.
    pub forward_ms: Curve,
    /// Mean milliseconds of all layers: backward and update.
    pub backward_ms: Curve,
    /// Mean milliseconds of the layers that take longest, the longest first.
    pub layers: Vec<LayerCurve>,
}

/// A value per point; none where there is none.
pub type Curve = Vec<Option<f64>>;

/// The time of a layer over the iterations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerCurve {
    /// Its name, as in the accounting.
    pub layer: String,
    /// Mean milliseconds an iteration: forward.
    pub forward_ms: Curve,
    /// Mean milliseconds an iteration: backward and update.
    pub backward_ms: Curve,
}

impl Curves {
    /// Reads a run's `iterations.csv` and timeline, each in one pass; what the run did not write yet is
    /// empty.
    pub(super) fn of(run: &RunDir, accounting: &Accounting) -> Result<Self> {
        let mut curves = Self::default();
        curves.read_iterations(run)?;
        curves.read_layers(run, accounting)?;
        Ok(curves)
    }

    fn read_iterations(&mut self, run: &RunDir) -> Result<()> {
        let path = run.iterations();
        if !path.exists() {
            return Ok(());
        }
        let mut means = Means::new(5, POINTS);
        for row in CsvReader::<IterationRow>::open(&path)? {
            let row = row?;
            self.epoch_ends.insert(row.epoch, row.iteration);
            self.non_finite_losses += u64::from(!row.loss.is_finite());
            let wall = row.data_s + row.train_s + row.unattributed_s;
            means.push(
                row.iteration,
                &[
                    row.loss,
                    row.accuracy.unwrap_or(f64::NAN),
                    row.learning_rate,
                    1e3 * row.data_s,
                    1e3 * wall,
                ],
            );
        }
        self.iterations_per_point = means.length;
        let (numbers, columns) = means.finish();
        self.iteration = numbers;
        let [loss, accuracy, learning_rate, data_ms, iteration_ms] =
            columns.try_into().unwrap_or([const { Vec::new() }; 5]);
        (self.loss, self.accuracy, self.learning_rate) = (loss, accuracy, learning_rate);
        (self.data_ms, self.iteration_ms) = (data_ms, iteration_ms);
        Ok(())
    }

    fn read_layers(&mut self, run: &RunDir, accounting: &Accounting) -> Result<()> {
        let mut longest: Vec<_> = accounting.layers.iter().collect();
        longest.sort_by_key(|layer| std::cmp::Reverse(layer.total.total_ns));
        longest.truncate(LAYERS);
        let chosen: HashMap<(&[String], &str), usize> = longest
            .iter()
            .enumerate()
            .map(|(position, layer)| ((&layer.layers[..], layer.device.as_str()), position))
            .collect();
        if chosen.is_empty() {
            return Ok(());
        }
        let mut reader = TimelineReader::open(&run.timeline())?;
        let (mut rows, mut iteration) = (Rows::default(), Iteration::default());
        let mut column_of: Vec<Option<usize>> = Vec::new();
        // Forward and backward of each layer with a curve, then of all layers.
        let all = 2 * longest.len();
        let mut means = Means::new(all + 2, LAYER_POINTS);
        let mut now = vec![0.0; all + 2];
        while reader.read(&mut iteration)? {
            if reader.programs()[iteration.program].purpose != Purpose::Train {
                continue;
            }
            rows.update(reader.programs());
            for row in &rows.layers[column_of.len()..] {
                column_of.push(chosen.get(&(&row.layers[..], row.device.as_str())).copied());
            }
            now.fill(0.0);
            for (place, &ns) in rows.places[iteration.program].iter().zip(&iteration.ns) {
                let Place::Layer(row, column) = *place else { continue };
                let (ms, part) = (ns as f64 / 1e6, usize::from(!column.is_forward()));
                now[all + part] += ms;
                if let Some(position) = column_of[row] {
                    now[2 * position + part] += ms;
                }
            }
            means.push(iteration.iteration, &now);
        }
        self.layer_iterations_per_point = means.length;
        let (numbers, columns) = means.finish();
        self.layer_iteration = numbers;
        let mut columns = columns.into_iter();
        let mut next = || columns.next().unwrap_or_default();
        self.layers = longest
            .iter()
            .map(|layer| LayerCurve { layer: layer.layer.clone(), forward_ms: next(), backward_ms: next() })
            .collect();
        (self.forward_ms, self.backward_ms) = (next(), next());
        Ok(())
    }
}

/// Means over stretches of equal length, which doubles whenever there would be too many of them.
pub(super) struct Means {
    columns: usize,
    limit: usize,
    /// Iterations a stretch.
    length: u64,
    /// The last iteration, the count and the sums of each stretch.
    stretches: Vec<(u64, u64)>,
    sums: Vec<f64>,
}

impl Means {
    pub(super) fn new(columns: usize, limit: usize) -> Self {
        Self { columns, limit, length: 1, stretches: Vec::new(), sums: Vec::new() }
    }

    pub(super) fn push(&mut self, iteration: u64, values: &[f64]) {
        if self.stretches.last().is_none_or(|(_, count)| *count == self.length) {
            if self.stretches.len() == self.limit {
                self.halve();
            }
            if self.stretches.last().is_none_or(|(_, count)| *count == self.length) {
                self.stretches.push((iteration, 0));
                self.sums.resize(self.sums.len() + self.columns, 0.0);
            }
        }
        let first = self.sums.len() - self.columns;
        for (sum, value) in self.sums[first..].iter_mut().zip(values) {
            *sum += value;
        }
        if let Some(last) = self.stretches.last_mut() {
            *last = (iteration, last.1 + 1);
        }
    }

    /// Joins every two stretches.
    fn halve(&mut self) {
        let joined = self.stretches.len().div_ceil(2);
        for to in 0..joined {
            let (a, b) = (2 * to, 2 * to + 1);
            let second = self.stretches.get(b).copied();
            let (end, count) = self.stretches[a];
            self.stretches[to] = second.map_or((end, count), |(last, more)| (last, count + more));
            for column in 0..self.columns {
                let more = second.map_or(0.0, |_| self.sums[b * self.columns + column]);
                self.sums[to * self.columns + column] = self.sums[a * self.columns + column] + more;
            }
        }
        self.stretches.truncate(joined);
        self.sums.truncate(joined * self.columns);
        self.length *= 2;
    }

    /// The last iteration of each stretch, and the means by column. What is not finite is none.
    pub(super) fn finish(self) -> (Vec<u64>, Vec<Curve>) {
        let mean = |stretch: usize, column: usize| {
            let mean = self.sums[stretch * self.columns + column] / self.stretches[stretch].1 as f64;
            mean.is_finite().then_some(mean)
        };
        let columns = (0..self.columns)
            .map(|column| (0..self.stretches.len()).map(|stretch| mean(stretch, column)).collect())
            .collect();
        (self.stretches.iter().map(|(last, _)| *last).collect(), columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_exact_and_bounded() {
        let mut means = Means::new(2, 4);
        for iteration in 1..=11_u64 {
            means.push(iteration, &[iteration as f64, f64::NAN]);
        }
        let (numbers, columns) = means.finish();
        assert_eq!(numbers, [4, 8, 11]);
        assert_eq!(columns[0], [Some(2.5), Some(6.5), Some(10.0)]);
        assert_eq!(columns[1], [None; 3]);
        for iterations in [0, 1, 4, 5, 8, 9, 1000] {
            let mut means = Means::new(1, 4);
            (1..=iterations).for_each(|iteration| means.push(iteration, &[1.0]));
            let (numbers, columns) = means.finish();
            assert!(numbers.len() <= 4 && numbers.last().copied().unwrap_or(0) == iterations);
            assert!(columns[0].iter().all(|mean| *mean == Some(1.0)));
        }
    }
}
