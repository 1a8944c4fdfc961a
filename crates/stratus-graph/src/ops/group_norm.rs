//! Group normalisation (Wu, He: "Group normalization", 2018), as `torch.nn.GroupNorm`. With as many groups as
//! channels it is instance normalisation.

use super::{
    LayerFileOp, Operation, ParameterSpec, expect_channels, expect_epsilon, input_channels, norm_flops,
    norm_parameters, single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias`, with mean and (biased) variance over the
/// pixels and channels of each group of neighbouring channels of a sample, in training and inference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupNorm {
    /// Channels of the image.
    pub channels: usize,
    /// Groups of equally many channels.
    pub groups: usize,
    /// Added to the variance; more than zero.
    pub epsilon: f32,
    /// True if it has a weight and a bias per channel.
    pub affine: bool,
}

impl GroupNorm {
    /// PyTorch's defaults: epsilon 1e-5, with weight and bias.
    #[must_use]
    pub fn new(channels: usize, groups: usize) -> Self {
        Self { channels, groups, epsilon: 1e-5, affine: true }
    }

    /// The channels of a group.
    #[must_use]
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups.max(1)
    }
}

impl Operation for GroupNorm {
    fn kind(&self) -> &'static str {
        "group_norm"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("group_norm", inputs)?;
        let channels = expect_channels(input, self.channels)?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return Err(ShapeError::new(format!(
                "{channels} channels cannot be divided into {} groups",
                self.groups
            )));
        }
        expect_epsilon(self.epsilon)?;
        Ok(input.clone())
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        if self.affine { norm_parameters(self.channels) } else { Vec::new() }
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        norm_flops(output)
    }

    fn attributes(&self) -> String {
        let default = Self::new(self.channels, self.groups).epsilon;
        let epsilon =
            if self.epsilon == default { String::new() } else { format!(" epsilon {}", self.epsilon) };
        format!("groups {}{epsilon}{}", self.groups, if self.affine { "" } else { " not affine" })
    }
}

impl LayerFileOp for GroupNorm {
    const NAME: &'static str = "group_norm";
    const KEYS: &'static [&'static str] = &["groups", "epsilon", "affine"];
    const ATTRIBUTES: &'static str = "`groups`, `epsilon` (1e-5), `affine` (true)";
    const SHAPES: &'static str = "image, shape unchanged; each sample's groups of channels are normalised, \
        then with `affine` times a weight and plus a bias for each channel; `groups` equal to the channels \
        is instance norm";
    const EXAMPLES: &'static [&'static str] =
        &["groups = 2", "groups = 8\nepsilon = 0.01", "groups = 1", "groups = 4\naffine = false"];

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let default = Self::new(input_channels(inputs), attributes.required_count("groups")?);
        Ok(Self {
            epsilon: attributes.number("epsilon")?.unwrap_or(default.epsilon),
            affine: attributes.flag("affine")?.unwrap_or(default.affine),
            ..default
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("groups", self.groups);
        to.number_if_not("epsilon", self.epsilon, Self::new(self.channels, self.groups).epsilon);
        to.flag_if_not("affine", self.affine, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_images_whose_channels_the_groups_divide() {
        let norm = GroupNorm::new(8, 4);
        let input = Shape::image(8, 3, 2);
        assert_eq!(norm.output_shape(&[&input]).unwrap(), input);
        assert_eq!(norm.attributes(), "groups 4");
        let plain = GroupNorm { epsilon: 1e-3, affine: false, ..norm };
        assert_eq!(plain.attributes(), "groups 4 epsilon 0.001 not affine");
        assert_eq!([norm, plain].map(|norm| norm.parameters().len()), [2, 0]);
        let message = |norm: GroupNorm, input| norm.output_shape(&[&input]).unwrap_err().to_string();
        let other = Shape::image(4, 8, 8);
        assert_eq!(message(norm, other), "expected 8 channels, but the input 4x8x8 has 4");
        for groups in [0, 3, 16] {
            let error = message(GroupNorm { groups, ..norm }, input.clone());
            assert_eq!(error, format!("8 channels cannot be divided into {groups} groups"));
        }
        let error = message(GroupNorm { epsilon: 0.0, ..norm }, input);
        assert_eq!(error, "`epsilon` must be > 0, got 0");
    }
}
