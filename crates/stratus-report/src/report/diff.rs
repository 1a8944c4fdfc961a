//! Time differences of two runs by layer and phase, and their significance.
//!
//! Only iterations on whole batches count, so that the smaller last batch of an epoch does not shift the
//! means. Times of neighbouring iterations are correlated, so they are not independent samples: means of
//! blocks of consecutive iterations are compared (the method of batch means) by Welch's t-test, with Holm's
//! correction for multiple comparisons.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Purpose, TimelineReader};

use super::run::RunReport;
use super::statistics::{SIGNIFICANT, holm_adjust, welch};
use crate::rows::{LayerRow, PhaseColumn, SlotIndex, SlotTarget};
use crate::{Result, default_skip};

/// Maximum number of blocks of consecutive iterations.
const MAX_BLOCKS: u64 = 20;

/// Maximum number of layers in the headline.
const MAX_NAMED: usize = 3;

/// The time differences of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The labels of the runs, before and after.
    pub runs: [String; 2],
    /// Images of a whole batch.
    pub batch_size: [u64; 2],
    /// The unit of work of the times.
    pub per: TimeUnit,
    /// Number of counted iterations on whole batches.
    pub iterations: [u64; 2],
    /// Number of skipped first iterations.
    pub skipped: [u64; 2],
    /// Number of blocks of consecutive iterations.
    pub blocks: [usize; 2],
    /// The statistical test.
    pub test: &'static str,
    /// The result in one sentence.
    pub headline: String,
    /// Layers, in the order of the first run; layers that are fused differently in the two runs are grouped.
    pub layers: Vec<LayerDiff>,
    /// Phases outside layers.
    pub phases: Vec<PhaseDiff>,
    /// Unattributed time.
    pub unattributed: Change,
    /// Wall time.
    pub wall: Change,
    /// Layers that only the first run has, and only the second.
    pub only: [Vec<String>; 2],
}

/// The unit of work of the times of a [`Diff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Per iteration, for equal batch sizes.
    #[serde(rename = "iteration")]
    PerIteration,
    /// Per image, for different batch sizes.
    #[serde(rename = "image")]
    PerImage,
}

impl TimeUnit {
    /// The name in files: `iteration`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PerIteration => "iteration",
            Self::PerImage => "image",
        }
    }

    /// The unit of a table.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::PerIteration => "ms",
            Self::PerImage => "µs per image",
        }
    }

    /// Converts milliseconds to [`TimeUnit::unit`].
    #[must_use]
    pub fn in_unit(self, ms: f64) -> f64 {
        match self {
            Self::PerIteration => ms,
            Self::PerImage => 1e3 * ms,
        }
    }
}

/// The time differences of a layer, or of several fused layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerDiff {
    /// The name; `layer1.1+layer1.2` for several.
    pub layer: String,
    /// The kind of layer.
    pub kind: String,
    /// Computing outputs.
    pub forward: Change,
    /// Computing gradients of inputs.
    pub backward_data: Change,
    /// Computing gradients of parameters.
    pub backward_weights: Change,
    /// Updating parameters.
    pub update: Change,
    /// Total time of the layer.
    pub total: Change,
}

impl LayerDiff {
    /// The phases by name, the total last.
    #[must_use]
    pub fn phases(&self) -> [(&'static str, &Change); 5] {
        [
            ("forward", &self.forward),
            ("backward_data", &self.backward_data),
            ("backward_weights", &self.backward_weights),
            ("update", &self.update),
            ("total", &self.total),
        ]
    }
}

/// The time difference of a phase outside layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseDiff {
    /// The phase.
    pub phase: Phase,
    /// Its time difference.
    pub change: Change,
}

/// Mean times in both runs, and their difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Milliseconds before; `None` if there is no such step.
    pub before_ms: Option<f64>,
    /// Milliseconds after; `None` if there is no such step.
    pub after_ms: Option<f64>,
    /// After minus before.
    pub difference_ms: Option<f64>,
    /// The difference in percent of before.
    pub percent: Option<f64>,
    /// The p-value; `None` with fewer than two blocks, or without any variance.
    pub p: Option<f64>,
    /// True if the difference is significant: `p` below 0.05.
    pub differs: Option<bool>,
}

impl Change {
    /// The verdict: `faster`, `slower`, `within the spread`, `only before`, `only after`; `None` if unknown.
    #[must_use]
    pub fn verdict(&self) -> Option<&'static str> {
        match (self.before_ms, self.after_ms) {
            (Some(_), None) => return Some("only before"),
            (None, Some(_)) => return Some("only after"),
            _ => {}
        }
        Some(match (self.differs?, self.difference_ms? < 0.0) {
            (false, _) => "within the spread",
            (true, true) => "faster",
            (true, false) => "slower",
        })
    }

    /// The change between block means; `None` if a run does not have them.
    fn between(before: Option<&BlockMeans>, after: Option<&BlockMeans>) -> Self {
        let [before_ms, after_ms] = [before, after].map(|means| means.map(|means| means.all));
        let pair = before.zip(after);
        let difference_ms = before_ms.zip(after_ms).map(|(before, after)| after - before);
        let percent = difference_ms.zip(before_ms).filter(|(_, before)| *before > 0.0);
        Self {
            before_ms,
            after_ms,
            difference_ms,
            percent: percent.map(|(difference, before)| 100.0 * difference / before),
            p: pair.and_then(|(before, after)| welch(&before.blocks, &after.blocks)),
            differs: None,
        }
    }
}

impl Diff {
    /// Compares the times of two runs, without the first `skip` iterations or [`default_skip`].
    pub(super) fn between(before: &RunReport, after: &RunReport, skip: Option<u64>) -> Result<Self> {
        let times = [BlockTimes::read(before, skip)?, BlockTimes::read(after, skip)?];
        let batch_size = [0, 1].map(|side| times[side].batch);
        let per = if batch_size[0] == batch_size[1] { TimeUnit::PerIteration } else { TimeUnit::PerImage };
        let means = |side: usize, blocks: &[i128]| times[side].means(blocks, per);
        let change = |pick: &dyn Fn(&BlockTimes) -> Option<Vec<i128>>| {
            let [before, after] = [0, 1].map(|side| pick(&times[side]).map(|blocks| means(side, &blocks)));
            Change::between(before.as_ref(), after.as_ref())
        };
        let both = &times;
        let (mut layers, mut only) = (Vec::new(), [Vec::new(), Vec::new()]);
        for group in groups([&times[0].rows.layers, &times[1].rows.layers]) {
            let column = |columns: &[PhaseColumn]| {
                let [before, after] = [0, 1].map(|side| {
                    let rows = group.rows[side].iter();
                    let series = rows.flat_map(|&row| {
                        columns
                            .iter()
                            .filter_map(move |&column| both[side].layers[row][column as usize].as_deref())
                    });
                    sum(series).map(|blocks| means(side, &blocks))
                });
                Change::between(before.as_ref(), after.as_ref())
            };
            for side in [0, 1] {
                if group.rows[1 - side].is_empty() {
                    only[side].push(group.name.clone());
                }
            }
            layers.push(LayerDiff {
                forward: column(&[PhaseColumn::Forward]),
                backward_data: column(&[PhaseColumn::BackwardData]),
                backward_weights: column(&[PhaseColumn::BackwardWeights]),
                update: column(&[PhaseColumn::Update]),
                total: column(&[
                    PhaseColumn::Forward,
                    PhaseColumn::BackwardData,
                    PhaseColumn::BackwardWeights,
                    PhaseColumn::Update,
                ]),
                layer: group.name,
                kind: group.kind,
            });
        }
        let phases: BTreeSet<Phase> = times.iter().flat_map(|times| times.rows.phases.clone()).collect();
        let phases = phases.into_iter().map(|phase| {
            let phase_blocks = move |times: &BlockTimes| {
                let row = times.rows.phases.iter().position(|&known| known == phase)?;
                times.phases.get(row).cloned()
            };
            PhaseDiff { phase, change: change(&phase_blocks) }
        });
        let mut diff = Self {
            runs: [before.label.clone(), after.label.clone()],
            batch_size,
            per,
            iterations: [0, 1].map(|side| times[side].counts.iter().sum()),
            skipped: [0, 1].map(|side| times[side].skipped),
            blocks: [0, 1].map(|side| times[side].counts.len()),
            test: "Welch's t-test (two-sided) between means of blocks of consecutive iterations, Holm's \
                   correction over all comparisons, p < 0.05",
            headline: String::new(),
            phases: phases.collect(),
            unattributed: change(&|times| times.recorded(&times.unattributed)),
            wall: change(&|times| times.recorded(&times.wall)),
            layers,
            only,
        };
        diff.adjust_p_values();
        diff.headline = diff.headline_text();
        Ok(diff)
    }

    /// Adjusts the p-values for multiple comparisons, and sets the significance.
    fn adjust_p_values(&mut self) {
        let mut changes: Vec<&mut Change> = vec![&mut self.wall, &mut self.unattributed];
        changes.extend(self.phases.iter_mut().map(|row| &mut row.change));
        for LayerDiff { forward, backward_data, backward_weights, update, total, .. } in &mut self.layers {
            changes.extend([forward, backward_data, backward_weights, update, total]);
        }
        let mut probabilities: Vec<&mut f64> =
            changes.iter_mut().filter_map(|change| change.p.as_mut()).collect();
        holm_adjust(&mut probabilities);
        for change in changes {
            change.differs = change.p.map(|p| p < SIGNIFICANT);
        }
    }

    fn headline_text(&self) -> String {
        let (Some(before), Some(after)) = (self.wall.before_ms, self.wall.after_ms) else {
            let missing = usize::from(self.wall.before_ms.is_some());
            return format!("{} has no iteration to compare.", self.runs[missing]);
        };
        let in_unit = |ms: f64| self.per.in_unit(ms);
        let (per, unit) = match self.per {
            TimeUnit::PerIteration => ("per iteration", "ms"),
            TimeUnit::PerImage => ("per image", "µs"),
        };
        let percent = self.wall.percent.map_or(String::new(), |percent| {
            format!(": {:.1} % {}", percent.abs(), if percent < 0.0 { "less" } else { "more" })
        });
        let significance = match self.wall.differs {
            Some(true) => ", beyond the spread of iterations",
            Some(false) => ", within the spread of iterations",
            None => "",
        };
        let mut text = format!(
            "{} takes {:.3} {unit} {per}, {} {:.3} {unit}{percent}{significance}.",
            self.runs[1],
            in_unit(after),
            self.runs[0],
            in_unit(before)
        );
        let mut changed: Vec<(&str, f64)> = self
            .layers
            .iter()
            .map(|layer| (layer.layer.as_str(), &layer.total))
            .chain(self.phases.iter().map(|row| (row.phase.name(), &row.change)))
            .filter(|(_, change)| change.differs == Some(true))
            .filter_map(|(name, change)| Some((name, change.difference_ms?)))
            .collect();
        changed.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        let largest: Vec<String> = changed
            .iter()
            .take(MAX_NAMED)
            .map(|(name, ms)| format!("{} {:+.3} {unit}", name.replace('_', " "), in_unit(*ms)))
            .collect();
        if !largest.is_empty() {
            let named: f64 = changed.iter().take(MAX_NAMED).map(|(_, ms)| ms).sum();
            let whole = self.wall.difference_ms.unwrap_or_default();
            // Significant changes need not explain the total difference.
            let is_most = named * whole > 0.0 && named.abs() >= whole.abs() / 2.0;
            let label = if is_most { "Mostly due to" } else { "Significant changes" };
            text.push_str(&format!(" {label}: {}.", largest.join(", ")));
        }
        text
    }
}

/// The mean over all iterations and over each block, in milliseconds.
struct BlockMeans {
    all: f64,
    blocks: Vec<f64>,
}

/// Nanoseconds of the iterations of a run on whole batches, by row, as sums over blocks of consecutive
/// iterations.
#[derive(Default)]
struct BlockTimes {
    batch: u64,
    skipped: u64,
    rows: SlotIndex,
    /// By row and column; `None` if there is no such step.
    layers: Vec<[Option<Vec<i128>>; PhaseColumn::COUNT]>,
    phases: Vec<Vec<i128>>,
    unattributed: Vec<i128>,
    wall: Vec<i128>,
    /// Iterations of each block.
    counts: Vec<u64>,
}

impl BlockTimes {
    fn read(run: &RunReport, skip: Option<u64>) -> Result<Self> {
        let run = RunDir::open(&run.record.path)?;
        // Batch sizes of all training iterations, run-length encoded.
        let mut lengths: Vec<(u64, u64)> = Vec::new();
        let mut reader = TimelineReader::open(&run.timeline())?;
        let mut iteration = Iteration::default();
        while reader.read_head(&mut iteration)? {
            let program = &reader.programs()[iteration.program];
            if program.purpose != Purpose::Train {
                continue;
            }
            match lengths.last_mut() {
                Some((size, count)) if *size == program.batch_size => *count += 1,
                _ => lengths.push((program.batch_size, 1)),
            }
        }
        let recorded: u64 = lengths.iter().map(|(_, count)| count).sum();
        let skipped = skip.unwrap_or_else(|| default_skip(recorded)).min(recorded);
        let batch = lengths.iter().map(|(size, _)| *size).max().unwrap_or(0);
        let (mut whole, mut before) = (0, 0);
        for (size, count) in lengths {
            let counted = (before + count).saturating_sub(skipped.max(before));
            whole += if size == batch { counted } else { 0 };
            before += count;
        }
        let blocks = usize::try_from(whole.min(MAX_BLOCKS)).unwrap_or(0);
        let zeros = vec![0; blocks];
        let mut times = Self {
            batch,
            skipped,
            unattributed: zeros.clone(),
            wall: zeros.clone(),
            counts: vec![0; blocks],
            ..Self::default()
        };
        let mut reader = TimelineReader::open(&run.timeline())?;
        let (mut number, mut counted) = (0, 0);
        // Iterations appended since counting are ignored.
        while counted < whole && reader.read(&mut iteration)? {
            let program = &reader.programs()[iteration.program];
            if program.purpose != Purpose::Train {
                continue;
            }
            let is_whole = program.batch_size == batch;
            number += 1;
            if number <= skipped || !is_whole {
                continue;
            }
            let block =
                usize::try_from(u128::from(counted) * blocks as u128 / u128::from(whole)).unwrap_or(0);
            counted += 1;
            times.rows.update(reader.programs());
            times.layers.resize_with(times.rows.layers.len(), Default::default);
            times.phases.resize(times.rows.phases.len(), zeros.clone());
            for (target, &ns) in times.rows.targets[iteration.program].iter().zip(&iteration.ns) {
                let blocks = match *target {
                    SlotTarget::Layer(row, column) => {
                        times.layers[row][column as usize].get_or_insert_with(|| zeros.clone())
                    }
                    SlotTarget::Phase(row) => &mut times.phases[row],
                };
                blocks[block] += i128::from(ns);
            }
            times.wall[block] += i128::from(iteration.wall_ns);
            times.unattributed[block] += iteration.unattributed_ns();
            times.counts[block] += 1;
        }
        Ok(times)
    }

    /// The blocks, if there is any iteration.
    fn recorded(&self, blocks: &[i128]) -> Option<Vec<i128>> {
        (!blocks.is_empty()).then(|| blocks.to_vec())
    }

    fn means(&self, blocks: &[i128], per: TimeUnit) -> BlockMeans {
        let images = match per {
            TimeUnit::PerIteration => 1.0,
            TimeUnit::PerImage => self.batch.max(1) as f64,
        };
        let mean = |ns: i128, count: u64| ns as f64 / 1e6 / images / count.max(1) as f64;
        BlockMeans {
            all: mean(blocks.iter().sum(), self.counts.iter().sum()),
            blocks: blocks.iter().zip(&self.counts).map(|(&ns, &count)| mean(ns, count)).collect(),
        }
    }
}

/// Element-wise sum; `None` without series.
fn sum<'a>(series: impl Iterator<Item = &'a [i128]>) -> Option<Vec<i128>> {
    series.fold(None, |sum: Option<Vec<i128>>, blocks| {
        Some(match sum {
            None => blocks.to_vec(),
            Some(sum) => sum.iter().zip(blocks).map(|(a, b)| a + b).collect(),
        })
    })
}

/// Rows of both runs for the same layers.
#[derive(Debug, PartialEq)]
struct LayerGroup {
    name: String,
    kind: String,
    rows: [Vec<usize>; 2],
}

/// Matches rows by the names of their layers. If the runs fuse layers differently, rows that share a layer
/// are grouped.
fn groups(rows: [&[LayerRow]; 2]) -> Vec<LayerGroup> {
    let sets = rows.map(|rows| rows.iter().map(|row| &row.layers[..]).collect::<BTreeSet<_>>());
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for layer in rows.iter().flat_map(|rows| rows.iter()).flat_map(|row| &row.layers) {
        let next = numbers.len();
        numbers.entry(layer).or_insert(next);
    }
    // The set of each layer: layers of rows that only one run has are merged, together with all layers that
    // share a row with them.
    let mut set: Vec<usize> = (0..numbers.len()).collect();
    let mut merged = vec![false; set.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (side, row) in [0, 1].into_iter().flat_map(|side| rows[side].iter().map(move |row| (side, row))) {
            let members: Vec<usize> = row.layers.iter().map(|layer| set[numbers[layer.as_str()]]).collect();
            let Some(&min) = members.iter().min() else { continue };
            let is_unmatched = !sets[1 - side].contains(&row.layers[..]);
            let meets = members.iter().any(|&member| merged[member]);
            if !is_unmatched && !meets || merged[min] && members.iter().all(|&member| member == min) {
                continue;
            }
            set.iter_mut().filter(|id| members.contains(id)).for_each(|id| *id = min);
            merged[min] = true;
            changed = true;
        }
    }
    let mut found: Vec<(Option<usize>, &[String], LayerGroup)> = Vec::new();
    for side in [0, 1] {
        for (number, row) in rows[side].iter().enumerate() {
            let id = row.layers.first().map(|layer| set[numbers[layer.as_str()]]);
            let id = id.filter(|&id| merged[id]);
            let same = |known: &(Option<usize>, &[String], LayerGroup)| match id {
                Some(id) => known.0 == Some(id),
                None => known.0.is_none() && known.1 == row.layers,
            };
            match found.iter_mut().find(|known| same(known)) {
                Some((.., group)) => group.rows[side].push(number),
                None => {
                    let mut group =
                        LayerGroup { name: String::new(), kind: row.kind.clone(), rows: [vec![], vec![]] };
                    group.rows[side].push(number);
                    found.push((id, &row.layers, group));
                }
            }
        }
    }
    let named = found.into_iter().map(|(.., mut group)| {
        let mut layers: Vec<&str> = Vec::new();
        for side in [0, 1] {
            for layer in group.rows[side].iter().flat_map(|&row| &rows[side][row].layers) {
                if !layers.contains(&layer.as_str()) {
                    layers.push(layer);
                }
            }
        }
        group.name = layers.join("+");
        group
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&str]) -> Vec<LayerRow> {
        let row = |name: &&str| LayerRow {
            layers: name.split('+').map(str::to_owned).collect(),
            kind: "conv2d".into(),
            device: "cpu".into(),
        };
        rows.iter().map(row).collect()
    }

    fn matched(a: &[&str], b: &[&str]) -> Vec<String> {
        let (a, b) = (rows(a), rows(b));
        groups([&a, &b])
            .into_iter()
            .map(|group| format!("{} {:?} {:?}", group.name, group.rows[0], group.rows[1]))
            .collect()
    }

    #[test]
    fn matches_layers_by_name_across_fusions() {
        assert_eq!(matched(&["a", "b"], &["b", "a"]), ["a [0] [1]", "b [1] [0]"]);
        // One network has an additional layer.
        assert_eq!(matched(&["a", "b"], &["a", "x", "b"]), ["a [0] [0]", "b [1] [2]", "x [] [1]"]);
        // Fused only in the second run; rows that share a layer with it are grouped, the rest is not.
        assert_eq!(
            matched(&["a", "b", "c", "d"], &["a+b", "a", "c", "d"]),
            ["a+b [0, 1] [0, 1]", "c [2] [2]", "d [3] [3]"]
        );
        // Rows of both runs share layers with rows of only one.
        assert_eq!(matched(&["a+b", "b+c", "d"], &["a+b", "b", "b+c", "d"]).len(), 2);
        assert_eq!(matched(&["a+b", "b", "c"], &["a", "b+c", "c"]), ["a+b+c [0, 1, 2] [0, 1, 2]"]);
        assert_eq!(matched(&[], &["a"]), ["a [] [0]"]);
    }
}
