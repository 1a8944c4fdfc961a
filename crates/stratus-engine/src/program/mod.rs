//! The program: ordered steps over values. Plain data, verified after every pass.

mod origin;
mod verify;

pub use origin::{OptimiserState, Origin};

use crate::ops::{Kernel, KernelSpec};
use crate::{DType, Precision};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Position of a value in [`Program::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub usize);

/// What a value is for. It decides where it lives and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A batch of images, filled by the loader outside the arena.
    Images,
    /// A batch of labels, filled by the loader outside the arena.
    Labels,
    /// Scalars of this iteration: the learning rate, and seed and iteration for random numbers. Written by
    /// the session before the first step.
    Hyper,
    /// Loss and counts of correct predictions, read by the session after the last step.
    Metrics,
    /// A trained parameter in the master precision.
    Parameter,
    /// A frozen parameter, or one of a frozen layer, in the master precision. It never changes.
    Frozen,
    /// A parameter in the compute precision, kept equal to its master.
    Copy,
    /// Running statistics.
    Buffer,
    /// Numbers that are set before the first iteration and never change: the class weights of the loss. No
    /// checkpoint has them.
    Constant,
    /// State of the optimiser, per parameter or for all.
    Momentum,
    /// The moving average of a parameter, or of a running statistic.
    Average,
    /// Lives from the step that writes it to the last that reads it.
    Transient,
}

impl Role {
    /// Whether the value outlives an iteration and is shared by all programs of a session.
    #[must_use]
    pub fn is_persistent(self) -> bool {
        !matches!(self, Self::Images | Self::Labels | Self::Transient)
    }

    /// Whether the caller provides the memory.
    #[must_use]
    pub fn is_external(self) -> bool {
        matches!(self, Self::Images | Self::Labels)
    }
}

/// A tensor, batch included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Unique in its program; persistent values are known by it across programs.
    pub name: String,
    /// Logical extents: `[batch, channels, height, width]`, `[out, in, kernel height, kernel width]`, …
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// What it is for.
    pub role: Role,
    /// Whether its first dimension is the batch: a row per sample.
    #[serde(default)]
    pub per_sample: bool,
    /// What it was derived from.
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

/// Which part of an iteration a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Forward.
    Forward,
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
    /// Exchange with other workers, and waiting for them.
    Communication,
}

impl Phase {
    /// Its name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
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
    /// What to compute.
    pub kernel: Kernel,
    /// Which part of the iteration it is.
    pub phase: Phase,
    /// The layers it computes, the leading one first; positions in [`Program::layers`].
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
/// next, so that what one step makes is still in the caches when the next reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The first step.
    pub first: usize,
    /// How many steps.
    pub count: usize,
    /// Into how many equal tiles the batch is cut; more than one.
    pub tiles: usize,
    /// Whether a tile is a micro-batch: a batch of its own, with its own statistics and loss; only gradients
    /// are summed over all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub micro_batches: bool,
    /// Whether the last part of the batch runs first, because the section before left its maps in the caches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_last: bool,
    /// In a stage of a pipeline: of how many micro-batches the forward half runs before the backward half of
    /// the first one. 1: each runs as a whole. See [`Program::turns`].
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ahead: usize,
}

impl Section {
    /// Steps that run once, for the whole batch.
    #[must_use]
    pub fn once(first: usize, count: usize) -> Self {
        Self { first, count, tiles: 1, micro_batches: false, from_last: false, ahead: 1 }
    }

    /// Which part of the batch is run in the tile of this turn.
    #[must_use]
    pub fn place(&self, turn: usize) -> usize {
        if self.from_last { self.tiles - 1 - turn } else { turn }
    }

    /// Its steps.
    #[must_use]
    pub fn steps(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

/// One of the consecutive parts of a network that a pipeline is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its number, from 0, where the images enter.
    pub number: usize,
    /// How many there are.
    pub count: usize,
}

impl Stage {
    /// Whether the loss is in it.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.number + 1 == self.count
    }

    /// Of how many parts the forward pass runs before the first one's backward pass, so that the stages
    /// behind are at work meanwhile.
    #[must_use]
    pub fn ahead(self) -> usize {
        self.count - self.number
    }
}

/// What a program is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Forward, backward, update.
    Train,
    /// Forward and loss with running statistics.
    Evaluate,
    /// Brings copies of the parameters up to date after they were set from outside.
    Refresh,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_one(parts: &usize) -> bool {
    *parts == 1
}

/// Steps in execution order over values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The network's name.
    pub network: String,
    /// What it is run for.
    pub mode: Mode,
    /// Types.
    pub precision: Precision,
    /// Samples per run; of several workers, those of one.
    pub batch: usize,
    /// Into how many parts the batch of all workers is cut, each with statistics of its own; 1: it is whole.
    /// Sums over parts are made along a tree, see [`AddParts`](crate::ops::AddParts).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub parts: usize,
    /// Which stage of a pipeline it is; `None`: all of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Names for reports.
    pub layers: Vec<Layer>,
    /// Tensors.
    pub values: Vec<Value>,
    /// Kernel calls in order.
    pub steps: Vec<Step>,
    /// The steps that run tile by tile, in order and disjoint; all others run once for the whole batch.
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

    /// The section that a step belongs to.
    #[must_use]
    pub fn section_of(&self, step: usize) -> Option<&Section> {
        self.sections.iter().find(|section| section.steps().contains(&step))
    }

    /// What a step is run with: its section, or where it has none, it alone in one tile.
    #[must_use]
    pub fn pass_of(&self, step: usize) -> Section {
        self.section_of(step).copied().unwrap_or_else(|| Section::once(step, 1))
    }

    /// The order in which a section's steps run: which of them, in which turn.
    ///
    /// ```text
    /// tiles, micro-batches      (all, 0) (all, 1) (all, 2) …
    /// a stage that is 2 ahead   (forward, 0) (forward, 1) (backward, 0) (forward, 2) (backward, 1) …
    /// ```
    ///
    /// The second is the schedule of one forward, one backward (Narayanan et al., "PipeDream: generalized
    /// pipeline parallelism for DNN training", 2019): as few micro-batches as keep all stages at work are
    /// begun and not done.
    #[must_use]
    pub fn turns(&self, section: &Section) -> Vec<(std::ops::Range<usize>, usize)> {
        let Some(turn) = self.turns_back(section) else {
            return (0..section.tiles).map(|turn| (section.steps(), turn)).collect();
        };
        let (forward, backward) = (section.first..turn, turn..section.steps().end);
        let ahead = section.ahead.min(section.tiles);
        let mut turns: Vec<_> = (0..ahead).map(|part| (forward.clone(), part)).collect();
        for part in 0..section.tiles {
            turns.push((backward.clone(), part));
            if part + ahead < section.tiles {
                turns.push((forward.clone(), part + ahead));
            }
        }
        turns
    }

    /// All steps in the order in which they run: ranges of them, each with its turn.
    #[must_use]
    pub fn passes(&self) -> Vec<(std::ops::Range<usize>, usize)> {
        let mut passes = Vec::new();
        let mut next = 0;
        for section in &self.sections {
            passes.push((next..section.first, 0));
            passes.extend(self.turns(section));
            next = section.steps().end;
        }
        passes.push((next..self.steps.len(), 0));
        passes.retain(|(steps, _)| !steps.is_empty());
        passes
    }

    /// Where the backward half of a section begins that is more than one micro-batch ahead.
    fn turns_back(&self, section: &Section) -> Option<usize> {
        let turns = |position: &usize| match self.steps.get(*position).map(|step| &step.kernel) {
            Some(Kernel::Transfer(transfer)) => transfer.turns_back(),
            _ => false,
        };
        section.steps().find(turns).filter(|_| section.ahead > 1)
    }

    /// Of how many micro-batches there is a copy of each value at the same time: more than 1 where a section
    /// that runs ahead writes the value in its forward half and uses it in its backward half.
    #[must_use]
    pub fn copies(&self) -> Vec<usize> {
        let mut copies = vec![1; self.values.len()];
        for section in &self.sections {
            let Some(turn) = self.turns_back(section) else { continue };
            let forward = self.steps[section.first..turn].iter();
            let written: std::collections::HashSet<ValueId> = forward
                .filter(|step| !step.kernel.adds_up())
                .flat_map(|step| step.outputs.iter().copied())
                .filter(|&id| self.value(id).role == Role::Transient)
                .collect();
            let backward = self.steps[turn..section.steps().end].iter();
            for id in backward.flat_map(Step::operands).filter(|id| written.contains(id)) {
                copies[id.0] = section.ahead.min(section.tiles);
            }
        }
        copies
    }

    /// Into how many tiles the batch is cut for a step; 1 where it runs once.
    #[must_use]
    pub fn tiles(&self, step: usize) -> usize {
        self.section_of(step).map_or(1, |section| section.tiles)
    }

    /// Whether a step in `tiles` tiles touches a value's rows tile by tile, rather than all of its bytes
    /// every time.
    #[must_use]
    pub fn is_cut(&self, id: ValueId, tiles: usize) -> bool {
        let value = self.value(id);
        // What lives within one tile has that tile's rows alone.
        tiles > 1 && value.per_sample && value.shape.first() == Some(&self.batch)
    }

    /// A value as a step in `tiles` tiles sees it: with the rows of one tile.
    #[must_use]
    pub fn seen(&self, id: ValueId, tiles: usize) -> Value {
        let mut value = self.value(id).clone();
        if self.is_cut(id, tiles) {
            value.shape[0] /= tiles;
        }
        value
    }

    /// The operands of the step at `position`, as it sees them.
    #[must_use]
    pub fn operands(&self, position: usize) -> Vec<Value> {
        let tiles = self.tiles(position);
        self.steps[position].operands().map(|id| self.seen(id, tiles)).collect()
    }

    /// Puts `steps` in the place of the program's; `inserted(i)` new ones follow the old step `i`. Sections
    /// keep their steps: what is inserted behind one of them must be inserted behind its last.
    pub(crate) fn replace_steps(&mut self, steps: Vec<Step>, inserted: impl Fn(usize) -> usize) {
        let mut shift = 0;
        let mut sections = self.sections.iter_mut().peekable();
        for position in 0..self.steps.len() {
            if let Some(section) = sections.next_if(|section| section.first == position) {
                section.first += shift;
            }
            shift += inserted(position);
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

    /// The value with a role, where exactly one is expected.
    #[must_use]
    pub fn find_role(&self, role: Role) -> Option<ValueId> {
        self.values.iter().position(|value| value.role == role).map(ValueId)
    }

    /// The value of a name.
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

    /// Drops values that no step touches and that hold nothing between iterations.
    pub fn drop_unused_values(&mut self) {
        let mut used: Vec<bool> = self.values.iter().map(|value| value.role != Role::Transient).collect();
        for id in self.steps.iter().flat_map(Step::operands) {
            used[id.0] = true;
        }
        self.retain_values(&used);
    }

    /// Keeps the values that are `used`, among them all that a step touches.
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
            // A value whose origin is dropped has none.
            let origin = value.origin.filter(|origin| used[origin.of().0]);
            value.origin = origin.map(|origin| origin.with(renumbered[origin.of().0]));
        }
        for step in &mut self.steps {
            for id in step.inputs.iter_mut().chain(&mut step.updates).chain(&mut step.outputs) {
                *id = renumbered[id.0];
            }
        }
    }

    /// One step a line: phase, kernel, layer, operands with shapes and types.
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
                let order = if section.from_last { ", the last first" } else { "" };
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
