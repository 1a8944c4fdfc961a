//! Memory layouts of values.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A strided layout, optionally with inner blocks. The offset of element `(i0, i1, …)` is found by splitting
/// off the inner blocks (outermost first) and adding the strides of the remaining indices. Blocked dimensions
/// are padded to whole blocks; padding holds zeros.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// A readable name: `plain`, `nhwc`, or oneDNN's letters such as `aBcd16b`.
    pub tag: String,
    /// The extents that indices run over. Their product is that of the value's shape; a matrix may be viewed
    /// as four-dimensional.
    pub shape: Vec<usize>,
    /// Extents, padded to whole blocks.
    pub padded: Vec<usize>,
    /// The stride of each outer index, in elements.
    pub strides: Vec<usize>,
    /// Inner blocks `(dimension, size)`, outermost first.
    pub blocks: Vec<(usize, usize)>,
}

impl Layout {
    /// Row-major: the last dimension is contiguous (NCHW, OIHW).
    #[must_use]
    pub fn plain(shape: &[usize]) -> Self {
        let order: Vec<usize> = (0..shape.len()).collect();
        Self::ordered("plain", shape, &order)
    }

    /// Channels last (NHWC) for four dimensions; plain for others.
    #[must_use]
    pub fn channels_last(shape: &[usize]) -> Self {
        if shape.len() == 4 { Self::ordered("nhwc", shape, &[0, 2, 3, 1]) } else { Self::plain(shape) }
    }

    /// Dense, with the dimensions nested in `order`, outermost first.
    fn ordered(tag: &str, shape: &[usize], order: &[usize]) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1;
        for &dimension in order.iter().rev() {
            strides[dimension] = stride;
            stride *= shape[dimension];
        }
        Self {
            tag: tag.to_owned(),
            shape: shape.to_vec(),
            padded: shape.to_vec(),
            strides,
            blocks: Vec::new(),
        }
    }

    /// Elements of memory, padding included.
    #[must_use]
    pub fn elements(&self) -> usize {
        if self.padded.contains(&0) {
            return 0;
        }
        let mut outer = self.padded.clone();
        for &(dimension, size) in &self.blocks {
            outer[dimension] /= size;
        }
        let block: usize = self.blocks.iter().map(|&(_, size)| size).product();
        block + outer.iter().zip(&self.strides).map(|(extent, stride)| (extent - 1) * stride).sum::<usize>()
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self, dtype: DType) -> usize {
        self.elements() * dtype.bytes()
    }

    /// The offset of the element at `index`, in elements.
    #[must_use]
    pub fn offset(&self, index: &[usize]) -> usize {
        let mut rest = [0usize; 8];
        rest[..index.len()].copy_from_slice(index);
        let (mut offset, mut stride) = (0, 1);
        for &(dimension, size) in self.blocks.iter().rev() {
            offset += rest[dimension] % size * stride;
            rest[dimension] /= size;
            stride *= size;
        }
        offset + rest.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<usize>()
    }

    /// Returns whether elements are in row-major order without gaps. This holds for every shape of the same
    /// size.
    #[must_use]
    pub fn is_row_major(&self) -> bool {
        let mut stride = 1;
        self.blocks.is_empty()
            && self.padded == self.shape
            && self.shape.iter().zip(&self.strides).rev().all(|(&extent, &actual_stride)| {
                let fits = extent == 1 || actual_stride == stride;
                stride *= extent;
                fits
            })
    }

    /// Returns whether elements are at the same offsets as in `other`, whatever the tags: dimensions of
    /// extent 1 may have any stride, and in row-major order a matrix may be viewed as four-dimensional.
    #[must_use]
    pub fn same_bytes(&self, other: &Self) -> bool {
        if self.is_row_major() && other.is_row_major() {
            return self.elements() == other.elements();
        }
        self.padded == other.padded
            && self.blocks == other.blocks
            && self
                .strides
                .iter()
                .zip(&other.strides)
                .zip(&self.padded)
                .all(|((a, b), &extent)| extent == 1 || a == b)
    }

    /// Calls `visit(offset in this layout, offset in row-major order)` for every element.
    pub fn for_each(&self, shape: &[usize], visit: impl FnMut(usize, usize)) {
        debug_assert_eq!(shape.iter().product::<usize>(), self.shape.iter().product::<usize>());
        self.for_each_of(0..self.shape.iter().product(), visit);
    }

    /// [`Self::for_each`] for a range of elements in row-major order.
    pub fn for_each_of(&self, elements: Range<usize>, mut visit: impl FnMut(usize, usize)) {
        let shape = &self.shape;
        let mut index = vec![0usize; shape.len()];
        let mut rest = elements.start;
        for (index, &extent) in index.iter_mut().zip(shape).rev() {
            *index = rest % extent.max(1);
            rest /= extent.max(1);
        }
        for plain in elements {
            visit(self.offset(&index), plain);
            for dimension in (0..shape.len()).rev() {
                index[dimension] += 1;
                if index[dimension] < shape[dimension] {
                    break;
                }
                index[dimension] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_strides_and_blocks() {
        let nhwc = Layout::channels_last(&[2, 3, 4, 5]);
        assert_eq!(nhwc.strides, [60, 1, 15, 3]);
        assert_eq!(nhwc.elements(), 120);
        // Channels in blocks of 16: 2 blocks for 20 channels.
        let blocked = Layout {
            tag: "aBcd16b".to_owned(),
            shape: vec![1, 20, 2, 2],
            padded: vec![1, 32, 2, 2],
            strides: vec![128, 64, 32, 16],
            blocks: vec![(1, 16)],
        };
        assert_eq!(blocked.elements(), 128);
        assert_eq!(blocked.offset(&[0, 17, 1, 1]), 64 + 32 + 16 + 1);
        let mut seen = Vec::new();
        blocked.for_each(&[1, 20, 2, 2], |offset, _| seen.push(offset));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 80);
        let mut whole = Vec::new();
        blocked.for_each(&[1, 20, 2, 2], |offset, plain| whole.push((offset, plain)));
        for range in [0..0, 0..1, 3..50, 79..80, 0..80] {
            let mut part = Vec::new();
            blocked.for_each_of(range.clone(), |offset, plain| part.push((offset, plain)));
            assert_eq!(part, whole[range]);
        }
    }

    #[test]
    fn row_major_layouts_match_for_every_shape() {
        assert!(Layout::plain(&[8, 24]).same_bytes(&Layout::plain(&[8, 2, 3, 4])));
        assert!(!Layout::plain(&[8, 24]).same_bytes(&Layout::channels_last(&[8, 2, 3, 4])));
        assert!(!Layout::plain(&[8, 24]).same_bytes(&Layout::plain(&[8, 25])));
        assert!(Layout::channels_last(&[8, 2, 1, 1]).is_row_major());
        assert!(!Layout::channels_last(&[8, 2, 1, 2]).is_row_major());
    }

    #[test]
    fn layouts_match_whatever_the_stride_of_extent_one() {
        assert!(Layout::plain(&[8, 1, 4, 4]).same_bytes(&Layout::channels_last(&[8, 1, 4, 4])));
        assert!(!Layout::plain(&[8, 2, 4, 4]).same_bytes(&Layout::channels_last(&[8, 2, 4, 4])));
    }
}
