//! Local response normalisation across channels (Krizhevsky, Sutskever, Hinton: "ImageNet classification
//! with deep convolutional neural networks", 2012).

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y[c] = x[c] / (k + alpha / size * sum of x[i]^2)^beta`, the sum over the existing channels among `c -
/// size / 2 ..= c + (size - 1) / 2`.
///
/// `alpha` is divided by `size`, as in PyTorch. The paper does not divide: its alpha of 1e-4 over five
/// channels is 5e-4 here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalResponseNorm {
    /// The number of channels of the window.
    pub size: usize,
    /// The factor of their mean square.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Added to the weighted mean square; more than zero.
    pub k: f32,
}

impl Operation for LocalResponseNorm {
    fn kind(&self) -> &'static str {
        "local_response_norm"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("local_response_norm", inputs)?;
        input.as_image()?;
        if self.size == 0 {
            return Err(ShapeError::new("`size` must be at least 1, got 0".to_owned()));
        }
        let possible = self.alpha >= 0.0
            && self.k > 0.0
            && [self.alpha, self.beta, self.k].iter().all(|v| v.is_finite());
        if !possible {
            return Err(ShapeError::new(format!(
                "alpha {}, beta {} and k {} could divide by zero: all must be finite, alpha >= 0 and k > 0",
                self.alpha, self.beta, self.k
            )));
        }
        Ok(input.clone())
    }

    /// A square and an addition for each channel of the window, then scale, add, power, divide.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul((self.size as u64).saturating_mul(2).saturating_add(4))
    }

    fn attributes(&self) -> String {
        format!("size {} alpha {} beta {} k {}", self.size, self.alpha, self.beta, self.k)
    }
}

impl LayerFileOp for LocalResponseNorm {
    const NAME: &'static str = "local_response_norm";
    const KEYS: &'static [&'static str] = &["size", "alpha", "beta", "k"];
    const ATTRIBUTES: &'static str = "`size`, `alpha` (0.0001), `beta` (0.75), `k` (1)";
    const SHAPES: &'static str = "image, shape unchanged; `alpha` is divided by `size`";

    const EXAMPLES: &'static [&'static str] = &["size = 3\nalpha = 0.5"];

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self {
            size: attributes.required_count("size")?,
            alpha: attributes.number("alpha")?.unwrap_or(1e-4),
            beta: attributes.number("beta")?.unwrap_or(0.75),
            k: attributes.number("k")?.unwrap_or(1.0),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("size", self.size);
        to.number_if_not("alpha", self.alpha, 1e-4);
        to.number_if_not("beta", self.beta, 0.75);
        to.number_if_not("k", self.k, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: LocalResponseNorm = LocalResponseNorm { size: 5, alpha: 5e-4, beta: 0.75, k: 2.0 };

    #[test]
    fn keeps_the_shape_of_an_image() {
        let input = Shape::image(96, 55, 55);
        assert_eq!(PUBLISHED.output_shape(&[&input]).unwrap(), input);
        assert_eq!(PUBLISHED.forward_flops(&[&input], &input), 96 * 55 * 55 * 14);
        assert_eq!(PUBLISHED.attributes(), "size 5 alpha 0.0005 beta 0.75 k 2");
    }

    #[test]
    fn rejects_attributes_that_divide_by_zero() {
        let message = |norm: LocalResponseNorm, input| norm.output_shape(&[&input]).unwrap_err().to_string();
        let image = || Shape::image(3, 2, 2);
        assert!(message(PUBLISHED, Shape::vector(8)).contains("got 8"));
        assert!(
            message(LocalResponseNorm { size: 0, ..PUBLISHED }, image())
                .contains("`size` must be at least 1")
        );
        assert!(message(LocalResponseNorm { k: 0.0, ..PUBLISHED }, image()).contains("k 0 could divide"));
        assert!(message(LocalResponseNorm { beta: f32::NAN, ..PUBLISHED }, image()).contains("beta NaN"));
        assert!(message(LocalResponseNorm { alpha: -1.0, ..PUBLISHED }, image()).contains("alpha -1"));
    }
}
