//! A trained factor, initially small, for each channel of a residual branch (Touvron et al.: "Going deeper
//! with image transformers", 2021).

use super::{
    Initialisation, LayerFileOp, Operation, ParameterKind, ParameterSpec, expect_channels, input_channels,
    single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = layer_scale * x`, a factor for each channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerScale {
    /// Channels of the image.
    pub channels: usize,
    /// The initial value of every factor, finite.
    pub initial: f32,
}

impl LayerScale {
    /// ConvNeXt's initial value, 1e-6.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { channels, initial: 1e-6 }
    }
}

impl Operation for LayerScale {
    fn kind(&self) -> &'static str {
        "layer_scale"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("layer_scale", inputs)?;
        expect_channels(input, self.channels)?;
        if !self.initial.is_finite() {
            let initial = self.initial;
            return Err(ShapeError::new(format!("`initial` must be finite, got {initial}")));
        }
        Ok(input.clone())
    }

    /// `[C, 1, 1]`, as in torchvision.
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![ParameterSpec {
            name: "layer_scale",
            shape: vec![self.channels, 1, 1],
            initialisation: Initialisation::Constant { value: self.initial },
            kind: ParameterKind::Trained,
        }]
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl LayerFileOp for LayerScale {
    const NAME: &'static str = "layer_scale";
    const KEYS: &'static [&'static str] = &["initial"];
    const ATTRIBUTES: &'static str = "`initial` (1e-6)";
    const SHAPES: &'static str = "image, shape unchanged; each channel times a trained factor, a \
        parameter `[C, 1, 1]` called `layer_scale`";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let default = Self::new(input_channels(inputs));
        Ok(Self { initial: attributes.number("initial")?.unwrap_or(default.initial), ..default })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.number_if_not("initial", self.initial, Self::new(self.channels).initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_factor_per_channel() {
        let scale = LayerScale::new(6);
        let input = Shape::image(6, 4, 5);
        assert_eq!(scale.output_shape(&[&input]).unwrap(), input);
        assert_eq!(scale.parameters()[0].shape, [6, 1, 1]);
        assert_eq!(scale.parameters()[0].initialisation, Initialisation::Constant { value: 1e-6 });
        let message = |scale: LayerScale, input| scale.output_shape(&[&input]).unwrap_err().to_string();
        let other = Shape::image(4, 8, 8);
        assert_eq!(message(scale, other), "expected 6 channels, but the input 4x8x8 has 4");
        let not_finite = message(LayerScale { initial: f32::NAN, ..scale }, input);
        assert_eq!(not_finite, "`initial` must be finite, got NaN");
        assert!(scale.output_shape(&[&Shape::vector(6)]).is_err());
    }
}
