//! Downloads published files: mirrors in turn, resumed downloads, verified checksums.
//!
//! A download is written to `<name>.part` and renamed once it is complete, verified and synced, so a file
//! with its final name is always complete. A second process that fetches the same file gets an error.

mod error;
mod partial;
mod unpack;

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use stratus_base::checksum::sha256_of_reader;
use stratus_base::sync_folder;
use ureq::Agent;
use ureq::http::{Response, StatusCode, header};

use self::error::io_error;
pub use self::error::{Attempt, FetchError};
use self::partial::{open_partial_file, truncate};
use self::unpack::unpack;
use crate::datasets::entry::PublishedFile;
use crate::datasets::files::is_single_component;
use crate::datasets::registry;

/// The maximum number of attempts per mirror, after broken connections or resumed downloads with a wrong
/// checksum.
const MAX_ATTEMPTS_PER_MIRROR: usize = 4;

/// The progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// A valid file already exists.
    Present {
        /// The file's name.
        file: &'a str,
    },
    /// A request to a mirror begins.
    Started {
        /// The file's name.
        file: &'a str,
        /// The address.
        url: &'a str,
        /// Bytes that are present already.
        done: u64,
        /// The total number of bytes.
        total: u64,
    },
    /// More bytes were received.
    Advanced {
        /// The file's name.
        file: &'a str,
        /// Bytes that are present.
        done: u64,
        /// The total number of bytes.
        total: u64,
    },
    /// A mirror failed; it is retried, or the next one is tried.
    Failed {
        /// The file's name.
        file: &'a str,
        /// The address.
        url: &'a str,
        /// The cause.
        cause: &'a str,
    },
    /// The file is complete, verified and in place.
    Finished {
        /// The file's name.
        file: &'a str,
    },
}

/// A fetched file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    /// The path.
    pub path: PathBuf,
    /// Bytes that were received; 0 if the file existed.
    pub received: u64,
    /// The address of the download; `None` if the file existed.
    pub url: Option<String>,
}

/// The result of a fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchReport {
    /// All files, in the order of the data set's entry.
    pub files: Vec<FetchedFile>,
}

/// Downloads the published files of data set `name` to `directory`, which is created if missing. Valid files
/// are kept.
///
/// # Errors
///
/// [`FetchError`]: unknown name, a directory that cannot be written, or a file for which every mirror failed.
pub fn fetch(
    name: &str,
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<FetchReport, FetchError> {
    let entry = registry::entry(name)?;
    if entry.files.is_empty() {
        return Err(FetchError::NotPublished { dataset: name.to_owned() });
    }
    fetch_files(entry.files, entry.mirrors, directory, progress)
}

/// Like [`fetch`], with explicit files and mirrors. A mirror is a base URL to which file names are appended.
///
/// # Errors
///
/// Like [`fetch`]; [`FetchError::InvalidName`] for a name outside the directory.
pub fn fetch_files(
    files: &[PublishedFile<'_>],
    mirrors: &[&str],
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<FetchReport, FetchError> {
    let is_file_name = |name: &str| is_single_component(name) && !name.contains(['/', '\\', '\0']);
    for file in files {
        for name in [Some(file.name), file.unpacked.map(|unpacked| unpacked.name)].into_iter().flatten() {
            if !is_file_name(name) {
                return Err(FetchError::InvalidName { name: name.to_owned() });
            }
        }
        for member in file.members {
            if !member.name.split('/').all(is_file_name) {
                return Err(FetchError::InvalidName { name: member.name.to_owned() });
            }
        }
    }
    fs::create_dir_all(directory).map_err(io_error(directory, "cannot create"))?;
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

/// The failure of an attempt at a mirror.
enum AttemptError {
    /// The mirror cannot provide the file: try the next one.
    NextMirror(String),
    /// Another attempt may succeed.
    Retry(String),
    /// A local error, independent of the mirror.
    Fatal(FetchError),
}

/// The failure of a request without a response.
fn request_failure(error: &ureq::Error) -> AttemptError {
    let is_unknown_host = match error {
        ureq::Error::HostNotFound => true,
        // The standard library has no stable kind for it. On Unix its message begins with this text, unless a
        // system call failed; other systems have other texts, and there the request is repeated.
        ureq::Error::Io(error) => error.to_string().starts_with("failed to lookup address information"),
        _ => false,
    };
    let cause = error.to_string();
    // A second request at once would not find the host either.
    if is_unknown_host { AttemptError::NextMirror(cause) } else { AttemptError::Retry(cause) }
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
        let Some(first) = members.first() else { return self.fetch_file() };
        let path = self.directory.join(first.name).parent().unwrap_or(self.directory).to_owned();
        if self.has_valid_members() {
            (self.progress)(Progress::Present { file: self.file.name });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let directory = self.directory;
        let archive = self.fetch_file()?;
        unpack(&archive.path, members, directory)?;
        // The content is extracted and verified; the archive is not needed any more.
        let _ = fs::remove_file(&archive.path);
        Ok(FetchedFile { path, ..archive })
    }

    /// Returns whether every member exists and is valid.
    fn has_valid_members(&self) -> bool {
        self.file.members.iter().all(|member| {
            let path = self.directory.join(member.name);
            path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == member.bytes)
                && File::open(&path)
                    .and_then(|file| digest(file, member.bytes))
                    .is_ok_and(|found| found == member.sha256)
        })
    }

    /// Downloads the file itself, unless a valid one exists.
    fn fetch_file(mut self) -> Result<FetchedFile, FetchError> {
        let file = self.file.name;
        if let Some(path) = self.find_valid() {
            (self.progress)(Progress::Present { file });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let path = self.directory.join(file);
        let part_path = self.directory.join(format!("{file}.part"));
        let mut part = open_partial_file(&part_path)?;
        // Another process may have completed it meanwhile.
        if let Some(path) = self.find_valid() {
            let _ = fs::remove_file(&part_path);
            (self.progress)(Progress::Present { file });
            return Ok(FetchedFile { path, received: 0, url: None });
        }
        let mut attempts = Vec::new();
        let mut received = 0;
        for mirror in self.mirrors {
            let url = format!("{mirror}{file}");
            for attempt in 1..=MAX_ATTEMPTS_PER_MIRROR {
                let cause = match self.download_from(&url, &mut part, &part_path, &mut received) {
                    Ok(()) => {
                        part.sync_all().map_err(io_error(&part_path, "cannot write"))?;
                        fs::rename(&part_path, &path)
                            .map_err(io_error(&path, "cannot rename the partial file"))?;
                        sync_folder(self.directory);
                        (self.progress)(Progress::Finished { file });
                        return Ok(FetchedFile { path, received, url: Some(url) });
                    }
                    Err(AttemptError::Fatal(error)) => return Err(error),
                    Err(AttemptError::Retry(cause)) if attempt < MAX_ATTEMPTS_PER_MIRROR => {
                        (self.progress)(Progress::Failed { file, url: &url, cause: &cause });
                        continue;
                    }
                    Err(AttemptError::NextMirror(cause) | AttemptError::Retry(cause)) => cause,
                };
                (self.progress)(Progress::Failed { file, url: &url, cause: &cause });
                attempts.push(Attempt { url, cause });
                break;
            }
        }
        if part.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            let _ = fs::remove_file(&part_path);
        }
        Err(FetchError::AllMirrorsFailed {
            file: file.to_owned(),
            directory: self.directory.to_owned(),
            attempts,
        })
    }

    /// The valid existing file, if any: as published, repacked, or unpacked.
    fn find_valid(&self) -> Option<PathBuf> {
        let packed = self.directory.join(self.file.name);
        let (published, unpacked) = (self.file.bytes, self.file.unpacked);
        if let Some(unpacked) = unpacked {
            let path = self.directory.join(unpacked.name);
            if path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == unpacked.bytes)
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

    /// Requests the missing bytes from one mirror, and verifies the whole file.
    fn download_from(
        &mut self,
        url: &str,
        part: &mut File,
        path: &Path,
        received: &mut u64,
    ) -> Result<(), AttemptError> {
        let (file, total) = (self.file.name, self.file.bytes);
        let fatal = |error: io::Error| AttemptError::Fatal(io_error(path, "cannot write")(error));
        let mut done = part.seek(SeekFrom::End(0)).map_err(fatal)?;
        if done > total {
            done = truncate(part).map_err(fatal)?;
        }
        let resumed = done;
        (self.progress)(Progress::Started { file, url, done, total });
        if done < total {
            let mut request = self.agent.get(url);
            if done > 0 {
                request = request.header(header::RANGE, format!("bytes={done}-"));
            }
            let mut response = request.call().map_err(|error| request_failure(&error))?;
            match response.status() {
                StatusCode::PARTIAL_CONTENT if range_start(&response) == Some(done) => {}
                StatusCode::OK => {
                    check_length(&response, total)?;
                    done = truncate(part).map_err(fatal)?;
                }
                StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if done > 0 => {
                    truncate(part).map_err(fatal)?;
                    return Err(AttemptError::Retry(
                        "cannot resume a partial download; starting over".to_owned(),
                    ));
                }
                status => {
                    let cause = format!("HTTP status {status}");
                    let is_temporary = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
                    return Err(if is_temporary {
                        AttemptError::Retry(cause)
                    } else {
                        AttemptError::NextMirror(cause)
                    });
                }
            }
            // Reading one byte more than is missing detects files that are too long, and bounds the download.
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
                        return Err(AttemptError::Retry(format!(
                            "connection closed after {done} of {total} bytes: {error}"
                        )));
                    }
                }
            }
            if done < total {
                return Err(AttemptError::Retry(format!("connection closed after {done} of {total} bytes")));
            }
        }
        part.rewind().map_err(fatal)?;
        let found = digest(&*part, total);
        if found.as_ref().is_ok_and(|found| found == self.file.sha256) {
            return Ok(());
        }
        truncate(part).map_err(fatal)?;
        let cause = match found {
            Ok(found) => {
                format!("sent different content: its SHA-256 is {found}, expected {}", self.file.sha256)
            }
            Err(error) => format!("sent different content: {error}"),
        };
        // The resumed part may be the cause.
        Err(if resumed > 0 { AttemptError::Retry(cause) } else { AttemptError::NextMirror(cause) })
    }
}

/// The SHA-256 of a source that must have exactly `bytes` bytes; at most one byte more is read.
fn digest(source: impl Read, bytes: u64) -> io::Result<String> {
    let (read, sha256) = sha256_of_reader(source.take(bytes + 1))?;
    if read == bytes {
        return Ok(sha256);
    }
    let more = if read > bytes { "more than" } else { "fewer than" };
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("{more} {bytes} bytes")))
}

/// The start of the content of a 206 response: `Content-Range: bytes <start>-…` (RFC 9110, section 14.4).
fn range_start<T>(response: &Response<T>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// Checks the announced length before receiving a file that would be rejected.
fn check_length<T>(response: &Response<T>, total: u64) -> Result<(), AttemptError> {
    let announced = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match announced.and_then(|value| value.parse::<u64>().ok()) {
        Some(length) if length != total => {
            Err(AttemptError::NextMirror(format!("offers a file of {length} bytes, expected {total}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn unknown_host_is_not_retried() {
        use std::net::ToSocketAddrs;
        // A host name cannot have an empty label, so no name server is asked.
        let error = "mirror..invalid:80".to_socket_addrs().unwrap_err();
        let failure = request_failure(&ureq::Error::Io(error));
        assert!(matches!(failure, AttemptError::NextMirror(cause) if cause.contains("lookup address")));
        let failure = request_failure(&ureq::Error::HostNotFound);
        assert!(matches!(failure, AttemptError::NextMirror(_)));
    }

    #[test]
    fn refused_connection_is_retried() {
        let refused = ureq::Error::Io(io::ErrorKind::ConnectionRefused.into());
        assert!(matches!(request_failure(&refused), AttemptError::Retry(_)));
    }
}
