//! The importance of units.

use super::coupling::Coupling;
use super::operations::{ParameterAxes, Properties, properties};
use super::remove::values_of;
use super::{ChannelGroup, PruneError, channel_groups};
use crate::Model;
use std::collections::BTreeMap;
use stratus_graph::{Graph, Node, Parameter, ParameterKind, TensorId};
use stratus_random::{Purpose, Stream};

/// Gradients by the names of parameters.
type Gradients = BTreeMap<String, Vec<f32>>;

/// The measure of a unit's importance.
#[derive(Clone, Copy, Debug)]
pub enum Importance<'a> {
    /// The sum of the magnitudes of the unit's filters (Li et al.: "Pruning filters for efficient ConvNets",
    /// 2017), relative to the other filters of each layer.
    L1,
    /// A function of seed, group and unit. For comparison.
    Random {
        /// The seed.
        seed: u64,
    },
    /// The change of the loss without the unit, by a Taylor expansion.
    Taylor(&'a TaylorScores<'a>),
}

/// The importance of every unit of every group: finite and not negative.
///
/// Units of different groups are compared. By Taylor expansion all scores are changes of the loss. By other
/// measures the scores of a group add up to the number of layers whose filters it has, so that every layer
/// counts the same. A part of a layer's filters counts in proportion, depthwise convolutions do not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores(
    /// By group and unit.
    pub Vec<Vec<f64>>,
);

impl Importance<'_> {
    /// The scores of a network's units.
    ///
    /// # Errors
    /// If the network is not valid, a weight is missing or not finite, or gradients were added for another
    /// network or not at all.
    pub fn scores(&self, model: &Model) -> Result<Scores, PruneError> {
        match self {
            Self::L1 => l1(model),
            Self::Random { seed } => random(*seed, &model.graph),
            Self::Taylor(scores) => scores.scores(model),
        }
    }
}

fn random(seed: u64, graph: &Graph) -> Result<Scores, PruneError> {
    let groups = channel_groups(graph)?;
    let uniform = |group: usize, unit: usize| {
        f64::from(Stream::new(seed, Purpose::Prune, group as u64, unit as u32).uniform())
    };
    let of_group = |(position, group): (usize, &ChannelGroup)| {
        (0..group.units.len()).map(|unit| uniform(position, unit)).collect()
    };
    let scores = groups.iter().enumerate().map(of_group).collect();
    Ok(balanced(scores, graph, &groups))
}

fn l1(model: &Model) -> Result<Scores, PruneError> {
    let groups = channel_groups(&model.graph)?;
    let mut per_channel = sum_by_channel(model, None, |_, axes| axes.is_weight())?;
    per_channel.iter_mut().for_each(|layer| scale_to(layer, 1.0));
    Ok(balanced(unit_sums(&per_channel, &groups), &model.graph, &groups))
}

/// Scales the scores of each group to the number of layers whose filters it has.
fn balanced(mut scores: Vec<Vec<f64>>, graph: &Graph, groups: &[ChannelGroup]) -> Scores {
    for (scores, group) in scores.iter_mut().zip(groups) {
        scale_to(scores, filter_share(graph, group));
    }
    Scores(scores)
}

/// Scales numbers to a total, unless all are 0.
fn scale_to(numbers: &mut [f64], total: f64) {
    let sum: f64 = numbers.iter().sum();
    if sum > 0.0 {
        numbers.iter_mut().for_each(|number| *number *= total / sum);
    }
}

/// The sum, over the layers that produce a group, of the part of the filters that belongs to it. A depthwise
/// convolution passes on the channels of another layer.
fn filter_share(graph: &Graph, group: &ChannelGroup) -> f64 {
    let layers = group.producers.iter().map(|id| &graph.nodes[id.0]);
    let mixing = layers
        .filter(|layer| !matches!(properties(&layer.op).coupling, Coupling::WholeGroups { .. }))
        .map(|layer| layer.output);
    let share = |output: TensorId| {
        let tensor = group.tensors.iter().find(|tensor| tensor.tensor == output)?;
        let channels = graph.shape(output).0.first()?;
        Some((tensor.channels_per_unit * group.units.len()) as f64 / *channels as f64)
    };
    mixing.filter_map(share).sum()
}

/// Collects the gradients of calibration batches.
///
/// The score of a unit is the mean, over batches, of the square of the sum of `gradient * value` over the
/// parameters that produce the unit: its filters, their biases, and the weights and biases of its norms
/// (Molchanov et al.: "Importance estimation for neural network pruning", 2019). It estimates the change of
/// the loss if these parameters were zero.
#[derive(Clone, Debug)]
pub struct TaylorScores<'a> {
    model: &'a Model,
    groups: Vec<ChannelGroup>,
    /// The sums of squares by group and unit.
    sums: Vec<Vec<f64>>,
    batches: usize,
}

impl<'a> TaylorScores<'a> {
    /// Scores without gradients yet.
    ///
    /// # Errors
    /// If the network is not valid: see [`channel_groups`].
    pub fn new(model: &'a Model) -> Result<Self, PruneError> {
        let groups = channel_groups(&model.graph)?;
        let sums = groups.iter().map(|group| vec![0.0; group.units.len()]).collect();
        Ok(Self { model, groups, sums, batches: 0 })
    }

    /// Adds the gradients of a batch's mean loss, by the names of parameters. Those of frozen parameters are
    /// needed too: a graph without frozen layers computes them. They may be those of training: with the
    /// statistics of the batch, `gradient * value` of a filter before a batch norm is 0 in sum, and the
    /// weights and biases of the norm determine the score.
    ///
    /// # Errors
    /// If the gradient of a parameter is missing, of another size, or not finite. Nothing is added then.
    pub fn add(&mut self, gradients: &BTreeMap<String, Vec<f32>>) -> Result<(), PruneError> {
        let per_channel = sum_by_channel(self.model, Some(gradients), |parameter, axes| {
            parameter.kind == ParameterKind::Trained && axes != ParameterAxes::Shared
        })?;
        let units = unit_sums(&per_channel, &self.groups);
        for (sum, unit) in self.sums.iter_mut().flatten().zip(units.into_iter().flatten()) {
            *sum += unit * unit;
        }
        self.batches += 1;
        Ok(())
    }

    fn scores(&self, model: &Model) -> Result<Scores, PruneError> {
        if self.batches == 0 {
            return Err(PruneError::NoBatch);
        }
        if model.graph != self.model.graph {
            let problem = "the gradients are those of another network".to_owned();
            return Err(PruneError::Mismatch { network: model.graph.name.clone(), problem });
        }
        let mean = |sums: &Vec<f64>| sums.iter().map(|sum| sum / self.batches as f64).collect();
        Ok(Scores(self.sums.iter().map(mean).collect()))
    }
}

/// The gradient of a parameter, of its size and finite.
fn gradient_of<'a>(parameter: &Parameter, gradients: &'a Gradients) -> Result<&'a [f32], PruneError> {
    let found = gradients.get(&parameter.name).map_or(&[][..], Vec::as_slice);
    if found.len() != parameter.elements() {
        let (parameter, expected) = (parameter.name.clone(), parameter.elements());
        return Err(PruneError::Gradient { parameter, found: found.len(), expected });
    }
    check_finite(parameter, found, "gradient")?;
    Ok(found)
}

fn check_finite(parameter: &Parameter, values: &[f32], quantity: &'static str) -> Result<(), PruneError> {
    if values.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    Err(PruneError::NotFinite { parameter: parameter.name.clone(), quantity })
}

/// Those parameters of a layer for which `is_counted`, with their axes.
fn parameters<'a>(
    graph: &'a Graph,
    node: &'a Node,
    properties: &Properties,
    is_counted: impl Fn(&Parameter, ParameterAxes) -> bool,
) -> Vec<(&'a Parameter, ParameterAxes)> {
    let owned = node.parameters.iter().map(|id| &graph.parameters[id.0]);
    owned.zip(properties.parameters.iter().copied()).filter(|(p, axes)| is_counted(p, *axes)).collect()
}

/// For each tensor and channel, a sum over the values of its layer's parameters that belong to the channel:
/// of their products with the gradients, or without gradients of their magnitudes. Tensors of layers without
/// such parameters have no sums.
fn sum_by_channel(
    model: &Model,
    gradients: Option<&Gradients>,
    is_counted: impl Fn(&Parameter, ParameterAxes) -> bool,
) -> Result<Vec<Vec<f64>>, PruneError> {
    let graph = &model.graph;
    let mut sums = vec![Vec::new(); graph.tensors.len()];
    for node in &graph.nodes {
        let properties = properties(&node.op);
        let channels = graph.shape(node.output).0.first().copied().unwrap_or(0);
        for (parameter, axes) in parameters(graph, node, &properties, &is_counted) {
            let values = values_of(model, parameter)?;
            check_finite(parameter, values, "value")?;
            let gradients = match gradients {
                Some(gradients) => Some(gradient_of(parameter, gradients)?),
                None => None,
            };
            let sums: &mut Vec<f64> = &mut sums[node.output.0];
            sums.resize(channels, 0.0);
            let inner: usize = parameter.shape.iter().skip(if axes.is_weight() { 2 } else { 1 }).product();
            let output = output_of(axes, parameter, properties.coupling.groups());
            for (cell, first) in (0..values.len()).step_by(inner.max(1)).enumerate() {
                let range = first..first + inner;
                sums[output(cell)] += match gradients {
                    Some(gradients) => dot(&values[range.clone()], &gradients[range]),
                    None => values[range].iter().map(|value| f64::from(value.abs())).sum(),
                };
            }
        }
    }
    Ok(sums)
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(&one, &other)| f64::from(one) * f64::from(other)).sum()
}

/// The output channel of a cell of a parameter: of an element of its first two axes for weights, of its first
/// axis otherwise.
fn output_of(axes: ParameterAxes, parameter: &Parameter, groups: usize) -> impl Fn(usize) -> usize {
    let rows = parameter.shape.first().copied().unwrap_or(1).max(1);
    let columns = parameter.shape.get(1).copied().unwrap_or(1).max(1);
    let rows_of_group = (rows / groups.max(1)).max(1);
    move |cell| match axes {
        ParameterAxes::OutputByInput => cell / columns,
        ParameterAxes::InputByOutput => cell / columns / rows_of_group * columns + cell % columns,
        ParameterAxes::PerChannel => cell,
        ParameterAxes::Shared => 0,
    }
}

/// The sums of each unit's channels, by group and unit.
fn unit_sums(per_channel: &[Vec<f64>], groups: &[ChannelGroup]) -> Vec<Vec<f64>> {
    let sum = |group: &ChannelGroup| {
        let units = group.units.iter().map(|unit| {
            let channels = unit.channels.iter();
            let sums = channels.filter_map(|channel| per_channel.get(channel.tensor.0)?.get(channel.index));
            sums.sum::<f64>()
        });
        units.collect()
    };
    groups.iter().map(sum).collect()
}
