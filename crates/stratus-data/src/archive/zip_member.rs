//! A file of a zip archive: stored, or compressed by deflate. The memory for it is in proportion to its
//! compressed length.

use std::io::{self, Read};

use flate2::{Crc, read::DeflateDecoder};

use super::header::ReadAt;

/// The bytes that any compressed image file may have once unpacked.
const MAX_BYTES_OF_ANY_FILE: u64 = 16 << 20;
/// The maximum number of bytes of a larger image file for each compressed byte.
const MAX_BYTES_PER_COMPRESSED_BYTE: u64 = 64;
/// The bytes of a deflate stream that are read beyond the number of unpacked bytes: blocks have headers.
const STREAM_MARGIN_BYTES: u64 = 64 << 10;

/// A file of a zip archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ZipMember {
    /// The length in the archive.
    pub compressed_bytes: u64,
    pub is_deflated: bool,
    /// The checksum of the file.
    pub crc: u32,
}

impl ZipMember {
    /// Reads at an offset of a file of `bytes` bytes, which begins at `offset` of the archive. A deflate
    /// stream is read from its beginning. If the whole file passes by, its checksum is verified.
    pub(crate) fn read_at(
        &self,
        archive: ReadAt<'_>,
        [offset, bytes]: [u64; 2],
        at: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let end = at.saturating_add(out.len() as u64);
        let mut sum = Crc::new();
        if self.is_deflated {
            let needed = self.compressed_bytes.min(end.saturating_add(end / 64 + STREAM_MARGIN_BYTES));
            let mut compressed = vec![0; usize::try_from(needed).map_err(io::Error::other)?];
            archive(offset, &mut compressed)?;
            let mut stream = DeflateDecoder::new(compressed.as_slice());
            let mut skipped = [0; 4096];
            let mut position = 0;
            while position < at {
                let count = skipped.len().min(usize::try_from(at - position).unwrap_or(usize::MAX));
                stream.read_exact(&mut skipped[..count])?;
                sum.update(&skipped[..count]);
                position += count as u64;
            }
            stream.read_exact(out)?;
        } else {
            archive(offset.saturating_add(at), out)?;
        }
        sum.update(out);
        if end == bytes && (self.is_deflated || at == 0) && sum.sum() != self.crc {
            return Err(io::Error::other("the file differs from its checksum in the archive"));
        }
        Ok(())
    }

    /// Checks that a file of `bytes` bytes, which is read whole, is in proportion to its compressed length.
    ///
    /// # Errors
    ///
    /// Both lengths.
    pub(crate) fn check_proportion(&self, bytes: u64) -> Result<(), String> {
        let compressed = self.compressed_bytes;
        if bytes <= MAX_BYTES_OF_ANY_FILE.max(compressed.saturating_mul(MAX_BYTES_PER_COMPRESSED_BYTE)) {
            return Ok(());
        }
        Err(format!("the file has {bytes} bytes, but the archive contains only {compressed} of them"))
    }
}
