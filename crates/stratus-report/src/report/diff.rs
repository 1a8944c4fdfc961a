//! Two runs layer by layer and phase by phase: what became faster or slower, and whether by more than their
//! iterations spread.
//!
//! Only iterations on whole batches count, so that an epoch's smaller last batch shifts no mean. Neighbouring
//! iterations are disturbed together, so that they are no independent samples: means of consecutive
//! iterations are compared (the method of batch means), by Welch's t-test, and the probabilities of all
//! comparisons are raised by Holm's method.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Purpose, TimelineReader};

use super::RunReport;
use super::statistics::{SIGNIFICANT, holm, welch};
use crate::rows::{Column, LayerRow, Place, Rows};
use crate::{Result, default_skip};

/// Blocks of consecutive iterations at most, whose means are compared.
const BLOCKS: u64 = 20;

/// Layers that the headline names.
const NAMED: usize = 3;

/// What became faster or slower from one run to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// The labels of the runs: before, after.
    pub runs: [String; 2],
    /// Images of a whole batch.
    pub batch_size: [u64; 2],
    /// What the times are those of.
    pub per: Per,
    /// Iterations on whole batches that were counted.
    pub iterations: [u64; 2],
    /// First iterations left out.
    pub skipped: [u64; 2],
    /// Blocks of consecutive iterations whose means were compared.
    pub blocks: [usize; 2],
    /// How a difference is judged.
    pub test: &'static str,
    /// The result in a sentence.
    pub headline: String,
    /// By layer, in the order of the first run; layers that are fused otherwise in the two runs stand
    /// together.
    pub layers: Vec<LayerDiff>,
    /// What belongs to no layer.
    pub phases: Vec<PhaseDiff>,
    /// What nothing accounts for.
    pub unattributed: Change,
    /// All of it.
    pub wall: Change,
    /// Layers that only the one run has, and only the other.
    pub only: [Vec<String>; 2],
}

/// What the times of a [`Diff`] are those of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// An iteration: the batches have equally many images.
    Iteration,
    /// An image, as the batches differ.
    Image,
}

impl Per {
    /// The name in files: `iteration`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iteration => "iteration",
            Self::Image => "image",
        }
    }

    /// The unit of a table.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Iteration => "ms",
            Self::Image => "µs an image",
        }
    }

    /// From milliseconds to [`Per::unit`].
    #[must_use]
    pub fn in_unit(self, ms: f64) -> f64 {
        match self {
            Self::Iteration => ms,
            Self::Image => 1e3 * ms,
        }
    }
}

/// A layer, or several that are fused, in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerDiff {
    /// Its name, `layer1.1+layer1.2` of several.
    pub layer: String,
    /// What it is.
    pub kind: String,
    /// Outputs.
    pub forward: Change,
    /// Gradients of inputs.
    pub backward_data: Change,
    /// Gradients of parameters.
    pub backward_weights: Change,
    /// Parameters changed.
    pub update: Change,
    /// All of it.
    pub total: Change,
}

impl LayerDiff {
    /// Its phases by name, the total last.
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

/// What belongs to no layer, in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseDiff {
    /// What it is.
    pub phase: Phase,
    /// How it changed.
    pub change: Change,
}

/// A mean time in both runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Milliseconds before; none where there was no such step.
    pub before_ms: Option<f64>,
    /// Milliseconds after.
    pub after_ms: Option<f64>,
    /// After less before.
    pub difference_ms: Option<f64>,
    /// The difference in percent of before.
    pub percent: Option<f64>,
    /// The probability of a difference as large between equal means; none of fewer than two iterations, or
    /// without any spread.
    pub p: Option<f64>,
    /// Whether the difference is beyond the spread of iterations: `p` below 0.05.
    pub differs: Option<bool>,
}

impl Change {
    /// In words: `faster`, `slower`, `within the spread`, `only before`, `only after`; none where nothing can
    /// be said.
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

    /// From block means; those that a run has not are none.
    fn of(before: Option<&Means>, after: Option<&Means>) -> Self {
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
    /// Compares the times of two runs, `skip` first iterations left out, or [`default_skip`].
    pub(super) fn of(before: &RunReport, after: &RunReport, skip: Option<u64>) -> Result<Self> {
        let times = [Times::of(before, skip)?, Times::of(after, skip)?];
        let batch_size = [0, 1].map(|side| times[side].batch);
        let per = if batch_size[0] == batch_size[1] { Per::Iteration } else { Per::Image };
        let means = |side: usize, blocks: &[i128]| times[side].means(blocks, per);
        let change = |pick: &dyn Fn(&Times) -> Option<Vec<i128>>| {
            let [before, after] = [0, 1].map(|side| pick(&times[side]).map(|blocks| means(side, &blocks)));
            Change::of(before.as_ref(), after.as_ref())
        };
        let of_both = &times;
        let (mut layers, mut only) = (Vec::new(), [Vec::new(), Vec::new()]);
        for group in groups([&times[0].rows.layers, &times[1].rows.layers]) {
            let column = |columns: &[Column]| {
                let [before, after] = [0, 1].map(|side| {
                    let rows = group.rows[side].iter();
                    let series = rows.flat_map(|&row| {
                        columns
                            .iter()
                            .filter_map(move |&column| of_both[side].layers[row][column as usize].as_deref())
                    });
                    sum(series).map(|blocks| means(side, &blocks))
                });
                Change::of(before.as_ref(), after.as_ref())
            };
            for side in [0, 1] {
                if group.rows[1 - side].is_empty() {
                    only[side].push(group.name.clone());
                }
            }
            layers.push(LayerDiff {
                forward: column(&[Column::Forward]),
                backward_data: column(&[Column::BackwardData]),
                backward_weights: column(&[Column::BackwardWeights]),
                update: column(&[Column::Update]),
                total: column(&[
                    Column::Forward,
                    Column::BackwardData,
                    Column::BackwardWeights,
                    Column::Update,
                ]),
                layer: group.name,
                kind: group.kind,
            });
        }
        let phases: BTreeSet<Phase> = times.iter().flat_map(|times| times.rows.phases.clone()).collect();
        let phases = phases.into_iter().map(|phase| {
            let of = move |times: &Times| {
                let row = times.rows.phases.iter().position(|&known| known == phase)?;
                times.phases.get(row).cloned()
            };
            PhaseDiff { phase, change: change(&of) }
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
        diff.judge();
        diff.headline = diff.in_a_sentence();
        Ok(diff)
    }

    /// Corrects the probabilities for their number, and judges by them.
    fn judge(&mut self) {
        let mut changes: Vec<&mut Change> = vec![&mut self.wall, &mut self.unattributed];
        changes.extend(self.phases.iter_mut().map(|row| &mut row.change));
        for LayerDiff { forward, backward_data, backward_weights, update, total, .. } in &mut self.layers {
            changes.extend([forward, backward_data, backward_weights, update, total]);
        }
        let mut probabilities: Vec<&mut f64> =
            changes.iter_mut().filter_map(|change| change.p.as_mut()).collect();
        holm(&mut probabilities);
        for change in changes {
            change.differs = change.p.map(|p| p < SIGNIFICANT);
        }
    }

    fn in_a_sentence(&self) -> String {
        let (Some(before), Some(after)) = (self.wall.before_ms, self.wall.after_ms) else {
            let missing = usize::from(self.wall.before_ms.is_some());
            return format!("{} has no iteration to compare.", self.runs[missing]);
        };
        let in_unit = |ms: f64| self.per.in_unit(ms);
        let (what, unit) = match self.per {
            Per::Iteration => ("an iteration", "ms"),
            Per::Image => ("an image", "µs"),
        };
        let percent = self.wall.percent.map_or(String::new(), |percent| {
            format!(": {:.1} % {}", percent.abs(), if percent < 0.0 { "less" } else { "more" })
        });
        let judged = match self.wall.differs {
            Some(true) => ", beyond the spread of iterations",
            Some(false) => ", within the spread of iterations",
            None => "",
        };
        let mut text = format!(
            "{} takes {:.3} {unit} {what}, {} {:.3} {unit}{percent}{judged}.",
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
        let most: Vec<String> = changed
            .iter()
            .take(NAMED)
            .map(|(name, ms)| format!("{} {:+.3} {unit}", name.replace('_', " "), in_unit(*ms)))
            .collect();
        if !most.is_empty() {
            let named: f64 = changed.iter().take(NAMED).map(|(_, ms)| ms).sum();
            let whole = self.wall.difference_ms.unwrap_or_default();
            // What is beyond its own spread need not be what the whole differs by.
            let is_most = named * whole > 0.0 && named.abs() >= whole.abs() / 2.0;
            let what = if is_most { "Most of it" } else { "Beyond their own spread" };
            text.push_str(&format!(" {what}: {}.", most.join(", ")));
        }
        text
    }
}

/// The mean over all iterations, and those of blocks of consecutive ones, in milliseconds.
struct Means {
    all: f64,
    blocks: Vec<f64>,
}

/// Nanoseconds of a run's iterations on whole batches, by row, as sums over blocks of consecutive iterations.
#[derive(Default)]
struct Times {
    batch: u64,
    skipped: u64,
    rows: Rows,
    /// By row and column; none where there is no such step.
    layers: Vec<[Option<Vec<i128>>; Column::COUNT]>,
    phases: Vec<Vec<i128>>,
    unattributed: Vec<i128>,
    wall: Vec<i128>,
    /// Iterations of each block.
    counts: Vec<u64>,
}

impl Times {
    fn of(run: &RunReport, skip: Option<u64>) -> Result<Self> {
        let run = RunDir::open(&run.experiment.path)?;
        // Batch sizes of all training iterations, as stretches of equal ones.
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        let mut reader = TimelineReader::open(&run.timeline())?;
        let mut iteration = Iteration::default();
        while reader.read_head(&mut iteration)? {
            let program = &reader.programs()[iteration.program];
            if program.purpose != Purpose::Train {
                continue;
            }
            match stretches.last_mut() {
                Some((size, count)) if *size == program.batch_size => *count += 1,
                _ => stretches.push((program.batch_size, 1)),
            }
        }
        let recorded: u64 = stretches.iter().map(|(_, count)| count).sum();
        let skipped = skip.unwrap_or_else(|| default_skip(recorded)).min(recorded);
        let batch = stretches.iter().map(|(size, _)| *size).max().unwrap_or(0);
        let (mut whole, mut before) = (0, 0);
        for (size, count) in stretches {
            let counted = (before + count).saturating_sub(skipped.max(before));
            whole += if size == batch { counted } else { 0 };
            before += count;
        }
        let blocks = usize::try_from(whole.min(BLOCKS)).unwrap_or(0);
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
        // What is appended since the count stays out.
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
            for (place, &ns) in times.rows.places[iteration.program].iter().zip(&iteration.ns) {
                let blocks = match *place {
                    Place::Layer(row, column) => {
                        times.layers[row][column as usize].get_or_insert_with(|| zeros.clone())
                    }
                    Place::Phase(row) => &mut times.phases[row],
                };
                blocks[block] += i128::from(ns);
            }
            times.wall[block] += i128::from(iteration.wall_ns);
            times.unattributed[block] += iteration.unattributed_ns();
            times.counts[block] += 1;
        }
        Ok(times)
    }

    /// The blocks, where there is an iteration at all.
    fn recorded(&self, blocks: &[i128]) -> Option<Vec<i128>> {
        (!blocks.is_empty()).then(|| blocks.to_vec())
    }

    fn means(&self, blocks: &[i128], per: Per) -> Means {
        let images = match per {
            Per::Iteration => 1.0,
            Per::Image => self.batch.max(1) as f64,
        };
        let mean = |ns: i128, count: u64| ns as f64 / 1e6 / images / count.max(1) as f64;
        Means {
            all: mean(blocks.iter().sum(), self.counts.iter().sum()),
            blocks: blocks.iter().zip(&self.counts).map(|(&ns, &count)| mean(ns, count)).collect(),
        }
    }
}

/// Series block by block together; none of none.
fn sum<'a>(series: impl Iterator<Item = &'a [i128]>) -> Option<Vec<i128>> {
    series.fold(None, |sum: Option<Vec<i128>>, blocks| {
        Some(match sum {
            None => blocks.to_vec(),
            Some(sum) => sum.iter().zip(blocks).map(|(a, b)| a + b).collect(),
        })
    })
}

/// Rows of both runs that stand for the same layers.
#[derive(Debug, PartialEq)]
struct Group {
    name: String,
    kind: String,
    rows: [Vec<usize>; 2],
}

/// Matches rows by the names of their layers. Where the runs fuse layers otherwise, the rows that share a
/// layer stand together.
fn groups(rows: [&[LayerRow]; 2]) -> Vec<Group> {
    let sets = rows.map(|rows| rows.iter().map(|row| &row.layers[..]).collect::<BTreeSet<_>>());
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for layer in rows.iter().flat_map(|rows| rows.iter()).flat_map(|row| &row.layers) {
        let next = numbers.len();
        numbers.entry(layer).or_insert(next);
    }
    // The set that each layer belongs to; layers of rows that only one run has are joined, and with them
    // what they share a row with.
    let mut set: Vec<usize> = (0..numbers.len()).collect();
    let mut joined = vec![false; set.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (side, row) in [0, 1].into_iter().flat_map(|side| rows[side].iter().map(move |row| (side, row))) {
            let members: Vec<usize> = row.layers.iter().map(|layer| set[numbers[layer.as_str()]]).collect();
            let Some(&least) = members.iter().min() else { continue };
            let is_alone = !sets[1 - side].contains(&row.layers[..]);
            let meets = members.iter().any(|&member| joined[member]);
            if !is_alone && !meets || joined[least] && members.iter().all(|&member| member == least) {
                continue;
            }
            set.iter_mut().filter(|of| members.contains(of)).for_each(|of| *of = least);
            joined[least] = true;
            changed = true;
        }
    }
    let mut found: Vec<(Option<usize>, &[String], Group)> = Vec::new();
    for side in [0, 1] {
        for (number, row) in rows[side].iter().enumerate() {
            let of = row.layers.first().map(|layer| set[numbers[layer.as_str()]]);
            let of = of.filter(|&of| joined[of]);
            let same = |known: &(Option<usize>, &[String], Group)| match of {
                Some(of) => known.0 == Some(of),
                None => known.0.is_none() && known.1 == row.layers,
            };
            match found.iter_mut().find(|known| same(known)) {
                Some((.., group)) => group.rows[side].push(number),
                None => {
                    let mut group =
                        Group { name: String::new(), kind: row.kind.clone(), rows: [vec![], vec![]] };
                    group.rows[side].push(number);
                    found.push((of, &row.layers, group));
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
    fn layers_are_matched_by_name_however_they_are_fused() {
        assert_eq!(matched(&["a", "b"], &["b", "a"]), ["a [0] [1]", "b [1] [0]"]);
        // One network has a layer more.
        assert_eq!(matched(&["a", "b"], &["a", "x", "b"]), ["a [0] [0]", "b [1] [2]", "x [] [1]"]);
        // Fused in the second run alone; what shares a layer with it goes along, the rest does not.
        assert_eq!(
            matched(&["a", "b", "c", "d"], &["a+b", "a", "c", "d"]),
            ["a+b [0, 1] [0, 1]", "c [2] [2]", "d [3] [3]"]
        );
        // Rows that both have meet what only one has.
        assert_eq!(matched(&["a+b", "b+c", "d"], &["a+b", "b", "b+c", "d"]).len(), 2);
        assert_eq!(matched(&["a+b", "b", "c"], &["a", "b+c", "c"]), ["a+b+c [0, 1, 2] [0, 1, 2]"]);
        assert_eq!(matched(&[], &["a"]), ["a [] [0]"]);
    }
}
