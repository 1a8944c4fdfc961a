//! Channels in another order, or some of them: of whole blocks of 16 and across their borders.

use super::{Case, Class, Table, extents};
use stratus_engine::ops::{PlaceChannels, SelectChannels};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    // Shapes, the channels that are taken, and groups in turn.
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
    let name = |what: &str| format!("{what} {taken} of {} from {first} in {groups}", extents(&all));
    let forward = Case::new(name("select_channels"), SelectChannels { first, groups })
        .input("x", &all, Class::Compute)
        .output("y", &some, Class::Compute);
    let backward = Case::new(name("place_channels"), PlaceChannels { first, groups })
        .input("dy", &some, Class::Compute)
        .output("dx", &all, Class::Compute);
    [forward, backward]
}
