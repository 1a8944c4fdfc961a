//! Memory placement: a pure function from lifetimes to offsets.
//!
//! Greedy by size (Pisarchyk, Lee: "Efficient memory management for deep neural net inference", 2020): the
//! largest block first, each at the lowest offset that overlaps no block alive at the same time.

use crate::EngineError;
use stratus_base::ALIGNMENT;

/// A block of bytes and the steps during which it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Size in bytes.
    pub bytes: usize,
    /// The first step that touches it.
    pub first: usize,
    /// The last step that touches it.
    pub last: usize,
}

impl Block {
    fn alive_with(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Rounds up to the alignment of values.
#[must_use]
pub fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Places every block; returns the offsets and the total bytes.
#[must_use]
pub fn place(blocks: &[Block]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), i));
    let mut offsets = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut total = 0;
    for i in order {
        let mut offset = 0;
        // `placed` is sorted by offset: walk the gaps between the neighbours in time.
        for &other in placed.iter().filter(|&&other| blocks[other].alive_with(&blocks[i])) {
            if offset + aligned(blocks[i].bytes) <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + aligned(blocks[other].bytes));
        }
        offsets[i] = offset;
        total = total.max(offset + aligned(blocks[i].bytes));
        let position = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(position, i);
    }
    (offsets, total)
}

/// Checks that no two blocks alive at the same time overlap and that all end within `total`.
///
/// # Errors
/// The first violation.
pub fn verify(blocks: &[Block], offsets: &[usize], total: usize) -> Result<(), EngineError> {
    let end = |i: usize| offsets[i] + blocks[i].bytes;
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&i| blocks[i].bytes > 0).collect();
    order.sort_by_key(|&i| offsets[i]);
    for (rank, &i) in order.iter().enumerate() {
        if end(i) > total || !offsets[i].is_multiple_of(ALIGNMENT) {
            return Err(EngineError::Placement(format!(
                "block {i} at {} is misplaced in {total} bytes",
                offsets[i]
            )));
        }
        for &j in order[rank + 1..].iter().take_while(|&&j| offsets[j] < end(i)) {
            if blocks[i].alive_with(&blocks[j]) {
                return Err(EngineError::Placement(format!(
                    "blocks {i} and {j} overlap and are alive at the same step"
                )));
            }
        }
    }
    Ok(())
}

/// Bytes that are alive at each step.
#[must_use]
pub fn alive(blocks: &[Block]) -> Vec<usize> {
    let steps = blocks.iter().map(|block| block.last + 1).max().unwrap_or(0);
    let (mut begin, mut end) = (vec![0; steps + 1], vec![0; steps + 1]);
    for block in blocks {
        begin[block.first] += aligned(block.bytes);
        end[block.last + 1] += aligned(block.bytes);
    }
    let mut now = 0;
    let each = begin.iter().zip(end).take(steps).map(|(begin, end)| {
        now = now + begin - end;
        now
    });
    each.collect()
}

/// The peak of bytes alive at one step: a lower bound of every placement.
#[must_use]
pub fn lower_bound(blocks: &[Block]) -> usize {
    alive(blocks).into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_of_steps_needs_two_buffers() {
        let chain: Vec<Block> = (0..10).map(|i| Block { bytes: 1024, first: i, last: i + 1 }).collect();
        let (offsets, total) = place(&chain);
        verify(&chain, &offsets, total).unwrap();
        assert_eq!(total, 2048);
    }

    #[test]
    fn verify_detects_an_overlap() {
        let blocks = [Block { bytes: 128, first: 0, last: 2 }, Block { bytes: 128, first: 2, last: 3 }];
        assert!(verify(&blocks, &[0, 64], 256).is_err());
        assert!(verify(&blocks, &[0, 128], 192).is_err());
        assert!(verify(&blocks, &[0, 128], 256).is_ok());
    }

    proptest! {
        #[test]
        fn blocks_alive_at_the_same_time_never_overlap(
            seeds in prop::collection::vec((1usize..5000, 0usize..40, 0usize..12), 1..80),
        ) {
            let block = |&(bytes, first, length)| Block { bytes, first, last: first + length };
            let blocks: Vec<Block> = seeds.iter().map(block).collect();
            let (offsets, total) = place(&blocks);
            verify(&blocks, &offsets, total).unwrap();
            prop_assert!(total >= lower_bound(&blocks));
            prop_assert!(total <= blocks.iter().map(|b| aligned(b.bytes)).sum());
        }
    }
}
