//! Memory of batches: aligned for vector units, allocated once, circulating between loader and consumer.

use std::collections::TryReserveError;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

/// Where every [`AlignedBytes`] begins: a multiple of a cache line, which is also the widest vector.
pub const ALIGNMENT: usize = 64;

/// Bytes that begin at a multiple of [`ALIGNMENT`].
#[derive(Debug, Default)]
pub struct AlignedBytes {
    /// `ALIGNMENT - 1` longer than needed; never grown or shrunk, so it never moves.
    storage: Vec<u8>,
    offset: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    ///
    /// There is not so much memory.
    pub fn zeroed(len: usize) -> Result<Self, TryReserveError> {
        let mut storage = Vec::new();
        let mut offset = 0;
        if len > 0 {
            let padded = len.saturating_add(ALIGNMENT - 1);
            storage.try_reserve_exact(padded)?;
            storage.resize(padded, 0);
            offset = storage.as_ptr().align_offset(ALIGNMENT);
        }
        Ok(Self { storage, offset, len })
    }

    /// The bytes as elements of at most [`ALIGNMENT`]; what is left of an incomplete last one is not seen.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::pod_align_to(self).1
    }

    /// As [`elements`](Self::elements), to be changed.
    pub fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::pod_align_to_mut(self).1
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage[self.offset..self.offset + self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.offset..self.offset + self.len]
    }
}

impl Clone for AlignedBytes {
    fn clone(&self) -> Self {
        // The copy begins elsewhere, so that its offset may be another.
        let mut storage = vec![0; self.storage.len()];
        let offset = if self.len == 0 { 0 } else { storage.as_ptr().align_offset(ALIGNMENT) };
        storage[offset..offset + self.len].copy_from_slice(self);
        Self { storage, offset, len: self.len }
    }
}

/// A batch, as a [`Loader`](crate::Loader) fills it.
#[derive(Clone, Debug)]
pub struct BatchBuffer {
    /// Images of the loader's element type and layout: batch size × C × H × W elements. Rows from `samples` on are zero bytes.
    pub images: AlignedBytes,
    /// Classes: batch size × [`label_len`](crate::Loader::label_len) numbers, one for a sample, or where samples have masks one for each
    /// of its pixels, H × W, row-major. [`IGNORED_LABEL`] are all numbers of the rows from `samples` on and of samples that cannot be
    /// decoded, and of a mask those pixels that belong to no class or show nothing of the stored image.
    pub labels: Vec<i32>,
    /// The index of each sample in the data set: `samples` numbers.
    pub indices: Vec<u32>,
    /// Rows that hold a sample: the batch size, or fewer in the last batch of an epoch.
    pub samples: usize,
    /// The epoch, from 0.
    pub epoch: u32,
    /// The batch's number in its epoch, from 0.
    pub index: u64,
    /// The loader it belongs to.
    pub(crate) owner: u64,
}

/// The label of a row without a sample, or of a pixel without a class. Losses and measures pass over it.
pub const IGNORED_LABEL: i32 = -1;

impl BatchBuffer {
    /// A buffer of `batch_size` samples, which together have `image_bytes` bytes of images and `label_count` labels.
    pub(crate) fn new(
        batch_size: usize,
        image_bytes: usize,
        label_count: usize,
        owner: u64,
    ) -> Result<Self, TryReserveError> {
        let images = AlignedBytes::zeroed(image_bytes)?;
        let (mut labels, mut indices) = (Vec::new(), Vec::new());
        labels.try_reserve_exact(label_count)?;
        labels.resize(label_count, IGNORED_LABEL);
        indices.try_reserve_exact(batch_size)?;
        Ok(Self { images, labels, indices, samples: 0, epoch: 0, index: 0, owner })
    }

    /// Bytes of memory a buffer of this size holds.
    pub(crate) fn bytes_of(batch_size: usize, image_bytes: usize, label_count: usize) -> u64 {
        (image_bytes + ALIGNMENT - 1) as u64
            + (label_count * size_of::<i32>() + batch_size * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_also_when_cloned_and_moved() {
        let all: Vec<AlignedBytes> = (0..200).map(|len| AlignedBytes::zeroed(len).unwrap()).collect();
        for (len, bytes) in all.iter().enumerate() {
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|&byte| byte == 0));
            for bytes in [bytes, &bytes.clone()] {
                assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
                assert_eq!(bytes.elements::<f32>().len(), len / 4);
            }
        }
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(AlignedBytes::zeroed(usize::MAX).is_err());
        assert!(AlignedBytes::zeroed(isize::MAX as usize - ALIGNMENT).is_err());
    }

    #[test]
    fn a_clone_has_the_same_content_of_its_own() {
        let mut bytes = AlignedBytes::zeroed(64).unwrap();
        bytes.elements_mut::<f32>()[3] = 1.5;
        let copy = bytes.clone();
        bytes.elements_mut::<f32>()[3] = 2.5;
        assert_eq!(copy.elements::<f32>()[3], 1.5);
        assert_eq!(copy.len(), 64);
    }
}
