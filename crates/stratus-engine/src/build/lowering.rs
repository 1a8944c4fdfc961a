//! The forward program under construction, to which each operation adds its steps.

use crate::ops::{Flatten, ITERATION_SCALAR_FIELDS, Kernel, Scale};
use crate::program::{Layer, Mode, Origin};
use crate::{DType, EngineError, Phase, Precision, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};
use stratus_graph::{Graph, Node, Op, Operation, ParameterId, ParameterKind, TensorId};

/// The name of the value that a layer writes.
#[must_use]
pub fn output_name(layer: &str) -> String {
    format!("{layer}:y")
}

/// The forward program under construction, for the `lower` functions of operations.
#[derive(Debug)]
pub struct Lowering<'a> {
    pub(crate) graph: &'a Graph,
    mode: Mode,
    precision: Precision,
    pub(crate) batch: usize,
    pub(crate) program: Program,
    pub(crate) tensors: HashMap<TensorId, ValueId>,
    /// The parameters in the order of the graph.
    parameters: Vec<ValueId>,
    pub(crate) layer: usize,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(graph: &'a Graph, mode: Mode, precision: Precision, batch: usize) -> Self {
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
            batch_parts: 1,
            stage: None,
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
        // Kernels see them as convolutions.
        let pointwise: HashSet<ParameterId> = graph
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::PointwiseLinear(_)))
            .filter_map(|node| node.parameters.first().copied())
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
            let mut shape = parameter.shape.clone();
            if pointwise.contains(&ParameterId(position)) {
                shape.extend([1, 1]);
            }
            let id = program.add_value(&parameter.name, &shape, precision.master(), role);
            parameters.push(id);
        }
        let tensors = HashMap::from([(graph.input, images)]);
        Self { graph, mode, precision, batch, program, tensors, parameters, layer: 0 }
    }

    /// The purpose of the program.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns whether a node behaves as in training: not in evaluation and not frozen.
    #[must_use]
    pub fn is_training(&self, node: &Node) -> bool {
        self.mode == Mode::Train && !node.frozen
    }

    /// The precision.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The value of a node's input.
    #[must_use]
    pub fn input(&self, node: &Node, position: usize) -> ValueId {
        // The graph is verified, so every input is written by an earlier node.
        self.tensors[&node.inputs[position]]
    }

    /// A node's parameter in the master precision.
    #[must_use]
    pub fn parameter(&self, node: &Node, position: usize) -> ValueId {
        self.parameters[node.parameters[position].0]
    }

    /// A node's parameter in the compute precision: the parameter itself, or its copy.
    pub fn compute_parameter(&mut self, node: &Node, position: usize) -> ValueId {
        let master = self.parameter(node, position);
        if self.precision.compute() == self.precision.master() {
            return master;
        }
        let (dtype, program) = (self.precision.compute(), &mut self.program);
        program
            .copy_of(master)
            .unwrap_or_else(|| program.add_derived(Origin::ComputeCopy(master), dtype, Role::ComputeCopy))
    }

    /// A new value for a node's output, in the compute precision.
    pub fn output(&mut self, node: &Node) -> ValueId {
        self.output_as(node, self.precision.compute())
    }

    /// A new value for a node's output, in a given type.
    pub fn output_as(&mut self, node: &Node, dtype: DType) -> ValueId {
        let mut shape = vec![self.batch];
        shape.extend(&self.graph.shape(node.output).0);
        let id = self.program.add_samples(output_name(&node.name), &shape, dtype);
        self.tensors.insert(node.output, id);
        id
    }

    /// A new value for a node's output in the compute precision, with the shape of another value: a feature
    /// map keeps its four dimensions through a flatten, which moves no data.
    pub fn output_like(&mut self, node: &Node, like: ValueId) -> ValueId {
        let id = self.output(node);
        self.program.values[id.0].shape = self.shape(like);
        id
    }

    /// A new value for a node's output with the type and shape of another value.
    pub fn output_matching(&mut self, node: &Node, like: ValueId) -> ValueId {
        let id = self.output_as(node, self.program.value(like).dtype);
        self.program.values[id.0].shape = self.shape(like);
        id
    }

    /// The value of a node's input, of its shape in the graph: a flattened feature map, which keeps its four
    /// dimensions, becomes a matrix in the master precision by a step.
    pub fn unflattened_input(&mut self, node: &Node, position: usize) -> ValueId {
        let x = self.input(node, position);
        let extents = &self.graph.shape(node.inputs[position]).0;
        let shape: Vec<usize> = [self.batch].iter().chain(extents).copied().collect();
        if self.shape(x) == shape { x } else { self.reshaped(x, &shape, self.precision.master()) }
    }

    /// The value of a node's input in the compute precision: the outputs of linear layers have the master
    /// precision, and are converted by a step.
    pub fn compute_input(&mut self, node: &Node, position: usize) -> ValueId {
        let (x, compute) = (self.input(node, position), self.precision.compute());
        if self.dtype(x) == compute {
            return x;
        }
        let shape = self.shape(x);
        self.reshaped(x, &shape, compute)
    }

    /// The values of a node's inputs, for kernels whose operands must differ: a repeated one is copied by a
    /// step. Two tensors of the graph may have one value, such as the input and the output of a dropout in
    /// evaluation.
    pub fn distinct_inputs(&mut self, node: &Node) -> Vec<ValueId> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for position in 0..node.inputs.len() {
            let mut x = self.input(node, position);
            if inputs.contains(&x) {
                let (shape, dtype) = (self.shape(x), self.dtype(x));
                let copy = self.saved_samples(node, &format!(":copy{position}"), &shape, dtype);
                self.push(node, Scale { factor: 1.0 }, vec![x], vec![], vec![copy]);
                x = copy;
            }
            inputs.push(x);
        }
        inputs
    }

    /// A value with another shape of as many elements, or another type, by a step that all readers share.
    fn reshaped(&mut self, x: ValueId, shape: &[usize], dtype: DType) -> ValueId {
        let exists = |step: &&Step| {
            matches!(step.kernel, Kernel::Flatten(_)) && step.inputs == [x] && {
                let value = self.program.value(step.outputs[0]);
                value.shape == shape && value.dtype == dtype
            }
        };
        if let Some(step) = self.program.steps.iter().find(exists) {
            return step.outputs[0];
        }
        let name = format!("{}:{dtype}", self.program.value(x).name);
        let reshaped = self.program.add_samples(name, shape, dtype);
        self.program.steps.push(Step {
            kernel: Flatten.into(),
            phase: Phase::Forward,
            layers: vec![self.layer],
            inputs: vec![x],
            updates: vec![],
            outputs: vec![reshaped],
        });
        reshaped
    }

    /// The value of the iteration scalars.
    pub fn iteration_scalars(&mut self) -> ValueId {
        let existing = self.program.find_role(Role::IterationScalars);
        existing.unwrap_or_else(|| {
            self.program.add_value(
                "hyper",
                &[ITERATION_SCALAR_FIELDS.len()],
                DType::F64,
                Role::IterationScalars,
            )
        })
    }

    /// The index of the layer that is being lowered.
    #[must_use]
    pub fn layer_index(&self) -> u32 {
        self.layer as u32
    }

    /// A new per-sample value for the backward pass.
    pub fn saved_samples(&mut self, node: &Node, suffix: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.program.add_samples(format!("{}{suffix}", node.name), shape, dtype)
    }

    /// A new value for the backward pass.
    pub fn saved(&mut self, node: &Node, suffix: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.program.add_value(format!("{}{suffix}", node.name), shape, dtype, Role::Transient)
    }

    /// A value's shape, batch included.
    #[must_use]
    pub fn shape(&self, id: ValueId) -> Vec<usize> {
        self.program.value(id).shape.clone()
    }

    /// A value's type.
    #[must_use]
    pub fn dtype(&self, id: ValueId) -> DType {
        self.program.value(id).dtype
    }

    /// Makes a node's output an alias of its first input.
    ///
    /// # Errors
    /// Never; the signature is common to all lowerings.
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
}
