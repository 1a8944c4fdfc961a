//! Smooth and piecewise-linear activations: `y = f(x)` and `dx = dy f'(x)`, element by element. The
//! derivative is evaluated at `x`, because GELU, SiLU and hard swish have two inputs for some outputs. ReLU,
//! whose derivative needs only its output, has separate kernels.

use super::{Kernel, KernelSpec, Tiling, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{Gelu, HardSigmoid, HardSwish, Sigmoid, Silu};

/// A smooth activation: an operation of the graph without attributes. Each backend implements its function
/// and derivative.
pub trait Activation: Copy {
    /// The forward kernel's name.
    const FORWARD: &'static str;
    /// The backward kernel's name.
    const BACKWARD: &'static str;
}

impl Activation for Gelu {
    const FORWARD: &'static str = "gelu_forward";
    const BACKWARD: &'static str = "gelu_backward";
}

impl Activation for HardSigmoid {
    const FORWARD: &'static str = "hard_sigmoid_forward";
    const BACKWARD: &'static str = "hard_sigmoid_backward";
}

impl Activation for HardSwish {
    const FORWARD: &'static str = "hard_swish_forward";
    const BACKWARD: &'static str = "hard_swish_backward";
}

impl Activation for Sigmoid {
    const FORWARD: &'static str = "sigmoid_forward";
    const BACKWARD: &'static str = "sigmoid_backward";
}

impl Activation for Silu {
    const FORWARD: &'static str = "silu_forward";
    const BACKWARD: &'static str = "silu_backward";
}

/// `x -> y = f(x)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationForward<A>(pub A);

/// `(x, dy) -> dx = dy * f'(x)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationBackward<A>(pub A);

/// See [`Gelu`].
pub type GeluForward = ActivationForward<Gelu>;
/// See [`Gelu`].
pub type GeluBackward = ActivationBackward<Gelu>;
/// See [`HardSigmoid`].
pub type HardSigmoidForward = ActivationForward<HardSigmoid>;
/// See [`HardSigmoid`].
pub type HardSigmoidBackward = ActivationBackward<HardSigmoid>;
/// See [`HardSwish`].
pub type HardSwishForward = ActivationForward<HardSwish>;
/// See [`HardSwish`].
pub type HardSwishBackward = ActivationBackward<HardSwish>;
/// See [`Sigmoid`].
pub type SigmoidForward = ActivationForward<Sigmoid>;
/// See [`Sigmoid`].
pub type SigmoidBackward = ActivationBackward<Sigmoid>;
/// See [`Silu`].
pub type SiluForward = ActivationForward<Silu>;
/// See [`Silu`].
pub type SiluBackward = ActivationBackward<Silu>;

pub(super) fn lower<A>(activation: A, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError>
where
    Kernel: From<ActivationForward<A>>,
{
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    lowering.push(node, ActivationForward(activation), vec![x], vec![], vec![y]);
    Ok(())
}

impl<A: Activation> KernelSpec for ActivationForward<A>
where
    Kernel: From<ActivationBackward<A>>,
{
    fn name(&self) -> &'static str {
        A::FORWARD
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
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

impl<A: Activation> KernelSpec for ActivationBackward<A> {
    fn name(&self) -> &'static str {
        A::BACKWARD
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
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

    /// Plans of earlier versions, in which each activation had its own kernel types, stay readable.
    #[test]
    fn activation_kernels_are_stored_as_their_name() {
        let kernels: [(Kernel, &str); 4] = [
            (ActivationForward(Gelu).into(), "gelu_forward"),
            (ActivationBackward(Gelu).into(), "gelu_backward"),
            (ActivationForward(Silu).into(), "silu_forward"),
            (ActivationBackward(Sigmoid).into(), "sigmoid_backward"),
        ];
        for (kernel, name) in kernels {
            let text = format!("{{\"{name}\":null}}");
            assert_eq!(serde_json::to_string(&kernel).unwrap(), text);
            assert_eq!(serde_json::from_str::<Kernel>(&text).unwrap(), kernel);
            assert_eq!(kernel.name(), name);
        }
    }
}
