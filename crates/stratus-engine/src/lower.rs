//! Graph to forward program: every node becomes the steps of its operation, the loss is added at the end.

use crate::ops::{
    self, Convert, HYPER, Kernel, LOSS_SCALE, LOSS_SCALE_NAME, METRICS, MIXED, SoftmaxCrossEntropy,
};
use crate::program::{Layer, Mode, Origin};
use crate::{DType, EngineError, Phase, Precision, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};
use stratus_graph::{Graph, Node, Operation, ParameterId, ParameterKind, TensorId};

/// The forward program of `graph` for batches of `batch`, with softmax cross-entropy as its loss.
///
/// In [`Mode::Train`] the loss also makes the gradient of the logits, and auxiliary outputs have losses too; [`crate::differentiate`] continues from
/// there.
///
/// # Errors
/// Where the graph has an operation that cannot be lowered, or the batch is empty.
pub fn lower(graph: &Graph, mode: Mode, precision: Precision, batch: usize) -> Result<Program, EngineError> {
    if batch == 0 {
        return Err(EngineError::Mismatch(
            "a batch of 0 samples cannot be run; train.batch_size is at least 1".to_owned(),
        ));
    }
    let trimmed;
    let graph = if mode == Mode::Train {
        graph
    } else {
        // What only auxiliary losses need is trained and not evaluated.
        trimmed = graph.for_inference();
        &trimmed
    };
    let mut to = Lowering::new(graph, mode, precision, batch);
    for (position, node) in graph.nodes.iter().enumerate() {
        to.layer = position;
        ops::lower(node, &mut to)?;
    }
    to.losses()?;
    let program = to.program;
    program.verify("lower")?;
    Ok(program)
}

/// The same program with its labels smoothed: see [`SoftmaxCrossEntropy`].
///
/// # Errors
/// Where there is no such smoothing.
pub fn smooth_labels(mut program: Program, by: f32) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        if let Kernel::SoftmaxCrossEntropy(loss) = &mut step.kernel {
            loss.smoothing = by;
        }
    }
    program.verify("smooth_labels")?;
    Ok(program)
}

/// The same program for samples that are mixed of two: see [`SoftmaxCrossEntropy`].
///
/// # Errors
/// Only where verification fails.
pub fn mix_labels(mut program: Program) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        if let Kernel::SoftmaxCrossEntropy(loss) = &mut step.kernel {
            loss.mixed = true;
        }
    }
    for labels in program.values.iter_mut().filter(|value| value.role == Role::Labels) {
        labels.shape.push(MIXED);
    }
    program.verify("mix_labels")?;
    Ok(program)
}

/// The program that brings the copies in the compute precision up to date with their masters. Empty where there are none.
///
/// # Errors
/// Only where verification fails.
pub fn refresh(train: &Program) -> Result<Program, EngineError> {
    let mut program = Program {
        network: train.network.clone(),
        mode: Mode::Refresh,
        precision: train.precision,
        batch: train.batch,
        layers: vec![Layer { name: "parameters".to_owned(), kind: "convert".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    };
    for copy in train.values.iter().filter(|value| value.role == Role::Copy) {
        let Some(Origin::Copy(master)) = copy.origin else {
            return Err(EngineError::Placement(format!("`{}` is a copy of nothing", copy.name)));
        };
        let master = train.value(master);
        let from = program.add_value(&master.name, &master.shape, master.dtype, master.role);
        let to = program.add_derived(Origin::Copy(from), copy.dtype, copy.role);
        program.steps.push(Step {
            kernel: Convert.into(),
            phase: Phase::Layout,
            layers: vec![0],
            inputs: vec![from],
            updates: vec![],
            outputs: vec![to],
        });
    }
    program.verify("refresh")?;
    Ok(program)
}

/// The program under construction, for the operations' `lower` functions.
#[derive(Debug)]
pub struct Lowering<'a> {
    graph: &'a Graph,
    mode: Mode,
    precision: Precision,
    batch: usize,
    program: Program,
    tensors: HashMap<TensorId, ValueId>,
    /// In the order of the graph.
    parameters: Vec<ValueId>,
    layer: usize,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, mode: Mode, precision: Precision, batch: usize) -> Self {
        let layers: Vec<Layer> = graph
            .nodes
            .iter()
            .map(|node| Layer { name: node.name.clone(), kind: node.op.kind().to_owned() })
            .collect();
        let mut program = Program {
            network: graph.name.clone(),
            mode,
            precision,
            batch,
            layers,
            values: Vec::new(),
            steps: Vec::new(),
            sections: Vec::new(),
        };
        let mut shape = vec![batch];
        shape.extend(&graph.input_shape().0);
        let images = program.add_value("images", &shape, precision.compute(), Role::Images);
        let frozen: HashSet<ParameterId> = graph
            .nodes
            .iter()
            .filter(|node| node.frozen)
            .flat_map(|node| node.parameters.iter().copied())
            .collect();
        let mut parameters = Vec::with_capacity(graph.parameters.len());
        for (position, parameter) in graph.parameters.iter().enumerate() {
            let role = match parameter.kind {
                ParameterKind::Trained if parameter.frozen || frozen.contains(&ParameterId(position)) => {
                    Role::Frozen
                }
                ParameterKind::Trained => Role::Parameter,
                ParameterKind::Buffer => Role::Buffer,
            };
            let id = program.add_value(&parameter.name, &parameter.shape, precision.master(), role);
            parameters.push(id);
        }
        let tensors = HashMap::from([(graph.input, images)]);
        Self { graph, mode, precision, batch, program, tensors, parameters, layer: 0 }
    }

    /// What the program is for.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a node computes what it computes while training: not in evaluation, and not where it is frozen.
    #[must_use]
    pub fn trains(&self, node: &Node) -> bool {
        self.mode == Mode::Train && !node.frozen
    }

    /// The types it is built with.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The value of a node's input.
    #[must_use]
    pub fn input(&self, node: &Node, position: usize) -> ValueId {
        // The graph is verified: every input is made by an earlier node.
        self.tensors[&node.inputs[position]]
    }

    /// A node's parameter in the master precision.
    #[must_use]
    pub fn parameter(&self, node: &Node, position: usize) -> ValueId {
        self.parameters[node.parameters[position].0]
    }

    /// A node's parameter in the precision that kernels compute in: the parameter itself, or its copy.
    pub fn compute_parameter(&mut self, node: &Node, position: usize) -> ValueId {
        let master = self.parameter(node, position);
        if self.precision.compute() == self.precision.master() {
            return master;
        }
        let (dtype, program) = (self.precision.compute(), &mut self.program);
        program
            .copy_of(master)
            .unwrap_or_else(|| program.add_derived(Origin::Copy(master), dtype, Role::Copy))
    }

    /// A new value for a node's output, in the compute precision.
    pub fn output(&mut self, node: &Node) -> ValueId {
        self.output_as(node, self.precision.compute())
    }

    /// A new value for a node's output, in a given type.
    pub fn output_as(&mut self, node: &Node, dtype: DType) -> ValueId {
        let mut shape = vec![self.batch];
        shape.extend(&self.graph.shape(node.output).0);
        let id = self.program.add_samples(format!("{}:y", node.name), &shape, dtype);
        self.tensors.insert(node.output, id);
        id
    }

    /// A new value for a node's output in the compute precision, with the extents of another value: a feature map stays one where the layers
    /// before it flattened it without moving a byte.
    pub fn output_like(&mut self, node: &Node, like: ValueId) -> ValueId {
        let id = self.output(node);
        self.program.values[id.0].shape = self.shape(like);
        id
    }

    /// A new value for a node's output with the type and the extents of another value.
    pub fn output_same(&mut self, node: &Node, like: ValueId) -> ValueId {
        let id = self.output_as(node, self.program.value(like).dtype);
        self.program.values[id.0].shape = self.shape(like);
        id
    }

    /// The numbers of the iteration.
    pub fn hyper(&mut self) -> ValueId {
        let known = self.program.find_role(Role::Hyper);
        known.unwrap_or_else(|| self.program.add_value("hyper", &[HYPER.len()], DType::F64, Role::Hyper))
    }

    /// The number of the layer at hand.
    #[must_use]
    pub fn layer_number(&self) -> u32 {
        self.layer as u32
    }

    /// A new value that the backward pass reads, with a row per sample.
    pub fn saved_samples(&mut self, node: &Node, suffix: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.program.add_samples(format!("{}{suffix}", node.name), shape, dtype)
    }

    /// A new value that the backward pass reads.
    pub fn saved(&mut self, node: &Node, suffix: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.program.add_value(format!("{}{suffix}", node.name), shape, dtype, Role::Transient)
    }

    /// A value's shape, batch included.
    #[must_use]
    pub fn shape(&self, id: ValueId) -> Vec<usize> {
        self.program.value(id).shape.clone()
    }

    /// Makes a node's output the same value as its first input.
    ///
    /// # Errors
    /// Never; the signature is that of the other lowerings.
    pub fn alias(&mut self, node: &Node) -> Result<(), EngineError> {
        let input = self.input(node, 0);
        self.tensors.insert(node.output, input);
        Ok(())
    }

    /// Adds a forward step.
    pub fn push(
        &mut self,
        _node: &Node,
        kernel: impl Into<Kernel>,
        inputs: Vec<ValueId>,
        updates: Vec<ValueId>,
        outputs: Vec<ValueId>,
    ) {
        let layers = vec![self.layer];
        self.program.steps.push(Step {
            kernel: kernel.into(),
            phase: Phase::Forward,
            layers,
            inputs,
            updates,
            outputs,
        });
    }

    /// Adds the loss of the network's output; in training also those of its auxiliary outputs, which add to the loss that is reported.
    fn losses(&mut self) -> Result<(), EngineError> {
        let labels = self.program.add_value("labels", &[self.batch], DType::I32, Role::Labels);
        let metrics = self.program.add_value("metrics", &[METRICS.len()], DType::F64, Role::Metrics);
        self.loss("loss".to_owned(), self.graph.output, None, [labels, metrics])?;
        if self.mode == Mode::Train {
            self.hyper();
            for (auxiliary, number) in self.graph.auxiliary.iter().zip(1..) {
                let name = format!("loss.aux{number}");
                self.loss(name, auxiliary.output, Some(auxiliary.weight), [labels, metrics])?;
            }
        }
        Ok(())
    }

    /// The scale of the loss, where it has one: in training in f16.
    fn loss_scale(&mut self) -> Option<ValueId> {
        let wanted = self.mode == Mode::Train && self.precision == Precision::F16;
        let program = &mut self.program;
        wanted.then(|| {
            program.find(LOSS_SCALE_NAME).unwrap_or_else(|| {
                program.add_value(LOSS_SCALE_NAME, &[LOSS_SCALE.len()], DType::F32, Role::Momentum)
            })
        })
    }

    /// Adds one loss, in training with the gradient of its logits.
    fn loss(
        &mut self,
        name: String,
        output: TensorId,
        auxiliary: Option<f32>,
        [labels, metrics]: [ValueId; 2],
    ) -> Result<(), EngineError> {
        let logits = self.tensors[&output];
        let shape = self.shape(logits);
        if shape.len() != 2 {
            return Err(EngineError::Mismatch(format!(
                "network `{}` ends with {shape:?} a batch, softmax cross-entropy needs [batch, classes]",
                self.graph.name
            )));
        }
        let (mut updates, mut outputs) = (vec![], vec![]);
        if auxiliary.is_some() { &mut updates } else { &mut outputs }.push(metrics);
        if self.mode == Mode::Train {
            let (origin, dtype) = (Origin::Gradient(logits), self.precision.compute());
            outputs.push(self.program.add_derived(origin, dtype, Role::Transient));
        }
        let layers = vec![self.program.layers.len()];
        self.program.layers.push(Layer { name, kind: "softmax_cross_entropy".to_owned() });
        let scale = self.loss_scale();
        let scaled = scale.is_some();
        let kernel = SoftmaxCrossEntropy { auxiliary, scaled, ..SoftmaxCrossEntropy::default() }.into();
        let (phase, inputs) = (Phase::Loss, [logits, labels].into_iter().chain(scale).collect());
        self.program.steps.push(Step { kernel, phase, layers, inputs, updates, outputs });
        Ok(())
    }
}
