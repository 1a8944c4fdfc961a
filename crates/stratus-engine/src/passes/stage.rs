//! Pipeline parallelism: a network is partitioned into consecutive stages, each of which runs in its own
//! process.
//!
//! The parts of a batch ([`parts`](super::parts)) pass through the stages in sequence, forwards and
//! backwards, so that all stages are busy (Huang et al., "GPipe: efficient training of giant neural networks
//! using pipeline parallelism", 2019); the order is that of [`Program::schedule`]. A stage has only the
//! parameters of its layers, with their gradients, optimiser state and activations.
//!
//! Partitioning changes where a step runs, never its result: stages run the steps of the unpartitioned
//! program and send each other the values that these read. Results are bitwise equal to those of one process
//! with as many parts.

use super::step_costs::StepCosts;
use crate::ops::{Kernel, MAX_BUCKET_VALUES, StageTransfer, TreeSum};
use crate::program::{Layer, Mode, Origin, Stage};
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The layer name of transfers in reports.
const PIPELINE: &str = "pipeline";

/// The maximum slowdown of the slowest stage that is accepted to save memory.
const MAX_SLOWDOWN_FOR_MEMORY: f64 = 1.03;
/// Bisection steps when minimising the memory of the largest stage.
const MEMORY_SEARCH_STEPS: usize = 12;

/// The memory model of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMemory {
    /// Bytes per byte of a trained parameter: itself, its sums of gradients and the optimiser state.
    pub bytes_per_parameter_byte: usize,
    /// The maximum bytes of a stage.
    pub limit_bytes: usize,
    /// True if activations are [recomputed](super::recompute), so that few are kept for the parts in flight.
    pub recomputes: bool,
}

impl StageMemory {
    /// The memory of stages for batches of `parts` parts, with an optimiser and averages that keep `states`
    /// values per parameter.
    #[must_use]
    pub fn new(parts: usize, states: usize, limit: usize) -> Self {
        let sums = if parts > 1 { 1 + TreeSum { parts }.levels() } else { 1 };
        Self { bytes_per_parameter_byte: 1 + states + sums, limit_bytes: limit, recomputes: false }
    }
}

/// The stage of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelinePartition {
    stage_of_layer: HashMap<String, usize>,
    count: usize,
}

impl PipelinePartition {
    /// Partitions a network into `count` stages so that the slowest takes the least time. `train` is the
    /// differentiated program of one part, `evaluate` that of validation, which is cut at the same points.
    /// Workers with the same `costs` compute the same partition.
    ///
    /// Layers are not split, no persistent value is used in two stages, and values flow forwards in the
    /// forward pass and backwards in the backward pass.
    ///
    /// Each stage fits `memory`, as far as that is known before kernels are chosen.
    ///
    /// # Errors
    /// If the network has too few cut points, or no partition fits.
    pub fn balanced(
        train: &Program,
        evaluate: &Program,
        count: usize,
        memory: StageMemory,
        costs: &StepCosts,
    ) -> Result<Self, EngineError> {
        let points = CutPoints::find(train, evaluate, costs);
        let max_stages = points.points.len() + 1;
        if count > max_stages {
            let network = train.network.clone();
            return Err(EngineError::TooManyStages { network, max: max_stages, requested: count });
        }
        let chosen = points.balanced(count, memory).ok_or_else(|| EngineError::StagesTooLarge {
            network: train.network.clone(),
            stages: count,
            bytes: memory.limit_bytes,
        })?;
        let partition = Self::at(train, &chosen);
        for program in [train, evaluate] {
            partition.edges(program).map_err(|problem| not_partitionable(program, &problem))?;
        }
        Ok(partition)
    }

    /// The partition with cuts before the forward steps at `positions`.
    fn at(train: &Program, positions: &[usize]) -> Self {
        let mut stage_of_layer = HashMap::new();
        for (position, step) in forward(train) {
            let stage = positions.partition_point(|&at| at <= position);
            for &layer in &step.layers {
                stage_of_layer.insert(train.layers[layer].name.clone(), stage);
            }
        }
        Self { stage_of_layer, count: positions.len() + 1 }
    }

    /// The number of stages.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.count
    }

    /// The stage of each step. Losses are in the last stage, which has the labels.
    fn stage_of_steps(&self, program: &Program) -> Vec<usize> {
        let mut before = 0;
        let stage_of = |step: &Step| {
            if step.phase == Phase::Loss {
                return self.count - 1;
            }
            let layer_stage =
                step.layers.first().and_then(|&layer| self.stage_of_layer.get(&program.layers[layer].name));
            before = layer_stage.copied().unwrap_or(before);
            before
        };
        program.steps.iter().map(stage_of).collect()
    }

    /// Returns whether parameters are ordered by stage, as sums over all of them require.
    fn keeps_parameter_order(&self, program: &Program) -> bool {
        let mut stage_of: BTreeMap<ValueId, usize> = BTreeMap::new();
        for (step, stage) in program.steps.iter().zip(self.stage_of_steps(program)) {
            let masters = step.operands().map(|id| program.master_of(id));
            stage_of.extend(masters.filter(|&id| program.is_trained(id)).map(|id| (id, stage)));
        }
        stage_of.into_values().is_sorted()
    }

    /// The values sent between stages.
    fn edges(&self, program: &Program) -> Result<Vec<StageEdge>, String> {
        let stages = self.stage_of_steps(program);
        let backward_start = backward_start(program);
        let mut state: Vec<Option<ValueVersion>> = vec![None; program.values.len()];
        let mut edges = Vec::new();
        for (position, (step, &stage)) in program.steps.iter().zip(&stages).enumerate() {
            for id in step.operands() {
                let value = program.value(id);
                let writes = step.outputs.contains(&id) || step.updates.contains(&id);
                let reads = !step.outputs.contains(&id);
                let layer = program.layer_name(step);
                if value.role == Role::IterationScalars {
                    continue;
                }
                let version = state[id.0].get_or_insert_with(|| ValueVersion::new(stage, position));
                if value.role != Role::Transient {
                    if version.writer != stage {
                        return Err(format!("`{}` is used on both sides of layer `{layer}`", value.name));
                    }
                    continue;
                }
                if reads && !version.stages.contains(&stage) {
                    let (from, backward) = (version.writer, position >= backward_start);
                    let allowed = if backward { from > stage } else { from < stage };
                    // A forward value may be read only by a later stage's backward pass.
                    let allowed = allowed || (backward && from < stage && version.written < backward_start);
                    if !allowed || version.received.contains(&stage) {
                        return Err(format!(
                            "`{}` would have to be sent twice, or against the direction of the pipeline",
                            value.name
                        ));
                    }
                    version.stages.insert(stage);
                    version.received.insert(stage);
                    let backward = from > stage;
                    edges.push(StageEdge { id, from, to: stage, written: version.written, backward });
                }
                if writes {
                    (version.writer, version.written) = (stage, position);
                    version.stages = HashSet::from([stage]);
                }
            }
        }
        let returns =
            |edge: &&StageEdge| state[edge.id.0].as_ref().is_some_and(ValueVersion::returns_to_producer);
        match edges.iter().find(returns) {
            Some(edge) => Err(format!("`{}` is written in two stages", program.value(edge.id).name)),
            None => Ok(edges),
        }
    }

    /// The program of a stage, with its transfers, from the differentiated program of one part or from that
    /// of validation.
    ///
    /// # Errors
    /// If the program cannot be partitioned this way, or verification fails.
    pub fn stage(&self, program: &Program, index: usize) -> Result<Program, EngineError> {
        let edges = self.edges(program).map_err(|problem| not_partitionable(program, &problem))?;
        let stages = self.stage_of_steps(program);
        let mut stage_program = program.clone();
        let stage = Stage { index, count: self.count };
        stage_program.stage = Some(stage);
        let layer = stage_program.layers.len();
        stage_program.layers.push(Layer { name: PIPELINE.to_owned(), kind: PIPELINE.to_owned() });
        let messages = messages(&edges);
        let backward_start = backward_start(program);
        let is_own = |position: usize| stages[position] == index;
        let backward =
            (backward_start..program.steps.len()).find(|&at| is_own(at)).unwrap_or(program.steps.len());
        let mut before: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        let mut after: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        for message in &messages {
            let Message { from, to, backward: back, index: message_index, .. } = *message;
            let values: Vec<ValueId> = message.edges.iter().map(|edge| edge.id).collect();
            let step = |stage, sends| Step {
                kernel: StageTransfer { stage, message: message_index, sends, backward: back }.into(),
                phase: Phase::Communication,
                layers: vec![layer],
                inputs: if sends { values.clone() } else { vec![] },
                updates: vec![],
                outputs: if sends { vec![] } else { values.clone() },
            };
            if from == index {
                let at = message.edges.iter().map(|edge| edge.written).max().unwrap_or(0);
                self.expect_unchanged(program, &stages, message, at)?;
                after.entry(at).or_default().push(step(to, true));
            } else if to == index {
                let at = if back { backward } else { 0 };
                before.entry(at).or_default().push(step(from, false));
            }
        }
        stage_program.steps.clear();
        for (position, step) in program.steps.iter().enumerate() {
            stage_program.steps.extend(before.remove(&position).into_iter().flatten());
            if is_own(position) {
                stage_program.steps.push(step.clone());
            }
            stage_program.steps.extend(after.remove(&position).into_iter().flatten());
        }
        stage_program.steps.extend(before.into_values().flatten());
        stage_program.retain_values(&self.kept_values(program, &stage_program, index));
        stage_program.verify("stage")?;
        Ok(stage_program)
    }

    /// Checks that a message's values do not change before step `at`, which sends them.
    fn expect_unchanged(
        &self,
        program: &Program,
        stages: &[usize],
        message: &Message,
        at: usize,
    ) -> Result<(), EngineError> {
        for edge in &message.edges {
            let range: Range<usize> = edge.written + 1..at + 1;
            let changes = |position: usize| {
                let step = &program.steps[position];
                let writes = step.outputs.contains(&edge.id) || step.updates.contains(&edge.id);
                writes && stages[position] == message.from
            };
            if range.clone().any(changes) {
                let name = &program.value(edge.id).name;
                return Err(not_partitionable(program, &format!("`{name}` changes before it is sent")));
            }
        }
        Ok(())
    }

    /// The values that a stage keeps: those of its steps, the masters of its copies, and, in stage 0, unused
    /// persistent values.
    fn kept_values(&self, program: &Program, stage: &Program, index: usize) -> Vec<bool> {
        let mut kept = vec![false; program.values.len()];
        for id in stage.steps.iter().flat_map(Step::operands) {
            kept[id.0] = true;
        }
        let mut used = vec![false; program.values.len()];
        for id in program.steps.iter().flat_map(Step::operands) {
            used[id.0] = true;
        }
        for (id, value) in program.values.iter().enumerate() {
            if let Some(Origin::ComputeCopy(master)) = value.origin {
                kept[master.0] |= kept[id];
                used[master.0] |= used[id];
            }
        }
        for (id, value) in program.values.iter().enumerate() {
            let is_unused = !used[id] && index == 0 && program.mode == Mode::Train;
            kept[id] |= value.role == Role::IterationScalars || (is_unused && value.role != Role::Transient);
        }
        kept
    }
}

fn not_partitionable(program: &Program, problem: &str) -> EngineError {
    EngineError::InvalidRequest(format!(
        "`{}` cannot be partitioned into these stages: {problem}",
        program.network
    ))
}

/// The first step of the backward half: the first loss.
fn backward_start(program: &Program) -> usize {
    program.steps.iter().position(|step| step.phase == Phase::Loss).unwrap_or(program.steps.len())
}

/// The forward steps, except those that prepare the weights of several layers, which run in the stage of
/// these.
fn forward(program: &Program) -> impl Iterator<Item = (usize, &Step)> {
    let steps = program.steps.iter().enumerate().take(backward_start(program));
    steps.filter(|(_, step)| !matches!(step.kernel, Kernel::JoinWeights(_)))
}

/// The location of the current version of a value.
#[derive(Clone, Debug)]
struct ValueVersion {
    writer: usize,
    written: usize,
    /// The stages that have it.
    stages: HashSet<usize>,
    /// The stages that received a version.
    received: HashSet<usize>,
    /// The stage that computes it.
    producer: usize,
}

impl ValueVersion {
    fn new(stage: usize, position: usize) -> Self {
        let (stages, received) = (HashSet::from([stage]), HashSet::new());
        Self { writer: stage, written: position, stages, received, producer: stage }
    }

    /// Returns whether the producing stage also received the value.
    fn returns_to_producer(&self) -> bool {
        self.received.contains(&self.producer)
    }
}

/// A value that is sent from one stage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StageEdge {
    id: ValueId,
    from: usize,
    to: usize,
    /// The step that writes it.
    written: usize,
    backward: bool,
}

/// Values that are sent together.
struct Message {
    from: usize,
    to: usize,
    backward: bool,
    index: usize,
    edges: Vec<StageEdge>,
}

/// The messages of each pair of stages, with indices.
fn messages(edges: &[StageEdge]) -> Vec<Message> {
    let mut by_route: BTreeMap<(usize, usize, bool), Vec<StageEdge>> = BTreeMap::new();
    for &edge in edges {
        by_route.entry((edge.from, edge.to, edge.backward)).or_default().push(edge);
    }
    let mut messages = Vec::new();
    for ((from, to, backward), edges) in by_route {
        for (index, edges) in edges.chunks(MAX_BUCKET_VALUES).enumerate() {
            messages.push(Message { from, to, backward, index, edges: edges.to_vec() });
        }
    }
    messages
}

/// The possible cut points of a network, and the costs of the layers between them.
struct CutPoints {
    points: Vec<CutPoint>,
    /// The costs of the layers before each point; the last entry is the whole network.
    before: Vec<LayerCosts>,
}

/// A possible cut.
#[derive(Clone, Copy, Debug)]
struct CutPoint {
    /// The forward step after the cut.
    position: usize,
    /// The cost of its transfers, in operations.
    transfer_cost: f64,
    /// Bytes sent in the forward pass.
    forward_bytes: usize,
}

/// The time of the slowest stage up to a point and the preceding cut; `None` if there is no partition.
type BestCut = Option<(f64, Option<usize>)>;

/// The costs of layers.
#[derive(Clone, Copy, Debug, Default)]
struct LayerCosts {
    /// The time of all steps, in operations.
    operations: f64,
    /// Bytes of their parameters.
    parameter_bytes: usize,
    /// Bytes kept from the forward to the backward pass.
    kept_bytes: usize,
}

/// The values that the backward pass reads from the forward pass.
fn kept_forward(program: &Program) -> HashSet<ValueId> {
    let backward_start = backward_start(program);
    let written: HashSet<ValueId> =
        program.steps[..backward_start].iter().flat_map(|step| step.outputs.iter().copied()).collect();
    let is_kept = |id: &ValueId| written.contains(id) && program.value(*id).role == Role::Transient;
    program.steps[backward_start..].iter().flat_map(Step::operands).filter(is_kept).collect()
}

/// The bytes of each trained parameter.
fn parameters(program: &Program) -> HashMap<ValueId, usize> {
    let values = program.values.iter().enumerate();
    let trained = values.filter(|(_, value)| value.role == Role::Parameter);
    trained.map(|(id, value)| (ValueId(id), value.bytes())).collect()
}

impl CutPoints {
    fn find(train: &Program, evaluate: &Program, costs: &StepCosts) -> Self {
        let mut cost_of_layer: HashMap<usize, f64> = HashMap::new();
        for (position, step) in train.steps.iter().enumerate() {
            if let Some(&layer) = step.layers.first() {
                *cost_of_layer.entry(layer).or_default() += costs.of_step(train, position);
            }
        }
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (position, step) in forward(train) {
            last.extend(step.layers.iter().map(|&layer| (layer, position)));
        }
        let kept = kept_forward(train);
        let mut parameters = parameters(train);
        let (mut points, mut before) = (Vec::new(), Vec::new());
        let (mut so_far, mut open) = (LayerCosts::default(), 0);
        for (position, step) in forward(train) {
            if position > open && so_far.operations > 0.0 {
                let partition = PipelinePartition::at(train, &[position]);
                if let (Ok(edges), Ok(_), true) = (
                    partition.edges(train),
                    partition.edges(evaluate),
                    partition.keeps_parameter_order(train),
                ) {
                    let bytes = |backward| {
                        let edges = edges.iter().filter(|edge| edge.backward == backward);
                        edges.map(|edge| train.value(edge.id).bytes()).sum::<usize>()
                    };
                    points.push(CutPoint {
                        position,
                        transfer_cost: StepCosts::of_bytes_sent(bytes(false) + bytes(true)),
                        forward_bytes: bytes(false),
                    });
                    before.push(so_far);
                }
            }
            for layer in &step.layers {
                open = open.max(last[layer]);
                so_far.operations += cost_of_layer.remove(layer).unwrap_or(0.0);
            }
            for id in step.operands() {
                so_far.parameter_bytes += parameters.remove(&train.master_of(id)).unwrap_or(0);
                if step.outputs.contains(&id) && kept.contains(&id) {
                    so_far.kept_bytes += train.value(id).bytes();
                }
            }
        }
        so_far.operations += cost_of_layer.into_values().sum::<f64>();
        so_far.parameter_bytes += parameters.into_values().sum::<usize>();
        before.push(so_far);
        Self { points, before }
    }

    /// The estimated bytes of the stage between two cuts, without values that are alive during a single step.
    fn bytes(&self, from: Option<usize>, to: usize, stage: Stage, memory: StageMemory) -> usize {
        let (start, enters) =
            from.map_or((LayerCosts::default(), 0), |at| (self.before[at], self.points[at].forward_bytes));
        let end = self.before[to];
        let parameters = (end.parameter_bytes - start.parameter_bytes) * memory.bytes_per_parameter_byte;
        let kept = end.kept_bytes - start.kept_bytes;
        parameters
            + enters * stage.in_flight()
            + if memory.recomputes { kept } else { kept * stage.in_flight() }
    }

    /// The first steps of `count` stages, without stage 0: minimises the time of the slowest stage, then,
    /// among partitions of about equal time, the bytes of the largest. `None` if nothing fits.
    fn balanced(&self, count: usize, memory: StageMemory) -> Option<Vec<usize>> {
        let (time, mut chosen) = self.fastest(count, memory)?;
        // Bisect the memory limit down to the smallest that the time allows.
        let (mut low, mut high) = (0_usize, self.largest(&chosen, memory));
        for _ in 0..MEMORY_SEARCH_STEPS {
            let limit = low.midpoint(high);
            match self.fastest(count, StageMemory { limit_bytes: limit, ..memory }) {
                Some((slower, smaller)) if slower <= time * MAX_SLOWDOWN_FOR_MEMORY => {
                    high = limit.min(self.largest(&smaller, memory));
                    chosen = smaller;
                }
                _ => low = limit,
            }
        }
        Some(chosen.into_iter().map(|at| self.points[at].position).collect())
    }

    /// Bytes of the largest stage of a partition.
    fn largest(&self, chosen: &[usize], memory: StageMemory) -> usize {
        let count = chosen.len() + 1;
        let bytes = |index: usize| {
            let from = index.checked_sub(1).map(|before| chosen[before]);
            let to = chosen.get(index).copied().unwrap_or(self.points.len());
            self.bytes(from, to, Stage { index, count }, memory)
        };
        (0..count).map(bytes).max().unwrap_or(0)
    }

    /// The minimal time of the slowest stage within the memory limit, and the cuts of that partition.
    fn fastest(&self, count: usize, memory: StageMemory) -> Option<(f64, Vec<usize>)> {
        let ends = self.points.len();
        let between = |from: Option<usize>, to: usize, index: usize| {
            let bytes = self.bytes(from, to, Stage { index, count }, memory);
            let (start, enters) =
                from.map_or((0.0, 0.0), |at| (self.before[at].operations, self.points[at].transfer_cost));
            let leaves = self.points.get(to).map_or(0.0, |point| point.transfer_cost);
            (bytes <= memory.limit_bytes).then_some(self.before[to].operations - start + enters + leaves)
        };
        // Each round adds one stage.
        let first = (0..=ends).map(|to| between(None, to, 0).map(|time| (time, None))).collect();
        let mut best: Vec<Vec<BestCut>> = vec![first];
        for round in 1..count {
            let best_cut = |to: usize| {
                let from = (0..to).filter_map(|at| {
                    let (slowest, _) = best[round - 1][at]?;
                    Some((slowest.max(between(Some(at), to, round)?), Some(at)))
                });
                from.min_by(|one, other| one.0.total_cmp(&other.0))
            };
            let row = (0..=ends).map(best_cut).collect();
            best.push(row);
        }
        let (time, _) = best[count - 1][ends]?;
        let mut chosen = Vec::new();
        let mut at = ends;
        for round in (1..count).rev() {
            at = best[round][at]?.1?;
            chosen.push(at);
        }
        chosen.reverse();
        Some((time, chosen))
    }
}
