//! The bytes of a file, on disk or in memory.

use std::io::{self, Read};

use rawzip::{FileReader, ReaderAt};

use crate::error::{Parsed, Problem};

/// Bytes that can be read at any offset, from several threads.
pub(crate) enum Source {
    File(FileReader, u64),
    Bytes(Vec<u8>),
}

impl Source {
    pub fn len(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Reads `length` bytes from `offset`. Checks the range before it allocates memory.
    pub fn read(&self, offset: u64, length: u64) -> Parsed<Vec<u8>> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            return Err(Problem::damaged(format!(
                "expected {length} bytes at byte {offset}, but the file has {}",
                self.len()
            )));
        }
        let mut bytes = try_with_capacity(length)?;
        rawzip::RangeReader::new(self, offset..offset + length)
            .read_to_end(&mut bytes)
            .map_err(Problem::io("read"))?;
        if bytes.len() as u64 != length {
            return Err(Problem::Io {
                action: "read",
                source: io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file has become shorter while it was read",
                ),
            });
        }
        Ok(bytes)
    }
}

impl ReaderAt for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::File(file, _) => file.read_at(buffer, offset),
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let count = buffer.len().min(bytes.len() - start);
                buffer[..count].copy_from_slice(&bytes[start..start + count]);
                Ok(count)
            }
        }
    }
}

/// Creates an empty vector with room for `count` elements. A failed allocation is an error, not an abort.
pub(crate) fn try_with_capacity<T>(count: u64) -> Parsed<Vec<T>> {
    let mut values = Vec::new();
    usize::try_from(count)
        .ok()
        .and_then(|count| values.try_reserve_exact(count).ok())
        .ok_or_else(|| Problem::io("allocate memory for it")(io::Error::other("the memory is exhausted")))?;
    Ok(values)
}
