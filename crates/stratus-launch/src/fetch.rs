//! Fetching a run directory while it grows.
//!
//! Growing files are resumed: the target hashes the prefix that exists locally and sends the rest. Other
//! files are fetched into a hidden file, which is renamed once its hash is correct; a partial one is resumed
//! too.

use crate::shell::{self, Shell};
use crate::{Error, LaunchRecord, Result};
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use stratus_base::checksum::sha256_of_reader;
use stratus_base::printable;
use stratus_run::layout::{CHECKPOINTS, LOCAL_FILES, LOCK, VALIDATION};
use stratus_run::validation::{IMAGES, PictureFile, ValidationDir};

/// The maximum number of files of a run.
const MAX_RUN_FILES: usize = 100_000;
/// The maximum depth of folders in a run.
const MAX_DEPTH: usize = 8;
/// The length of a SHA-256 in hexadecimal digits with its line break.
const HASH_LINE_BYTES: usize = 65;

/// The task of the scripts, in errors.
const TASK: &str = "read the run";

/// Local disk space that must stay free.
const RESERVED_DISK_BYTES: u64 = 64 << 20;

/// The number of files and bytes of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FetchStats {
    /// Files that were fetched, whole or in part.
    pub files: usize,
    /// Bytes that were received.
    pub bytes: u64,
    /// Files that changed during the fetch and must be fetched again.
    pub changing: usize,
}

/// A file to fetch.
pub(crate) struct PendingFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// The local path.
    pub(crate) destination: PathBuf,
    /// The local file, final or partial, with the first `offset` bytes.
    local_prefix: Option<PathBuf>,
    offset: u64,
}

impl PendingFile {
    /// The path of the partial file.
    pub(crate) fn partial_path(&self) -> PathBuf {
        let name = self.destination.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.destination.with_file_name(format!(".{name}.launch.tmp"))
    }
}

/// Fetches the new files of a repetition's run.
pub(crate) fn fetch_run(
    shell: &dyn Shell,
    launch: &LaunchRecord,
    repetition: usize,
    into: &Path,
) -> Result<FetchStats> {
    let number = repetition.to_string();
    let arguments = [launch.root.as_str(), launch.id.as_str(), number.as_str()];
    let text = |script: &str, input: &str| shell::run_to_text(shell, TASK, script, &arguments, input);
    let list = text(include_str!("scripts/list.sh"), "")?;
    if list.is_empty() {
        // The repetition has no run yet, or failed before it had one.
        return Ok(FetchStats::default());
    }
    let mut files = parse_file_list(&list, into, shell.name())?;
    let remote_paths: HashSet<PathBuf> = files.iter().map(|file| file.destination.clone()).collect();
    // The target hashes the prefix of each file that exists locally in part or whole.
    let partial: Vec<usize> = (0..files.len()).filter(|&at| find_partial(&mut files[at])).collect();
    let lines: String =
        partial.iter().map(|&at| format!("{} {}\n", files[at].offset, files[at].path)).collect();
    let hashes = text(include_str!("scripts/hash-prefixes.sh"), &lines)?;
    let mut hashes = hashes.lines();
    for at in partial {
        let file = &mut files[at];
        let is_same = file
            .local_prefix
            .as_ref()
            .zip(hashes.next())
            .is_some_and(|(path, hash)| hash_prefix(path, file.offset).is_ok_and(|local| local == hash));
        if !is_same {
            (file.local_prefix, file.offset) = (None, 0);
        }
    }
    files.sort_by_key(|file| fetch_order(&file.path));
    files.retain(|file| file.local_prefix.as_ref() != Some(&file.destination) || file.offset < file.size);
    check_local_space(into, files.iter().map(|file| file.size - file.offset).sum(), shell.name())?;
    let lines: String = files
        .iter()
        .map(|file| format!("{} {} {}\n", file.offset, file.size - file.offset, file.path))
        .collect();
    let mut fetched = FetchStats::default();
    if !files.is_empty() {
        shell::run_to_success(
            shell,
            TASK,
            include_str!("scripts/send-ranges.sh"),
            &arguments,
            |out| out.write_all(lines.as_bytes()),
            |from| files.iter().try_for_each(|file| receive_file(file, from, &mut fetched)),
        )?;
    }
    if fetched.changing == 0 {
        remove_old_files(into, &remote_paths)?;
    }
    Ok(fetched)
}

/// Checks that `bytes` more bytes fit on the local disk.
pub(crate) fn check_local_space(into: &Path, bytes: u64, name: &str) -> Result<()> {
    let place = format!("{name}: not enough disk space here");
    check_space(free_bytes(into), bytes, RESERVED_DISK_BYTES, &place, "free disk space and fetch again")
}

/// Checks that `bytes` bytes and a reserve fit into the free bytes of a disk, if these are known.
pub(crate) fn check_space(
    free: Option<u64>,
    bytes: u64,
    reserve: u64,
    problem: &str,
    hint: &str,
) -> Result<()> {
    let Some(free) = free.filter(|free| bytes.saturating_add(reserve) > *free) else { return Ok(()) };
    let [needed, reserve, free] = [bytes, reserve, free].map(|bytes| bytes.div_ceil(1 << 20));
    let problem = format!("{problem}: need {needed} MiB plus {reserve} MiB reserve, {free} MiB free");
    Err(Error::target(problem, hint))
}

/// The free bytes on the disk of a folder, which need not exist; `None` if unknown.
fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = folder.ancestors().find(|path| path.as_os_str().is_empty() || path.exists())?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let out = Command::new("df").arg("-Pk").arg(folder).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let kib: u64 = text.lines().last()?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Parses a list of files, each with a local path in the folder. Rejects paths that escape the folder.
pub(crate) fn parse_file_list(list: &str, into: &Path, name: &str) -> Result<Vec<PendingFile>> {
    let mut files = Vec::new();
    for line in list.lines() {
        let rejected = |reason: &str| {
            let problem = format!("{name}: rejected file {}: {reason}", printable(line));
            Error::target(problem, "check the run directory on the target")
        };
        let (size, path) = line.split_once(' ').ok_or_else(|| rejected("not a line of a file list"))?;
        let size: u64 = size.parse().map_err(|_| rejected("the size is missing"))?;
        let path = path.strip_prefix("./").unwrap_or(path);
        let parts: Vec<Component<'_>> = Path::new(path).components().collect();
        let is_relative = parts.iter().all(|part| matches!(part, Component::Normal(_)));
        let stays_inside = is_relative && !path.is_empty() && !path.contains("//") && !path.ends_with('/');
        if !stays_inside || path.chars().any(char::is_control) || path.contains('\u{fffd}') {
            return Err(rejected("path escapes the run folder or is invalid"));
        }
        if parts.len() > MAX_DEPTH || files.len() >= MAX_RUN_FILES {
            return Err(rejected("too many files, or nested too deeply"));
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        if name == LOCK
            || LOCAL_FILES.contains(&path)
            || path.split('/').any(|part| part.starts_with('.') && part.ends_with(".tmp"))
        {
            continue;
        }
        // Never writes through a local symbolic link.
        let mut folder = into.to_owned();
        for part in &parts {
            folder.push(part);
            if fs::symlink_metadata(&folder).is_ok_and(|found| found.is_symlink()) {
                return Err(rejected("its local path contains a symbolic link"));
            }
        }
        files.push(PendingFile {
            path: path.to_owned(),
            size,
            destination: folder,
            local_prefix: None,
            offset: 0,
        });
    }
    Ok(files)
}

/// Finds the local prefix of a file and returns whether there is one.
fn find_partial(file: &mut PendingFile) -> bool {
    for path in [file.destination.clone(), file.partial_path()] {
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let is_empty = file.size == 0 && path == file.destination && path.exists();
        if (bytes > 0 || is_empty) && bytes <= file.size {
            (file.local_prefix, file.offset) = (Some(path), bytes);
            return true;
        }
    }
    false
}

/// The SHA-256 of the first `bytes` bytes of a file.
pub(crate) fn hash_prefix(path: &Path, bytes: u64) -> io::Result<String> {
    Ok(sha256_of_reader(File::open(path)?.take(bytes))?.1)
}

/// Appends the bytes received for one file.
fn receive_file(file: &PendingFile, from: &mut dyn Read, fetched: &mut FetchStats) -> Result<()> {
    let folder = file.destination.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let appends = file.local_prefix.as_ref() == Some(&file.destination);
    let part = if appends { file.destination.clone() } else { file.partial_path() };
    let failed = |error: io::Error| Error::file("write", &part)(error);
    let mut out = File::options().create(true).truncate(false).write(true).open(&part).map_err(failed)?;
    out.set_len(file.offset).map_err(failed)?;
    out.seek(SeekFrom::Start(file.offset)).map_err(failed)?;
    let length = file.size - file.offset;
    let copied = io::copy(&mut from.take(length), &mut out);
    let mut hash = [0; HASH_LINE_BYTES];
    let is_complete = matches!(copied, Ok(bytes) if bytes == length) && from.read_exact(&mut hash).is_ok();
    if !is_complete {
        if let Err(error) = copied {
            return Err(failed(error));
        }
        if appends {
            // Removes unverified bytes from a file that may be read here.
            out.set_len(file.offset).map_err(failed)?;
        }
        return Err(Error::target(
            format!("connection lost while fetching {}", file.path),
            "fetch again to resume",
        ));
    }
    out.sync_all().map_err(failed)?;
    let is_correct =
        hash_prefix(&part, file.size).is_ok_and(|here| here.as_bytes() == &hash[..HASH_LINE_BYTES - 1]);
    if !is_correct {
        fetched.changing += 1;
        if appends {
            out.set_len(file.offset).map_err(failed)?;
        } else {
            fs::remove_file(&part).map_err(failed)?;
        }
        return Ok(());
    }
    if !appends {
        fs::rename(&part, &file.destination).map_err(Error::file("write", &file.destination))?;
    }
    fetched.files += 1;
    fetched.bytes += length;
    Ok(())
}

/// The position of a file in a fetch. Checkpoints are fetched last, since rows newer than the checkpoint are
/// truncated on resume; the index of pictures after the pictures.
pub(crate) fn fetch_order(path: &str) -> u8 {
    let is_index = path.strip_prefix(VALIDATION).is_some_and(|rest| rest.strip_prefix('/') == Some(IMAGES));
    if path.starts_with(CHECKPOINTS) { 2 } else { u8::from(is_index) }
}

/// Removes local checkpoints, and pictures of validations, that the target no longer has.
pub(crate) fn remove_old_files(into: &Path, remote_paths: &HashSet<PathBuf>) -> Result<()> {
    let path = into.join(VALIDATION);
    // Not through a local symbolic link.
    if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
        let folder = ValidationDir::new(path);
        let is_old = |epoch: u32| !remote_paths.contains(&folder.pictures(PictureFile::Epoch(epoch)));
        folder.remove_pictures(is_old)?;
    }
    remove_old(&into.join(CHECKPOINTS), remote_paths, MAX_DEPTH)
}

fn remove_old(folder: &Path, remote_paths: &HashSet<PathBuf>, depth: usize) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(Error::file("read", folder))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::file("read", folder))?);
        if kind.is_dir() && depth > 0 {
            remove_old(&path, remote_paths, depth - 1)?;
            // Fails if the folder is not empty.
            let _ = fs::remove_dir(&path);
        } else if kind.is_file() && !remote_paths.contains(&path) {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FetchStats, fetch_run, parse_file_list};
    use crate::LaunchRecord;
    use crate::local::LocalShell;
    use std::fs;
    use std::path::Path;

    fn record(root: &Path) -> LaunchRecord {
        LaunchRecord { id: "a".to_owned(), root: root.display().to_string(), ..LaunchRecord::default() }
    }

    #[test]
    fn fetches_new_bytes_only_and_resumes_partial_files() {
        let folder = tempfile::tempdir().unwrap();
        let remote = folder.path().join("jobs/a/1/run");
        fs::create_dir_all(remote.join("checkpoints/1")).unwrap();
        fs::write(remote.join("rows.csv"), "a\nb\n").unwrap();
        fs::write(remote.join("summary.json"), "one").unwrap();
        fs::write(remote.join("checkpoints/1/w"), "0123456789").unwrap();
        fs::write(remote.join("empty"), "").unwrap();
        fs::create_dir_all(remote.join("validation")).unwrap();
        fs::write(remote.join("validation/0000000001.png"), "p").unwrap();
        fs::write(remote.join("validation/images.json"), "{1}").unwrap();
        fs::write(remote.join("run.lock"), "12").unwrap();
        fs::write(remote.join("labels.json"), "{}").unwrap();
        fs::write(remote.join("remote.json"), "{}").unwrap();
        let (shell, record) = (LocalShell { name: "local".to_owned() }, record(folder.path()));
        let here = folder.path().join("here");
        // A partial file of an earlier fetch.
        fs::create_dir_all(here.join("checkpoints/1")).unwrap();
        fs::write(here.join("checkpoints/1/.w.launch.tmp"), "01234").unwrap();
        let fetched = fetch_run(&shell, &record, 1, &here).unwrap();
        assert_eq!(fetched, FetchStats { files: 6, bytes: 4 + 3 + 5 + 1 + 3, changing: 0 });
        assert_eq!(fs::read_to_string(here.join("checkpoints/1/w")).unwrap(), "0123456789");
        assert!(!here.join("run.lock").exists() && here.join("empty").exists());
        assert!(!here.join("labels.json").exists() && !here.join("remote.json").exists());
        assert_eq!(fetch_run(&shell, &record, 1, &here).unwrap().bytes, 0);

        fs::write(remote.join("rows.csv"), "a\nb\nc\n").unwrap();
        fs::write(remote.join("summary.json"), "two").unwrap();
        fs::remove_dir_all(remote.join("checkpoints/1")).unwrap();
        fs::create_dir_all(remote.join("checkpoints/2")).unwrap();
        fs::write(remote.join("checkpoints/2/w"), "x").unwrap();
        fs::remove_file(remote.join("validation/0000000001.png")).unwrap();
        fs::write(remote.join("validation/0000000002.png"), "q").unwrap();
        fs::write(remote.join("validation/images.json"), "{2}").unwrap();
        // A file of the user's stays.
        fs::write(here.join("validation/mine.png"), "m").unwrap();
        assert_eq!(
            fetch_run(&shell, &record, 1, &here).unwrap(),
            FetchStats { files: 5, bytes: 2 + 3 + 1 + 1 + 3, changing: 0 }
        );
        assert_eq!(fs::read_to_string(here.join("rows.csv")).unwrap(), "a\nb\nc\n");
        assert_eq!(fs::read_to_string(here.join("summary.json")).unwrap(), "two");
        assert!(!here.join("checkpoints/1").exists());
        let has = |name: &str| here.join("validation").join(name).exists();
        assert!(!has("0000000001.png") && has("0000000002.png") && has("images.json") && has("mine.png"));
    }

    #[test]
    fn rejects_paths_that_escape_the_folder() {
        let here = tempfile::tempdir().unwrap();
        for line in
            ["1 ./../x", "1 /etc/passwd", "1 ./a/../../x", "1 ", "x ./a", "1 ./a\u{1b}[2J", "1 ./a//b"]
        {
            let error = parse_file_list(line, here.path(), "lab").err().unwrap().to_string();
            assert!(error.contains("rejected file") && !error.contains('\u{1b}'), "{error}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/tmp", here.path().join("link")).unwrap();
            let error = parse_file_list("1 ./link/x", here.path(), "lab").err().unwrap().to_string();
            assert!(error.contains("its local path contains a symbolic link"), "{error}");
        }
    }
}
