//! A trained factor for each channel, small at first, of what a residual branch adds (Touvron et al.: "Going
//! deeper with image transformers", 2021).

use super::{Declared, Initialisation, Operation, ParameterKind, ParameterSpec, leading, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = layer_scale * x`, a factor for each channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerScale {
    /// Channels of the image.
    pub channels: usize,
    /// What every factor begins with, finite.
    pub initial: f32,
}

impl LayerScale {
    /// ConvNeXt's: 1e-6 at first.
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
        let input = only("layer_scale", inputs)?;
        let [channels, ..] = input.as_image()?;
        if channels != self.channels {
            return Err(ShapeError::new(format!(
                "it scales {} channels, its input {input} has {channels}",
                self.channels
            )));
        }
        if !self.initial.is_finite() {
            let initial = self.initial;
            return Err(ShapeError::new(format!("its factors begin as {initial}; that is a finite number")));
        }
        Ok(input.clone())
    }

    /// `[C, 1, 1]`, as torchvision has it.
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

impl Declared for LayerScale {
    const NAME: &'static str = "layer_scale";
    const KEYS: &'static [&'static str] = &["initial"];

    fn declared(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let usual = Self::new(leading(inputs));
        Ok(Self { initial: attributes.number("initial")?.unwrap_or(usual.initial), ..usual })
    }

    fn written(&self, to: &mut Written) {
        to.number_unless("initial", self.initial, Self::new(self.channels).initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_the_channels() {
        let scale = LayerScale::new(6);
        let input = Shape::image(6, 4, 5);
        assert_eq!(scale.output_shape(&[&input]).unwrap(), input);
        assert_eq!(scale.parameters()[0].shape, [6, 1, 1]);
        assert_eq!(scale.parameters()[0].initialisation, Initialisation::Constant { value: 1e-6 });
        let message = |scale: LayerScale, input| scale.output_shape(&[&input]).unwrap_err().to_string();
        let other = Shape::image(4, 8, 8);
        assert_eq!(message(scale, other), "it scales 6 channels, its input 4x8x8 has 4");
        let wrong = message(LayerScale { initial: f32::NAN, ..scale }, input);
        assert_eq!(wrong, "its factors begin as NaN; that is a finite number");
        assert!(scale.output_shape(&[&Shape::vector(6)]).is_err());
    }
}
