//! Folding: layers that multiply each channel by a constant and add one, as a batch norm does in inference,
//! become part of the convolution or linear layer before them. Layers without effect in inference are
//! removed.
//!
//! A layer is folded if nothing else reads its input. A concatenation passes it on to all its inputs, if each
//! of them can take its share. Values are computed in double precision and rounded once.

use crate::{Model, ModelError};
use std::collections::HashMap;
use stratus_graph::ops::{ConvTranspose2d, Initialisation};
use stratus_graph::{Graph, Node, Op, Parameter, ParameterId, ParameterKind, TensorId};

/// A model after [`fold`].
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedModel {
    /// The model, in inference form. Layers keep their names; some have a bias that they did not have.
    pub model: Model,
    /// The layers that are part of another one, or without effect, in the order of the network.
    pub removed: Vec<String>,
}

/// Folds a model as far as possible; its outputs only change by rounding.
///
/// # Errors
/// If values are missing or too few.
pub fn fold(model: Model) -> Result<FoldedModel, ModelError> {
    let mut folding = Folding::new(model)?;
    let mut removed = Vec::new();
    for index in 0..folding.nodes.len() {
        if folding.remove(index)? {
            removed.push(folding.nodes[index].node.name.clone());
        }
    }
    Ok(FoldedModel { model: folding.finish()?, removed })
}

/// `scale * x + shift` of each channel.
#[derive(Clone, Debug)]
struct ChannelAffine {
    scale: Vec<f64>,
    shift: Vec<f64>,
}

impl ChannelAffine {
    /// The part for `count` channels from `first`.
    fn channels(&self, first: usize, count: usize) -> Self {
        let part = |values: &[f64]| values[first..first + count].to_vec();
        Self { scale: part(&self.scale), shift: part(&self.shift) }
    }
}

/// A layer while the model is folded.
#[derive(Debug)]
struct FoldingNode {
    node: Node,
    is_removed: bool,
}

/// New values of a layer that has taken a [`ChannelAffine`].
#[derive(Debug)]
struct Update {
    node: usize,
    /// The values of its weight.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

struct Folding {
    graph: Graph,
    nodes: Vec<FoldingNode>,
    /// The values of [`Graph::parameters`].
    values: Vec<Vec<f32>>,
    /// The position in the state dictionary: an added bias follows its weight.
    positions: Vec<(usize, usize)>,
    /// The layer that writes each tensor.
    producers: HashMap<TensorId, usize>,
}

impl Folding {
    fn new(model: Model) -> Result<Self, ModelError> {
        let Model { graph, mut values } = Model::for_inference(&model.graph, model.values)?;
        let values = graph.parameters.iter().map(|parameter| {
            let found = values.remove(&parameter.name);
            found.ok_or_else(|| ModelError::Missing { parameter: parameter.name.clone() })
        });
        let values: Vec<_> = values.collect::<Result<_, _>>()?;
        let nodes = graph.nodes.iter().map(|node| FoldingNode { node: node.clone(), is_removed: false });
        let producers = graph.nodes.iter().enumerate().map(|(index, node)| (node.output, index)).collect();
        let positions = (0..values.len()).map(|position| (position, 0)).collect();
        Ok(Self { nodes: nodes.collect(), graph, values, positions, producers })
    }

    /// Removes a layer if it has no effect, or if the layers before it can take its effect.
    fn remove(&mut self, index: usize) -> Result<bool, ModelError> {
        let node = &self.nodes[index].node;
        let [input] = node.inputs[..] else { return Ok(false) };
        if is_identity(&node.op) {
            // A network needs a layer that writes its output.
            if node.output == self.graph.output && input == self.graph.input {
                return Ok(false);
            }
        } else {
            let Some(affine) = self.affine(node) else { return Ok(false) };
            let mut updates = Vec::new();
            if !self.absorb(input, &affine, &mut updates) {
                return Ok(false);
            }
            updates.into_iter().for_each(|update| self.apply(update));
        }
        self.bypass(index, input);
        Ok(true)
    }

    /// The effect of a layer in inference, if it is the same for every pixel of a channel.
    fn affine(&self, node: &Node) -> Option<ChannelAffine> {
        let values = |position: usize| self.values_of(node, position);
        let channels = *self.graph.shape(node.output).0.first()?;
        match &node.op {
            Op::BatchNorm2d(norm) => {
                let [weight, bias, mean, variance] = [values(0)?, values(1)?, values(2)?, values(3)?];
                let scale: Vec<f64> = std::iter::zip(weight, variance)
                    .map(|(&weight, &variance)| {
                        f64::from(weight) / (f64::from(variance) + f64::from(norm.epsilon)).sqrt()
                    })
                    .collect();
                let shift =
                    (0..channels).map(|c| f64::from(bias[c]) - f64::from(mean[c]) * scale[c]).collect();
                Some(ChannelAffine { scale, shift })
            }
            Op::LayerScale(_) => {
                let scale = values(0)?.iter().copied().map(f64::from).collect();
                Some(ChannelAffine { scale, shift: vec![0.0; channels] })
            }
            Op::Scale(scale) => Some(ChannelAffine {
                scale: vec![f64::from(scale.factor); channels],
                shift: vec![0.0; channels],
            }),
            _ => None,
        }
    }

    /// Collects the updates by which the layer before a tensor, and those before it if it only joins them,
    /// compute the transformed tensor; returns false if they cannot.
    fn absorb(&self, tensor: TensorId, affine: &ChannelAffine, updates: &mut Vec<Update>) -> bool {
        let Some(&producer) = self.producers.get(&tensor) else { return false };
        if self.readers(tensor) != 1 || tensor == self.graph.output {
            return false;
        }
        let node = &self.nodes[producer].node;
        if matches!(node.op, Op::Concat(_)) {
            let mut first = 0;
            return node.inputs.iter().all(|&input| {
                let count = self.graph.shape(input).0[0];
                let part = affine.channels(first, count);
                first += count;
                self.absorb(input, &part, updates)
            });
        }
        match self.updated(producer, affine) {
            Some(update) => {
                updates.push(update);
                true
            }
            None => false,
        }
    }

    /// The values with which a layer computes its transformed output; `None` if it cannot.
    fn updated(&self, index: usize, affine: &ChannelAffine) -> Option<Update> {
        let node = &self.nodes[index].node;
        if node.parameters.iter().any(|&id| self.owners(id) != 1) {
            return None;
        }
        // A batch norm multiplies by its weight last, so only its weight and bias change.
        if optional_bias(&mut node.op.clone()).is_none() && !matches!(node.op, Op::BatchNorm2d(_)) {
            return None;
        }
        let weight = self.values_of(node, 0)?;
        let channels = affine.scale.len();
        let channel_of = |element: usize| match &node.op {
            Op::ConvTranspose2d(conv) => transposed_channel(conv, element),
            _ => element / (weight.len() / channels).max(1),
        };
        let scaled = |element: usize| (f64::from(weight[element]) * affine.scale[channel_of(element)]) as f32;
        let new_weight: Vec<f32> = (0..weight.len()).map(scaled).collect();
        let bias = self.values_of(node, 1);
        let new_bias = (0..channels).map(|c| {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[c]));
            (bias * affine.scale[c] + affine.shift[c]) as f32
        });
        let new_bias: Vec<f32> = new_bias.collect();
        let is_finite = new_weight.iter().chain(&new_bias).all(|value| value.is_finite());
        is_finite.then_some(Update { node: index, weight: new_weight, bias: new_bias })
    }

    fn apply(&mut self, Update { node: index, weight, bias }: Update) {
        let FoldingNode { node, .. } = &mut self.nodes[index];
        let weight_id = node.parameters[0];
        self.values[weight_id.0] = weight;
        if let Some(&id) = node.parameters.get(1) {
            self.values[id.0] = bias;
            return;
        }
        if let Some(has_bias) = optional_bias(&mut node.op) {
            *has_bias = true;
        }
        node.parameters.push(ParameterId(self.values.len()));
        self.graph.parameters.push(Parameter {
            name: format!("{}.bias", node.name),
            shape: vec![bias.len()],
            initialisation: Initialisation::Zeros,
            kind: ParameterKind::Trained,
            frozen: false,
        });
        self.values.push(bias);
        self.positions.push((self.positions[weight_id.0].0, 1));
    }

    /// Removes a layer: what reads its output reads its input.
    fn bypass(&mut self, index: usize, input: TensorId) {
        let removed = &mut self.nodes[index];
        removed.is_removed = true;
        let output = removed.node.output;
        for reader in &mut self.nodes {
            reader.node.inputs.iter_mut().filter(|id| **id == output).for_each(|id| *id = input);
        }
        if self.graph.output == output {
            self.graph.output = input;
        }
    }

    /// The number of times that layers read a tensor.
    fn readers(&self, tensor: TensorId) -> usize {
        let present = self.nodes.iter().filter(|node| !node.is_removed);
        present.flat_map(|node| &node.node.inputs).filter(|&&input| input == tensor).count()
    }

    fn owners(&self, parameter: ParameterId) -> usize {
        let present = self.nodes.iter().filter(|node| !node.is_removed);
        present.flat_map(|node| &node.node.parameters).filter(|&&id| id == parameter).count()
    }

    fn values_of(&self, node: &Node, position: usize) -> Option<&[f32]> {
        node.parameters.get(position).map(|id| self.values[id.0].as_slice())
    }

    /// The folded model, with parameters in the order of the state dictionary.
    fn finish(self) -> Result<Model, ModelError> {
        let Self { mut graph, nodes, values, positions, .. } = self;
        let mut order: Vec<usize> = (0..positions.len()).collect();
        order.sort_by_key(|&id| positions[id]);
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &id)| rank[id] = place);
        graph.parameters = order.iter().map(|&id| graph.parameters[id].clone()).collect();
        let named = graph.parameters.iter().zip(order).map(|(p, id)| (p.name.clone(), values[id].clone()));
        let named = named.collect();
        let present = nodes.into_iter().filter(|node| !node.is_removed);
        graph.nodes = present
            .map(|FoldingNode { mut node, .. }| {
                node.parameters.iter_mut().for_each(|id| *id = ParameterId(rank[id.0]));
                node
            })
            .collect();
        let model = Model::for_inference(&graph, named)?;
        model.graph.verify()?;
        Ok(model)
    }
}

/// The attribute of an operation that has a weight, and a bias if this is true.
fn optional_bias(op: &mut Op) -> Option<&mut bool> {
    match op {
        Op::Conv2d(conv) => Some(&mut conv.bias),
        Op::ConvTranspose2d(conv) => Some(&mut conv.bias),
        Op::Linear(linear) => Some(&mut linear.bias),
        Op::PointwiseLinear(linear) => Some(&mut linear.bias),
        _ => None,
    }
}

/// Returns whether a layer's output is its input in inference.
fn is_identity(op: &Op) -> bool {
    match op {
        Op::Dropout(_) | Op::Dropout2d(_) | Op::StochasticDepth(_) => true,
        Op::Scale(scale) => scale.factor == 1.0,
        _ => false,
    }
}

/// The output channel of an element of a transposed convolution's weight, `[in, out / groups, kh, kw]`.
fn transposed_channel(conv: &ConvTranspose2d, element: usize) -> usize {
    let taps = conv.kernel[0] * conv.kernel[1];
    let in_group = conv.out_channels / conv.groups;
    let (input, output) = (element / (taps * in_group), element / taps % in_group);
    input / (conv.in_channels / conv.groups) * in_group + output
}
