//! The buffers of batches: aligned, allocated once, passed back and forth between loader and consumer.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use bytes::BytesMut;
use stratus_base::{ALIGNMENT, OutOfMemory};

/// The elements of a batch, in one allocation that is aligned to [`ALIGNMENT`]. The loader splits it so that
/// several threads fill it at once, and joins it again.
pub struct BatchMemory<T> {
    bytes: BytesMut,
    element: PhantomData<T>,
}

impl<T: Pod> BatchMemory<T> {
    /// Allocates `count` zeros.
    pub(crate) fn zeroed(count: usize) -> Result<Self, OutOfMemory> {
        if count == 0 {
            return Ok(Self::default());
        }
        let size = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(ALIGNMENT - 1));
        let size = size.unwrap_or(usize::MAX);
        // `BytesMut::zeroed` aborts on failure: try the reservation first.
        let tried = Vec::<u8>::new().try_reserve_exact(size);
        tried.map_err(|_| OutOfMemory { purpose: "a batch".to_owned(), bytes: size })?;
        let mut bytes = BytesMut::zeroed(size);
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        // The first split allocates; do it here so that later splits do not.
        drop(bytes.split_to(start));
        bytes.truncate(count * size_of::<T>());
        Ok(Self { bytes, element: PhantomData })
    }

    /// The memory for `count` elements, in bytes.
    pub(crate) fn byte_size(count: usize) -> u64 {
        (count * size_of::<T>() + ALIGNMENT - 1) as u64
    }

    /// Splits off the first `count` elements, at most all.
    pub(crate) fn split_to(&mut self, count: usize) -> Self {
        let bytes = self.bytes.split_to(self.bytes.len().min(count * size_of::<T>()));
        Self { bytes, element: PhantomData }
    }

    /// Joins memory that was split off directly after this.
    pub(crate) fn unsplit(&mut self, next: Self) {
        self.bytes.unsplit(next.bytes);
    }
}

impl BatchMemory<u8> {
    /// The bytes as elements of a type whose alignment is at most [`ALIGNMENT`], without an incomplete last
    /// element.
    #[must_use]
    pub fn elements<E: Pod>(&self) -> &[E] {
        bytemuck::pod_align_to(self).1
    }

    /// Like [`elements`](Self::elements), but mutable.
    pub fn elements_mut<E: Pod>(&mut self) -> &mut [E] {
        bytemuck::pod_align_to_mut(self).1
    }
}

impl<T> Default for BatchMemory<T> {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), element: PhantomData }
    }
}

impl<T: Pod> Deref for BatchMemory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::pod_align_to(&self.bytes).1
    }
}

impl<T: Pod> DerefMut for BatchMemory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::pod_align_to_mut(&mut self.bytes).1
    }
}

impl<T: Pod> Clone for BatchMemory<T> {
    /// # Panics
    ///
    /// If there is not enough memory.
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len()).unwrap_or_else(|error| panic!("{error}"));
        copy.copy_from_slice(self);
        copy
    }
}

impl<T: Pod + PartialEq> PartialEq for BatchMemory<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for BatchMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A batch, filled by a [`Loader`](crate::Loader).
#[derive(Clone, Debug)]
pub struct BatchBuffer {
    /// `[N, C, H, W]` or `[N, H, W, C]` elements of the loader's type and layout. Rows from `samples` on are
    /// zero bytes.
    pub images: BatchMemory<u8>,
    /// Class labels, [`label_len`](crate::Loader::label_len) per sample: `[N]`, `[N, 3]` if samples are mixed
    /// (see [`mix`](crate::transform::mix)), or `[N, H, W]` with masks. For data sets with
    /// [targets](crate::Dataset::target_kind) the bits of `[N, T]` numbers: see [`targets`](Self::targets).
    ///
    /// [`IGNORED_LABEL`] marks rows from `samples` on, samples that cannot be decoded, and mask pixels
    /// without a class or outside the stored image.
    pub labels: BatchMemory<i32>,
    /// The data set index of each sample, `samples` elements.
    pub indices: Vec<u32>,
    /// Rows that hold a sample: the batch size, or fewer in the last batch of an epoch.
    pub samples: usize,
    /// The epoch, counted from 0.
    pub epoch: u32,
    /// The position of the batch in its epoch, counted from 0.
    pub index: u64,
    /// The id of the loader that owns the buffer.
    pub(crate) owner: u64,
}

/// The label of rows without a sample and of pixels without a class. Losses and metrics ignore it. Its bits
/// are those of a NaN, which marks missing targets.
pub const IGNORED_LABEL: i32 = -1;

impl BatchBuffer {
    /// A buffer of `batch_size` samples, with `image_bytes` bytes of images and `label_count` labels in all.
    pub(crate) fn new(
        batch_size: usize,
        image_bytes: usize,
        label_count: usize,
        owner: u64,
    ) -> Result<Self, OutOfMemory> {
        let (images, labels) = (BatchMemory::zeroed(image_bytes)?, BatchMemory::zeroed(label_count)?);
        let mut indices = Vec::new();
        let bytes = batch_size * size_of::<u32>();
        let reserved = indices.try_reserve_exact(batch_size);
        reserved.map_err(|_| OutOfMemory { purpose: "a batch".to_owned(), bytes })?;
        Ok(Self { images, labels, indices, samples: 0, epoch: 0, index: 0, owner })
    }

    /// The targets, `[N, T]`, of a data set with [targets](crate::Dataset::target_kind): NaN if one is
    /// missing, and in rows without a sample.
    #[must_use]
    pub fn targets(&self) -> &[f32] {
        bytemuck::cast_slice(&self.labels)
    }

    /// The memory of a buffer of this size, in bytes.
    pub(crate) fn byte_size(batch_size: usize, image_bytes: usize, label_count: usize) -> u64 {
        BatchMemory::<u8>::byte_size(image_bytes)
            + BatchMemory::<i32>::byte_size(label_count)
            + (batch_size * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsplit_restores_the_same_memory() {
        let mut labels = BatchMemory::<i32>::zeroed(100).unwrap();
        let pointer = labels.as_ptr();
        for parts in [[30, 50, 20], [1, 98, 1], [0, 100, 0], [100, 0, 0]] {
            let mut whole: Vec<BatchMemory<i32>> = parts.map(|count| labels.split_to(count)).into();
            assert!(labels.is_empty());
            for (part, number) in whole.iter_mut().zip(1..) {
                part.fill(number);
            }
            for part in whole {
                labels.unsplit(part);
            }
            let expected = parts.into_iter().zip(1..).flat_map(|(count, number)| vec![number; count]);
            assert_eq!(labels.to_vec(), expected.collect::<Vec<_>>(), "{parts:?}");
            assert_eq!(labels.as_ptr(), pointer, "{parts:?}");
        }
    }

    #[test]
    fn memory_and_its_clones_are_aligned() {
        for count in [0, 1, 3, 64, 1000, 1 << 20] {
            let mut bytes = BatchMemory::<u8>::zeroed(count).unwrap();
            bytes.fill(7);
            for bytes in [&bytes, &bytes.clone()] {
                assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
                assert_eq!((bytes.len(), bytes.elements::<f32>().len()), (count, count / 4));
                assert!(bytes.iter().all(|&byte| byte == 7));
            }
        }
        assert!(BatchMemory::<i32>::zeroed(usize::MAX / 4).is_err());
    }
}
