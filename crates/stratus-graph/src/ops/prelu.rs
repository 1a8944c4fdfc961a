//! ReLU with a trained slope below 0 (He et al.: "Delving deep into rectifiers", 2015).

use super::{Initialisation, LayerFileOp, Operation, ParameterKind, ParameterSpec, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = x` above 0, else `weight * x`, with one slope for all channels or one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prelu {
    /// The number of slopes: 1, or the channels or features of the input.
    pub slopes: usize,
}

impl Prelu {
    /// PyTorch's initial value of every slope.
    pub const INITIAL_SLOPE: f32 = 0.25;
}

impl Operation for Prelu {
    fn kind(&self) -> &'static str {
        "prelu"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("prelu", inputs)?;
        let channels = input.0.first().copied().unwrap_or(0);
        if self.slopes != 1 && self.slopes != channels {
            return Err(ShapeError::new(format!(
                "expected 1 slope or {channels}, one for each channel of the input {input}, got {}",
                self.slopes
            )));
        }
        Ok(input.clone())
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![ParameterSpec {
            name: "weight",
            shape: vec![self.slopes],
            initialisation: Initialisation::Constant { value: Self::INITIAL_SLOPE },
            kind: ParameterKind::Trained,
        }]
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        if self.slopes == 1 { String::new() } else { format!("slopes {}", self.slopes) }
    }
}

impl LayerFileOp for Prelu {
    const NAME: &'static str = "prelu";
    const KEYS: &'static [&'static str] = &["per_channel"];
    const ATTRIBUTES: &'static str = "`per_channel` (false): a slope for each channel instead of one for all";
    const SHAPES: &'static str =
        "shape unchanged; `x` above 0, else `x` times a trained slope; initial slope 0.25";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let per_channel = attributes.flag("per_channel")?.unwrap_or(false);
        let channels = inputs.first().and_then(|input| input.0.first()).copied().unwrap_or(0);
        Ok(Self { slopes: if per_channel { channels } else { 1 } })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.flag_if_not("per_channel", self.slopes != 1, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_slope_or_one_per_channel() {
        let input = Shape::image(6, 4, 5);
        for slopes in [1, 6] {
            let prelu = Prelu { slopes };
            assert_eq!(prelu.output_shape(&[&input]).unwrap(), input);
            assert_eq!(prelu.parameters()[0].shape, [slopes]);
            assert_eq!(prelu.parameters()[0].initialisation, Initialisation::Constant { value: 0.25 });
        }
        assert_eq!(Prelu { slopes: 3 }.output_shape(&[&Shape::vector(3)]).unwrap(), Shape::vector(3));
        let message = Prelu { slopes: 3 }.output_shape(&[&input]).unwrap_err().to_string();
        let expected = "expected 1 slope or 6, one for each channel of the input 6x4x5, got 3";
        assert_eq!(message, expected);
    }
}
