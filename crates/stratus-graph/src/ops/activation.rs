//! The common definition of activations: one input, whose shape they keep, no attributes and no parameters.

/// Defines an activation by its documentation, type, name and operations per element. Functions such as the
/// exponential count as one operation.
macro_rules! activation {
    ($(#[$doc:meta])* $activation:ident, $name:literal, $flops:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $activation;

        impl super::Operation for $activation {
            fn kind(&self) -> &'static str {
                $name
            }

            fn output_shape(&self, inputs: &[&crate::Shape]) -> Result<crate::Shape, crate::ShapeError> {
                super::single_input($name, inputs).cloned()
            }

            fn forward_flops(&self, _inputs: &[&crate::Shape], output: &crate::Shape) -> u64 {
                (output.elements() as u64).saturating_mul($flops)
            }
        }

        impl super::LayerFileOp for $activation {
            const NAME: &'static str = $name;

            fn from_attributes(
                _attributes: &crate::layer_file::Attributes<'_>,
                _inputs: &[&crate::Shape],
            ) -> Result<Self, crate::layer_file::AttributeError> {
                Ok(Self)
            }
        }

        #[cfg(test)]
        mod tests {
            use super::$activation;
            use crate::{Operation, Shape};

            #[test]
            fn keeps_the_shape() {
                let input = Shape::image(3, 4, 5);
                assert_eq!($activation.output_shape(&[&input]).unwrap(), input);
                assert_eq!($activation.forward_flops(&[&input], &input), 60 * $flops);
                for inputs in [&[][..], &[&input, &input]] {
                    let message = $activation.output_shape(inputs).unwrap_err().to_string();
                    let expected = format!("{}: expected 1 input, got {}", $name, inputs.len());
                    assert_eq!(message, expected);
                }
            }
        }
    };
}

pub(super) use activation;
