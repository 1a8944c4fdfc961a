//! Owned bytes whose first address is a multiple of 64, on huge pages where the system has them.

use crate::EngineError;
use memmap2::MmapMut;

/// What every value's address is a multiple of: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// The size of a huge page, and the least that is worth asking for one: they spare address translations when an arena is walked.
const HUGE_PAGE: usize = 2 << 20;

/// A zero-filled buffer that begins at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
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

impl AlignedBytes {
    /// Allocates `length` zero bytes for `what`.
    ///
    /// # Errors
    /// Where the system has no such amount.
    pub fn zeroed(length: usize, what: &str) -> Result<Self, EngineError> {
        let out_of_memory = || EngineError::OutOfMemory { what: what.to_owned(), bytes: length, free: None };
        let (memory, alignment) = if length < HUGE_PAGE {
            (Memory::Heap(vec![0u8; length + ALIGNMENT]), ALIGNMENT)
        } else {
            let padded = length.checked_add(HUGE_PAGE).ok_or_else(out_of_memory)?;
            let pages = MmapMut::map_anon(padded).map_err(|_| out_of_memory())?;
            // Where the system has none, or not for us, ordinary pages do the same more slowly.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            (Memory::Pages(pages), HUGE_PAGE)
        };
        let start = match &memory {
            Memory::Heap(bytes) => bytes.as_ptr().align_offset(alignment),
            Memory::Pages(pages) => pages.as_ptr().align_offset(alignment),
        };
        Ok(Self { memory, start, length })
    }

    /// The number of usable bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
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
}
