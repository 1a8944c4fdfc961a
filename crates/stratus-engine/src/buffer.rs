//! Owned bytes whose first address is a multiple of 64.

use crate::EngineError;

/// What every value's address is a multiple of: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// A zero-filled buffer that begins at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    /// Allocates `length` zero bytes for `what`.
    ///
    /// # Errors
    /// Where the allocator has no such amount.
    pub fn zeroed(length: usize, what: &str) -> Result<Self, EngineError> {
        let out_of_memory = || EngineError::OutOfMemory { what: what.to_owned(), bytes: length };
        let padded = length.checked_add(ALIGNMENT).ok_or_else(out_of_memory)?;
        // `try_reserve` first, so that a plan too large for the machine is an error rather than an abort.
        Vec::<u8>::new().try_reserve_exact(padded).map_err(|_| out_of_memory())?;
        let bytes = vec![0u8; padded];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Ok(Self { bytes, start, length })
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
        &self.bytes[self.start..self.start + self.length]
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
