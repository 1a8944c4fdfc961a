//! What activations share: one input, whose shape they keep, and neither attributes nor parameters.

/// An activation: its documentation, its type, its name, and how many operations of an element count. How
/// functions such as the exponential are computed is the kernel's affair: they count as one.
macro_rules! activation {
    ($(#[$about:meta])* $activation:ident, $name:literal, $flops:literal) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $activation;

        impl super::Operation for $activation {
            fn kind(&self) -> &'static str {
                $name
            }

            fn output_shape(&self, inputs: &[&crate::Shape]) -> Result<crate::Shape, crate::ShapeError> {
                super::only($name, inputs).cloned()
            }

            fn forward_flops(&self, _inputs: &[&crate::Shape], output: &crate::Shape) -> u64 {
                (output.elements() as u64).saturating_mul($flops)
            }
        }

        impl super::Declared for $activation {
            const NAME: &'static str = $name;

            fn declared(
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
            fn keeps_its_shape() {
                let input = Shape::image(3, 4, 5);
                assert_eq!($activation.output_shape(&[&input]).unwrap(), input);
                assert_eq!($activation.forward_flops(&[&input], &input), 60 * $flops);
                for inputs in [&[][..], &[&input, &input]] {
                    let message = $activation.output_shape(inputs).unwrap_err().to_string();
                    let expected = format!("{} takes one input, it was given {}", $name, inputs.len());
                    assert_eq!(message, expected);
                }
            }
        }
    };
}

pub(super) use activation;
