//! Bytes whose first address is a multiple of 64, on huge pages where the system has them.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// The alignment of every buffer and of every value in an arena, in bytes: a cache line, and the widest
/// vector register.
pub const ALIGNMENT: usize = 64;

/// The size of a huge page in bytes. Buffers of at least this size ask for huge pages, which spare address
/// translations.
const HUGE_PAGE: usize = 2 << 20;

/// The system has not enough memory.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no memory for {what}: it takes {} MiB", bytes.div_ceil(1 << 20))]
pub struct OutOfMemory {
    /// What the memory is for.
    pub what: String,
    /// The size that was asked for, in bytes.
    pub bytes: usize,
}

/// A buffer that begins at a multiple of [`ALIGNMENT`]. Its size is fixed, so its memory never moves.
#[derive(Debug, Default)]
pub struct AlignedBytes {
    memory: Memory,
    start: usize,
    length: usize,
}

#[derive(Debug)]
enum Memory {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl AlignedBytes {
    /// Allocates `length` zero bytes for `what`, which an error names.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn zeroed(length: usize, what: &str) -> Result<Self, OutOfMemory> {
        let out_of_memory = || OutOfMemory { what: what.to_owned(), bytes: length };
        if length == 0 {
            return Ok(Self::default());
        }
        let (memory, start) = if length < HUGE_PAGE {
            let bytes = vec![0u8; length + ALIGNMENT - 1];
            let start = bytes.as_ptr().align_offset(ALIGNMENT);
            (Memory::Heap(bytes), start)
        } else {
            let padded = length.checked_add(HUGE_PAGE).ok_or_else(out_of_memory)?;
            let pages = MmapMut::map_anon(padded).map_err(|_| out_of_memory())?;
            // Only advice: ordinary pages do the same more slowly.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            let start = pages.as_ptr().align_offset(HUGE_PAGE);
            (Memory::Pages(pages), start)
        };
        Ok(Self { memory, start, length })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let all: &[u8] = match &self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages,
        };
        &all[self.start..self.start + self.length]
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let all: &mut [u8] = match &mut self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages,
        };
        &mut all[self.start..self.start + self.length]
    }

    /// The bytes as elements of a type whose alignment is at most [`ALIGNMENT`]. An incomplete last element
    /// is left out.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::pod_align_to(self.as_slice()).1
    }

    /// As [`elements`](Self::elements), to write.
    pub fn elements_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::pod_align_to_mut(self.as_mut_slice()).1
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl Clone for AlignedBytes {
    /// # Panics
    /// The system has not enough memory.
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.length, "a copy").unwrap_or_else(|error| panic!("{error}"));
        copy.copy_from_slice(self);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned_also_when_cloned_and_moved() {
        let lengths = (0..200).chain([HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1]);
        let all: Vec<(usize, AlignedBytes)> =
            lengths.map(|length| (length, AlignedBytes::zeroed(length, "a test").unwrap())).collect();
        for (length, bytes) in all {
            assert_eq!(bytes.len(), length);
            assert!(bytes.iter().all(|&byte| byte == 0));
            for bytes in [&bytes, &bytes.clone()] {
                assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGNMENT));
                assert_eq!(bytes.elements::<f32>().len(), length / 4);
            }
        }
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(AlignedBytes::zeroed(usize::MAX, "a test").is_err());
        let error = AlignedBytes::zeroed(isize::MAX as usize - ALIGNMENT, "a test").unwrap_err();
        assert_eq!(error.to_string(), "there is no memory for a test: it takes 8796093022208 MiB");
    }

    #[test]
    fn a_clone_has_the_same_content_of_its_own() {
        let mut bytes = AlignedBytes::zeroed(64, "a test").unwrap();
        bytes.elements_mut::<f32>()[3] = 1.5;
        let copy = bytes.clone();
        bytes.elements_mut::<f32>()[3] = 2.5;
        assert_eq!(copy.elements::<f32>()[3], 1.5);
        assert_eq!(copy.len(), 64);
    }
}
