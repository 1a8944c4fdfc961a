//! Taking the listed files out of a gzipped tar archive. Nothing else in it is written, whatever it is
//! called.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_base::sync_folder;
use tar::Archive;

use super::{FetchError, disk, open_part, restart};
use crate::datasets::UnpackedFile;

/// What an archive may hold beside its members: headers, texts.
const SLACK: u64 = 64 << 20;

/// Writes each member below `directory`, verified, and under its final name only when it is whole.
pub(super) fn unpack(
    archive: &Path,
    members: &[UnpackedFile<'_>],
    directory: &Path,
) -> Result<(), FetchError> {
    let wrong = |problem: String| FetchError::Unpack { path: archive.to_owned(), problem };
    let unreadable = |error: io::Error| wrong(format!("it cannot be read: {error}"));
    let packed = BufReader::new(File::open(archive).map_err(unreadable)?);
    // An archive that unpacks to more than it should is read no further.
    let limit = members.iter().map(|member| member.bytes).sum::<u64>().saturating_add(SLACK);
    let mut archive = Archive::new(MultiGzDecoder::new(packed).take(limit));
    let mut missing: Vec<&UnpackedFile<'_>> = members.iter().collect();
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let name = entry.path_bytes().into_owned();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        let Some(at) = missing.iter().position(|member| member.name.as_bytes() == name) else { continue };
        let member = missing.swap_remove(at);
        if !entry.header().entry_type().is_file() || entry.size() != member.bytes {
            return Err(wrong(format!(
                "`{}` in it is no file of {} bytes: it has {}",
                member.name,
                member.bytes,
                entry.size()
            )));
        }
        write_member(&mut entry, member, directory, &wrong)?;
        if missing.is_empty() {
            return Ok(());
        }
    }
    let names: Vec<&str> = missing.iter().map(|member| member.name).collect();
    Err(wrong(format!("it does not hold {}", names.join(", "))))
}

fn write_member(
    source: &mut dyn Read,
    member: &UnpackedFile<'_>,
    directory: &Path,
    wrong: &dyn Fn(String) -> FetchError,
) -> Result<(), FetchError> {
    let path = member_path(directory, member)?;
    let folder = path.parent().unwrap_or(directory);
    let part_path = folder.join(format!("{}.part", path.file_name().unwrap_or_default().to_string_lossy()));
    let mut part = open_part(&part_path)?;
    restart(&mut part).map_err(disk(&part_path, "cannot be written"))?;
    let (mut hasher, mut block, mut done) = (Sha256::new(), vec![0; 1 << 16], 0);
    loop {
        let count = match source.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(wrong(format!("`{}` cannot be read: {error}", member.name))),
        };
        hasher.update(&block[..count]);
        part.write_all(&block[..count]).map_err(disk(&part_path, "cannot be written"))?;
        done += count as u64;
    }
    let found = hex(&hasher.finalize());
    if done != member.bytes || found != member.sha256 {
        let _ = fs::remove_file(&part_path);
        return Err(wrong(format!(
            "`{}` has other content: {done} bytes with the SHA-256 {found}, expected {} with {}",
            member.name, member.bytes, member.sha256
        )));
    }
    part.sync_all().map_err(disk(&part_path, "cannot be written"))?;
    fs::rename(&part_path, &path).map_err(disk(&path, "cannot be put in place"))?;
    sync_folder(folder);
    Ok(())
}

/// The member's place; the folders to it are made, and none may be a link, which would lead out of the
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
            Ok(about) if about.is_dir() => {}
            Ok(_) => {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, "not a folder");
                return Err(disk(&path, "cannot be unpacked into")(cause));
            }
            Err(_) => fs::create_dir(&path).map_err(disk(&path, "cannot be created"))?,
        }
    }
    Ok(path)
}
