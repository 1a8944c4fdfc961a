//! What MobileNetV3 and EfficientNet are made of, torchvision's layers and names: a convolution with its norm
//! and activation, and squeeze-and-excitation (Hu et al.: "Squeeze-and-excitation networks", 2018).

use super::Chain;
use crate::ops::{AdaptiveAvgPool2d, BatchNorm2d, ChannelScale, Conv2d};
use crate::{GraphError, Op, TensorId};

/// Which norms and activations the blocks of a network have.
#[derive(Debug)]
pub(super) struct Style {
    /// The momentum of batch norms.
    pub momentum: f32,
    /// The activation between the convolutions of a squeeze-and-excitation.
    pub squeeze: Op,
    /// The activation that makes its factors.
    pub gate: Op,
}

impl Style {
    /// Convolution, batch norm, activation: parts 0 to 2 of a module.
    pub(super) fn unit(
        &self,
        chain: &mut Chain,
        name: &str,
        conv: Conv2d,
        activation: Option<Op>,
        x: TensorId,
    ) -> Result<TensorId, GraphError> {
        let mut y = chain.conv(&format!("{name}.0"), conv, x)?;
        let (epsilon, momentum) = (chain.epsilon, self.momentum);
        let norm = BatchNorm2d { epsilon, momentum, channels: conv.out_channels };
        y = chain.add(&format!("{name}.1"), norm, y)?;
        match activation {
            Some(activation) => chain.add(&format!("{name}.2"), activation, y),
            None => Ok(y),
        }
    }

    /// A factor for each channel, which follows from the means of all of them.
    pub(super) fn squeeze_excitation(
        &self,
        chain: &mut Chain,
        name: &str,
        squeezed: usize,
        x: TensorId,
    ) -> Result<TensorId, GraphError> {
        let channels = chain.channels(x);
        let conv = |inputs, outputs| Conv2d { bias: true, ..Conv2d::new(inputs, outputs, 1, 1, 0) };
        let mut y = chain.add(&format!("{name}.avgpool"), AdaptiveAvgPool2d::GLOBAL, x)?;
        y = chain.conv(&format!("{name}.fc1"), conv(channels, squeezed), y)?;
        y = chain.add(&format!("{name}.activation"), self.squeeze.clone(), y)?;
        y = chain.conv(&format!("{name}.fc2"), conv(squeezed, channels), y)?;
        y = chain.add(&format!("{name}.scale_activation"), self.gate.clone(), y)?;
        chain.graph.add(&format!("{name}.scale"), ChannelScale, &[x, y])
    }
}
