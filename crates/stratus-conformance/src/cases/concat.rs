//! Concatenation of feature maps: boundaries aligned and not aligned to blocks of 16 channels, and up to the
//! maximum number of inputs.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{ConcatBackward, ConcatForward};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The names of the inputs, and of their gradients.
const INPUTS: [&str; 14] =
    ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13"];

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for (channels, image) in [
        (&[16, 32][..], [2, 4, 6]),
        (&[16, 5], [2, 5, 7]),
        (&[5, 17, 33], [3, 3, 5]),
        (&[3, 4, 1], [1, 1, 1]),
        (&[24, 8, 32, 16], [2, 3, 3]),
        (&[1, 1], [1, 2, 1]),
        (&[48, 20], [1, 7, 7]),
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [2, 2, 3]),
    ] {
        cases.extend(kernels(channels, image));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    // An inception module of GoogLeNet, and one whose boundaries are within blocks.
    let mut cases = kernels(&[64, 128, 32, 32], [16, 28, 28]);
    cases.extend(kernels(&[24, 40, 20], [16, 28, 28]));
    cases
}

/// Forward, and backward for each input.
fn kernels(channels: &[usize], [batch, height, width]: [usize; 3]) -> Vec<Case> {
    let shape = |channels: usize| [batch, channels, height, width];
    let y = shape(channels.iter().sum());
    let list = extents(channels);
    let mut forward = Case::new(format!("concat {} of {list}", extents(&y)), ConcatForward);
    let mut cases = Vec::new();
    let mut first = 0;
    for (name, &count) in INPUTS.iter().zip(channels) {
        forward = forward.input(name, &shape(count), DTypeClass::Compute);
        cases.push(
            Case::new(
                format!("concat_backward {} of {list} from {first}", extents(&shape(count))),
                ConcatBackward { first },
            )
            .input("dy", &y, DTypeClass::Compute)
            .output("dx", &shape(count), DTypeClass::Compute),
        );
        first += count;
    }
    cases.push(forward.output("y", &y, DTypeClass::Compute));
    cases
}
