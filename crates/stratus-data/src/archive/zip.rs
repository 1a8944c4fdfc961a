//! Zip archives: the folder that they unpack to, and files that are stored or compressed by deflate.
//!
//! The central directory at the end lists the files, with the offset of each. Names cannot leave the folder,
//! and the memory for a file is in proportion to its compressed length. The format: PKWARE's APPNOTE 6.3.10,
//! read by the `rawzip` crate.

use std::io::{self, Read};

use flate2::{Crc, read::DeflateDecoder};
use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipLocator};

use super::entries::Content;
use super::header::{ReadAt, display_name, normalised_path};
use super::tree::{Node, Tree};

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
    compressed_bytes: u64,
    is_deflated: bool,
    /// The checksum of the file.
    crc: u32,
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

/// Returns whether a file begins like a zip archive: with a file, or the end of an empty archive.
pub(crate) fn is_zip(head: &[u8]) -> bool {
    [b"PK\x03\x04", b"PK\x05\x06"].iter().any(|magic| head.starts_with(*magic))
}

impl Tree {
    /// Reads the directory of a zip archive of `length` bytes.
    ///
    /// # Errors
    ///
    /// If the archive is damaged, or programs would not unpack it completely.
    pub(crate) fn read_zip(archive: impl ReaderAt, length: u64) -> Result<Self, String> {
        let damaged = |error: rawzip::Error| format!("the zip archive is damaged: {error}");
        let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let located = ZipLocator::new().locate_in_reader(archive, &mut buffer, length);
        let archive = located.map_err(|(_, error)| {
            format!("the zip archive has no directory ({error}); it may be truncated")
        })?;
        let mut tree = Self::new();
        let mut records = archive.entries(&mut buffer);
        while let Some(record) = records.next_entry().map_err(damaged)? {
            let path = normalised_path(record.file_path().as_bytes())?;
            if record.is_dir() {
                tree.add_folder(&path)?;
                continue;
            }
            let (method, flags) = (record.compression_method(), record.flags());
            let is_deflated = method == CompressionMethod::DEFLATE;
            let node = if record.mode().is_symlink() {
                Node::Special("a symbolic link in a zip archive")
            } else if flags.is_encrypted() {
                Node::Special("an encrypted file")
            } else if !is_deflated && method != CompressionMethod::STORE {
                Node::Special("a file with a compression other than deflate")
            } else {
                let bytes = record.uncompressed_size_hint();
                let crc = record.crc32();
                let entry = archive.get_entry(record.wayfinder()).map_err(damaged)?;
                let (offset, end) = entry.compressed_data_range();
                let compressed_bytes = end.saturating_sub(offset);
                if end > length || !is_deflated && compressed_bytes != bytes {
                    return Err(format!(
                        "the zip archive is damaged: {} does not fit into it",
                        display_name(&path)
                    ));
                }
                tree.add_zip_member(offset, ZipMember { compressed_bytes, is_deflated, crc });
                Node::File { offset, bytes }
            };
            tree.add_path(&path, node)?;
        }
        tree.finish()?;
        Ok(tree)
    }
}

impl Content {
    /// Checks that a file, which is read whole, is in proportion to its bytes in the archive.
    ///
    /// # Errors
    ///
    /// Both lengths.
    pub(crate) fn check_proportion(&self) -> Result<(), String> {
        self.map.as_ref().map_or(Ok(()), |map| map.check_proportion(self.bytes))?;
        self.zip.map_or(Ok(()), |member| member.check_proportion(self.bytes))
    }
}
