//! Building blocks of MobileNetV3 and EfficientNet, with torchvision's layers and names: a convolution with
//! its norm and activation, and squeeze-and-excitation (Hu et al.: "Squeeze-and-excitation networks", 2018).

use super::NetworkBuilder;
use crate::ops::{AdaptiveAvgPool2d, BatchNorm2d, ChannelScale, Conv2d};
use crate::{GraphError, Op, TensorId};

/// The norms and activations of a network's blocks.
#[derive(Debug)]
pub(super) struct Style {
    /// The momentum of batch norms.
    pub momentum: f32,
    /// The activation between the convolutions of a squeeze-and-excitation.
    pub squeeze: Op,
    /// The activation that computes its factors.
    pub gate: Op,
}

impl Style {
    /// Convolution, batch norm, activation: children 0 to 2 of a module.
    pub(super) fn unit(
        &self,
        net: &mut NetworkBuilder,
        name: &str,
        conv: Conv2d,
        activation: Option<Op>,
        x: TensorId,
    ) -> Result<TensorId, GraphError> {
        let mut y = net.conv(&format!("{name}.0"), conv, x)?;
        let (epsilon, momentum) = (net.epsilon, self.momentum);
        let norm = BatchNorm2d { epsilon, momentum, channels: conv.out_channels };
        y = net.add(&format!("{name}.1"), norm, y)?;
        match activation {
            Some(activation) => net.add(&format!("{name}.2"), activation, y),
            None => Ok(y),
        }
    }

    /// Squeeze-and-excitation: scales each channel by a factor computed from the means of all channels.
    pub(super) fn squeeze_excitation(
        &self,
        net: &mut NetworkBuilder,
        name: &str,
        squeezed: usize,
        x: TensorId,
    ) -> Result<TensorId, GraphError> {
        let channels = net.channels(x);
        let conv = |inputs, outputs| Conv2d { bias: true, ..Conv2d::new(inputs, outputs, 1, 1, 0) };
        let mut y = net.add(&format!("{name}.avgpool"), AdaptiveAvgPool2d::GLOBAL, x)?;
        y = net.conv(&format!("{name}.fc1"), conv(channels, squeezed), y)?;
        y = net.add(&format!("{name}.activation"), self.squeeze.clone(), y)?;
        y = net.conv(&format!("{name}.fc2"), conv(squeezed, channels), y)?;
        y = net.add(&format!("{name}.scale_activation"), self.gate.clone(), y)?;
        net.graph.add(&format!("{name}.scale"), ChannelScale, &[x, y])
    }
}
