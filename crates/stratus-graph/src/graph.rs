//! The graph: nodes in execution order, the tensors between them, the parameters they own.

use crate::ops::{Initialisation, Op, Operation, ParameterKind};
use crate::shape::check_tensor_size;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use stratus_base::{did_you_mean, nearest};

macro_rules! index {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub usize);
    };
}
index!(NodeId, "Position of a node in [`Graph::nodes`].");
index!(TensorId, "Position of a tensor in [`Graph::tensors`].");
index!(ParameterId, "Position of a parameter in [`Graph::parameters`].");

/// A layer: one operation under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// PyTorch's module path, such as `layer1.0`.
    pub name: String,
    /// Its operation.
    pub op: Op,
    /// Its inputs.
    pub inputs: Vec<TensorId>,
    /// Its output.
    pub output: TensorId,
    /// The parameters it owns, in the order of [`Operation::parameters`].
    pub parameters: Vec<ParameterId>,
    /// True if training leaves it unchanged: its parameters and running statistics stay, and it computes as
    /// in evaluation. See [`Graph::freeze`].
    #[serde(default)]
    pub frozen: bool,
}

/// A tensor that training changes, or a running statistic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// The key in a state dictionary, such as `layer1.0.weight`.
    pub name: String,
    /// Extents in PyTorch's order.
    pub shape: Vec<usize>,
    /// The initialisation.
    pub initialisation: Initialisation,
    /// Trained or buffer.
    pub kind: ParameterKind,
    /// True if training leaves it unchanged although its layer trains. See [`Graph::freeze`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

impl Parameter {
    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }
}

/// A network. Made by [`crate::GraphBuilder`], which verifies it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The network's name on the command line.
    pub name: String,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// The shape of every tensor, for one sample.
    pub tensors: Vec<Shape>,
    /// Every parameter, in the order PyTorch's `state_dict` lists them.
    pub parameters: Vec<Parameter>,
    /// The images.
    pub input: TensorId,
    /// The logits.
    pub output: TensorId,
    /// Further logits, for training only.
    #[serde(default)]
    pub auxiliary: Vec<Auxiliary>,
}

/// Logits within the network, whose loss helps to train the preceding layers (Szegedy et al.: "Going deeper
/// with convolutions", 2014). Inference omits them: see [`Graph::for_inference`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Auxiliary {
    /// The logits, of the shape of [`Graph::output`].
    pub output: TensorId,
    /// The weight of their loss, added to that of [`Graph::output`]; more than zero.
    pub weight: f32,
}

/// An error of a network and its layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// An operation rejects its inputs.
    #[error("layer `{layer}` ({kind}): {source}")]
    Shape {
        /// The layer's name.
        layer: String,
        /// The operation.
        kind: &'static str,
        /// The reason.
        source: ShapeError,
    },
    /// Two layers share a name, or a tensor is read before it is written.
    #[error("network `{network}`: {problem}")]
    Structure {
        /// The network's name.
        network: String,
        /// The problem.
        problem: String,
    },
    /// A configuration value that the network does not support.
    #[error("network `{network}`: invalid `{key}` {value}: {need}")]
    InvalidConfig {
        /// The network's name.
        network: String,
        /// The configuration key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        need: String,
    },
    /// No layer or module of that name.
    #[error("network `{network}` has no layer `{layer}`{}", did_you_mean(suggestion.as_deref()))]
    UnknownLayer {
        /// The network's name.
        network: String,
        /// The requested name.
        layer: String,
        /// The nearest layer or module.
        suggestion: Option<String>,
    },
    /// An unknown network.
    #[error("unknown network `{name}`{}; available: {known}", did_you_mean(suggestion.as_deref()))]
    Unknown {
        /// The requested name.
        name: String,
        /// The nearest known name.
        suggestion: Option<String>,
        /// All known names.
        known: String,
    },
}

impl Graph {
    /// The number of trained values, without frozen parameters and layers.
    #[must_use]
    pub fn trained_parameters(&self) -> usize {
        let owned = self.nodes.iter().filter(|node| !node.frozen).flat_map(|node| &node.parameters);
        owned
            .filter_map(|id| self.parameters.get(id.0))
            .filter(|p| p.kind == ParameterKind::Trained && !p.frozen)
            .map(Parameter::elements)
            .fold(0, usize::saturating_add)
    }

    /// Freezes layers: each name selects the layer of that name and all layers of the module of that name, so
    /// `layer1` includes `layer1.0.conv1`. The name of a parameter freezes only that parameter: with
    /// `layer1.0.bn1.weight`, the batch norm still trains its bias and uses batch statistics.
    ///
    /// # Errors
    /// If a name matches nothing, or nothing is left to train.
    pub fn freeze<T: AsRef<str>>(&mut self, names: &[T]) -> Result<(), GraphError> {
        for name in names.iter().map(AsRef::as_ref) {
            let within = |layer: &str| {
                layer.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let mut any = false;
            for node in self.nodes.iter_mut().filter(|node| within(&node.name)) {
                node.frozen = true;
                any = true;
            }
            let trained = |parameter: &&mut Parameter| {
                parameter.kind == ParameterKind::Trained && parameter.name == name
            };
            for parameter in self.parameters.iter_mut().filter(trained) {
                parameter.frozen = true;
                any = true;
            }
            if !any {
                return Err(GraphError::UnknownLayer {
                    network: self.name.clone(),
                    layer: name.to_owned(),
                    suggestion: nearest(name, self.modules()).map(str::to_owned),
                });
            }
        }
        if !names.is_empty() && self.trained_parameters() == 0 {
            return Err(GraphError::Structure {
                network: self.name.clone(),
                problem: "every layer with parameters is frozen, nothing is left to train".to_owned(),
            });
        }
        Ok(())
    }

    /// The names of all layers and of the modules that contain them: `layer1`, `layer1.0`, `layer1.0.conv1`,
    /// in the order of the layers.
    fn modules(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().flat_map(|node| {
            let ends = node.name.match_indices('.').map(|(end, _)| end).chain([node.name.len()]);
            ends.map(|end| &node.name[..end])
        })
    }

    /// The shape of a tensor.
    #[must_use]
    pub fn shape(&self, tensor: TensorId) -> &Shape {
        &self.tensors[tensor.0]
    }

    /// The number of classes of the output: the elements of a vector, `[classes]`, or the channels of a map,
    /// `[classes, H, W]`.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.shape(self.output).0.first().copied().unwrap_or(0)
    }

    /// The shape of one input sample.
    #[must_use]
    pub fn input_shape(&self) -> &Shape {
        self.shape(self.input)
    }

    /// Floating-point operations of one sample's forward pass through a node.
    #[must_use]
    pub fn node_flops(&self, node: &Node) -> u64 {
        let inputs: Vec<&Shape> = node.inputs.iter().map(|&t| self.shape(t)).collect();
        node.op.forward_flops(&inputs, self.shape(node.output))
    }

    /// Floating-point operations of one sample's forward pass.
    #[must_use]
    pub fn forward_flops(&self) -> u64 {
        self.nodes.iter().map(|node| self.node_flops(node)).fold(0, u64::saturating_add)
    }

    /// Checks that every tensor is written before it is read, names are unique, and shapes and parameters
    /// follow their rules.
    ///
    /// # Errors
    /// The first violation, with its layer.
    pub fn verify(&self) -> Result<(), GraphError> {
        let structure = |problem: String| GraphError::Structure { network: self.name.clone(), problem };
        let input = self.tensors.get(self.input.0).ok_or_else(|| structure("no input".to_owned()))?;
        if input.elements() == 0 || check_tensor_size("the input", &input.0).is_err() {
            return Err(structure(format!("the input {input} is empty or too large")));
        }
        let mut written = HashSet::from([self.input]);
        let mut names = HashSet::new();
        for node in &self.nodes {
            if !names.insert(&node.name) {
                return Err(structure(format!("two layers are named `{}`", node.name)));
            }
            for input in &node.inputs {
                if !written.contains(input) {
                    return Err(structure(format!(
                        "layer `{}` reads tensor {} before it is written",
                        node.name, input.0
                    )));
                }
            }
            let inputs: Vec<&Shape> = node.inputs.iter().map(|&t| self.shape(t)).collect();
            let shape = output_shape(&node.name, &node.op, &inputs)?;
            if self.tensors.get(node.output.0) != Some(&shape) {
                return Err(structure(format!(
                    "layer `{}` computes {shape}, but another shape is recorded",
                    node.name
                )));
            }
            if !written.insert(node.output) {
                return Err(structure(format!(
                    "layer `{}` writes a tensor that another layer writes",
                    node.name
                )));
            }
            let specs = node.op.parameters();
            let owned: Option<Vec<&Parameter>> =
                node.parameters.iter().map(|p| self.parameters.get(p.0)).collect();
            let agree = owned.is_some_and(|owned| {
                owned.len() == specs.len() && owned.iter().zip(&specs).all(|(p, spec)| p.shape == spec.shape)
            });
            if !agree {
                return Err(structure(format!(
                    "layer `{}` does not own the parameters of its operation",
                    node.name
                )));
            }
        }
        if !written.contains(&self.output) {
            return Err(structure("no layer writes the output".to_owned()));
        }
        self.verify_auxiliary(&written)
    }

    fn verify_auxiliary(&self, written: &HashSet<TensorId>) -> Result<(), GraphError> {
        let structure = |problem: String| GraphError::Structure { network: self.name.clone(), problem };
        let mut outputs = HashSet::from([self.output]);
        for Auxiliary { output, weight } in &self.auxiliary {
            if !written.contains(output) {
                return Err(structure(format!("no layer writes the auxiliary output, tensor {}", output.0)));
            }
            if !outputs.insert(*output) {
                let producer = self.nodes.iter().find(|node| node.output == *output);
                let layer = producer.map_or("", |node| &node.name);
                return Err(structure(format!("layer `{layer}` is an output twice")));
            }
            if self.shape(*output) != self.shape(self.output) {
                return Err(structure(format!(
                    "the auxiliary output is {}, but the output is {}",
                    self.shape(*output),
                    self.shape(self.output)
                )));
            }
            if !(*weight > 0.0 && weight.is_finite()) {
                return Err(structure(format!("the weight of the auxiliary loss must be > 0, got {weight}")));
            }
        }
        Ok(())
    }

    /// The network with another layer after its output.
    ///
    /// # Errors
    /// If the operation rejects the output, or has parameters.
    pub fn followed_by(mut self, name: &str, op: Op) -> Result<Self, GraphError> {
        if !op.parameters().is_empty() {
            let problem = format!("layer `{name}` has parameters");
            return Err(GraphError::Structure { network: self.name, problem });
        }
        let shape = output_shape(name, &op, &[self.shape(self.output)])?;
        let (inputs, output) = (vec![self.output], TensorId(self.tensors.len()));
        self.tensors.push(shape);
        let (name, parameters) = (name.to_owned(), Vec::new());
        self.nodes.push(Node { name, op, inputs, output, parameters, frozen: false });
        self.output = output;
        self.verify()?;
        Ok(self)
    }

    /// The network without auxiliary outputs and without the layers and parameters that only they need. The
    /// rest keeps its names and its order; tensors and parameters are renumbered.
    #[must_use]
    pub fn for_inference(&self) -> Self {
        let mut needed = HashSet::from([self.output]);
        let mut nodes: Vec<&Node> = Vec::new();
        for node in self.nodes.iter().rev() {
            if needed.contains(&node.output) {
                needed.extend(&node.inputs);
                nodes.push(node);
            }
        }
        nodes.reverse();
        let owned: HashSet<ParameterId> =
            nodes.iter().flat_map(|node| node.parameters.iter().copied()).collect();
        let mut graph = Self {
            name: self.name.clone(),
            nodes: Vec::with_capacity(nodes.len()),
            tensors: Vec::new(),
            parameters: Vec::new(),
            input: TensorId(0),
            output: TensorId(0),
            auxiliary: Vec::new(),
        };
        let mut parameters = HashMap::new();
        for (position, parameter) in self.parameters.iter().enumerate() {
            if owned.contains(&ParameterId(position)) {
                parameters.insert(ParameterId(position), ParameterId(graph.parameters.len()));
                graph.parameters.push(parameter.clone());
            }
        }
        let mut tensors = HashMap::new();
        let mut tensor = |graph: &mut Self, id: TensorId| {
            *tensors.entry(id).or_insert_with(|| {
                graph.tensors.push(self.shape(id).clone());
                TensorId(graph.tensors.len() - 1)
            })
        };
        graph.input = tensor(&mut graph, self.input);
        for node in nodes {
            let inputs = node.inputs.iter().map(|&id| tensor(&mut graph, id)).collect();
            let output = tensor(&mut graph, node.output);
            let parameters = node.parameters.iter().map(|id| parameters[id]).collect();
            let (name, op) = (node.name.clone(), node.op.clone());
            graph.nodes.push(Node { name, op, inputs, output, parameters, frozen: node.frozen });
        }
        graph.output = tensor(&mut graph, self.output);
        graph
    }
}

/// The shape of a layer's output, checked to have a realistic size.
pub(crate) fn output_shape(layer: &str, op: &Op, inputs: &[&Shape]) -> Result<Shape, GraphError> {
    op.output_shape(inputs)
        .and_then(|shape| check_tensor_size("the output", &shape.0).map(|()| shape))
        .map_err(|source| GraphError::Shape { layer: layer.to_owned(), kind: op.kind(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GraphBuilder;
    use crate::ops::{Conv2d, Flatten, Linear, Relu};

    /// Two convolutions with an auxiliary classifier between them, whose parameters are stored between
    /// theirs.
    fn with_auxiliary(weight: f32, classes: usize) -> Result<Graph, GraphError> {
        let (mut graph, input) = GraphBuilder::new("test", Shape::image(1, 4, 4));
        let first = graph.add("conv1", Conv2d::new(1, 2, 3, 1, 1), &[input])?;
        let mut x = graph.add("aux.flatten", Flatten, &[first])?;
        x = graph.add("aux.fc", Linear { in_features: 32, out_features: classes, bias: true }, &[x])?;
        graph.auxiliary(x, weight);
        x = graph.add("conv2", Conv2d::new(2, 3, 3, 1, 0), &[first])?;
        x = graph.add("relu", Relu, &[x])?;
        x = graph.add("flatten", Flatten, &[x])?;
        x = graph.add("fc", Linear { in_features: 12, out_features: 5, bias: true }, &[x])?;
        graph.finish(x)
    }

    #[test]
    fn for_inference_drops_auxiliary_outputs() {
        let training = with_auxiliary(0.3, 5).unwrap();
        let graph = training.for_inference();
        graph.verify().unwrap();
        assert_eq!(training.auxiliary.len(), 1);
        assert!(graph.auxiliary.is_empty());
        let layers: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(layers, ["conv1", "conv2", "relu", "flatten", "fc"]);
        let keys: Vec<&str> = graph.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(keys, ["conv1.weight", "conv2.weight", "fc.weight", "fc.bias"]);
        assert_eq!(graph.tensors.len(), 6);
        assert_eq!(graph.shape(graph.output), &Shape::vector(5));
        assert_eq!(graph.for_inference(), graph);
    }

    #[test]
    fn names_freeze_layers_and_modules() {
        let frozen = |names: &[&str]| -> Result<Vec<String>, GraphError> {
            let mut graph = with_auxiliary(0.3, 5)?;
            graph.freeze(names)?;
            let frozen =
                graph.for_inference().nodes.into_iter().chain(graph.nodes).filter(|node| node.frozen);
            Ok(frozen.map(|node| node.name).collect())
        };
        // Those of the inference graph first.
        assert_eq!(frozen(&["conv1", "aux"]).unwrap(), ["conv1", "conv1", "aux.flatten", "aux.fc"]);
        assert!(frozen(&[]).unwrap().is_empty());
        let message = |names: &[&str]| frozen(names).unwrap_err().to_string();
        assert_eq!(message(&["con1"]), "network `test` has no layer `con1`, did you mean `conv1`?");
        assert_eq!(message(&["conv"]), "network `test` has no layer `conv`, did you mean `conv1`?");
        assert_eq!(message(&["aux.f"]), "network `test` has no layer `aux.f`, did you mean `aux.fc`?");
        assert_eq!(message(&[""]), "network `test` has no layer ``");
        assert_eq!(
            message(&["conv1", "aux", "conv2", "fc"]),
            "network `test`: every layer with parameters is frozen, nothing is left to train"
        );
    }

    #[test]
    fn parameter_names_freeze_single_parameters() {
        let mut graph = with_auxiliary(0.3, 5).unwrap();
        let all = graph.trained_parameters();
        graph.freeze(&["aux.fc.bias", "conv1.weight"]).unwrap();
        let frozen = |graph: &Graph| {
            let frozen = graph.parameters.iter().filter(|parameter| parameter.frozen);
            frozen.map(|parameter| parameter.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(frozen(&graph), ["conv1.weight", "aux.fc.bias"]);
        assert_eq!(frozen(&graph.for_inference()), ["conv1.weight"]);
        assert!(graph.nodes.iter().all(|node| !node.frozen));
        let elements = |graph: &Graph| {
            graph.parameters.iter().filter(|p| p.frozen).map(Parameter::elements).sum::<usize>()
        };
        assert_eq!(all - graph.trained_parameters(), elements(&graph));
    }

    #[test]
    fn frozen_layers_are_not_counted_as_trained() {
        let mut graph = with_auxiliary(0.3, 5).unwrap();
        let all = graph.trained_parameters();
        graph.freeze(&["aux.fc"]).unwrap();
        assert_eq!(all - graph.trained_parameters(), 32 * 5 + 5);
    }

    #[test]
    fn verify_checks_auxiliary_outputs() {
        let message = |graph: Result<Graph, GraphError>| graph.unwrap_err().to_string();
        assert_eq!(
            message(with_auxiliary(0.3, 4)),
            "network `test`: the auxiliary output is 4, but the output is 5"
        );
        assert_eq!(
            message(with_auxiliary(-1.0, 5)),
            "network `test`: the weight of the auxiliary loss must be > 0, got -1"
        );
        let mut graph = with_auxiliary(0.3, 5).unwrap();
        graph.auxiliary[0].output = graph.output;
        assert_eq!(message(graph.verify().map(|()| graph)), "network `test`: layer `fc` is an output twice");
        let mut graph = with_auxiliary(0.3, 5).unwrap();
        graph.auxiliary[0].output = TensorId(99);
        assert_eq!(
            message(graph.verify().map(|()| graph)),
            "network `test`: no layer writes the auxiliary output, tensor 99"
        );
    }
}
