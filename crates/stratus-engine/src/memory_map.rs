//! Memory over a training iteration: the live values at each step, from the plan.

use crate::plan::{Location, Owner};
use crate::{Phase, Plan, Role};
use serde::Serialize;

/// The maximum number of named blocks; smaller ones are summed.
const MAX_BLOCKS: usize = 1500;

/// The memory of a training iteration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryMap {
    /// Persistent bytes: parameters, their copies, statistics, optimiser state.
    pub persistent_bytes: usize,
    /// Bytes of the transient part of the arena, which each iteration reuses.
    pub transient_bytes: usize,
    /// Bytes of a batch of images and labels.
    pub input_bytes: usize,
    /// The kinds of persistent values with their bytes, the largest first.
    pub persistent: Vec<(&'static str, usize)>,
    /// Number of steps of an iteration.
    pub steps: usize,
    /// The first step of the backward pass, if there is one.
    pub backward_from: Option<usize>,
    /// Live bytes in the transient part, per step.
    pub alive: Vec<usize>,
    /// The step with the most live bytes.
    pub peak_step: usize,
    /// Blocks of the transient part, the largest first.
    pub blocks: Vec<MemoryBlock>,
    /// Number of smaller blocks, and their bytes.
    pub unnamed: (usize, usize),
}

/// A range of the transient part of the arena, over its lifetime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryBlock {
    /// The name of the value, or the layers of the scratch.
    pub name: String,
    /// The kind of block.
    pub kind: BlockKind,
    /// Its shape and type; empty for scratch.
    pub shape: String,
    /// The offset in the transient part.
    pub offset: usize,
    /// Bytes, including padding.
    pub bytes: usize,
    /// The first step of its lifetime.
    pub first: usize,
    /// The last step of its lifetime.
    pub last: usize,
}

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// Computed in the forward pass and read in the backward pass.
    Saved,
    /// Computed and last read in the forward pass.
    Forward,
    /// Computed in the backward pass.
    Gradient,
    /// Working memory of a kernel.
    Scratch,
}

impl BlockKind {
    /// Every kind, in the order of legends.
    pub const ALL: [Self; 4] = [Self::Saved, Self::Forward, Self::Gradient, Self::Scratch];

    /// The name in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Saved => "activations saved for the backward pass",
            Self::Forward => "activations of only the forward pass",
            Self::Gradient => "gradients",
            Self::Scratch => "scratch",
        }
    }
}

impl MemoryMap {
    /// The memory of a verified plan.
    #[must_use]
    pub fn from_plan(plan: &Plan) -> Self {
        let program = &plan.program;
        let is_backward = |phase| matches!(phase, Phase::BackwardData | Phase::BackwardWeights);
        let backward_from = program.steps.iter().position(|step| is_backward(step.phase));
        let turn = backward_from.unwrap_or(program.steps.len());
        let mut blocks: Vec<MemoryBlock> = Vec::new();
        for lifetime in plan.lifetimes() {
            let (first, last, bytes) = (lifetime.first, lifetime.last, lifetime.bytes);
            blocks.push(match lifetime.owner {
                Owner::Value(id) => {
                    let (value, offset) = (program.value(id), offset(plan, id.0));
                    let shape = value.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×");
                    let kind = match (first >= turn, last >= turn) {
                        (true, _) => BlockKind::Gradient,
                        (false, true) => BlockKind::Saved,
                        (false, false) => BlockKind::Forward,
                    };
                    let shape = format!("{shape} {}", value.dtype);
                    MemoryBlock { name: value.name.clone(), kind, shape, offset, bytes, first, last }
                }
                Owner::Scratch(step) => MemoryBlock {
                    name: program.layer_name(&program.steps[step]),
                    kind: BlockKind::Scratch,
                    shape: String::new(),
                    offset: plan.steps[step].scratch.0,
                    bytes,
                    first,
                    last,
                },
            });
        }
        let mut alive = vec![0; program.steps.len()];
        for block in &blocks {
            alive[block.first..=block.last].iter_mut().for_each(|bytes| *bytes += block.bytes);
        }
        let peak_step = (0..alive.len()).max_by_key(|step| (alive[*step], usize::MAX - step)).unwrap_or(0);
        blocks.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.first.cmp(&b.first)));
        let small = blocks.split_off(MAX_BLOCKS.min(blocks.len()));
        let unnamed = (small.len(), small.iter().map(|block| block.bytes).sum());
        Self {
            persistent_bytes: plan.persistent_bytes,
            transient_bytes: plan.transient_bytes,
            input_bytes: plan.input_bytes(),
            persistent: persistent(plan),
            steps: program.steps.len(),
            backward_from,
            alive,
            peak_step,
            blocks,
            unnamed,
        }
    }
}

fn offset(plan: &Plan, value: usize) -> usize {
    match plan.placements[value].location {
        Location::Transient(offset) => offset,
        Location::Persistent(_) | Location::External(_) => 0,
    }
}

fn persistent(plan: &Plan) -> Vec<(&'static str, usize)> {
    let name = |role| match role {
        Role::Parameter => Some("parameters"),
        Role::Frozen => Some("frozen parameters"),
        Role::Teacher => Some("parameters of the teacher"),
        Role::ComputeCopy => Some("copies of parameters in the compute precision"),
        Role::Buffer => Some("running statistics"),
        Role::OptimiserState => Some("optimiser state"),
        Role::Average => Some("averaged weights"),
        Role::IterationScalars
        | Role::Constant
        | Role::Metrics
        | Role::Images
        | Role::Labels
        | Role::Observed
        | Role::Transient => None,
    };
    let mut sums: Vec<(&'static str, usize)> = Vec::new();
    for (value, placement) in plan.program.values.iter().zip(&plan.placements) {
        let Some(name) = name(value.role) else { continue };
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bytes)) => *bytes += placement.bytes,
            None => sums.push((name, placement.bytes)),
        }
    }
    sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    sums
}
