//! The breakdown of the time of an iteration: each layer's forward and backward pass and update; the loss,
//! layout changes, copies, waiting for data, communication, bookkeeping, checkpoints; and the unattributed
//! rest.
//!
//! Sums are whole nanoseconds, so that the rows of an [`Accounting`] add up to the wall time exactly.
//! The median of each row is over the iterations in which it occurs; medians do not add up.

mod render;
mod types;
mod waits;

use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Purpose, TimelineReader};

use crate::rows::{PhaseColumn, SlotIndex, SlotTarget};
use crate::samples::Samples;
use crate::{Result, default_skip};

pub use render::render;
pub use types::{Accounting, AccountingOptions, Cost, LayerCost, PhaseCost, WaitTarget, WorkerCost};

/// The sums of a layer. The last two columns are backward and total.
#[derive(Clone, Default)]
struct LayerSum {
    columns: [Sum; PhaseColumn::COUNT + 2],
    now: [Option<i128>; PhaseColumn::COUNT],
}

#[derive(Clone, Default)]
struct Sum {
    total: i128,
    samples: Samples,
}

impl Sum {
    fn add(&mut self, ns: i128) {
        self.total += ns;
        self.samples.push(ns);
    }
}

/// Converts sums into costs.
#[derive(Clone, Copy)]
struct Scale {
    iterations: u64,
    wall_ns: i128,
}

impl Scale {
    fn cost(self, sum: Sum) -> Cost {
        let percent = if self.wall_ns == 0 { 0.0 } else { 100.0 * sum.total as f64 / self.wall_ns as f64 };
        Cost {
            total_ns: sum.total,
            mean_ms: sum.total as f64 / 1e6 / self.iterations.max(1) as f64,
            median_ms: sum.samples.median() / 1e6,
            share_percent: percent,
        }
    }
}

impl Accounting {
    /// The accounting of the training iterations of a run. Memory does not depend on their number.
    pub fn for_run(run: &RunDir, options: &AccountingOptions) -> Result<Self> {
        let recorded = count(run)?;
        let skipped = options.skip.unwrap_or_else(|| default_skip(recorded)).min(recorded);
        let mut reader = TimelineReader::open(&run.timeline())?;
        let mut rows = SlotIndex::default();
        let mut layers: Vec<LayerSum> = Vec::new();
        let mut phases: Vec<Sum> = Vec::new();
        let mut phases_now: Vec<Option<i128>> = Vec::new();
        let (mut wall, mut unattributed) = (Sum::default(), Sum::default());
        let (mut iteration, mut number) = (Iteration::default(), 0);
        // Iterations that were appended after counting are ignored, since the skip was chosen without them.
        while number < recorded && reader.read(&mut iteration)? {
            if reader.programs()[iteration.program].purpose != Purpose::Train {
                continue;
            }
            number += 1;
            if number <= skipped {
                continue;
            }
            rows.update(reader.programs());
            layers.resize_with(rows.layers.len(), LayerSum::default);
            phases.resize_with(rows.phases.len(), Sum::default);
            phases_now.resize(rows.phases.len(), None);
            for (target, &ns) in rows.targets[iteration.program].iter().zip(&iteration.ns) {
                let now = match *target {
                    SlotTarget::Layer(row, column) => &mut layers[row].now[column as usize],
                    SlotTarget::Phase(row) => &mut phases_now[row],
                };
                *now = Some(now.unwrap_or(0) + i128::from(ns));
            }
            layers.iter_mut().for_each(LayerSum::end_iteration);
            for (sum, now) in phases.iter_mut().zip(&mut phases_now) {
                now.take().into_iter().for_each(|ns| sum.add(ns));
            }
            wall.add(i128::from(iteration.wall_ns));
            unattributed.add(iteration.unattributed_ns());
        }
        // Read to the end of the complete records, to find the number of torn bytes.
        while reader.read_head(&mut iteration)? {}
        let scale = Scale { iterations: recorded - skipped, wall_ns: wall.total };
        let layers = rows.layers.iter().zip(layers).map(|(row, sum)| {
            let [forward, backward_data, backward_weights, update, backward, total] =
                sum.columns.map(|sum| scale.cost(sum));
            LayerCost {
                layer: row.name(),
                layers: row.layers.clone(),
                kind: row.kind.clone(),
                device: row.device.clone(),
                forward,
                backward,
                backward_data,
                backward_weights,
                update,
                total,
            }
        });
        let mut phases: Vec<PhaseCost> = rows
            .phases
            .iter()
            .zip(phases)
            .map(|(&phase, sum)| PhaseCost { phase, cost: scale.cost(sum) })
            .collect();
        phases.sort_by_key(|row| row.phase);
        let accounting = Self {
            iterations: scale.iterations,
            skipped,
            torn_bytes: reader.torn_bytes()?,
            wall: scale.cost(wall),
            layers: layers.collect(),
            phases,
            unattributed: scale.cost(unattributed),
            workers: Vec::new(),
        };
        Ok(accounting.with_workers(run, options))
    }

    /// Only the wall time of a run's training iterations, without rows. The times of slots, nearly all of a
    /// timeline, are not decoded. The values are those of [`Accounting::for_run`].
    pub fn wall_for_run(run: &RunDir, options: &AccountingOptions) -> Result<Self> {
        let mut reader = TimelineReader::open(&run.timeline())?;
        let (mut iteration, mut walls) = (Iteration::default(), Vec::new());
        while reader.read_head(&mut iteration)? {
            if reader.programs()[iteration.program].purpose == Purpose::Train {
                walls.push(iteration.wall_ns);
            }
        }
        let recorded = walls.len() as u64;
        let skipped = options.skip.unwrap_or_else(|| default_skip(recorded)).min(recorded);
        let mut wall = Sum::default();
        walls.iter().skip(skipped as usize).for_each(|&ns| wall.add(i128::from(ns)));
        let scale = Scale { iterations: recorded - skipped, wall_ns: wall.total };
        Ok(Self {
            iterations: scale.iterations,
            skipped,
            torn_bytes: reader.torn_bytes()?,
            wall: scale.cost(wall),
            ..Self::default()
        })
    }

    /// Adds a row for each worker that has a timeline, if there were several.
    fn with_workers(mut self, run: &RunDir, options: &AccountingOptions) -> Self {
        let others: Vec<(u64, RunDir, Self)> = run
            .workers()
            .into_iter()
            .filter_map(|(worker, folder)| {
                let accounting = Self::for_run(&folder, options).ok()?;
                Some((worker, folder, accounting))
            })
            .filter(|(.., accounting)| accounting.iterations > 0)
            .collect();
        if others.is_empty() {
            return self;
        }
        let first = self.as_worker(0);
        let rest = others.iter().map(|(worker, _, accounting)| accounting.as_worker(*worker));
        self.workers = std::iter::once(first).chain(rest).collect();
        let runs: Vec<&RunDir> = std::iter::once(run).chain(others.iter().map(|(_, run, _)| run)).collect();
        // If a timeline cannot be read, the waits are unknown, but the times remain valid.
        let (waits, iterations) = waits::waits(&runs, self.skipped).unwrap_or_default();
        let numbers: Vec<u64> = self.workers.iter().map(|worker| worker.worker).collect();
        for (worker, waited) in self.workers.iter_mut().zip(waits) {
            let longest_wait =
                waited.iter().zip(&numbers).max_by_key(|(ns, number)| (**ns, std::cmp::Reverse(**number)));
            worker.waited_for = longest_wait.filter(|(ns, _)| **ns > 0).map(|(&ns, &number)| {
                let mean_ms = ns as f64 / 1e6 / iterations.max(1) as f64;
                let share_percent = 100.0 * mean_ms / worker.wall.mean_ms;
                WaitTarget { worker: number, mean_ms, share_percent }
            });
        }
        self
    }

    fn as_worker(&self, worker: u64) -> WorkerCost {
        let cost_of_phase = |phase: Phase| {
            let row = self.phases.iter().find(|row| row.phase == phase);
            row.map_or(Cost::default(), |row| row.cost)
        };
        let (communication, data_wait) =
            (cost_of_phase(Phase::Communication), cost_of_phase(Phase::DataWait));
        WorkerCost { worker, wall: self.wall, communication, data_wait, waited_for: None }
    }
}

impl LayerSum {
    fn end_iteration(&mut self) {
        let now = std::mem::take(&mut self.now);
        let [_, data, weights, _] = now;
        let sum = |parts: &[Option<i128>]| parts.iter().flatten().copied().reduce(|a, b| a + b);
        let derived = [sum(&[data, weights]), sum(&now)];
        for (column, ns) in self.columns.iter_mut().zip(now.into_iter().chain(derived)) {
            ns.into_iter().for_each(|ns| column.add(ns));
        }
    }
}

/// The number of training iterations in the timeline of a run.
pub(crate) fn count(run: &RunDir) -> Result<u64> {
    let mut reader = TimelineReader::open(&run.timeline())?;
    let (mut iteration, mut count) = (Iteration::default(), 0);
    while reader.read_head(&mut iteration)? {
        count += u64::from(reader.programs()[iteration.program].purpose == Purpose::Train);
    }
    Ok(count)
}
