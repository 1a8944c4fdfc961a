//! The data flow between the layers of a network, from the plan of its training iterations.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use stratus_engine::ops::KernelSpec as _;
use stratus_engine::program::Origin;
use stratus_engine::{Phase, Plan, Role, Step, ValueId};

use crate::accounting::Accounting;

/// Maximum number of layers from which one value is derived without a layer in between.
const MAX_SOURCES: usize = 64;

/// The layers of a network, and the values that they pass on in the forward pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Network {
    /// The stage of a pipeline and the number of stages; `None` for a whole network.
    pub stage: Option<(usize, usize)>,
    /// The layers, in the order of their first steps.
    pub layers: Vec<NetworkLayer>,
    /// The values that they pass on.
    pub edges: Vec<DataEdge>,
}

/// A layer, or several fused layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NetworkLayer {
    /// The name, as in the accounting.
    pub layer: String,
    /// The row in the accounting.
    pub row: usize,
    /// The shapes of its inputs, per sample.
    pub inputs: Vec<String>,
    /// The shapes of its outputs, per sample.
    pub outputs: Vec<String>,
    /// The kernels of each phase.
    pub kernels: Vec<LayerKernel>,
    /// Its memory.
    pub memory: NodeMemory,
}

/// The memory of a block or a layer, as planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeMemory {
    /// The number of parameters, frozen ones included.
    pub parameters: u64,
    /// Bytes of parameters, their copies, optimiser state, averages and running statistics.
    pub persistent_bytes: u64,
    /// Bytes that its forward pass writes, for the whole batch.
    pub activation_bytes: u64,
}

/// A kernel of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerKernel {
    /// The phase: `forward`, `backward_data`, `backward_weights`, `update`.
    pub phase: &'static str,
    /// The computation.
    pub kernel: &'static str,
    /// The backend's name for the implementation.
    pub implementation: String,
    /// The number of steps.
    pub steps: usize,
}

/// A value that a layer passes on to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DataEdge {
    /// Its source.
    pub from: Endpoint,
    /// Its reader.
    pub to: Endpoint,
    /// Its shape, per sample. Of several values, that of the largest.
    pub shape: String,
    /// Its bytes, for the whole batch.
    pub bytes: u64,
}

/// An end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// The images of a batch.
    Images,
    /// A layer, by its position.
    Layer(usize),
    /// The loss.
    Loss,
}

impl Network {
    /// The layers by their rows in an accounting of `rows` layers.
    #[must_use]
    pub fn by_row(&self, rows: usize) -> Vec<Option<&NetworkLayer>> {
        let mut layers = vec![None; rows];
        for layer in &self.layers {
            if let Some(place) = layers.get_mut(layer.row) {
                *place = Some(layer);
            }
        }
        layers
    }

    /// The data flow of a verified plan between the layers of an accounting.
    pub(super) fn new(plan: &Plan, accounting: &Accounting) -> Self {
        let mut rows: HashMap<&str, usize> = HashMap::new();
        for (row, layer) in accounting.layers.iter().enumerate() {
            rows.entry(&layer.layer).or_insert(row);
        }
        let stage = plan.program.stage.map(|stage| (stage.index, stage.count));
        let mut reader =
            Reader { plan, rows, network: Self { stage, ..Self::default() }, known: HashMap::new() };
        let edges = reader.flow();
        reader.details();
        let mut network = reader.network;
        for ((from, to), (value, bytes)) in edges {
            let shape = shape(plan, value);
            let mut add = |end: Endpoint, side: fn(&mut NetworkLayer) -> &mut Vec<String>| {
                if let Endpoint::Layer(layer) = end
                    && let Some(layer) = network.layers.get_mut(layer)
                    && !side(layer).contains(&shape)
                {
                    side(layer).push(shape.clone());
                }
            };
            add(to, |layer| &mut layer.inputs);
            add(from, |layer| &mut layer.outputs);
            network.edges.push(DataEdge { from, to, shape, bytes });
        }
        network
    }
}

/// Edges with their largest values and the bytes of these.
type Edges = BTreeMap<(Endpoint, Endpoint), (ValueId, u64)>;

struct Reader<'a> {
    plan: &'a Plan,
    rows: HashMap<&'a str, usize>,
    network: Network,
    known: HashMap<String, Option<usize>>,
}

impl Reader<'_> {
    /// The position of the layer of a step; `None` if the step has no row in the accounting.
    fn layer(&mut self, step: &Step) -> Option<usize> {
        let name = self.plan.program.layer_name(step);
        if let Some(known) = self.known.get(&name) {
            return *known;
        }
        let position = self.rows.get(name.as_str()).map(|&row| {
            self.network.layers.push(NetworkLayer { layer: name.clone(), row, ..NetworkLayer::default() });
            self.network.layers.len() - 1
        });
        self.known.insert(name, position);
        position
    }

    /// Follows the values of the forward pass and of the loss. Steps without a layer, such as changes of
    /// layout, pass on what they read.
    fn flow(&mut self) -> Edges {
        let (plan, program) = (self.plan, &self.plan.program);
        let mut sources: Vec<Vec<Endpoint>> = program
            .values
            .iter()
            .map(|value| if value.role == Role::Images { vec![Endpoint::Images] } else { Vec::new() })
            .collect();
        let mut edges = Edges::new();
        for (position, step) in program.steps.iter().enumerate() {
            let end = match step.phase {
                Phase::Forward => self.layer(step).map(Endpoint::Layer),
                Phase::Loss => Some(Endpoint::Loss),
                Phase::Layout | Phase::Communication => None,
                // The teacher is not a part of the network.
                Phase::Teacher | Phase::BackwardData | Phase::BackwardWeights | Phase::Update => continue,
            };
            let carries = |id: &&ValueId| matches!(program.value(**id).role, Role::Images | Role::Transient);
            // Concatenated values: each part is written by its own step, which does not read the others.
            let parts = written_in_part(plan, position);
            let is_part = |id: &&ValueId| parts.contains(id);
            let read =
                || step.inputs.iter().chain(step.updates.iter().filter(|id| !is_part(id))).filter(carries);
            let origins = match end {
                Some(end) => {
                    for &id in read() {
                        let bytes = plan.placements[id.0].bytes as u64;
                        for &from in sources[id.0].iter().filter(|from| **from != end) {
                            let largest = edges.entry((from, end)).or_insert((id, bytes));
                            if largest.1 < bytes {
                                *largest = (id, bytes);
                            }
                        }
                    }
                    vec![end]
                }
                None => {
                    let mut all: Vec<Endpoint> = read().flat_map(|id| sources[id.0].clone()).collect();
                    all.sort_unstable();
                    all.dedup();
                    all.truncate(MAX_SOURCES);
                    all
                }
            };
            for &id in step.outputs.iter().chain(&step.updates).filter(carries) {
                let known = &mut sources[id.0];
                if !parts.contains(&id) {
                    known.clear();
                }
                let new = origins.iter().filter(|end| !known.contains(end)).copied().collect::<Vec<_>>();
                known.extend(new.into_iter().take(MAX_SOURCES.saturating_sub(known.len())));
            }
        }
        // The loss passes nothing on in the forward pass.
        edges.retain(|(from, _), _| *from != Endpoint::Loss);
        edges
    }

    /// Adds the kernels and the memory of each layer.
    fn details(&mut self) {
        let (plan, program) = (self.plan, &self.plan.program);
        let mut owners: HashMap<ValueId, usize> = HashMap::new();
        let mut written: HashSet<ValueId> = HashSet::new();
        for (position, step) in program.steps.iter().enumerate() {
            let layer_phase = matches!(
                step.phase,
                Phase::Forward | Phase::BackwardData | Phase::BackwardWeights | Phase::Update
            );
            let Some(at) = layer_phase.then(|| self.layer(step)).flatten() else { continue };
            let layer = &mut self.network.layers[at];
            let (phase, kernel) = (step.phase.name(), step.kernel.name());
            let implementation = &plan.steps[position].implementation;
            let same = |known: &&mut LayerKernel| {
                (known.phase, known.kernel) == (phase, kernel) && known.implementation == *implementation
            };
            match layer.kernels.iter_mut().find(same) {
                Some(known) => known.steps += 1,
                None => layer.kernels.push(LayerKernel {
                    phase,
                    kernel,
                    implementation: implementation.clone(),
                    steps: 1,
                }),
            }
            if step.phase != Phase::Forward {
                continue;
            }
            for id in step.operands() {
                owners.entry(self.root(id)).or_insert(at);
            }
            for &id in &step.outputs {
                if program.value(id).role == Role::Transient && written.insert(id) {
                    let bytes = plan.placements[id.0].bytes as u64;
                    let sum = &mut self.network.layers[at].memory.activation_bytes;
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        for (position, value) in program.values.iter().enumerate() {
            let held = matches!(
                value.role,
                Role::Parameter
                    | Role::Frozen
                    | Role::ComputeCopy
                    | Role::Buffer
                    | Role::OptimiserState
                    | Role::Average
            );
            let owner = held.then(|| owners.get(&self.root(ValueId(position)))).flatten();
            let Some(&owner) = owner else { continue };
            let memory = &mut self.network.layers[owner].memory;
            let bytes = plan.placements[position].bytes as u64;
            memory.persistent_bytes = memory.persistent_bytes.saturating_add(bytes);
            if matches!(value.role, Role::Parameter | Role::Frozen) {
                memory.parameters = memory.parameters.saturating_add(value.elements() as u64);
            }
        }
    }

    /// The parameter or statistic that a value belongs to.
    fn root(&self, id: ValueId) -> ValueId {
        let mut root = id;
        // A verified plan has no cycle of origins; the bound is a safeguard.
        for _ in 0..8 {
            match self.plan.program.values.get(root.0).and_then(|value| value.origin) {
                Some(
                    Origin::ComputeCopy(of)
                    | Origin::OptimiserState { parameter: of, .. }
                    | Origin::Average(of),
                ) => root = of,
                _ => break,
            }
        }
        root
    }
}

/// The values of which a step writes only some channels, keeping the others.
fn written_in_part(plan: &Plan, position: usize) -> Vec<ValueId> {
    let step = &plan.program.steps[position];
    if step.updates.is_empty() {
        return Vec::new();
    }
    let operands = plan.program.operands(position);
    let operands: Vec<_> = operands.iter().collect();
    let first = step.inputs.len();
    let is_part = |at: usize| step.kernel.channels_touched(&operands, at).is_some();
    let updates = step.updates.iter().enumerate();
    updates.filter(|(at, _)| is_part(first + at)).map(|(_, id)| *id).collect()
}

/// The shape of a value for one sample.
fn shape(plan: &Plan, id: ValueId) -> String {
    let value = plan.program.value(id);
    let extents = value.shape.get(usize::from(value.per_sample)..).unwrap_or_default();
    if extents.is_empty() {
        return "1".to_owned();
    }
    extents.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
}
