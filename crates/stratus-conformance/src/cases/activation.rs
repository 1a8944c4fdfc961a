//! Smooth activations. After a linear layer they read the master precision; gradients have the compute
//! precision.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Kernel;
use stratus_engine::ops::{ActivationBackward, ActivationForward};
use stratus_graph::ops::{Gelu, HardSigmoid, HardSwish, Sigmoid, Silu};

pub(super) const TABLE: Table = Table { tests, benchmarks };

/// An activation with its kernels.
struct Activation {
    name: &'static str,
    /// Numbers out of the ordinary.
    far: Fill,
    forward: Kernel,
    backward: Kernel,
}

/// A new activation is a line here.
fn activations() -> Vec<Activation> {
    vec![
        of("gelu", Gelu, FAR),
        of("hard_sigmoid", HardSigmoid, STRAIGHT),
        of("hard_swish", HardSwish, STRAIGHT),
        of("sigmoid", Sigmoid, FAR),
        of("silu", Silu, FAR),
    ]
}

fn of<A: Copy>(name: &'static str, activation: A, far: Fill) -> Activation
where
    Kernel: From<ActivationForward<A>> + From<ActivationBackward<A>>,
{
    let forward = ActivationForward(activation).into();
    Activation { name, far, forward, backward: ActivationBackward(activation).into() }
}

/// The bend, and the tails, where nearly nothing and nearly all is let through.
const BEND: Fill = Fill::Uniform { low: -7.0, high: 5.0 };
/// Where `exp(|x|)` is infinite in f32, and near enough to zero for differences of f64 to check derivatives.
const FAR: Fill = Fill::Given([-200.0, -104.0, 89.0, 200.0]);
/// On every piece of an activation of straight pieces that bend at -3 and 3, near to the bends.
const STRAIGHT: Fill = Fill::Given([-200.0, -3.25, 2.75, 200.0]);
/// On the middle piece.
const SLOPE: Fill = Fill::Uniform { low: -2.0, high: 2.0 };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for activation in activations() {
        for shape in shapes {
            // A single element on a level piece would have no gradient to check.
            let single = shape.iter().product::<usize>() == 1;
            let numbers = if single && activation.far == STRAIGHT { SLOPE } else { BEND };
            cases.extend(activation.kernels(shape, Class::Compute, numbers, ""));
            if shape.len() == 2 {
                cases.extend(activation.kernels(shape, Class::Master, numbers, " of the master precision"));
            }
        }
        cases.extend(activation.kernels(&[1, 4], Class::Compute, activation.far, " far out"));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    let kernels = |activation: Activation| activation.kernels(&[16, 256, 56, 56], Class::Compute, BEND, "");
    activations().into_iter().flat_map(kernels).collect()
}

impl Activation {
    /// Forward and backward with `x` of a class.
    fn kernels(&self, shape: &[usize], class: Class, numbers: Fill, what: &str) -> [Case; 2] {
        let name = self.name;
        let forward = Case::new(format!("{name} {}{what}", extents(shape)), self.forward.clone())
            .filled("x", shape, class, numbers)
            .output("y", shape, Class::Compute);
        let backward = Case::new(format!("{name}_backward {}{what}", extents(shape)), self.backward.clone())
            .filled("x", shape, class, numbers)
            .input("dy", shape, Class::Compute)
            .output("dx", shape, Class::Compute);
        [forward, backward]
    }
}
