//! Stochastic depth (Huang et al.: "Deep networks with stochastic depth", 2016).

use super::{LayerFileOp, Operation, expect_share, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// In training, each sample is zero with probability `p` and otherwise multiplied by `1 / (1 - p)`; the
/// identity in inference. At the end of a residual branch, before its sum, it skips the block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StochasticDepth {
    /// The probability of dropping a sample, in [0, 1).
    pub p: f32,
}

impl Operation for StochasticDepth {
    fn kind(&self) -> &'static str {
        "stochastic_depth"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        expect_share(self.p)?;
        let input = single_input("stochastic_depth", inputs)?;
        input.as_image()?;
        Ok(input.clone())
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        format!("p {}", self.p)
    }
}

impl LayerFileOp for StochasticDepth {
    const NAME: &'static str = "stochastic_depth";
    const KEYS: &'static [&'static str] = &["p"];

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { p: attributes.number("p")?.unwrap_or(0.5) })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.number_if_not("p", self.p, 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_maps_and_checks_p() {
        let input = Shape::image(9, 3, 2);
        for p in [0.0, 0.3, 0.999] {
            assert_eq!(StochasticDepth { p }.output_shape(&[&input]).unwrap(), input);
        }
        for p in [-0.1, 1.0, f32::NAN] {
            let message = StochasticDepth { p }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("`p` must be in [0, 1), got {p}"));
        }
        assert!(StochasticDepth { p: 0.3 }.output_shape(&[&Shape::vector(9)]).is_err());
    }
}
