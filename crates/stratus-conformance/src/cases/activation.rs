//! All activations of the table. After a linear layer, `x` has the master precision; gradients have the
//! compute precision.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{ActivationBackward, ActivationForward};
use stratus_graph::Operation;
use stratus_graph::ops::Activation;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The curved part, and the tails that are nearly constant or linear.
const CURVED: Fill = Fill::Uniform { low: -7.0, high: 5.0 };
/// Values where `exp(|x|)` is infinite in f32, but which are small enough for checking derivatives by f64
/// differences.
const TAILS: Fill = Fill::Exact([-200.0, -104.0, 89.0, 200.0]);
/// Values on every piece of an activation with kinks at -3 and 3, near the kinks.
const PIECEWISE: Fill = Fill::Exact([-200.0, -3.25, 2.75, 200.0]);
/// Values on the middle piece.
const MIDDLE: Fill = Fill::Uniform { low: -2.0, high: 2.0 };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for activation in Activation::examples() {
        let has_kinks = activation.spec().has_zero_gradient_interval;
        for shape in shapes {
            // A single element where the derivative is 0 would have no gradient to check.
            let single = shape.iter().product::<usize>() == 1;
            let numbers = if single && has_kinks { MIDDLE } else { CURVED };
            cases.extend(kernels(activation, shape, DTypeClass::Compute, numbers, ""));
            if shape.len() == 2 {
                let suffix = " of the master precision";
                cases.extend(kernels(activation, shape, DTypeClass::Master, numbers, suffix));
            }
        }
        let far = if has_kinks { PIECEWISE } else { TAILS };
        cases.extend(kernels(activation, &[1, 4], DTypeClass::Compute, far, " far out"));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    let kernels = |activation| kernels(activation, &[16, 256, 56, 56], DTypeClass::Compute, CURVED, "");
    Activation::all().into_iter().flat_map(kernels).collect()
}

/// Both kernels, with `x` of type class `class`.
fn kernels(
    activation: Activation,
    shape: &[usize],
    class: DTypeClass,
    numbers: Fill,
    suffix: &str,
) -> [Case; 2] {
    let (name, attributes) = (activation.name(), activation.attributes());
    let space = if attributes.is_empty() { "" } else { " " };
    let rest = format!("{}{suffix}{space}{attributes}", extents(shape));
    let forward = Case::new(format!("{name} {rest}"), ActivationForward(activation))
        .filled("x", shape, class, numbers)
        .output("y", shape, DTypeClass::Compute);
    let backward = Case::new(format!("{name}_backward {rest}"), ActivationBackward(activation))
        .filled("x", shape, class, numbers)
        .input("dy", shape, DTypeClass::Compute)
        .output("dx", shape, DTypeClass::Compute);
    [forward, backward]
}
