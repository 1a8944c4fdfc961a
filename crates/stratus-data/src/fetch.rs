//! Downloading published files: mirrors in turn, resumed downloads, verified checksums.
//!
//! A download is written to `<name>.part` and renamed once it is complete, verified and synced, so a file
//! with its final name is always complete. A second process that fetches the same file gets an error.

mod unpack;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use stratus_base::checksum::sha256_of_reader;
use stratus_base::sync_folder;
use thiserror::Error;
use ureq::Agent;
use ureq::http::{Response, StatusCode, header};

use self::unpack::unpack;
use crate::datasets::{self, PublishedFile};
use crate::error::DataError;

/// Attempts per mirror after a broken connection or a resumed download with a wrong checksum.
const TRIES_PER_MIRROR: usize = 4;

/// Files cannot be fetched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The data set is unknown.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data set is not published where it could be fetched from.
    #[error("`{dataset}` cannot be fetched: it has no public mirror; put its files in place yourself")]
    NotPublished {
        /// The data set's name.
        dataset: String,
    },
    /// A name that is not that of a file in the directory.
    #[error("`{name}` is not the name of a file: it must be one path component without separators")]
    Name {
        /// The name.
        name: String,
    },
    /// The directory or a file in it cannot be used.
    #[error("{}: {action}: {cause}", .path.display())]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// Another process holds the partial file.
    #[error("{}: another process is fetching this file; wait for it to end", .path.display())]
    Busy {
        /// The partial file.
        path: PathBuf,
    },
    /// An archive does not hold what it should.
    #[error("{}: {problem}; remove it and fetch again", .path.display())]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No mirror gave the file.
    #[error(
        "{file}: no mirror provided it{}\ncheck the network, or put the file into {} yourself",
        .attempts.iter().map(|attempt| format!("\n  {}: {}", attempt.url, attempt.cause)).collect::<String>(),
        .directory.display()
    )]
    Mirrors {
        /// The file's name.
        file: String,
        /// Where it was to go.
        directory: PathBuf,
        /// What happened at each mirror.
        attempts: Vec<Attempt>,
    },
}

/// What happened at a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The address.
    pub url: String,
    /// Why it did not give the file.
    pub cause: String,
}

/// What a fetch is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The file is there and right.
    Present {
        /// Its name.
        file: &'a str,
    },
    /// A mirror is asked.
    Started {
        /// The file's name.
        file: &'a str,
        /// The address.
        url: &'a str,
        /// Bytes that are already there.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// More has arrived.
    Advanced {
        /// The file's name.
        file: &'a str,
        /// Bytes that are there.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A mirror did not give the file; it is asked again or the next is.
    Failed {
        /// The file's name.
        file: &'a str,
        /// The address.
        url: &'a str,
        /// Why.
        cause: &'a str,
    },
    /// The file is complete, verified and in place.
    Finished {
        /// Its name.
        file: &'a str,
    },
}

/// A file that is now in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes that were received for it; 0 where it was there.
    pub received: u64,
    /// The address it came from; `None` where it was there.
    pub url: Option<String>,
}

/// What a fetch has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchReport {
    /// Every file, in the order of publication.
    pub files: Vec<FetchedFile>,
}

/// Downloads the published files of data set `name` to `directory`, which is created if missing. Valid files
/// are kept.
///
/// # Errors
///
/// [`FetchError`]: unknown name, a directory that cannot be written, a file that no mirror gives (with each
/// mirror's cause).
pub fn fetch(
    name: &str,
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<FetchReport, FetchError> {
    let entry = datasets::entry(name)?;
    if entry.files.is_empty() {
        return Err(FetchError::NotPublished { dataset: name.to_owned() });
    }
    fetch_files(entry.files, entry.mirrors, directory, progress)
}

/// Like [`fetch`], with explicit files and mirrors. A mirror is a base URL to which file names are appended.
///
/// # Errors
///
/// As [`fetch`]; [`FetchError::Name`] for a name that would leave the directory.
pub fn fetch_files(
    files: &[PublishedFile<'_>],
    mirrors: &[&str],
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<FetchReport, FetchError> {
    let plain = |name: &str| {
        let mut components = Path::new(name).components();
        matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
            && !name.contains(['/', '\\', '\0'])
    };
    for file in files {
        for name in [Some(file.name), file.unpacked.map(|unpacked| unpacked.name)].into_iter().flatten() {
            if !plain(name) {
                return Err(FetchError::Name { name: name.to_owned() });
            }
        }
        for member in file.members {
            if !member.name.split('/').all(plain) {
                return Err(FetchError::Name { name: member.name.to_owned() });
            }
        }
    }
    fs::create_dir_all(directory).map_err(disk(directory, "cannot be created"))?;
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("stratus/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(Duration::from_secs(20)))
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .build()
        .into();
    let mut report = FetchReport::default();
    for file in files {
        report.files.push(Download { agent: &agent, file, mirrors, directory, progress }.run()?);
    }
    Ok(report)
}

fn disk(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> FetchError {
    let path = path.to_owned();
    move |cause| FetchError::Disk { path, action, cause }
}

/// Why a mirror did not provide the file.
enum Refusal {
    /// It cannot provide it: try the next mirror.
    Useless(String),
    /// Another attempt may succeed.
    Retry(String),
    /// No mirror can help.
    Fatal(FetchError),
}

struct Download<'a> {
    agent: &'a Agent,
    file: &'a PublishedFile<'a>,
    mirrors: &'a [&'a str],
    directory: &'a Path,
    progress: &'a mut dyn FnMut(Progress<'_>),
}

impl Download<'_> {
    fn run(self) -> Result<FetchedFile, FetchError> {
        let members = self.file.members;
        let Some(first) = members.first() else { return self.obtain() };
        let path = self.directory.join(first.name).parent().unwrap_or(self.directory).to_owned();
        if self.members_are_there() {
            (self.progress)(Progress::Present { file: self.file.name });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let directory = self.directory;
        let archive = self.obtain()?;
        unpack(&archive.path, members, directory)?;
        // Its content is in place and verified; it is only in the way now.
        let _ = fs::remove_file(&archive.path);
        Ok(FetchedFile { path, ..archive })
    }

    /// Whether every member is in place and right.
    fn members_are_there(&self) -> bool {
        self.file.members.iter().all(|member| {
            let path = self.directory.join(member.name);
            path.metadata().is_ok_and(|about| about.is_file() && about.len() == member.bytes)
                && File::open(&path)
                    .and_then(|file| digest(file, member.bytes))
                    .is_ok_and(|found| found == member.sha256)
        })
    }

    /// Brings the file itself.
    fn obtain(mut self) -> Result<FetchedFile, FetchError> {
        let file = self.file.name;
        if let Some(path) = self.present() {
            (self.progress)(Progress::Present { file });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let path = self.directory.join(file);
        let part_path = self.directory.join(format!("{file}.part"));
        let mut part = open_part(&part_path)?;
        // Another process may have put it in place since.
        if let Some(path) = self.present() {
            let _ = fs::remove_file(&part_path);
            (self.progress)(Progress::Present { file });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let mut attempts = Vec::new();
        let mut received = 0;
        for mirror in self.mirrors {
            let url = format!("{mirror}{file}");
            for attempt in 1..=TRIES_PER_MIRROR {
                let cause = match self.ask(&url, &mut part, &part_path, &mut received) {
                    Ok(()) => {
                        part.sync_all().map_err(disk(&part_path, "cannot be written"))?;
                        fs::rename(&part_path, &path).map_err(disk(&path, "cannot be put in place"))?;
                        sync_folder(self.directory);
                        (self.progress)(Progress::Finished { file });
                        return Ok(FetchedFile { path, received, url: Some(url) });
                    }
                    Err(Refusal::Fatal(error)) => return Err(error),
                    Err(Refusal::Retry(cause)) if attempt < TRIES_PER_MIRROR => {
                        (self.progress)(Progress::Failed { file, url: &url, cause: &cause });
                        continue;
                    }
                    Err(Refusal::Useless(cause) | Refusal::Retry(cause)) => cause,
                };
                (self.progress)(Progress::Failed { file, url: &url, cause: &cause });
                attempts.push(Attempt { url, cause });
                break;
            }
        }
        if part.metadata().is_ok_and(|about| about.len() == 0) {
            let _ = fs::remove_file(&part_path);
        }
        Err(FetchError::Mirrors { file: file.to_owned(), directory: self.directory.to_owned(), attempts })
    }

    /// The file, where it is there and right: as published, packed in another way, or unpacked.
    fn present(&self) -> Option<PathBuf> {
        let packed = self.directory.join(self.file.name);
        let (published, unpacked) = (self.file.bytes, self.file.unpacked);
        if let Some(unpacked) = unpacked {
            let path = self.directory.join(unpacked.name);
            if path.metadata().is_ok_and(|about| about.is_file() && about.len() == unpacked.bytes)
                && digest(File::open(&path).ok()?, unpacked.bytes).is_ok_and(|found| found == unpacked.sha256)
            {
                return Some(path);
            }
        }
        let bytes = packed.metadata().ok().filter(fs::Metadata::is_file)?.len();
        if bytes == published
            && digest(File::open(&packed).ok()?, bytes).is_ok_and(|found| found == self.file.sha256)
        {
            return Some(packed);
        }
        let unpacked = unpacked?;
        let content = MultiGzDecoder::new(BufReader::new(File::open(&packed).ok()?));
        digest(content, unpacked.bytes).is_ok_and(|found| found == unpacked.sha256).then_some(packed)
    }

    /// Requests the missing part from one mirror, and verifies the whole file.
    fn ask(&mut self, url: &str, part: &mut File, path: &Path, received: &mut u64) -> Result<(), Refusal> {
        let (file, total) = (self.file.name, self.file.bytes);
        let fatal = |error: io::Error| Refusal::Fatal(disk(path, "cannot be written")(error));
        let mut done = part.seek(SeekFrom::End(0)).map_err(fatal)?;
        if done > total {
            done = restart(part).map_err(fatal)?;
        }
        let resumed = done;
        (self.progress)(Progress::Started { file, url, done, total });
        if done < total {
            let mut request = self.agent.get(url);
            if done > 0 {
                request = request.header(header::RANGE, format!("bytes={done}-"));
            }
            let mut response = request.call().map_err(|error| Refusal::Retry(error.to_string()))?;
            match response.status() {
                StatusCode::PARTIAL_CONTENT if range_start(&response) == Some(done) => {}
                StatusCode::OK => {
                    expect_length(&response, total)?;
                    done = restart(part).map_err(fatal)?;
                }
                StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if done > 0 => {
                    restart(part).map_err(fatal)?;
                    return Err(Refusal::Retry(
                        "cannot continue a partial download; starting over".to_owned(),
                    ));
                }
                status => {
                    let cause = format!("HTTP status {status}");
                    let later = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                    return Err(if later { Refusal::Retry(cause) } else { Refusal::Useless(cause) });
                }
            }
            // One byte more than is missing shows that there is too much, and no more is ever received.
            let mut body = response.body_mut().as_reader().take(total - done + 1);
            let mut block = vec![0; 1 << 16];
            loop {
                match body.read(&mut block) {
                    Ok(0) => break,
                    Ok(count) => {
                        part.write_all(&block[..count]).map_err(fatal)?;
                        done += count as u64;
                        *received += count as u64;
                        (self.progress)(Progress::Advanced { file, done: done.min(total), total });
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        return Err(Refusal::Retry(format!(
                            "broke off after {done} of {total} bytes: {error}"
                        )));
                    }
                }
            }
            if done < total {
                return Err(Refusal::Retry(format!("broke off after {done} of {total} bytes")));
            }
        }
        part.rewind().map_err(fatal)?;
        let found = digest(&*part, total);
        if found.as_ref().is_ok_and(|found| found == self.file.sha256) {
            return Ok(());
        }
        restart(part).map_err(fatal)?;
        let cause = match found {
            Ok(found) => format!(
                "sent different content: its SHA-256 is {found}, expected \
                                  {}",
                self.file.sha256
            ),
            Err(error) => format!("sent different content: {error}"),
        };
        // The resumed part may be to blame.
        Err(if resumed > 0 { Refusal::Retry(cause) } else { Refusal::Useless(cause) })
    }
}

/// The partial file, for this process alone.
fn open_part(path: &Path) -> Result<File, FetchError> {
    // A link would lead the download out of the directory.
    if path.symlink_metadata().is_ok_and(|about| !about.is_file()) {
        let cause = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(disk(path, "cannot be written")(cause));
    }
    let part = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(disk(path, "cannot be opened for writing"))?;
    match part.try_lock() {
        // The process that held it has just put it in place, and what is locked is no longer the partial
        // file.
        Ok(()) if !path.exists() => Err(FetchError::Busy { path: path.to_owned() }),
        Ok(()) => Ok(part),
        Err(TryLockError::WouldBlock) => Err(FetchError::Busy { path: path.to_owned() }),
        // Some network file systems have no locks; a download that two processes write fails its checksum.
        Err(TryLockError::Error(_)) => Ok(part),
    }
}

fn restart(part: &mut File) -> io::Result<u64> {
    part.set_len(0)?;
    part.rewind()?;
    Ok(0)
}

/// SHA-256 of a source that must have exactly `bytes` bytes; at most one byte more is read.
fn digest(source: impl Read, bytes: u64) -> io::Result<String> {
    let (read, sha256) = sha256_of_reader(source.take(bytes + 1))?;
    if read == bytes {
        return Ok(sha256);
    }
    let more = if read > bytes { "more than" } else { "not" };
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {more} {bytes} bytes")))
}

/// Where the content of a 206 answer begins: `Content-Range: bytes <start>-…` (RFC 9110, section 14.4).
fn range_start<T>(response: &Response<T>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// A length that is announced must be the published one: what would be refused in the end is not received
/// first.
fn expect_length<T>(response: &Response<T>, total: u64) -> Result<(), Refusal> {
    let announced = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match announced.and_then(|value| value.parse::<u64>().ok()) {
        Some(length) if length != total => {
            Err(Refusal::Useless(format!("offers a file of {length} bytes, expected {total}")))
        }
        _ => Ok(()),
    }
}
