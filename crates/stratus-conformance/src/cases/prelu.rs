//! ReLU with trained slopes, one for all channels and one for each: odd channels, one pixel, matrices. After
//! a linear layer `x` has the master precision.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{PreluBackward, PreluForward, PreluGradient};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 9] = [
        &[2, 8, 28, 28],
        &[1, 1, 1, 1],
        &[3, 17, 5, 7],
        &[2, 33, 4, 4],
        &[1, 5, 1, 1],
        &[2, 272, 3, 3],
        &[5, 96, 19, 17],
        &[4, 10],
        &[3, 64],
    ];
    let mut cases = Vec::new();
    for shape in shapes {
        let mut channels = vec![1, shape[1]];
        channels.dedup();
        for slopes in channels {
            cases.extend(kernels(shape, slopes, DTypeClass::Compute));
            if shape.len() == 2 {
                cases.extend(kernels(shape, slopes, DTypeClass::Master));
            }
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    [1, 256].iter().flat_map(|&slopes| kernels(&[16, 256, 56, 56], slopes, DTypeClass::Compute)).collect()
}

/// The three kernels, with `x` of type class `class`.
fn kernels(shape: &[usize], slopes: usize, class: DTypeClass) -> [Case; 3] {
    let master = if class == DTypeClass::Master { " of the master precision" } else { "" };
    // Positive elements do not contribute to the gradient, so a slope of one element needs a negative one.
    let single = shape.iter().product::<usize>() == shape[1];
    let x = Fill::Uniform { low: -1.0, high: if single { -0.1 } else { 1.0 } };
    let name = |kernel: &str| format!("{kernel} {} slopes {slopes}{master}", extents(shape));
    let forward = Case::new(name("prelu"), PreluForward)
        .filled("x", shape, class, x)
        .parameter("weight", &[slopes], DTypeClass::Master)
        .output("y", shape, DTypeClass::Compute);
    let backward = Case::new(name("prelu_backward"), PreluBackward)
        .filled("x", shape, class, x)
        .input("dy", shape, DTypeClass::Compute)
        .parameter("weight", &[slopes], DTypeClass::Master)
        .output("dx", shape, DTypeClass::Compute);
    let gradient = Case::new(name("prelu_gradient"), PreluGradient)
        .filled("x", shape, class, x)
        .input("dy", shape, DTypeClass::Compute)
        .output("gradient", &[slopes], DTypeClass::Master);
    [forward, backward, gradient]
}
