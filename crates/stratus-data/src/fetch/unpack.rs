//! Extracts listed members from a gzipped tar archive. Nothing else in it is written, whatever its name.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_base::sync_folder;
use tar::Archive;

use super::error::{FetchError, io_error};
use super::partial::{open_partial_file, truncate};
use crate::datasets::entry::UnpackedFile;

/// The maximum size of an archive's other content, such as headers and texts.
const MAX_OTHER_BYTES: u64 = 64 << 20;

/// Extracts each member below `directory`. It is verified, and gets its final name once it is complete.
pub(super) fn unpack(
    archive: &Path,
    members: &[UnpackedFile<'_>],
    directory: &Path,
) -> Result<(), FetchError> {
    let invalid = |problem: String| FetchError::Unpack { path: archive.to_owned(), problem };
    let unreadable = |error: io::Error| invalid(format!("cannot read: {error}"));
    let packed = BufReader::new(File::open(archive).map_err(unreadable)?);
    // Bounds the size of the unpacked archive.
    let limit = members.iter().map(|member| member.bytes).sum::<u64>().saturating_add(MAX_OTHER_BYTES);
    let mut archive = Archive::new(MultiGzDecoder::new(packed).take(limit));
    let mut missing: Vec<&UnpackedFile<'_>> = members.iter().collect();
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let name = entry.path_bytes().into_owned();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        let Some(at) = missing.iter().position(|member| member.name.as_bytes() == name) else { continue };
        let member = missing.swap_remove(at);
        if !entry.header().entry_type().is_file() || entry.size() != member.bytes {
            return Err(invalid(format!(
                "member `{}`: expected a file of {} bytes, found {}",
                member.name,
                member.bytes,
                entry.size()
            )));
        }
        write_member(&mut entry, member, directory, &invalid)?;
        if missing.is_empty() {
            return Ok(());
        }
    }
    let names: Vec<&str> = missing.iter().map(|member| member.name).collect();
    Err(invalid(format!("missing members: {}", names.join(", "))))
}

fn write_member(
    source: &mut dyn Read,
    member: &UnpackedFile<'_>,
    directory: &Path,
    invalid: &dyn Fn(String) -> FetchError,
) -> Result<(), FetchError> {
    let path = member_path(directory, member)?;
    let folder = path.parent().unwrap_or(directory);
    let part_path = folder.join(format!("{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let mut part = open_partial_file(&part_path)?;
    truncate(&mut part).map_err(io_error(&part_path, "cannot write"))?;
    let (mut hasher, mut block, mut done) = (Sha256::new(), vec![0; 1 << 16], 0);
    loop {
        let count = match source.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(invalid(format!("cannot read `{}`: {error}", member.name))),
        };
        hasher.update(&block[..count]);
        part.write_all(&block[..count]).map_err(io_error(&part_path, "cannot write"))?;
        done += count as u64;
    }
    let found = hex(&hasher.finalize());
    if done != member.bytes || found != member.sha256 {
        let _ = fs::remove_file(&part_path);
        return Err(invalid(format!(
            "`{}` has different content: {done} bytes with the SHA-256 {found}, expected {} with {}",
            member.name, member.bytes, member.sha256
        )));
    }
    part.sync_all().map_err(io_error(&part_path, "cannot write"))?;
    fs::rename(&part_path, &path).map_err(io_error(&path, "cannot rename the partial file"))?;
    sync_folder(folder);
    Ok(())
}

/// The path of a member. Creates its folders, none of which may be a link, which could lead out of the
/// directory.
fn member_path(directory: &Path, member: &UnpackedFile<'_>) -> Result<PathBuf, FetchError> {
    let mut path = directory.to_owned();
    let mut parts = member.name.split('/').peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        if parts.peek().is_none() {
            break;
        }
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, "not a folder");
                return Err(io_error(&path, "cannot unpack into")(cause));
            }
            Err(_) => fs::create_dir(&path).map_err(io_error(&path, "cannot create"))?,
        }
    }
    Ok(path)
}
