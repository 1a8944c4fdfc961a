//! Smooth activations. After a linear layer they read the master precision; gradients have the compute
//! precision.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Kernel;
use stratus_engine::ops::{ActivationBackward, ActivationForward};
use stratus_graph::ops::{Gelu, HardSigmoid, HardSwish, Sigmoid, Silu};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// An activation with its kernels.
struct Activation {
    name: &'static str,
    /// Extreme values.
    far: Fill,
    forward: Kernel,
    backward: Kernel,
}

/// All activations; a new one is a line here.
fn activations() -> Vec<Activation> {
    vec![
        activation_case("gelu", Gelu, TAILS),
        activation_case("hard_sigmoid", HardSigmoid, PIECEWISE),
        activation_case("hard_swish", HardSwish, PIECEWISE),
        activation_case("sigmoid", Sigmoid, TAILS),
        activation_case("silu", Silu, TAILS),
    ]
}

fn activation_case<A: Copy>(name: &'static str, activation: A, far: Fill) -> Activation
where
    Kernel: From<ActivationForward<A>> + From<ActivationBackward<A>>,
{
    let forward = ActivationForward(activation).into();
    Activation { name, far, forward, backward: ActivationBackward(activation).into() }
}

/// The curved part, and the tails that are nearly constant or linear.
const CURVED: Fill = Fill::Uniform { low: -7.0, high: 5.0 };
/// Values where `exp(|x|)` is infinite in f32, but which are small enough for checking derivatives by f64
/// differences.
const TAILS: Fill = Fill::Exact([-200.0, -104.0, 89.0, 200.0]);
/// Values on every piece of a piecewise-linear activation with bends at -3 and 3, near the bends.
const PIECEWISE: Fill = Fill::Exact([-200.0, -3.25, 2.75, 200.0]);
/// Values on the middle piece.
const MIDDLE: Fill = Fill::Uniform { low: -2.0, high: 2.0 };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for activation in activations() {
        for shape in shapes {
            // A single element on a constant piece would have no gradient to check.
            let single = shape.iter().product::<usize>() == 1;
            let numbers = if single && activation.far == PIECEWISE { MIDDLE } else { CURVED };
            cases.extend(activation.kernels(shape, DTypeClass::Compute, numbers, ""));
            if shape.len() == 2 {
                cases.extend(activation.kernels(
                    shape,
                    DTypeClass::Master,
                    numbers,
                    " of the master precision",
                ));
            }
        }
        cases.extend(activation.kernels(&[1, 4], DTypeClass::Compute, activation.far, " far out"));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    let kernels =
        |activation: Activation| activation.kernels(&[16, 256, 56, 56], DTypeClass::Compute, CURVED, "");
    activations().into_iter().flat_map(kernels).collect()
}

impl Activation {
    /// Forward and backward with `x` of a class.
    fn kernels(&self, shape: &[usize], class: DTypeClass, numbers: Fill, suffix: &str) -> [Case; 2] {
        let name = self.name;
        let forward = Case::new(format!("{name} {}{suffix}", extents(shape)), self.forward.clone())
            .filled("x", shape, class, numbers)
            .output("y", shape, DTypeClass::Compute);
        let backward =
            Case::new(format!("{name}_backward {}{suffix}", extents(shape)), self.backward.clone())
                .filled("x", shape, class, numbers)
                .input("dy", shape, DTypeClass::Compute)
                .output("dx", shape, DTypeClass::Compute);
        [forward, backward]
    }
}
