//! Concatenation of the weights of several convolutions.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{JoinWeights, SplitGradient};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The names of the weights.
const WEIGHTS: [&str; 4] = ["weight0", "weight1", "weight2", "weight3"];

fn tests() -> Vec<Case> {
    let lists: [(&[usize], [usize; 3]); 5] = [
        (&[16, 32], [48, 1, 1]),
        (&[64, 96, 16], [192, 1, 1]),
        (&[5, 3, 17], [7, 1, 1]),
        (&[1], [1, 1, 1]),
        (&[16, 48, 16, 9], [3, 3, 2]),
    ];
    lists.into_iter().flat_map(|(filters, filter)| kernels(filters, filter)).collect()
}

fn benchmarks() -> Vec<Case> {
    // The last inception module of GoogLeNet.
    kernels(&[384, 192, 48], [832, 1, 1])
}

/// Concatenation, and extraction of each gradient.
fn kernels(filters: &[usize], [channels, height, width]: [usize; 3]) -> Vec<Case> {
    let shape = |filters: usize| [filters, channels, height, width];
    let all = shape(filters.iter().sum());
    let list = extents(filters);
    let mut join = Case::new(format!("join_weights {} of {list}", extents(&all)), JoinWeights);
    let mut cases = Vec::new();
    let mut first = 0;
    for (name, &count) in WEIGHTS.iter().zip(filters) {
        join = join.parameter(name, &shape(count), DTypeClass::Compute);
        cases.push(
            Case::new(
                format!("split_gradient {} of {list} from {first}", extents(&shape(count))),
                SplitGradient { first },
            )
            .input("joined", &all, DTypeClass::Master)
            .output("own", &shape(count), DTypeClass::Master),
        );
        first += count;
    }
    cases.push(join.output("joined", &all, DTypeClass::Compute));
    cases
}
