//! Dropout of elements (Srivastava et al.: "Dropout: a simple way to prevent neural networks from
//! overfitting", 2014), of channels (Tompson et al.: "Efficient object localization using convolutional
//! networks", 2015) and of samples (Huang et al.: "Deep networks with stochastic depth", 2016).

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// PyTorch's default probability.
const DEFAULT_P: f32 = 0.5;

/// Checks a dropout probability.
fn expect_share(p: f32) -> Result<(), ShapeError> {
    if (0.0..1.0).contains(&p) {
        return Ok(());
    }
    Err(ShapeError::new(format!("`p` must be in [0, 1), got {p}")))
}

/// Defines a kind of dropout: its name, true if it needs an image, and its row on the page of layer files.
macro_rules! dropout {
    ($(#[$doc:meta])* $type:ident, $name:literal, $image:literal, $keys:literal, $shapes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $type {
            /// The probability that an element, channel or sample is dropped, in [0, 1).
            pub p: f32,
        }

        impl Operation for $type {
            fn kind(&self) -> &'static str {
                $name
            }

            fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
                expect_share(self.p)?;
                let input = single_input($name, inputs)?;
                if $image {
                    input.as_image()?;
                }
                Ok(input.clone())
            }

            fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
                output.elements() as u64
            }

            fn is_never_negative(&self, inputs_are: bool) -> bool {
                inputs_are
            }

            fn attributes(&self) -> String {
                format!("p {}", self.p)
            }
        }

        impl LayerFileOp for $type {
            const NAME: &'static str = $name;
            const KEYS: &'static [&'static str] = &["p"];
            const ATTRIBUTES: &'static str = $keys;
            const SHAPES: &'static str = $shapes;

            fn from_attributes(
                attributes: &Attributes<'_>,
                _inputs: &[&Shape],
            ) -> Result<Self, AttributeError> {
                Ok(Self { p: attributes.number("p")?.unwrap_or(DEFAULT_P) })
            }

            fn write_attributes(&self, to: &mut AttributeWriter) {
                to.number_if_not("p", self.p, DEFAULT_P);
            }
        }
    };
}

dropout! {
    /// In training, each element is zero with probability `p` and otherwise multiplied by `1 / (1 - p)`; the
    /// identity in inference.
    Dropout, "dropout", false,
    "`p` (0.5): the fraction that is dropped",
    "shape unchanged"
}

dropout! {
    /// In training, each channel of a sample is zero with probability `p` and otherwise multiplied by
    /// `1 / (1 - p)`; the identity in inference. Neighbouring pixels are correlated, so dropping single
    /// pixels regularises little.
    Dropout2d, "dropout2d", true,
    "`p` (0.5): the fraction of a sample's channels that is dropped, each as a whole",
    "image, shape unchanged"
}

dropout! {
    /// In training, each sample is zero with probability `p` and otherwise multiplied by `1 / (1 - p)`; the
    /// identity in inference. At the end of a residual branch, before its sum, it skips the block.
    StochasticDepth, "stochastic_depth", true,
    "`p` (0.5): the fraction of samples that is dropped, each as a whole",
    "image, shape unchanged"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn p_must_be_in_the_unit_interval() {
        let (image, vector) = (Shape::image(9, 3, 2), Shape::vector(9));
        let all =
            |p| -> [Op; 3] { [Dropout { p }.into(), Dropout2d { p }.into(), StochasticDepth { p }.into()] };
        for p in [0.0, 0.3, 0.5, 0.999] {
            assert!(all(p).iter().all(|op| op.output_shape(&[&image]).unwrap() == image));
        }
        for p in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
            for op in all(p) {
                let message = op.output_shape(&[&image]).unwrap_err().to_string();
                assert_eq!(message, format!("`p` must be in [0, 1), got {p}"));
            }
        }
        assert_eq!(all(0.3).map(|op| op.output_shape(&[&vector]).is_ok()), [true, false, false]);
    }
}
