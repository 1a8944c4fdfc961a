//! Stages of a pipeline: a network that is cut into consecutive parts, which run on a process each.
//!
//! The parts of a batch ([`parts`](super::parts)) go through the stages one behind the other, forwards and
//! back, so that all stages are at work at the same time (Huang et al., "GPipe: efficient training of giant
//! neural networks using pipeline parallelism", 2019); the order is that of [`Program::turns`]. A stage has
//! the parameters of its layers alone, with their gradients, optimiser state and activations.
//!
//! Who computes a step changes, what is computed does not: stages run the steps of the uncut program, and
//! hand each other the values that these read. So the bits are those of one process with as many parts.

use crate::ops::{AddParts, BUCKET_VALUES, Kernel, Transfer};
use crate::program::{Layer, Mode, Origin, Stage};
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Operations that take as long as moving a byte between processor and memory, and as sending one to another
/// stage: what layers take is estimated, so that all workers cut alike.
const OPERATIONS_PER_BYTE: f64 = 5.0;
const OPERATIONS_PER_BYTE_SENT: f64 = 40.0;

/// The name of transfers in reports, where a layer's stands.
const PIPELINE: &str = "pipeline";

/// How much more time the slowest stage may take where memory is saved by it.
const WORTH: f64 = 1.03;
/// How often a room is halved on the way to the least.
const HALVINGS: usize = 12;

/// What a stage may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes for each byte of a trained parameter: itself, its sums of gradients, what the optimiser keeps.
    pub per_parameter: usize,
    /// Bytes of a stage at most.
    pub limit: usize,
    /// Whether activations will be [recomputed](super::recompute), so that there are few of the parts ahead.
    pub recomputes: bool,
}

impl Room {
    /// For batches in so many `parts`, and an optimiser and averages that keep so many `states`.
    #[must_use]
    pub fn new(parts: usize, states: usize, limit: usize) -> Self {
        let sums = if parts > 1 { 1 + AddParts { parts }.levels() } else { 1 };
        Self { per_parameter: 1 + states + sums, limit, recomputes: false }
    }
}

/// Which stage each layer is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    of_layer: HashMap<String, usize>,
    count: usize,
}

impl Cut {
    /// Cuts a network into `count` stages, so that the slowest takes as little time as it can. `train` is the
    /// differentiated program of one part, `evaluate` that of validation, which is cut at the same places.
    ///
    /// Between two stages no layer may be cut, nothing that outlives an iteration may be used on both sides,
    /// and values go forwards in the forward pass and backwards in the backward pass.
    ///
    /// Each stage needs no more than `room`, as far as that is known before kernels are.
    ///
    /// # Errors
    /// Where the network has fewer places to be cut at, or there is no such cut.
    pub fn balanced(
        train: &Program,
        evaluate: &Program,
        count: usize,
        room: Room,
    ) -> Result<Self, EngineError> {
        let places = Places::of(train, evaluate);
        let most = places.places.len() + 1;
        if count > most {
            return Err(EngineError::Mismatch(format!(
                "`{}` can be cut into {most} stages at most, not {count}",
                train.network
            )));
        }
        let chosen = places.balanced(count, room).ok_or_else(|| {
            EngineError::Mismatch(format!(
                "`{}` cannot be cut into {count} stages of {} MiB each at most: take more stages, or allow \
                 more",
                train.network,
                room.limit >> 20
            ))
        })?;
        let cut = Self::at(train, &chosen);
        for program in [train, evaluate] {
            cut.moves(program).map_err(|problem| refused(program, &problem))?;
        }
        Ok(cut)
    }

    /// Cuts before the forward steps at `positions`.
    fn at(train: &Program, positions: &[usize]) -> Self {
        let mut of_layer = HashMap::new();
        for (position, step) in forward(train) {
            let stage = positions.partition_point(|&at| at <= position);
            for &layer in &step.layers {
                of_layer.insert(train.layers[layer].name.clone(), stage);
            }
        }
        Self { of_layer, count: positions.len() + 1 }
    }

    /// How many stages there are.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.count
    }

    /// The stage of each step. Losses are in the last one, where the labels are.
    fn of_steps(&self, program: &Program) -> Vec<usize> {
        let mut before = 0;
        let of = |step: &Step| {
            if step.phase == Phase::Loss {
                return self.count - 1;
            }
            let known = step.layers.first().and_then(|&layer| self.of_layer.get(&program.layers[layer].name));
            before = known.copied().unwrap_or(before);
            before
        };
        program.steps.iter().map(of).collect()
    }

    /// Whether parameters come in the order of the stages, as sums over all of them do.
    fn keeps_order(&self, program: &Program) -> bool {
        let mut stage_of: BTreeMap<ValueId, usize> = BTreeMap::new();
        for (step, stage) in program.steps.iter().zip(self.of_steps(program)) {
            let masters = step.operands().map(|id| program.master_of(id));
            stage_of.extend(masters.filter(|&id| program.is_trained(id)).map(|id| (id, stage)));
        }
        stage_of.into_values().is_sorted()
    }

    /// What stages hand to each other.
    fn moves(&self, program: &Program) -> Result<Vec<Move>, String> {
        let stages = self.of_steps(program);
        let turn = turn(program);
        let mut state: Vec<Option<Held>> = vec![None; program.values.len()];
        let mut moves = Vec::new();
        for (position, (step, &stage)) in program.steps.iter().zip(&stages).enumerate() {
            for id in step.operands() {
                let value = program.value(id);
                let writes = step.outputs.contains(&id) || step.updates.contains(&id);
                let reads = !step.outputs.contains(&id);
                let layer = program.layer_name(step);
                if value.role == Role::Hyper {
                    continue;
                }
                let held = state[id.0].get_or_insert_with(|| Held::new(stage, position));
                if value.role != Role::Transient {
                    if held.writer != stage {
                        return Err(format!("`{}` is used on both sides of layer `{layer}`", value.name));
                    }
                    continue;
                }
                if reads && !held.stages.contains(&stage) {
                    let (from, backward) = (held.writer, position >= turn);
                    let goes = if backward { from > stage } else { from < stage };
                    // What the forward pass makes may be wanted by a later stage's backward pass alone.
                    let goes = goes || (backward && from < stage && held.written < turn);
                    if !goes || held.received.contains(&stage) {
                        return Err(format!("`{}` would have to be in two places at once", value.name));
                    }
                    held.stages.insert(stage);
                    held.received.insert(stage);
                    let backward = from > stage;
                    moves.push(Move { id, from, to: stage, written: held.written, backward });
                }
                if writes {
                    (held.writer, held.written) = (stage, position);
                    held.stages = HashSet::from([stage]);
                }
            }
        }
        let comes_back = |to: &&Move| state[to.id.0].as_ref().is_some_and(Held::comes_back);
        match moves.iter().find(comes_back) {
            Some(to) => Err(format!("`{}` is made in two stages", program.value(to.id).name)),
            None => Ok(moves),
        }
    }

    /// A stage's steps, with the transfers from and to the others: of the differentiated program of one part,
    /// or of that of validation.
    ///
    /// # Errors
    /// Where the program cannot be cut there, or verification fails.
    pub fn stage(&self, program: &Program, number: usize) -> Result<Program, EngineError> {
        let moves = self.moves(program).map_err(|problem| refused(program, &problem))?;
        let stages = self.of_steps(program);
        let mut whole = program.clone();
        let stage = Stage { number, count: self.count };
        whole.stage = Some(stage);
        let layer = whole.layers.len();
        whole.layers.push(Layer { name: PIPELINE.to_owned(), kind: PIPELINE.to_owned() });
        let messages = messages(&moves);
        let turn = turn(program);
        let own = |position: usize| stages[position] == number;
        let backward = (turn..program.steps.len()).find(|&at| own(at)).unwrap_or(program.steps.len());
        let mut before: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        let mut behind: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        for message in &messages {
            let Message { from, to, backward: back, number: which, .. } = *message;
            let values: Vec<ValueId> = message.moves.iter().map(|to| to.id).collect();
            let step = |stage, sends| Step {
                kernel: Transfer { stage, message: which, sends, backward: back }.into(),
                phase: Phase::Communication,
                layers: vec![layer],
                inputs: if sends { values.clone() } else { vec![] },
                updates: vec![],
                outputs: if sends { vec![] } else { values.clone() },
            };
            if from == number {
                let at = message.moves.iter().map(|to| to.written).max().unwrap_or(0);
                self.expect_unchanged(program, &stages, message, at)?;
                behind.entry(at).or_default().push(step(to, true));
            } else if to == number {
                let at = if back { backward } else { 0 };
                before.entry(at).or_default().push(step(from, false));
            }
        }
        whole.steps.clear();
        for (position, step) in program.steps.iter().enumerate() {
            whole.steps.extend(before.remove(&position).into_iter().flatten());
            if own(position) {
                whole.steps.push(step.clone());
            }
            whole.steps.extend(behind.remove(&position).into_iter().flatten());
        }
        whole.steps.extend(before.into_values().flatten());
        whole.retain_values(&self.kept(program, &whole, number));
        whole.verify("stage")?;
        Ok(whole)
    }

    /// Checks that a message's values are at `at` what they were when the other stage needs them.
    fn expect_unchanged(
        &self,
        program: &Program,
        stages: &[usize],
        message: &Message,
        at: usize,
    ) -> Result<(), EngineError> {
        for to in &message.moves {
            let range: Range<usize> = to.written + 1..at + 1;
            let changes = |position: usize| {
                let step = &program.steps[position];
                let writes = step.outputs.contains(&to.id) || step.updates.contains(&to.id);
                writes && stages[position] == message.from
            };
            if range.clone().any(changes) {
                let name = &program.value(to.id).name;
                return Err(refused(program, &format!("`{name}` changes before it is sent")));
            }
        }
        Ok(())
    }

    /// Which values a stage keeps: those that its steps use; masters of its copies; and what nothing uses in
    /// the first.
    fn kept(&self, program: &Program, stage: &Program, number: usize) -> Vec<bool> {
        let mut kept = vec![false; program.values.len()];
        for id in stage.steps.iter().flat_map(Step::operands) {
            kept[id.0] = true;
        }
        let mut used = vec![false; program.values.len()];
        for id in program.steps.iter().flat_map(Step::operands) {
            used[id.0] = true;
        }
        for (id, value) in program.values.iter().enumerate() {
            if let Some(Origin::Copy(master)) = value.origin {
                kept[master.0] |= kept[id];
                used[master.0] |= used[id];
            }
        }
        for (id, value) in program.values.iter().enumerate() {
            let nobodys = !used[id] && number == 0 && program.mode == Mode::Train;
            kept[id] |= value.role == Role::Hyper || (nobodys && value.role != Role::Transient);
        }
        kept
    }
}

fn refused(program: &Program, problem: &str) -> EngineError {
    EngineError::Mismatch(format!("`{}` cannot be cut into these stages: {problem}", program.network))
}

/// Where the backward half begins: with the losses.
fn turn(program: &Program) -> usize {
    program.steps.iter().position(|step| step.phase == Phase::Loss).unwrap_or(program.steps.len())
}

/// The forward steps. Those that prepare the weights of several layers are where these are.
fn forward(program: &Program) -> impl Iterator<Item = (usize, &Step)> {
    let steps = program.steps.iter().enumerate().take(turn(program));
    steps.filter(|(_, step)| !matches!(step.kernel, Kernel::JoinWeights(_)))
}

/// Where the newest version of a value is.
#[derive(Clone, Debug)]
struct Held {
    writer: usize,
    written: usize,
    /// The stages that have it.
    stages: HashSet<usize>,
    /// Those that were sent a version.
    received: HashSet<usize>,
    /// The one that made it.
    maker: usize,
}

impl Held {
    fn new(stage: usize, position: usize) -> Self {
        let (stages, received) = (HashSet::from([stage]), HashSet::new());
        Self { writer: stage, written: position, stages, received, maker: stage }
    }

    /// Whether the stage that makes the value was sent one too.
    fn comes_back(&self) -> bool {
        self.received.contains(&self.maker)
    }
}

/// A value that one stage makes and another reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    id: ValueId,
    from: usize,
    to: usize,
    /// The step that makes it.
    written: usize,
    backward: bool,
}

/// Values that go together.
struct Message {
    from: usize,
    to: usize,
    backward: bool,
    number: usize,
    moves: Vec<Move>,
}

/// The messages of each pair of stages, numbered.
fn messages(moves: &[Move]) -> Vec<Message> {
    let mut by_way: BTreeMap<(usize, usize, bool), Vec<Move>> = BTreeMap::new();
    for &to in moves {
        by_way.entry((to.from, to.to, to.backward)).or_default().push(to);
    }
    let mut messages = Vec::new();
    for ((from, to, backward), moves) in by_way {
        for (number, moves) in moves.chunks(BUCKET_VALUES).enumerate() {
            messages.push(Message { from, to, backward, number, moves: moves.to_vec() });
        }
    }
    messages
}

/// Where a network may be cut, and what the pieces in between take.
struct Places {
    places: Vec<Place>,
    /// What the layers before each place take; of the whole network last.
    before: Vec<Costs>,
}

/// A place to cut at.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Before which forward step.
    position: usize,
    /// What the transfers take.
    sent: f64,
    /// Bytes that come over in the forward pass.
    enters: usize,
}

/// The time of the slowest stage up to a place, and the place before it; `None` where there is no cut.
type Fastest = Option<(f64, Option<usize>)>;

/// What layers take.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// Of all their steps, in operations.
    time: f64,
    /// Bytes of their parameters.
    parameters: usize,
    /// Bytes that the forward pass keeps for the backward pass.
    kept: usize,
}

/// What the forward pass makes and the backward pass reads.
fn kept_forward(program: &Program) -> HashSet<ValueId> {
    let turn = turn(program);
    let made: HashSet<ValueId> =
        program.steps[..turn].iter().flat_map(|step| step.outputs.iter().copied()).collect();
    let is_kept = |id: &ValueId| made.contains(id) && program.value(*id).role == Role::Transient;
    program.steps[turn..].iter().flat_map(Step::operands).filter(is_kept).collect()
}

/// The bytes of each trained parameter.
fn parameters(program: &Program) -> HashMap<ValueId, usize> {
    let values = program.values.iter().enumerate();
    let trained = values.filter(|(_, value)| value.role == Role::Parameter);
    trained.map(|(id, value)| (ValueId(id), value.bytes())).collect()
}

impl Places {
    fn of(train: &Program, evaluate: &Program) -> Self {
        let mut of_layer: HashMap<usize, f64> = HashMap::new();
        for (position, step) in train.steps.iter().enumerate() {
            let touched: usize = step.operands().map(|id| train.value(id).bytes()).sum();
            let cost = train.step_flops(position) as f64 + touched as f64 * OPERATIONS_PER_BYTE;
            if let Some(&layer) = step.layers.first() {
                *of_layer.entry(layer).or_default() += cost;
            }
        }
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (position, step) in forward(train) {
            last.extend(step.layers.iter().map(|&layer| (layer, position)));
        }
        let kept = kept_forward(train);
        let mut parameters = parameters(train);
        let (mut places, mut before) = (Vec::new(), Vec::new());
        let (mut so_far, mut open) = (Costs::default(), 0);
        for (position, step) in forward(train) {
            if position > open && so_far.time > 0.0 {
                let cut = Cut::at(train, &[position]);
                if let (Ok(moves), Ok(_), true) =
                    (cut.moves(train), cut.moves(evaluate), cut.keeps_order(train))
                {
                    let bytes = |backward| {
                        let moves = moves.iter().filter(|to| to.backward == backward);
                        moves.map(|to| train.value(to.id).bytes()).sum::<usize>()
                    };
                    let sent = (bytes(false) + bytes(true)) as f64;
                    places.push(Place {
                        position,
                        sent: sent * OPERATIONS_PER_BYTE_SENT,
                        enters: bytes(false),
                    });
                    before.push(so_far);
                }
            }
            for layer in &step.layers {
                open = open.max(last[layer]);
                so_far.time += of_layer.remove(layer).unwrap_or(0.0);
            }
            for id in step.operands() {
                so_far.parameters += parameters.remove(&train.master_of(id)).unwrap_or(0);
                if step.outputs.contains(&id) && kept.contains(&id) {
                    so_far.kept += train.value(id).bytes();
                }
            }
        }
        so_far.time += of_layer.into_values().sum::<f64>();
        so_far.parameters += parameters.into_values().sum::<usize>();
        before.push(so_far);
        Self { places, before }
    }

    /// Bytes that the stage from a place to another needs, roughly: without what is alive for one step alone.
    fn bytes(&self, from: Option<usize>, to: usize, stage: Stage, room: Room) -> usize {
        let (start, enters) =
            from.map_or((Costs::default(), 0), |at| (self.before[at], self.places[at].enters));
        let end = self.before[to];
        let parameters = (end.parameters - start.parameters) * room.per_parameter;
        let kept = end.kept - start.kept;
        parameters + enters * stage.ahead() + if room.recomputes { kept } else { kept * stage.ahead() }
    }

    /// The positions at which `count` stages begin, without the first: so that the slowest stage takes least,
    /// and of cuts that take about as long, the one whose largest stage needs the fewest bytes. `None` where
    /// there is no cut within the room.
    fn balanced(&self, count: usize, room: Room) -> Option<Vec<usize>> {
        let (time, mut chosen) = self.fastest(count, room)?;
        // Rooms are halved until they are as small as the time allows.
        let (mut least, mut most) = (0_usize, self.largest(&chosen, room));
        for _ in 0..HALVINGS {
            let limit = least.midpoint(most);
            match self.fastest(count, Room { limit, ..room }) {
                Some((slower, smaller)) if slower <= time * WORTH => {
                    most = limit.min(self.largest(&smaller, room));
                    chosen = smaller;
                }
                _ => least = limit,
            }
        }
        Some(chosen.into_iter().map(|at| self.places[at].position).collect())
    }

    /// Bytes of the largest stage of a cut.
    fn largest(&self, chosen: &[usize], room: Room) -> usize {
        let count = chosen.len() + 1;
        let bytes = |number: usize| {
            let from = number.checked_sub(1).map(|before| chosen[before]);
            let to = chosen.get(number).copied().unwrap_or(self.places.len());
            self.bytes(from, to, Stage { number, count }, room)
        };
        (0..count).map(bytes).max().unwrap_or(0)
    }

    /// The time of the slowest stage, and the places of the cut for which it is the least within the room.
    fn fastest(&self, count: usize, room: Room) -> Option<(f64, Vec<usize>)> {
        let ends = self.places.len();
        let between = |from: Option<usize>, to: usize, number: usize| {
            let bytes = self.bytes(from, to, Stage { number, count }, room);
            let (start, enters) = from.map_or((0.0, 0.0), |at| (self.before[at].time, self.places[at].sent));
            let leaves = self.places.get(to).map_or(0.0, |place| place.sent);
            (bytes <= room.limit).then_some(self.before[to].time - start + enters + leaves)
        };
        // For one more stage each round.
        let first = (0..=ends).map(|to| between(None, to, 0).map(|time| (time, None))).collect();
        let mut best: Vec<Vec<Fastest>> = vec![first];
        for round in 1..count {
            let of = |to: usize| {
                let from = (0..to).filter_map(|at| {
                    let (slowest, _) = best[round - 1][at]?;
                    Some((slowest.max(between(Some(at), to, round)?), Some(at)))
                });
                from.min_by(|one, other| one.0.total_cmp(&other.0))
            };
            let row = (0..=ends).map(of).collect();
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
