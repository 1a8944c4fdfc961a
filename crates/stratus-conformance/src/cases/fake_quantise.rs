//! Training for int8 inference: ranges with and without negative numbers, numbers at and beyond their limits,
//! channels that do and do not fill registers.

use super::quantised::in_cpu_precisions;
use super::{Case, DTypeClass, Fill, extents};
use stratus_engine::ops::{FakeQuantise, FakeQuantiseBackward, FakeQuantiseWeights, Uint8Scale};

/// Scales, with numbers around their ranges. Backends may divide by a scale in single precision, so numbers
/// halfway between two bytes must be exact: with a power of two they are, and with the last scale no integer
/// is near the middle.
const MAPS: [(Uint8Scale, Fill); 3] = [
    (Uint8Scale { scale: 0.015_625, zero_point: 0 }, Fill::Uniform { low: -1.0, high: 5.0 }),
    (Uint8Scale { scale: 0.031_25, zero_point: 97 }, Fill::Uniform { low: -4.0, high: 6.0 }),
    (Uint8Scale { scale: 0.021, zero_point: 96 }, Fill::Integers { low: -4, high: 4 }),
];

pub(super) fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[2, 16, 5, 7], [1, 3, 9, 9], [3, 64, 40, 40], [1, 1, 1, 1]] {
        for (bytes, numbers) in MAPS {
            let name = format!("{} scale {} zero {}", extents(&shape), bytes.scale, bytes.zero_point);
            cases.push(
                in_cpu_precisions(Case::new(format!("fake_quantise {name}"), FakeQuantise { bytes }))
                    .filled("x", &shape, DTypeClass::Compute, numbers)
                    .output("y", &shape, DTypeClass::Compute),
            );
            let kernel = FakeQuantiseBackward { bytes };
            cases.push(
                in_cpu_precisions(Case::new(format!("fake_quantise_backward {name}"), kernel))
                    .filled("x", &shape, DTypeClass::Compute, numbers)
                    .input("dy", &shape, DTypeClass::Compute)
                    .output("dx", &shape, DTypeClass::Compute),
            );
        }
    }
    for shape in [[20, 3, 3, 3], [48, 16, 3, 3], [64, 1, 3, 3], [7, 130, 1, 1], [1, 1, 1, 1]] {
        for max_weight in [127, 63, 1] {
            let name = format!("fake_quantise_weights {} to {max_weight}", extents(&shape));
            cases.push(
                in_cpu_precisions(Case::new(name, FakeQuantiseWeights { max_weight }))
                    .input("weight", &shape, DTypeClass::Master)
                    .output("rounded", &shape, DTypeClass::Compute),
            );
        }
    }
    cases
}
