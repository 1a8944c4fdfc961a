//! Zip archives: the folder that they unpack to.
//!
//! The central directory at the end lists the files, with the offset of each. Names cannot leave the folder.
//! The format: PKWARE's APPNOTE 6.3.10, read by the `rawzip` crate.

use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipLocator};

use super::header::{display_name, normalised_path};
use super::tree::{Node, Tree};
use super::zip_member::ZipMember;

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
