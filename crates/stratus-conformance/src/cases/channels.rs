//! Reordered and selected channels, in whole blocks of 16 and across their boundaries.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{ScatterChannels, SelectChannels};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    // Shapes, selected channels and interleaved groups.
    let selections = [
        ([2, 8, 12, 12], 0, 8, 2),
        ([1, 6, 1, 1], 0, 6, 3),
        ([3, 48, 5, 7], 0, 48, 2),
        ([2, 36, 4, 4], 0, 36, 4),
        ([2, 48, 3, 5], 16, 16, 1),
        ([2, 48, 3, 5], 24, 24, 1),
        ([3, 37, 4, 2], 5, 20, 5),
        ([1, 33, 2, 2], 32, 1, 1),
    ];
    selections.iter().flat_map(kernels).collect()
}

fn benchmarks() -> Vec<Case> {
    // ShuffleNetV2's second stage.
    [([32, 116, 28, 28], 0, 116, 2), ([32, 116, 28, 28], 58, 58, 1)].iter().flat_map(kernels).collect()
}

fn kernels(&([n, c, h, w], first, taken, groups): &([usize; 4], usize, usize, usize)) -> [Case; 2] {
    let (all, some) = ([n, c, h, w], [n, taken, h, w]);
    let name = |kernel: &str| format!("{kernel} {taken} of {} from {first} in {groups}", extents(&all));
    let forward = Case::new(name("select_channels"), SelectChannels { first, groups })
        .input("x", &all, DTypeClass::Compute)
        .output("y", &some, DTypeClass::Compute);
    let backward = Case::new(name("place_channels"), ScatterChannels { first, groups })
        .input("dy", &some, DTypeClass::Compute)
        .output("dx", &all, DTypeClass::Compute);
    [forward, backward]
}
