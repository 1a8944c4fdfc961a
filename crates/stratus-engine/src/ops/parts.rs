//! Sums over the parts of a batch: the same bits on any number of workers.
//!
//! The parts of a batch are the leaves of a binary tree, in their order. A sum over the batch is made along
//! it: `((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))`. A worker has a block of parts, a subtree of its own, and
//! makes that subtree's sum; the upper levels are added between workers
//! ([`Exchange`](crate::exchange::Exchange)). Which worker makes a sum changes no bit, as `a + b` is `b + a`.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// `part -> (sum, levels…)`: the sum over this worker's parts, which come one after the other. A level holds
/// the sum of the last 1, 2, 4, … parts that has no right neighbour yet; there are log₂(`parts`) - 1 of them,
/// the uppermost lies in `sum`. All have the shape of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddParts {
    /// How many parts a worker has: a power of two, at least 2.
    pub parts: usize,
}

/// What [`AddParts`] does with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How many levels, from the first on, are added to the part.
    pub levels: usize,
    /// Whether `sum` is added then.
    pub adds_sum: bool,
    /// The level that the result is written to; `None`: to `sum`.
    pub to: Option<usize>,
}

impl AddParts {
    /// How many levels there are beside `sum`.
    #[must_use]
    pub fn levels(&self) -> usize {
        (self.parts.max(2).ilog2() - 1) as usize
    }

    /// What is done with the part of a number, counted within the batch.
    #[must_use]
    pub fn turn(&self, part: usize) -> Turn {
        let levels = self.levels();
        // As many of the last parts are complete subtrees as the number has ones at its end.
        let complete = (part % self.parts.max(1)).trailing_ones() as usize;
        Turn {
            levels: complete.min(levels),
            adds_sum: complete > levels,
            to: (complete < levels).then_some(complete),
        }
    }
}

impl KernelSpec for AddParts {
    fn name(&self) -> &'static str {
        "add_parts"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        if self.parts < 2 || !self.parts.is_power_of_two() {
            return Err(format!("it adds {} parts; it takes a power of two, at least 2", self.parts));
        }
        expect_counts(counts, &[[1, 0, 1 + self.levels()]])?;
        operands[1..].iter().try_for_each(|other| {
            expect_same_shape(operands[0], other)?;
            match other.dtype == operands[0].dtype {
                true => Ok(()),
                false => Err(format!("parts are {}, `{}` is {}", operands[0].dtype, other.name, other.dtype)),
            }
        })
    }

    fn tiling(&self) -> Tiling {
        Tiling::Continues
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}

/// A bucket's half of an exchange with the other workers:
///
/// ```text
/// values… ->           begins it; it goes on beside the steps that follow
/// updates (values…)    waits for it: each value is then the sum over all workers
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExchangeSums {
    /// Which bucket.
    pub bucket: usize,
    /// Whether it waits.
    pub waits: bool,
}

/// The most values of a bucket: a step has no more operands.
pub const BUCKET_VALUES: usize = crate::backend::MAX_OPERANDS - 1;

/// Checks the values of a bucket: numbers of one type that can be added.
fn expect_bucket(values: &[&Value]) -> Result<(), String> {
    if values.len() > BUCKET_VALUES {
        return Err(format!("it exchanges {} values, at most {BUCKET_VALUES} are possible", values.len()));
    }
    match values.iter().find(|value| value.dtype != values[0].dtype) {
        Some(other) => {
            Err(format!("`{}` is {}, `{}` {}", values[0].name, values[0].dtype, other.name, other.dtype))
        }
        None if matches!(values[0].dtype, DType::F32 | DType::F64) => Ok(()),
        None => Err(format!("`{}` is {}; f32 and f64 are exchanged", values[0].name, values[0].dtype)),
    }
}

impl KernelSpec for ExchangeSums {
    fn name(&self) -> &'static str {
        if self.waits { "exchange_wait" } else { "exchange_start" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let count = operands.len().max(1);
        expect_counts(counts, &[if self.waits { [0, count, 0] } else { [count, 0, 0] }])?;
        expect_bucket(operands)
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let added = operands.iter().map(|value| value.elements() as u64).sum();
        if self.waits { added } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is added where, as a text: each level holds the expression of its sum.
    fn expression(parts: usize) -> String {
        let add = AddParts { parts };
        let mut levels = vec![String::new(); add.levels()];
        let mut sum = String::new();
        // Parts are counted within the batch: those of the third worker here.
        for part in 0..parts {
            let turn = add.turn(2 * parts + part);
            let mut made = part.to_string();
            for level in &levels[..turn.levels] {
                made = format!("({level}+{made})");
            }
            if turn.adds_sum {
                made = format!("({sum}+{made})");
            }
            match turn.to {
                Some(level) => levels[level] = made,
                None => sum = made,
            }
        }
        sum
    }

    #[test]
    fn parts_are_added_along_a_binary_tree() {
        assert_eq!(expression(2), "(0+1)");
        assert_eq!(expression(4), "((0+1)+(2+3))");
        assert_eq!(expression(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
        let sixteen = expression(16);
        assert!(sixteen.starts_with("((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)"), "{sixteen}");
    }
}
