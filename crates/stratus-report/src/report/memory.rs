//! Memory over one training iteration: what is alive at each step, by name, from the plan.

use serde::Serialize;
use stratus_engine::plan::{Location, Owner};
use stratus_engine::{Phase, Plan, Role};

/// Blocks that are named in a report; what is smaller is summed up.
const NAMED: usize = 1500;

/// The memory of a training iteration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryMap {
    /// Bytes that outlive iterations: parameters, their copies, statistics, what the optimiser remembers.
    pub persistent_bytes: usize,
    /// Bytes of the part of the arena that each iteration uses anew.
    pub transient_bytes: usize,
    /// Bytes of a batch of images and labels.
    pub input_bytes: usize,
    /// Per kind of persistent value: what it is, bytes; the largest first.
    pub persistent: Vec<(&'static str, usize)>,
    /// Steps of an iteration.
    pub steps: usize,
    /// The first step of the backward pass; none in a program without one.
    pub backward_from: Option<usize>,
    /// Per step: bytes alive in the transient part.
    pub alive: Vec<usize>,
    /// The step at which most is alive.
    pub peak_step: usize,
    /// Blocks of the transient part, the largest first.
    pub blocks: Vec<Block>,
    /// Blocks that are too small to be among them, and their bytes.
    pub unnamed: (usize, usize),
}

/// A range of the transient part of the arena, over the steps in which it is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// The value's name, or the layers whose scratch it is.
    pub name: String,
    /// What it is.
    pub kind: BlockKind,
    /// Its shape and type; empty for scratch.
    pub shape: String,
    /// The offset in the transient part.
    pub offset: usize,
    /// Bytes, padding included.
    pub bytes: usize,
    /// The first step in which it is alive.
    pub first: usize,
    /// The last step in which it is alive.
    pub last: usize,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// Made in the forward pass and read in the backward pass.
    Saved,
    /// Made and last read in the forward pass.
    Forward,
    /// Made in the backward pass.
    Gradient,
    /// A kernel's working memory.
    Scratch,
}

impl BlockKind {
    /// Every kind, in the order of legends.
    pub const ALL: [Self; 4] = [Self::Saved, Self::Forward, Self::Gradient, Self::Scratch];

    /// What it is called in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Saved => "activations kept for the backward pass",
            Self::Forward => "activations of the forward pass alone",
            Self::Gradient => "gradients",
            Self::Scratch => "scratch",
        }
    }
}

impl MemoryMap {
    /// The memory of `plan`, which is verified.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let program = &plan.program;
        let is_backward = |phase| matches!(phase, Phase::BackwardData | Phase::BackwardWeights);
        let backward_from = program.steps.iter().position(|step| is_backward(step.phase));
        let turn = backward_from.unwrap_or(program.steps.len());
        let mut blocks: Vec<Block> = Vec::new();
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
                    Block { name: value.name.clone(), kind, shape, offset, bytes, first, last }
                }
                Owner::Scratch(step) => Block {
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
        let small = blocks.split_off(NAMED.min(blocks.len()));
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
        Role::Copy => Some("copies of parameters in the compute precision"),
        Role::Buffer => Some("running statistics"),
        Role::Momentum => Some("optimiser state"),
        Role::Average => Some("averaged weights"),
        Role::Hyper | Role::Constant | Role::Metrics | Role::Images | Role::Labels | Role::Transient => None,
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
