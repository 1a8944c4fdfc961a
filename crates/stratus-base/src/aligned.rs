//! Bytes aligned to 64, on huge pages if the system supports them.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// The alignment of every buffer and of every value in an arena, in bytes, which is the size of a cache line
/// and of the widest vector register.
pub const ALIGNMENT: usize = 64;

/// The size of a huge page. Buffers of at least this size request huge pages, which need fewer address
/// translations.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The error of a failed allocation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("out of memory: {purpose} needs {} MiB", bytes.div_ceil(1 << 20))]
pub struct OutOfMemory {
    /// The purpose of the memory.
    pub purpose: String,
    /// The requested size in bytes.
    pub bytes: usize,
}

/// A buffer aligned to [`ALIGNMENT`]. Its size is fixed, so its memory never moves.
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
    /// Allocates `length` zero bytes. An error names the `purpose`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeroed(length: usize, purpose: &str) -> Result<Self, OutOfMemory> {
        let out_of_memory = || OutOfMemory { purpose: purpose.to_owned(), bytes: length };
        if length == 0 {
            return Ok(Self::default());
        }
        let (memory, start) = if length < HUGE_PAGE_BYTES {
            let bytes = vec![0u8; length + ALIGNMENT - 1];
            let start = bytes.as_ptr().align_offset(ALIGNMENT);
            (Memory::Heap(bytes), start)
        } else {
            let padded = length.checked_add(HUGE_PAGE_BYTES).ok_or_else(out_of_memory)?;
            let pages = MmapMut::map_anon(padded).map_err(|_| out_of_memory())?;
            // Ignore errors: ordinary pages are only slower.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            let start = pages.as_ptr().align_offset(HUGE_PAGE_BYTES);
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

    /// The bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let all: &mut [u8] = match &mut self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages,
        };
        &mut all[self.start..self.start + self.length]
    }

    /// The bytes as elements of a type whose alignment is at most [`ALIGNMENT`], without an incomplete last
    /// element.
    #[must_use]
    pub fn elements<T: Pod>(&self) -> &[T] {
        bytemuck::pod_align_to(self.as_slice()).1
    }

    /// Like [`elements`](Self::elements), mutable.
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
    /// If there is not enough memory.
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
    fn aligns_every_length_also_after_clone_and_move() {
        let lengths = (0..200).chain([HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1]);
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
    fn reports_allocations_that_are_too_large() {
        assert!(AlignedBytes::zeroed(usize::MAX, "a test").is_err());
        let error = AlignedBytes::zeroed(isize::MAX as usize - ALIGNMENT, "a test").unwrap_err();
        assert_eq!(error.to_string(), "out of memory: a test needs 8796093022208 MiB");
    }

    #[test]
    fn clones_have_their_own_copy_of_the_content() {
        let mut bytes = AlignedBytes::zeroed(64, "a test").unwrap();
        bytes.elements_mut::<f32>()[3] = 1.5;
        let copy = bytes.clone();
        bytes.elements_mut::<f32>()[3] = 2.5;
        assert_eq!(copy.elements::<f32>()[3], 1.5);
        assert_eq!(copy.len(), 64);
    }
}
