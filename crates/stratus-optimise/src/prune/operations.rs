//! The treatment of channels by each operation. A new operation is a line in [`properties`] and one in
//! [`resize`]; neither match has a wildcard, so that it does not compile without them.

use super::coupling::Coupling;
use stratus_graph::Op;
use stratus_graph::ops::{
    BatchNorm2d, ChannelSlice, Conv2d, ConvTranspose2d, GroupNorm, LayerNorm2d, LayerScale, Linear,
    PointwiseLinear, Prelu,
};

/// The channels that each axis of a parameter belongs to. Axes that are not named have no channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterAxes {
    /// `[out, in / groups, ...]`.
    OutputByInput,
    /// `[in, out / groups, ...]`.
    InputByOutput,
    /// `[channels, ...]`, those of the output.
    PerChannel,
    /// The parameter is common to all channels.
    Shared,
}

impl ParameterAxes {
    /// Returns whether it is a matrix from input to output channels.
    pub(super) fn is_weight(self) -> bool {
        matches!(self, Self::OutputByInput | Self::InputByOutput)
    }
}

/// The treatment of channels by an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Properties {
    /// The channels that can only be removed together.
    pub coupling: Coupling,
    /// The axes of each parameter, in the order of [`stratus_graph::Operation::parameters`].
    pub parameters: &'static [ParameterAxes],
    /// True if an output channel depends on other channels, although the operation has no weight between
    /// them. The removal of a channel of zeros then changes the remaining ones.
    pub mixes_channels: bool,
}

impl Properties {
    /// The weight from input to output channels, with its position among the parameters.
    pub(super) fn weight(&self) -> Option<(usize, ParameterAxes)> {
        self.parameters.iter().copied().enumerate().find(|(_, axes)| axes.is_weight())
    }
}

/// An operation on each channel by itself, that of the first `inputs` inputs.
fn each_channel(inputs: usize, parameters: &'static [ParameterAxes]) -> Properties {
    Properties { coupling: Coupling::Equal { inputs }, parameters, mixes_channels: false }
}

/// An operation that moves channels without parameters.
fn moved(coupling: Coupling) -> Properties {
    Properties { coupling, parameters: &[], mixes_channels: false }
}

/// An operation whose statistics are those of several channels.
fn mixed(coupling: Coupling, parameters: &'static [ParameterAxes]) -> Properties {
    Properties { coupling, parameters, mixes_channels: true }
}

/// An operation with a weight from input to output channels, and a bias or not.
fn weighted(coupling: Coupling, axes: &'static [ParameterAxes; 2], bias: bool) -> Properties {
    let parameters = if bias { &axes[..] } else { &axes[..1] };
    Properties { coupling, parameters, mixes_channels: false }
}

const WEIGHT_AND_BIAS: [ParameterAxes; 2] = [ParameterAxes::OutputByInput, ParameterAxes::PerChannel];
const TRANSPOSED_AND_BIAS: [ParameterAxes; 2] = [ParameterAxes::InputByOutput, ParameterAxes::PerChannel];
const PER_CHANNEL: [ParameterAxes; 4] = [ParameterAxes::PerChannel; 4];

/// Dense if there is one group. Groups of one input or one output channel, as those of depthwise
/// convolutions, are removed as a whole. From larger groups the channels at the same position are removed.
fn grouped(groups: usize, in_channels: usize, out_channels: usize) -> Coupling {
    match groups {
        0 | 1 => Coupling::Dense,
        _ if in_channels == groups || out_channels == groups => Coupling::WholeGroups { groups },
        _ => Coupling::WithinGroups { groups },
    }
}

/// The treatment of channels by an operation of a verified graph.
pub(super) fn properties(op: &Op) -> Properties {
    match op {
        Op::Activation(_)
        | Op::AdaptiveAvgPool2d(_)
        | Op::AvgPool2d(_)
        | Op::Dropout(_)
        | Op::Dropout2d(_)
        | Op::LpPool2d(_)
        | Op::MaxPool2d(_)
        | Op::Relu(_)
        | Op::Relu6(_)
        // Of a second input only height and width are read.
        | Op::Resize(_)
        | Op::Scale(_)
        | Op::StochasticDepth(_) => each_channel(1, &[]),
        Op::Add(_) | Op::ChannelScale(_) => each_channel(2, &[]),
        Op::BatchNorm2d(_) => each_channel(1, &PER_CHANNEL),
        Op::LayerScale(_) => each_channel(1, &PER_CHANNEL[..1]),
        Op::Prelu(Prelu { slopes: 1 }) => each_channel(1, &[ParameterAxes::Shared]),
        Op::Prelu(_) => each_channel(1, &PER_CHANNEL[..1]),
        Op::ChannelShuffle(shuffle) => moved(Coupling::Shuffled { groups: shuffle.groups }),
        Op::ChannelSlice(slice) => moved(Coupling::Sliced { first: slice.first }),
        Op::Concat(_) => moved(Coupling::Concatenated),
        Op::Flatten(_) => moved(Coupling::Flattened),
        Op::Conv2d(conv) => {
            let coupling = grouped(conv.groups, conv.in_channels, conv.out_channels);
            weighted(coupling, &WEIGHT_AND_BIAS, conv.bias)
        }
        Op::ConvTranspose2d(conv) => {
            let coupling = grouped(conv.groups, conv.in_channels, conv.out_channels);
            weighted(coupling, &TRANSPOSED_AND_BIAS, conv.bias)
        }
        Op::Linear(linear) => weighted(Coupling::Dense, &WEIGHT_AND_BIAS, linear.bias),
        Op::PointwiseLinear(linear) => weighted(Coupling::Dense, &WEIGHT_AND_BIAS, linear.bias),
        Op::GroupNorm(norm) => {
            let parameters = if norm.affine { &PER_CHANNEL[..2] } else { &[] };
            match norm.groups {
                // Instance norm.
                groups if groups == norm.channels => each_channel(1, parameters),
                groups => mixed(Coupling::EqualWithinGroups { groups }, parameters),
            }
        }
        Op::LayerNorm2d(_) => mixed(Coupling::Equal { inputs: 1 }, &PER_CHANNEL[..2]),
        // A window of remaining channels contains other channels than before.
        Op::LocalResponseNorm(norm) if norm.size > 1 => mixed(Coupling::Equal { inputs: 1 }, &[]),
        Op::LocalResponseNorm(_) => each_channel(1, &[]),
    }
}

/// The remaining channels of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remaining {
    /// Channels of the first input.
    pub input: usize,
    /// Channels of the output.
    pub output: usize,
    /// Channels of the first input that precede a slice.
    pub before_slice: usize,
}

/// The operation on the remaining channels.
pub(super) fn resize(op: &Op, remaining: Remaining) -> Op {
    let Remaining { input, output, before_slice } = remaining;
    match op {
        Op::Activation(_)
        | Op::AdaptiveAvgPool2d(_)
        | Op::Add(_)
        | Op::AvgPool2d(_)
        | Op::ChannelScale(_)
        | Op::ChannelShuffle(_)
        | Op::Concat(_)
        | Op::Dropout(_)
        | Op::Dropout2d(_)
        | Op::Flatten(_)
        | Op::LocalResponseNorm(_)
        | Op::LpPool2d(_)
        | Op::MaxPool2d(_)
        | Op::Prelu(Prelu { slopes: 1 })
        | Op::Relu(_)
        | Op::Relu6(_)
        | Op::Resize(_)
        | Op::Scale(_)
        | Op::StochasticDepth(_) => op.clone(),
        Op::BatchNorm2d(norm) => BatchNorm2d { channels: output, ..*norm }.into(),
        Op::GroupNorm(norm) => {
            let groups = if norm.groups == norm.channels { output } else { norm.groups };
            GroupNorm { channels: output, groups, ..*norm }.into()
        }
        Op::LayerNorm2d(norm) => LayerNorm2d { channels: output, ..*norm }.into(),
        Op::LayerScale(scale) => LayerScale { channels: output, ..*scale }.into(),
        Op::Prelu(_) => Prelu { slopes: output }.into(),
        Op::ChannelSlice(_) => ChannelSlice { first: before_slice, channels: output }.into(),
        Op::Conv2d(conv) => {
            let groups = remaining_groups(conv.groups, conv.in_channels, conv.out_channels, input);
            Conv2d { in_channels: input, out_channels: output, groups, ..*conv }.into()
        }
        Op::ConvTranspose2d(conv) => {
            let groups = remaining_groups(conv.groups, conv.in_channels, conv.out_channels, input);
            ConvTranspose2d { in_channels: input, out_channels: output, groups, ..*conv }.into()
        }
        Op::Linear(linear) => Linear { in_features: input, out_features: output, ..*linear }.into(),
        Op::PointwiseLinear(linear) => {
            PointwiseLinear { in_channels: input, out_channels: output, ..*linear }.into()
        }
    }
}

/// The groups of a convolution that has `input` input channels left.
fn remaining_groups(groups: usize, in_channels: usize, out_channels: usize, input: usize) -> usize {
    match grouped(groups, in_channels, out_channels) {
        Coupling::WholeGroups { groups } => input / (in_channels / groups).max(1),
        _ => groups,
    }
}
