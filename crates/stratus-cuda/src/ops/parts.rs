//! Sums over the parts of a batch, and the places of the communication between workers.

use super::convert::common_element_count;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long, vector};
use crate::processor::{Argument, Call, Implementation, Source};
use stratus_engine::backend::Operands;
use stratus_engine::exchange::NOT_CONNECTED_ERROR;
use stratus_engine::ops::{AllReduceBucket, KernelSpec, StageTransfer, TreeSum};

/// The maximum number of levels that the kernel supports.
const MAX_TREE_LEVELS: usize = 6;

impl GpuOp for TreeSum {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (count, dtype, levels) = (common_element_count(operands)?, operands[0].dtype(), self.levels());
        if levels > MAX_TREE_LEVELS {
            return Err(format!(
                "at most {} batch parts are supported, got {}",
                2 << MAX_TREE_LEVELS,
                self.parts
            ));
        }
        let vector = vector(&[dtype], &[count]);
        let source = Source::new("elementwise", dtype, vector);
        let level = |level| if level < levels { Argument::Operand(2 + level) } else { Argument::Null };
        let arguments = [Argument::Operand(0), Argument::Operand(1)]
            .into_iter()
            .chain((0..MAX_TREE_LEVELS).map(level))
            .chain([long(count), Argument::MicroBatch(self.parts), Argument::Int(levels as i32)])
            .collect();
        let launch = builder.grid_stride(&source, "add_parts", count / vector, arguments)?;
        Ok(Implementation::native("add_parts", vec![launch], 0))
    }
}

/// A communication step. [`Device::exchange_kernel`](stratus_engine::Device::exchange_kernel) replaces it
/// when the session is connected.
struct NotConnected;

impl Call for NotConnected {
    fn enqueue(&mut self, _operands: &Operands<'_>, _scratch: usize) -> Result<(), String> {
        Err(NOT_CONNECTED_ERROR.to_owned())
    }
}

fn not_connected(name: &str) -> Implementation {
    Implementation { name: format!("stratus:{name}"), calls: vec![Box::new(NotConnected)], scratch_bytes: 0 }
}

impl GpuOp for AllReduceBucket {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Ok(not_connected(self.name()))
    }
}

impl GpuOp for StageTransfer {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], _builder: &KernelBuilder<'_>) -> BuildResult {
        Ok(not_connected(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::tests::{address, operand, run};
    use stratus_engine::backend::Tile;
    use stratus_engine::{DType, Layout};

    /// The same bits as the tree in its definition.
    #[test]
    fn parts_are_summed_along_the_tree() {
        for (parts, count) in [(2, 7), (4, 12), (8, 13)] {
            let add = TreeSum { parts };
            let operands = vec![operand(DType::F32, &[count], Layout::plain(&[count])); 2 + add.levels()];
            let shares: Vec<Vec<f32>> = (0..parts)
                .map(|part| (0..count).map(|i| 0.1 + (7 * part + i) as f32 / 3.0).collect())
                .collect();
            let mut memory = vec![vec![f32::NAN; count]; 1 + add.levels()];
            for (part, share) in shares.iter().enumerate() {
                let mut share = share.clone();
                let mut addresses = vec![address(&mut share)];
                addresses.extend(memory.iter_mut().map(|values| address(values)));
                let tile = Tile {
                    micro_batch: parts + part,
                    micro_batches: 2 * parts,
                    separate_sums: true,
                    ..Tile::WHOLE
                };
                run(&add, &operands, [1, 0, 1 + add.levels()], &addresses, tile);
            }
            let mut tree = shares;
            while tree.len() > 1 {
                let pair = |pair: &[Vec<f32>]| pair[0].iter().zip(&pair[1]).map(|(a, b)| a + b).collect();
                tree = tree.chunks(2).map(pair).collect();
            }
            assert_eq!(memory[0], tree[0], "{} of {parts}", add.name());
        }
    }
}
