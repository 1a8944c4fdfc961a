//! Construction of a graph, layer by layer.

use crate::Shape;
use crate::graph::{Auxiliary, Graph, GraphError, Node, Parameter, ParameterId, TensorId, output_shape};
use crate::ops::{Initialisation, Op, Operation};

/// The maximum number of values of a whitened patch; its covariance matrix has the square of that.
const MAX_WHITENED_VALUES: usize = 512;

/// Builds a graph layer by layer, checking shapes as it goes.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// Starts an empty network for images of shape `input`; returns the builder and the input tensor.
    #[must_use]
    pub fn new(name: &str, input: Shape) -> (Self, TensorId) {
        let graph = Graph {
            name: name.to_owned(),
            nodes: Vec::new(),
            tensors: vec![input],
            parameters: Vec::new(),
            input: TensorId(0),
            output: TensorId(0),
            auxiliary: Vec::new(),
        };
        (Self { graph }, TensorId(0))
    }

    /// Adds a layer and returns its output.
    ///
    /// # Errors
    /// If the operation rejects its inputs; the message names the layer and the shapes.
    pub fn add(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[TensorId],
    ) -> Result<TensorId, GraphError> {
        let op = op.into();
        let shapes: Vec<&Shape> = inputs.iter().map(|&t| self.graph.shape(t)).collect();
        let shape = output_shape(name, &op, &shapes)?;
        let output = TensorId(self.graph.tensors.len());
        self.graph.tensors.push(shape);
        let mut parameters = Vec::new();
        for spec in op.parameters() {
            parameters.push(ParameterId(self.graph.parameters.len()));
            self.graph.parameters.push(Parameter {
                frozen: false,
                name: format!("{name}.{}", spec.name),
                shape: spec.shape,
                initialisation: spec.initialisation,
                kind: spec.kind,
            });
        }
        self.graph.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            output,
            parameters,
            frozen: false,
        });
        Ok(output)
    }

    /// Adds a layer with its own initialisation for some parameters: `("weight", ...)`, `("bias", ...)`.
    ///
    /// # Errors
    /// See [`GraphBuilder::add`]; also if the operation has no such parameter.
    pub fn add_with_init(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        inputs: &[TensorId],
        initial: &[(&str, Initialisation)],
    ) -> Result<TensorId, GraphError> {
        let output = self.add(name, op, inputs)?;
        let owned = self.graph.nodes.last().map(|node| node.parameters.clone()).unwrap_or_default();
        for (parameter, initialisation) in initial {
            let key = format!("{name}.{parameter}");
            if let Some(problem) = self.initialisation_error(name, parameter, *initialisation) {
                return Err(GraphError::Structure { network: self.graph.name.clone(), problem });
            }
            match owned.iter().find(|id| self.graph.parameters[id.0].name == key) {
                Some(id) => self.graph.parameters[id.0].initialisation = *initialisation,
                None => {
                    return Err(GraphError::Structure {
                        network: self.graph.name.clone(),
                        problem: format!("layer `{name}` has no parameter `{parameter}` to initialise"),
                    });
                }
            }
        }
        Ok(output)
    }

    /// The error if `initialisation` does not suit `parameter` of the last layer, `name`.
    fn initialisation_error(
        &self,
        name: &str,
        parameter: &str,
        initialisation: Initialisation,
    ) -> Option<String> {
        let node = self.graph.nodes.last()?;
        match (initialisation, &node.op) {
            (Initialisation::Dirac { .. } | Initialisation::Whitening, op)
                if parameter != "weight" || !matches!(op, Op::Conv2d(_)) =>
            {
                Some(format!(
                    "layer `{name}`: \"dirac\" and \"whitening\" are only for the weight of a convolution"
                ))
            }
            (Initialisation::Dirac { .. }, Op::Conv2d(conv)) => (conv.groups != 1)
                .then(|| format!("layer `{name}`: \"dirac\" needs one group, got {}", conv.groups)),
            (Initialisation::Whitening, Op::Conv2d(conv)) => {
                let taps = conv.fan_in();
                let fits = conv.groups == 1
                    && conv.dilation == [1, 1]
                    && node.inputs == [self.graph.input]
                    && taps <= MAX_WHITENED_VALUES
                    && conv.out_channels == 2 * taps;
                (!fits).then(|| {
                    format!(
                        "layer `{name}`: \"whitening\" needs the first, dense convolution with at most \
                         {MAX_WHITENED_VALUES} inputs per output (here {taps}) and {} output channels",
                        2 * taps
                    )
                })
            }
            _ => None,
        }
    }

    /// Makes a tensor an auxiliary output, whose loss has weight `weight`; [`GraphBuilder::finish`] verifies
    /// it.
    pub fn auxiliary(&mut self, output: TensorId, weight: f32) {
        self.graph.auxiliary.push(Auxiliary { output, weight });
    }

    /// The shape of a tensor.
    #[must_use]
    pub fn shape(&self, tensor: TensorId) -> &Shape {
        self.graph.shape(tensor)
    }

    /// The finished network.
    ///
    /// # Errors
    /// See [`Graph::verify`].
    pub fn finish(mut self, output: TensorId) -> Result<Graph, GraphError> {
        self.graph.output = output;
        self.graph.verify()?;
        Ok(self.graph)
    }
}
