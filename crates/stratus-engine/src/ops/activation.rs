//! Activations: `y = f(x)` and `dx = dy f'(x)`, element by element. The derivative is evaluated at `x`,
//! because GELU, SiLU and hard swish have two inputs for some outputs. ReLU, whose derivative needs only its
//! output, has separate kernels.
//!
//! There is one kernel forward and one backward, with the activation as a field. Each activation has its own
//! kernel names, such as `gelu_forward`, which plans store.

use super::{Kernel, KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::de::VariantAccess;
use serde::{Serialize, Serializer};
use stratus_graph::Node;
use stratus_graph::ops::{self, Activation};

/// `x -> y = f(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationForward(pub Activation);

/// `(x, dy) -> dx = dy * f'(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationBackward(pub Activation);

/// Defines the name of a kernel, and its stored form `{"gelu_forward": attributes}`.
macro_rules! named {
    ($kernel:ident, $suffix:literal, $($name:ident $kind:literal,)*) => {
        impl $kernel {
            fn kernel_name(self) -> &'static str {
                match self.0 { $(Activation::$name(_) => concat!($kind, $suffix),)* }
            }
        }

        impl Serialize for $kernel {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let name = self.kernel_name();
                match &self.0 {
                    $(Activation::$name(activation) => {
                        serializer.serialize_newtype_variant("Kernel", 0, name, activation)
                    })*
                }
            }
        }
    };
}

macro_rules! named_forward {
    ($($activations:tt)*) => { named!(ActivationForward, "_forward", $($activations)*); };
}

macro_rules! named_backward {
    ($($activations:tt)*) => { named!(ActivationBackward, "_backward", $($activations)*); };
}

/// Generates [`read_kernel`].
macro_rules! read_by_name {
    ($($name:ident $kind:literal,)*) => {
        /// Reads the kernel of an activation by its stored name. Other kernels get their content back.
        pub(super) fn read_kernel<'de, V: VariantAccess<'de>>(
            name: &str,
            content: V,
        ) -> Result<Result<Kernel, V::Error>, V> {
            $(if name == concat!($kind, "_forward") {
                let activation = content.newtype_variant::<ops::$name>();
                return Ok(activation.map(|activation| ActivationForward(activation.into()).into()));
            }
            if name == concat!($kind, "_backward") {
                let activation = content.newtype_variant::<ops::$name>();
                return Ok(activation.map(|activation| ActivationBackward(activation.into()).into()));
            })*
            Err(content)
        }
    };
}

stratus_graph::with_activations!(named_forward);
stratus_graph::with_activations!(named_backward);
stratus_graph::with_activations!(read_by_name);

pub(super) fn lower(activation: Activation, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let x = lowering.input(node, 0);
    let y = lowering.output_like(node, x);
    lowering.push(node, ActivationForward(activation), vec![x], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for ActivationForward {
    fn name(&self) -> &'static str {
        self.kernel_name()
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// The same count as in the graph.
    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            let kernel = ActivationBackward(self.0);
            backward.add_gradient(x, |backward, dx| {
                backward.push(step, kernel, Phase::BackwardData, vec![x, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for ActivationBackward {
    fn name(&self) -> &'static str {
        self.kernel_name()
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// The forward pass and the product with the gradient.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_graph::ops::{Gelu, HardSigmoid, HardSwish, LeakyRelu, Sigmoid, Silu};

    /// Plans of earlier versions, in which each activation had its own kernel types, stay readable.
    #[test]
    fn kernels_without_attributes_are_stored_as_their_name() {
        let kernels: [(Kernel, &str); 7] = [
            (ActivationForward(Gelu.into()).into(), "gelu_forward"),
            (ActivationBackward(Gelu.into()).into(), "gelu_backward"),
            (ActivationForward(HardSigmoid::default().into()).into(), "hard_sigmoid_forward"),
            (ActivationBackward(HardSigmoid::default().into()).into(), "hard_sigmoid_backward"),
            (ActivationForward(HardSwish.into()).into(), "hard_swish_forward"),
            (ActivationForward(Silu.into()).into(), "silu_forward"),
            (ActivationBackward(Sigmoid.into()).into(), "sigmoid_backward"),
        ];
        for (kernel, name) in kernels {
            let text = format!("{{\"{name}\":null}}");
            assert_eq!(serde_json::to_string(&kernel).unwrap(), text);
            assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), kernel);
            assert_eq!(kernel.name(), name);
        }
    }

    #[test]
    fn kernels_with_attributes_survive_a_round_trip() {
        for activation in Activation::examples() {
            let kernels: [Kernel; 2] =
                [ActivationForward(activation).into(), ActivationBackward(activation).into()];
            for kernel in kernels {
                let text = serde_json::to_string(&kernel).unwrap();
                assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), kernel, "{text}");
            }
        }
        let leaky = Kernel::from(ActivationForward(LeakyRelu { alpha: 0.25 }.into()));
        assert_eq!(serde_json::to_string(&leaky).unwrap(), "{\"leaky_relu_forward\":{\"alpha\":0.25}}");
    }

    #[test]
    fn a_kernel_that_cannot_be_read_is_an_error_that_says_why() {
        for (text, expected) in [
            (r#"{"gelu_sideways":null}"#, "unknown variant `gelu_sideways`, expected one of `accumulate`, "),
            (r#""flatten""#, "invalid type: unit variant, expected newtype variant"),
            (r#"{"leaky_relu_forward":{}}"#, "missing field `alpha`"),
            (r#"{"scale":{"factor":"two"}}"#, "invalid type: string \"two\", expected f32"),
        ] {
            let message = serde_json::from_str::<Kernel>(text).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{text}: {message}");
        }
    }
}
