//! Stochastic depth (Huang et al.: "Deep networks with stochastic depth", 2016).

use super::{Declared, Operation, expect_share, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// In training each sample is zero with probability `p`, the others are multiplied by `1 / (1 - p)`. In
/// inference nothing happens. At the end of a residual branch, before its sum, it leaves the block out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StochasticDepth {
    /// The share of samples that are dropped, from 0 up to, not including, 1.
    pub p: f32,
}

impl Operation for StochasticDepth {
    fn kind(&self) -> &'static str {
        "stochastic_depth"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        expect_share(self.p)?;
        let input = only("stochastic_depth", inputs)?;
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

impl Declared for StochasticDepth {
    const NAME: &'static str = "stochastic_depth";
    const KEYS: &'static [&'static str] = &["p"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { p: attributes.number("p")?.unwrap_or(0.5) })
    }

    fn written(&self, to: &mut Written) {
        to.number_unless("p", self.p, 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_maps_and_a_share() {
        let input = Shape::image(9, 3, 2);
        for p in [0.0, 0.3, 0.999] {
            assert_eq!(StochasticDepth { p }.output_shape(&[&input]).unwrap(), input);
        }
        for p in [-0.1, 1.0, f32::NAN] {
            let message = StochasticDepth { p }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("its probability p is {p}; it is at least 0 and less than 1"));
        }
        assert!(StochasticDepth { p: 0.3 }.output_shape(&[&Shape::vector(9)]).is_err());
    }
}
