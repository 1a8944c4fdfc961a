//! Group normalisation: one group and as many as channels; groups that do not fill a vector or that cross
//! blocks of 16 channels; a single element, which has no variance; many pixels; and maps far from zero, whose
//! variance must not be computed as a difference of squares.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{GroupNormBackward, GroupNormForward, GroupNormGradients};
use stratus_graph::ops::GroupNorm;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const UNIFORM: Fill = Fill::Uniform { low: -1.0, high: 1.5 };

fn tests() -> Vec<Case> {
    let shapes = [
        ([2, 16, 5, 7], 4),
        ([1, 1, 3, 3], 1),
        ([3, 17, 4, 5], 17),
        ([3, 17, 4, 5], 1),
        ([1, 96, 6, 3], 8),
        ([2, 40, 2, 2], 5),
        ([1, 520, 1, 3], 20),
        ([5, 32, 13, 11], 32),
        ([1, 4, 65, 66], 2),
    ];
    let norm = |shape: [usize; 4], groups| GroupNorm::new(shape[1], groups);
    let mut cases: Vec<Case> =
        shapes.iter().flat_map(|&(shape, groups)| kernels(&shape, norm(shape, groups), UNIFORM)).collect();
    // The norm of one or two elements hardly depends on them, except for a large epsilon.
    for groups in [3, 6] {
        let shape = [2, 6, 1, 1];
        cases.extend(kernels(&shape, GroupNorm { epsilon: 0.5, ..norm(shape, groups) }, UNIFORM));
    }
    let shape = [2, 24, 4, 3];
    let far = Fill::Uniform { low: 10.0, high: 12.0 };
    cases.extend(kernels(&shape, GroupNorm { epsilon: 0.5, ..norm(shape, 3) }, UNIFORM));
    cases.extend(kernels(&shape, GroupNorm { epsilon: 1e-6, ..norm(shape, 3) }, far));
    cases.extend(kernels(&shape, GroupNorm { affine: false, ..norm(shape, 6) }, UNIFORM));
    cases
}

fn benchmarks() -> Vec<Case> {
    // ResNet-50 with group norm of 32 groups: the first and the third stage.
    [[32, 256, 56, 56], [32, 1024, 14, 14]]
        .iter()
        .flat_map(|shape| kernels(shape, GroupNorm::new(shape[1], 32), UNIFORM))
        .collect()
}

fn kernels(shape: &[usize; 4], norm: GroupNorm, fill: Fill) -> Vec<Case> {
    let channels = [shape[1]];
    let far = if fill == UNIFORM { "" } else { " far from zero" };
    let plain = if norm.affine { "" } else { " not affine" };
    let name = |kernel: &str| {
        format!("{kernel} {} groups {} epsilon {}{plain}{far}", extents(shape), norm.groups, norm.epsilon)
    };
    let mut forward = Case::new(name("group_norm"), GroupNormForward { norm }).filled(
        "x",
        shape,
        DTypeClass::Compute,
        fill,
    );
    let mut backward = Case::new(name("group_norm_backward"), GroupNormBackward { norm })
        .filled("x", shape, DTypeClass::Compute, fill)
        .input("dy", shape, DTypeClass::Compute);
    if norm.affine {
        forward = forward.parameter("weight", &channels, DTypeClass::Master);
        forward = forward.parameter("bias", &channels, DTypeClass::Master);
        backward = backward.parameter("weight", &channels, DTypeClass::Master);
    }
    let forward = forward.output("y", shape, DTypeClass::Compute);
    // The norm of a single element is 0.
    let single = norm.group_channels() * shape[2] * shape[3] == 1;
    let mut cases = vec![if single { forward.without_gradients() } else { forward }];
    cases.push(backward.output("dx", shape, DTypeClass::Compute));
    if norm.affine {
        let gradients = Case::new(name("group_norm_gradients"), GroupNormGradients { norm })
            .filled("x", shape, DTypeClass::Compute, fill)
            .input("dy", shape, DTypeClass::Compute)
            .output("dweight", &channels, DTypeClass::Master)
            .output("dbias", &channels, DTypeClass::Master);
        cases.push(gradients);
    }
    cases
}
