//! Sums over the parts of a batch, bitwise equal for any number of workers.
//!
//! The parts of a batch are the leaves of a binary tree, in order. A sum over the batch follows the tree:
//! `((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))`. Each worker has a block of parts, which is a subtree, and
//! computes the subtree's sum; the upper levels are added between workers
//! ([`Communicator`](crate::exchange::Communicator)). Bits do not depend on which worker adds, because `a +
//! b` equals `b + a`.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::{DType, Value};
use serde::{Deserialize, Serialize};

/// `part -> (sum, levels…)`: the sum over this worker's parts, which run in sequence. A level holds the sum
/// of the last 1, 2, 4, … parts that has no right neighbour yet. There are log₂(`parts`) - 1 levels; the top
/// level is stored in `sum`. All have the shape of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TreeSum {
    /// Parts per worker: a power of two, at least 2.
    pub parts: usize,
}

/// The additions of [`TreeSum`] for one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeStep {
    /// The number of levels, starting with the first, that are added to the part.
    pub levels: usize,
    /// True if `sum` is added after the levels.
    pub adds_sum: bool,
    /// The level that receives the result; `None` for `sum`.
    pub to: Option<usize>,
}

impl TreeSum {
    /// The number of levels besides `sum`.
    #[must_use]
    pub fn levels(&self) -> usize {
        (self.parts.max(2).ilog2() - 1) as usize
    }

    /// The additions for the part at index `part` of the batch.
    #[must_use]
    pub fn step_for(&self, part: usize) -> TreeStep {
        let levels = self.levels();
        // The number of complete subtrees that end here is the number of trailing ones of the index.
        let complete = (part % self.parts.max(1)).trailing_ones() as usize;
        TreeStep {
            levels: complete.min(levels),
            adds_sum: complete > levels,
            to: (complete < levels).then_some(complete),
        }
    }
}

impl KernelSpec for TreeSum {
    fn name(&self) -> &'static str {
        "add_parts"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        if self.parts < 2 || !self.parts.is_power_of_two() {
            return Err(format!(
                "the number of parts must be a power of two and at least 2, got {}",
                self.parts
            ));
        }
        expect_counts(counts, &[[1, 0, 1 + self.levels()]])?;
        operands[1..].iter().try_for_each(|other| {
            expect_same_shape(operands[0], other)?;
            match other.dtype == operands[0].dtype {
                true => Ok(()),
                false => {
                    Err(format!("the part is {}, but `{}` is {}", operands[0].dtype, other.name, other.dtype))
                }
            }
        })
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}

/// How a bucket is summed over all workers. The default is reproducible: each value is sent in its own type,
/// and sums follow the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct SumMethod {
    /// True if f32 values are sent as bf16, rounded to nearest even, and are added in f32. Sums then depend
    /// on the number of workers.
    pub as_bf16: bool,
    /// True if a library may add the values in an order of its own. Sums then depend on the devices, how they
    /// are connected, and their number. Only devices in a group do so; else sums follow the tree.
    pub any_order: bool,
}

impl SumMethod {
    /// Returns whether sums do not depend on the number of workers.
    #[must_use]
    pub fn is_reproducible(&self) -> bool {
        *self == Self::default()
    }

    /// The number of bytes that values of `bytes` bytes have when they are sent.
    #[must_use]
    pub fn sent_bytes(&self, bytes: u64) -> u64 {
        if self.as_bf16 { bytes / 2 } else { bytes }
    }
}

/// One step of the all-reduce of a bucket over all workers:
///
/// ```text
/// values… ->           starts it; it runs in the background
/// updates (values…)    waits for it: each value becomes the sum over all workers
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AllReduceBucket {
    /// The index of the bucket.
    pub bucket: usize,
    /// True if this step waits for the result; otherwise it starts the all-reduce.
    pub waits: bool,
    /// How the values are summed.
    #[serde(default, skip_serializing_if = "SumMethod::is_reproducible")]
    pub method: SumMethod,
}

/// The maximum number of values of a bucket, limited by the operands of a step.
pub const MAX_BUCKET_VALUES: usize = crate::program::MAX_OPERANDS - 1;

/// Checks that the values of a bucket have one summable type.
fn expect_bucket(values: &[&Value]) -> Result<(), String> {
    if values.len() > MAX_BUCKET_VALUES {
        return Err(format!("a bucket has at most {MAX_BUCKET_VALUES} values, got {}", values.len()));
    }
    match values.iter().find(|value| value.dtype != values[0].dtype) {
        Some(other) => {
            Err(format!("`{}` is {}, `{}` {}", values[0].name, values[0].dtype, other.name, other.dtype))
        }
        None if matches!(values[0].dtype, DType::F32 | DType::F64) => Ok(()),
        None => Err(format!("`{}` is {}; buckets must be f32 or f64", values[0].name, values[0].dtype)),
    }
}

impl KernelSpec for AllReduceBucket {
    fn name(&self) -> &'static str {
        if self.waits { "exchange_wait" } else { "exchange_start" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let count = operands.len().max(1);
        expect_counts(counts, &[if self.waits { [0, count, 0] } else { [count, 0, 0] }])?;
        if self.method.as_bf16 && operands.iter().any(|value| value.dtype != DType::F32) {
            return Err("only f32 values can be sent as bf16".to_owned());
        }
        expect_bucket(operands)
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let added = operands.iter().map(|value| value.elements() as u64).sum();
        if self.waits { added } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum as an expression; each level holds the expression of its sum.
    fn expression(parts: usize) -> String {
        let add = TreeSum { parts };
        let mut levels = vec![String::new(); add.levels()];
        let mut sum = String::new();
        // Indices count within the batch: these are the parts of the third worker.
        for part in 0..parts {
            let turn = add.step_for(2 * parts + part);
            let mut result = part.to_string();
            for level in &levels[..turn.levels] {
                result = format!("({level}+{result})");
            }
            if turn.adds_sum {
                result = format!("({sum}+{result})");
            }
            match turn.to {
                Some(level) => levels[level] = result,
                None => sum = result,
            }
        }
        sum
    }

    /// Plans with reproducible sums are stored as before there was another method, and read again.
    #[test]
    fn only_other_methods_are_stored() {
        for as_bf16 in [false, true] {
            let method = SumMethod { as_bf16, any_order: false };
            let half = AllReduceBucket { bucket: 3, waits: true, method };
            let text = serde_json::to_string(&half).unwrap();
            assert_eq!(text.contains("method"), as_bf16, "{text}");
            assert_eq!(serde_json::from_str::<AllReduceBucket>(&text).unwrap(), half);
        }
    }

    #[test]
    fn sums_follow_a_binary_tree() {
        assert_eq!(expression(2), "(0+1)");
        assert_eq!(expression(4), "((0+1)+(2+3))");
        assert_eq!(expression(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
        let sixteen = expression(16);
        assert!(sixteen.starts_with("((((0+1)+(2+3))+((4+5)+(6+7)))+(((8+9)"), "{sixteen}");
    }
}
