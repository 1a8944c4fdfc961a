//! Where the time of an iteration goes: every layer, forward, backward and update; the loss, layout changes,
//! copies, waiting for data, communication, bookkeeping, checkpoints; and what nothing accounts for.
//!
//! Sums are kept in whole nanoseconds, so the rows of an [`Accounting`] add up to the wall time exactly.
//! Medians are those of each row by itself, over the iterations it takes part in, and add up to nothing in
//! particular.

mod render;
mod waits;

use serde::{Deserialize, Serialize};
use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Purpose, TimelineReader};

use crate::rows::{Column, Place, Rows};
use crate::samples::Samples;
use crate::{Result, default_skip};

pub use render::render;

/// What to account for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How many first training iterations to leave out; none for [`default_skip`].
    pub skip: Option<u64>,
}

/// A time over the counted iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The sum in nanoseconds.
    pub total_ns: i128,
    /// Milliseconds an iteration: the sum over all counted iterations, divided by their number.
    pub mean_ms: f64,
    /// Half of the iterations take less.
    pub median_ms: f64,
    /// Percent of the wall time.
    pub share_percent: f64,
}

/// The time of a layer, or of several whose steps are fused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerCost {
    /// The name, `layer1.1+layer1.2` where fused.
    pub layer: String,
    /// The layers.
    pub layers: Vec<String>,
    /// What the layer is, as its first step says.
    pub kind: String,
    /// Where it runs.
    pub device: String,
    /// Outputs.
    pub forward: Cost,
    /// Gradients: those of inputs and those of parameters.
    pub backward: Cost,
    /// Of it, gradients of inputs.
    pub backward_data: Cost,
    /// Of it, gradients of parameters.
    pub backward_weights: Cost,
    /// Parameters changed.
    pub update: Cost,
    /// All of it.
    pub total: Cost,
}

/// The time of something that belongs to no layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseCost {
    /// What it is.
    pub phase: Phase,
    /// How long it takes.
    pub cost: Cost,
}

/// One of the workers that train a run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerCost {
    /// Its number.
    pub worker: u64,
    /// Its iterations' wall time.
    pub wall: Cost,
    /// Of it, exchanging with the others, and waiting for them.
    pub communication: Cost,
    /// Of it, waiting for data.
    pub data_wait: Cost,
    /// For whom it waited most while it communicated; `None` where it waited for nobody, or that is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<WaitedFor>,
}

/// Another worker that came later to exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitedFor {
    /// Its number.
    pub worker: u64,
    /// Milliseconds an iteration of waiting for it: a part of the communication.
    pub mean_ms: f64,
    /// Percent of the iterations' wall time.
    pub share_percent: f64,
}

/// Where the time of a run's training iterations went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accounting {
    /// Iterations counted.
    pub iterations: u64,
    /// First iterations left out.
    pub skipped: u64,
    /// Bytes of an unfinished record at the timeline's end: a write under way, or torn by a kill.
    pub torn_bytes: u64,
    /// The iterations' wall time: what all rows and the unattributed add up to.
    pub wall: Cost,
    /// By layer, in the order of their first steps.
    pub layers: Vec<LayerCost>,
    /// What belongs to no layer.
    pub phases: Vec<PhaseCost>,
    /// What nothing accounts for.
    pub unattributed: Cost,
    /// Where several workers trained: each, the first included, whose rows are all of the above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerCost>,
}

/// The sums of a row by layer. The last two columns are backward and total.
#[derive(Clone, Default)]
struct LayerSum {
    columns: [Sum; Column::COUNT + 2],
    now: [Option<i128>; Column::COUNT],
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

/// What turns sums into costs.
#[derive(Clone, Copy)]
struct Scale {
    iterations: u64,
    wall_ns: i128,
}

impl Scale {
    fn cost(self, sum: Sum) -> Cost {
        let share = if self.wall_ns == 0 { 0.0 } else { 100.0 * sum.total as f64 / self.wall_ns as f64 };
        Cost {
            total_ns: sum.total,
            mean_ms: sum.total as f64 / 1e6 / self.iterations.max(1) as f64,
            median_ms: sum.samples.median() / 1e6,
            share_percent: share,
        }
    }
}

impl Accounting {
    /// Accounts for a run's training iterations. Memory does not grow with their number.
    pub fn of(run: &RunDir, options: &Options) -> Result<Self> {
        let recorded = count(run)?;
        let skipped = options.skip.unwrap_or_else(|| default_skip(recorded)).min(recorded);
        let mut reader = TimelineReader::open(&run.timeline())?;
        let mut rows = Rows::default();
        let mut layers: Vec<LayerSum> = Vec::new();
        let mut phases: Vec<Sum> = Vec::new();
        let mut phases_now: Vec<Option<i128>> = Vec::new();
        let (mut wall, mut unattributed) = (Sum::default(), Sum::default());
        let (mut iteration, mut number) = (Iteration::default(), 0);
        // What is appended since the count stays out: the skipped part was chosen without it.
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
            for (place, &ns) in rows.places[iteration.program].iter().zip(&iteration.ns) {
                let now = match *place {
                    Place::Layer(row, column) => &mut layers[row].now[column as usize],
                    Place::Phase(row) => &mut phases_now[row],
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
        // Read on to where the whole records end, so that what follows them is known.
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

    /// With a row for each worker, where there were several. What a worker has not written has none.
    fn with_workers(mut self, run: &RunDir, options: &Options) -> Self {
        let others: Vec<(u64, RunDir, Self)> = run
            .workers()
            .into_iter()
            .filter_map(|(worker, folder)| {
                let accounting = Self::of(&folder, options).ok()?;
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
        // A timeline that cannot be read says nothing of waits; what it says of times stands.
        let (waits, iterations) = waits::waits(&runs, self.skipped).unwrap_or_default();
        let numbers: Vec<u64> = self.workers.iter().map(|worker| worker.worker).collect();
        for (worker, waited) in self.workers.iter_mut().zip(waits) {
            let most =
                waited.iter().zip(&numbers).max_by_key(|(ns, number)| (**ns, std::cmp::Reverse(**number)));
            worker.waited_for = most.filter(|(ns, _)| **ns > 0).map(|(&ns, &number)| {
                let mean_ms = ns as f64 / 1e6 / iterations.max(1) as f64;
                let share_percent = 100.0 * mean_ms / worker.wall.mean_ms;
                WaitedFor { worker: number, mean_ms, share_percent }
            });
        }
        self
    }

    fn as_worker(&self, worker: u64) -> WorkerCost {
        let of = |phase: Phase| {
            let row = self.phases.iter().find(|row| row.phase == phase);
            row.map_or(Cost::default(), |row| row.cost)
        };
        let (communication, data_wait) = (of(Phase::Communication), of(Phase::DataWait));
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

/// The training iterations of a run's timeline.
pub(crate) fn count(run: &RunDir) -> Result<u64> {
    let mut reader = TimelineReader::open(&run.timeline())?;
    let (mut iteration, mut count) = (Iteration::default(), 0);
    while reader.read_head(&mut iteration)? {
        count += u64::from(reader.programs()[iteration.program].purpose == Purpose::Train);
    }
    Ok(count)
}
