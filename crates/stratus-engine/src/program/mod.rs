//! The program: ordered steps over values. Plain data, verified after every pass.

mod origin;
mod verify;

pub use origin::{OptimiserState, Origin};

use crate::ops::{Kernel, KernelSpec};
use crate::{DType, Precision};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Position of a value in [`Program::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub usize);

/// The role of a value, which determines its location and lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A batch of images, filled by the loader outside the arena.
    Images,
    /// A batch of labels, filled by the loader outside the arena.
    Labels,
    /// Learning rate, iteration and seed, written by the session before the first step.
    #[serde(rename = "hyper")]
    IterationScalars,
    /// Loss and counts of correct predictions, read by the session after the last step.
    Metrics,
    /// A trained parameter in the master precision.
    Parameter,
    /// A frozen parameter, or one of a frozen layer, in the master precision. It never changes.
    Frozen,
    /// A parameter or running statistic of the teacher, in the master precision. It is set before the first
    /// iteration and never changes. Checkpoints omit it.
    Teacher,
    /// A parameter in the compute precision, kept equal to its master.
    #[serde(rename = "copy")]
    ComputeCopy,
    /// Running statistics.
    Buffer,
    /// Values that are set before the first iteration and never change: the class weights of the loss.
    /// Checkpoints omit them.
    Constant,
    /// State of the optimiser, per parameter or for all.
    #[serde(rename = "momentum")]
    OptimiserState,
    /// The moving average of a parameter, or of a running statistic.
    Average,
    /// Computed in an iteration and kept after it, for the caller to read.
    Observed,
    /// Alive from the step that writes it to the last step that reads it.
    Transient,
}

impl Role {
    /// Returns whether the value outlives an iteration and is shared by all programs of a session.
    #[must_use]
    pub fn is_persistent(self) -> bool {
        !matches!(self, Self::Images | Self::Labels | Self::Transient)
    }

    /// Returns whether the caller provides the memory.
    #[must_use]
    pub fn is_external(self) -> bool {
        matches!(self, Self::Images | Self::Labels)
    }
}

/// A tensor, batch included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Unique in its program; persistent values are identified by it across programs.
    pub name: String,
    /// Logical extents: `[batch, channels, height, width]`, `[out, in, kernel height, kernel width]`, …
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Its role.
    pub role: Role,
    /// True if its first dimension is the batch: a row per sample.
    #[serde(default)]
    pub per_sample: bool,
    /// The value that it was derived from, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl Value {
    /// The number of elements, without padding.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
}

/// The phase of an iteration that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Forward.
    Forward,
    /// Forward pass of the teacher, which has no backward pass.
    Teacher,
    /// Loss, metrics and the gradient of the logits.
    Loss,
    /// Backward: the gradient of the input.
    BackwardData,
    /// Backward: the gradient of the weights.
    BackwardWeights,
    /// The optimiser.
    Update,
    /// A change of layout between kernels.
    Layout,
    /// Communication with other workers, including waiting.
    Communication,
}

impl Phase {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Teacher => "teacher",
            Self::Loss => "loss",
            Self::BackwardData => "backward_data",
            Self::BackwardWeights => "backward_weights",
            Self::Update => "update",
            Self::Layout => "layout",
            Self::Communication => "communication",
        }
    }
}

/// A layer's name and operation, for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The node's name in the graph, or `loss`.
    pub name: String,
    /// The operation's name.
    pub kind: String,
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The computation.
    pub kernel: Kernel,
    /// The phase of the iteration.
    pub phase: Phase,
    /// The layers it computes, the main one first; indices into [`Program::layers`].
    pub layers: Vec<usize>,
    /// Values it reads.
    pub inputs: Vec<ValueId>,
    /// Values it reads and changes.
    pub updates: Vec<ValueId>,
    /// Values it writes.
    pub outputs: Vec<ValueId>,
}

impl Step {
    /// Its operands: inputs, updates, outputs, in this order.
    pub fn operands(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().chain(&self.updates).chain(&self.outputs).copied()
    }
}

/// Consecutive steps that run tile by tile: all of them for the first samples of the batch, then all for the
/// next, so that the output of one step is still in the caches when the next reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The first step.
    pub first: usize,
    /// The number of steps.
    pub count: usize,
    /// The number of equal tiles of the batch; more than one.
    pub tiles: usize,
    /// True if each tile is a micro-batch with its own statistics and loss, so that only gradients are summed
    /// over all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub micro_batches: bool,
    /// True if the last tile runs first, because the preceding section left its maps in the caches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "from_last")]
    pub reversed: bool,
    /// In a pipeline stage, the number of micro-batches whose forward half runs before the first backward
    /// half; 1 runs each micro-batch as a whole. See [`Program::schedule`].
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[serde(rename = "ahead")]
    pub in_flight: usize,
}

impl Section {
    /// A section that runs once, for the whole batch.
    #[must_use]
    pub fn once(first: usize, count: usize) -> Self {
        Self { first, count, tiles: 1, micro_batches: false, reversed: false, in_flight: 1 }
    }

    /// The index of the tile that runs in turn `turn`.
    #[must_use]
    pub fn tile_at(&self, turn: usize) -> usize {
        if self.reversed { self.tiles - 1 - turn } else { turn }
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

/// One stage of a pipeline: a consecutive part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its index; stage 0 reads the images.
    #[serde(rename = "number")]
    pub index: usize,
    /// The number of stages.
    pub count: usize,
}

impl Stage {
    /// Returns whether it contains the loss.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.index + 1 == self.count
    }

    /// The number of batch parts in flight: forward passes that run before the first backward pass, so that
    /// the following stages are busy.
    #[must_use]
    pub fn in_flight(self) -> usize {
        self.count - self.index
    }
}

/// The maximum number of operands of a step, scratch included.
pub const MAX_OPERANDS: usize = 16;

/// The purpose of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Forward, backward, update.
    Train,
    /// Forward and loss with running statistics.
    Evaluate,
    /// Updates copies of the parameters after they were set from outside.
    #[serde(rename = "refresh")]
    RefreshCopies,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The signature that serde requires.
fn is_one(parts: &usize) -> bool {
    *parts == 1
}

/// Steps in execution order over values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The network's name.
    pub network: String,
    /// Its purpose.
    pub mode: Mode,
    /// Types.
    pub precision: Precision,
    /// Samples per run of one worker.
    pub batch: usize,
    /// The number of parts of the batch of all workers, each with its own statistics; 1 if it is whole. Sums
    /// over parts follow a tree, see [`TreeSum`](crate::ops::TreeSum).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[serde(rename = "parts")]
    pub batch_parts: usize,
    /// The pipeline stage; `None` for the whole network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Names for reports.
    pub layers: Vec<Layer>,
    /// Tensors.
    pub values: Vec<Value>,
    /// Kernel calls in order.
    pub steps: Vec<Step>,
    /// Disjoint ranges of steps that run tile by tile, in order; all other steps run once for the whole
    /// batch.
    #[serde(default)]
    pub sections: Vec<Section>,
}

impl Program {
    /// A value.
    #[must_use]
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Adds a value.
    pub fn add_value(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        dtype: DType,
        role: Role,
    ) -> ValueId {
        let per_sample = role.is_external();
        let (name, shape) = (name.into(), shape.to_vec());
        self.values.push(Value { name, shape, dtype, role, per_sample, origin: None });
        ValueId(self.values.len() - 1)
    }

    /// Adds a value with a row per sample that lives within an iteration.
    pub fn add_samples(&mut self, name: impl Into<String>, shape: &[usize], dtype: DType) -> ValueId {
        let id = self.add_value(name, shape, dtype, Role::Transient);
        self.values[id.0].per_sample = true;
        id
    }

    /// The bytes of the largest bucket of sums that is exchanged with other workers, without padding; 0
    /// without any.
    #[must_use]
    pub fn largest_bucket_bytes(&self) -> usize {
        self.largest_bucket(|id| self.value(id).bytes())
    }

    /// The size of the largest bucket of sums, whose values have the given sizes.
    pub(crate) fn largest_bucket(&self, bytes_of: impl Fn(ValueId) -> usize) -> usize {
        let is_start = |step: &&Step| matches!(step.kernel, Kernel::AllReduceBucket(bucket) if !bucket.waits);
        let buckets = self.steps.iter().filter(is_start);
        buckets.map(|step| step.inputs.iter().map(|&id| bytes_of(id)).sum()).max().unwrap_or(0)
    }

    /// The section that a step belongs to.
    #[must_use]
    pub fn section_of(&self, step: usize) -> Option<&Section> {
        self.sections.iter().find(|section| section.steps().contains(&step))
    }

    /// The section of a step, or a section of that step alone.
    #[must_use]
    pub fn section_or_single(&self, step: usize) -> Section {
        self.section_of(step).copied().unwrap_or_else(|| Section::once(step, 1))
    }

    /// The execution order of a section: ranges of its steps, each with its turn.
    ///
    /// ```text
    /// tiles, micro-batches      (all, 0) (all, 1) (all, 2) …
    /// 2 in flight               (forward, 0) (forward, 1) (backward, 0) (forward, 2) (backward, 1) …
    /// ```
    ///
    /// The second is the one-forward-one-backward schedule (Narayanan et al., "PipeDream: generalized
    /// pipeline parallelism for DNN training", 2019): the fewest micro-batches in flight that keep all stages
    /// busy.
    #[must_use]
    pub fn schedule(&self, section: &Section) -> Vec<(std::ops::Range<usize>, usize)> {
        let Some(turn) = self.backward_start(section) else {
            return (0..section.tiles).map(|turn| (section.steps(), turn)).collect();
        };
        let (forward, backward) = (section.first..turn, turn..section.steps().end);
        let ahead = section.in_flight.min(section.tiles);
        let mut turns: Vec<_> = (0..ahead).map(|part| (forward.clone(), part)).collect();
        for part in 0..section.tiles {
            turns.push((backward.clone(), part));
            if part + ahead < section.tiles {
                turns.push((forward.clone(), part + ahead));
            }
        }
        turns
    }

    /// The execution order of all steps: ranges, each with its turn.
    #[must_use]
    pub fn execution_order(&self) -> Vec<(std::ops::Range<usize>, usize)> {
        let mut passes = Vec::new();
        let mut next = 0;
        for section in &self.sections {
            passes.push((next..section.first, 0));
            passes.extend(self.schedule(section));
            next = section.steps().end;
        }
        passes.push((next..self.steps.len(), 0));
        passes.retain(|(steps, _)| !steps.is_empty());
        passes
    }

    /// The first step of the backward half of a section with several micro-batches in flight.
    fn backward_start(&self, section: &Section) -> Option<usize> {
        let turns = |position: &usize| match self.steps.get(*position).map(|step| &step.kernel) {
            Some(Kernel::StageTransfer(transfer)) => transfer.starts_backward(),
            _ => false,
        };
        section.steps().find(turns).filter(|_| section.in_flight > 1)
    }

    /// Copies per value: the micro-batches in flight, if a value crosses from the forward to the backward
    /// half of a section; otherwise 1.
    #[must_use]
    pub fn live_copies(&self) -> Vec<usize> {
        let mut copies = vec![1; self.values.len()];
        for section in &self.sections {
            self.set_copies_in(section, section.in_flight.min(section.tiles), &mut copies);
        }
        copies
    }

    /// As [`live_copies`](Self::live_copies), for the program of one part of a pipeline stage, whose steps
    /// become a section when the batch is split.
    pub(crate) fn live_copies_of_part(&self) -> Vec<usize> {
        match self.stage {
            Some(stage) if self.sections.is_empty() => {
                let mut copies = vec![1; self.values.len()];
                let in_flight = stage.in_flight();
                let whole = Section { in_flight, ..Section::once(0, self.steps.len()) };
                self.set_copies_in(&whole, in_flight, &mut copies);
                copies
            }
            _ => self.live_copies(),
        }
    }

    fn set_copies_in(&self, section: &Section, count: usize, copies: &mut [usize]) {
        let Some(turn) = self.backward_start(section) else { return };
        let forward = self.steps[section.first..turn].iter();
        let written: HashSet<ValueId> = forward
            .filter(|step| !step.kernel.accumulates_tiles())
            .flat_map(|step| step.outputs.iter().copied())
            .filter(|&id| self.value(id).role == Role::Transient)
            .collect();
        let backward = self.steps[turn..section.steps().end].iter();
        for id in backward.flat_map(Step::operands).filter(|id| written.contains(id)) {
            copies[id.0] = count;
        }
    }

    /// The number of tiles in which a step runs; 1 if it runs once.
    #[must_use]
    pub fn tiles(&self, step: usize) -> usize {
        self.section_of(step).map_or(1, |section| section.tiles)
    }

    /// Returns whether a step in `tiles` tiles accesses one tile of a value's rows at a time, rather than all
    /// of its bytes.
    #[must_use]
    pub fn is_tiled(&self, id: ValueId, tiles: usize) -> bool {
        let value = self.value(id);
        // Values that live within one tile have only that tile's rows.
        tiles > 1 && value.per_sample && value.shape.first() == Some(&self.batch)
    }

    /// A value as seen by a step in `tiles` tiles: with the rows of one tile.
    #[must_use]
    pub fn tile_view(&self, id: ValueId, tiles: usize) -> Value {
        let mut value = self.value(id).clone();
        if self.is_tiled(id, tiles) {
            value.shape[0] /= tiles;
        }
        value
    }

    /// The operands of the step at `position`, with the rows of one tile.
    #[must_use]
    pub fn operands(&self, position: usize) -> Vec<Value> {
        let tiles = self.tiles(position);
        self.steps[position].operands().map(|id| self.tile_view(id, tiles)).collect()
    }

    /// The values whose last micro-batch completes them: sums over micro-batches, also in another layout.
    #[must_use]
    pub fn sums_of_micro_batches(&self, section: &Section) -> HashSet<ValueId> {
        let mut sums = HashSet::new();
        for step in self.steps.get(section.steps()).unwrap_or_default() {
            let is_reordered_sum =
                matches!(step.kernel, Kernel::Reorder(_)) && step.inputs.iter().all(|id| sums.contains(id));
            if step.kernel.accumulates_tiles() || is_reordered_sum {
                sums.extend(step.outputs.iter().copied());
            }
        }
        sums
    }

    /// Replaces the steps; `inserted(i)` new steps follow the old step `i`. They belong to its section,
    /// unless `i` is the last of it.
    pub(crate) fn replace_steps(&mut self, steps: Vec<Step>, inserted: impl Fn(usize) -> usize) {
        let before = |end: usize| (0..end).map(&inserted).sum::<usize>();
        for section in &mut self.sections {
            let Section { first, count, .. } = *section;
            let shift = before(first);
            section.first += shift;
            section.count += before(first + count.saturating_sub(1)) - shift;
        }
        self.steps = steps;
    }

    /// The name of the layers a step computes, joined by `+`.
    #[must_use]
    pub fn layer_name(&self, step: &Step) -> String {
        step.layers.iter().map(|&layer| self.layers[layer].name.as_str()).collect::<Vec<_>>().join("+")
    }

    /// The kinds of the layers a step computes, joined by `+`.
    #[must_use]
    pub fn layer_kind(&self, step: &Step) -> String {
        step.layers.iter().map(|&layer| self.layers[layer].kind.as_str()).collect::<Vec<_>>().join("+")
    }

    /// The first value with a role, for roles of at most one value.
    #[must_use]
    pub fn find_role(&self, role: Role) -> Option<ValueId> {
        self.values.iter().position(|value| value.role == role).map(ValueId)
    }

    /// The value with a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|value| value.name == name).map(ValueId)
    }

    /// The steps that read a value.
    pub fn readers(&self, id: ValueId) -> impl Iterator<Item = usize> + '_ {
        self.steps
            .iter()
            .enumerate()
            .filter(move |(_, step)| step.inputs.contains(&id) || step.updates.contains(&id))
            .map(|(position, _)| position)
    }

    /// Floating-point operations of the step at `position`, for the whole batch.
    #[must_use]
    pub fn step_flops(&self, position: usize) -> u64 {
        let operands = self.operands(position);
        let operands: Vec<&Value> = operands.iter().collect();
        self.tiles(position) as u64 * self.steps[position].kernel.flops(&operands)
    }

    /// Drops transient values that no step uses.
    pub fn drop_unused_values(&mut self) {
        let mut used: Vec<bool> = self.values.iter().map(|value| value.role != Role::Transient).collect();
        for id in self.steps.iter().flat_map(Step::operands) {
            used[id.0] = true;
        }
        self.retain_values(&used);
    }

    /// Keeps only the values that are `used`, which must include all that steps use.
    pub(crate) fn retain_values(&mut self, used: &[bool]) {
        let mut renumbered = Vec::with_capacity(used.len());
        let mut next = 0;
        for &keep in used {
            renumbered.push(ValueId(next));
            next += usize::from(keep);
        }
        let mut keep = used.iter();
        self.values.retain(|_| keep.next().copied().unwrap_or(true));
        for value in &mut self.values {
            // If the source is dropped, the value loses its origin.
            let origin = value.origin.filter(|origin| used[origin.source().0]);
            value.origin = origin.map(|origin| origin.with_source(renumbered[origin.source().0]));
        }
        for step in &mut self.steps {
            for id in step.inputs.iter_mut().chain(&mut step.updates).chain(&mut step.outputs) {
                *id = renumbered[id.0];
            }
        }
    }

    /// The program as text, one step per line: phase, kernel, layer, operands with shapes and types.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut text =
            format!("program {} {:?} {} batch {}\n", self.network, self.mode, self.precision, self.batch);
        let list = |ids: &[ValueId]| {
            ids.iter()
                .map(|&id| {
                    let value = self.value(id);
                    let shape = value.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
                    format!("{}:{}[{shape}]", value.name, value.dtype)
                })
                .collect::<Vec<_>>()
                .join(", ")
        };
        for (position, step) in self.steps.iter().enumerate() {
            if let Some(section) = self.section_of(position).filter(|section| section.first == position) {
                let last = section.steps().end - 1;
                let parts = if section.micro_batches { "micro-batches" } else { "tiles" };
                let order = if section.reversed { ", the last first" } else { "" };
                let _ =
                    writeln!(text, "     steps {position} to {last} in {} {parts}{order}:", section.tiles);
            }
            let _ = write!(
                text,
                "{position:4} {:16} {:24} {:28} ({})",
                step.phase.name(),
                step.kernel.name(),
                self.layer_name(step),
                list(&step.inputs)
            );
            if !step.updates.is_empty() {
                let _ = write!(text, " updates ({})", list(&step.updates));
            }
            let _ = writeln!(text, " -> {}", list(&step.outputs));
        }
        text
    }
}
