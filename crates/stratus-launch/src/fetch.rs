//! Bringing a run directory as it grows.
//!
//! Files that grow are gone on with: the target says whether its first bytes are those that are here, and
//! sends what follows. Everything else comes whole, into a hidden file that takes the name when its hash is
//! right; one that was cut is gone on with too.

use crate::shell::{self, Shell};
use crate::{Error, Record, Result};
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use stratus_base::checksum::sha256_of_reader;
use stratus_base::printable;
use stratus_run::layout::{CHECKPOINTS, LOCK};

/// The most files of a run.
const MOST_FILES: usize = 100_000;
/// The deepest folder in a run.
const DEEPEST: usize = 8;
/// A SHA-256 in hexadecimal digits, and the end of its line.
const HASH_LINE: usize = 65;

/// What is left free on the disk here.
const SPARE: u64 = 64 << 20;

/// What came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fetched {
    /// Files of which something came.
    pub files: usize,
    /// Bytes that came.
    pub bytes: u64,
    /// Files that changed while they came, and are to be fetched again.
    pub changing: usize,
}

/// A file that is to come.
pub(crate) struct Wanted {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Where it is to be.
    pub(crate) to: PathBuf,
    /// What has its first bytes here: the file, or what came of it.
    has: Option<PathBuf>,
    offset: u64,
}

impl Wanted {
    /// Where it is while it comes.
    pub(crate) fn part(&self) -> PathBuf {
        let name = self.to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.to.with_file_name(format!(".{name}.launch.tmp"))
    }
}

/// Brings what is new of a repetition's run.
pub(crate) fn fetch(shell: &dyn Shell, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched> {
    let number = repetition.to_string();
    let arguments = [launch.root.as_str(), launch.id.as_str(), number.as_str()];
    let text = |script: &str, input: &str| {
        let (ended, text) = shell::text(shell, script, &arguments, input.as_bytes())?;
        if ended.code == Some(0) { Ok(text) } else { Err(ended.error(shell, "read the run")) }
    };
    let list = text(include_str!("scripts/list.sh"), "")?;
    let mut wanted = listed(&list, into, shell.name())?;
    let there: HashSet<PathBuf> = wanted.iter().map(|file| file.to.clone()).collect();
    // Whose first bytes are here already?
    let begun: Vec<usize> = (0..wanted.len()).filter(|&at| begin(&mut wanted[at])).collect();
    let lines: String =
        begun.iter().map(|&at| format!("{} {}\n", wanted[at].offset, wanted[at].path)).collect();
    let hashes = text(include_str!("scripts/prefix.sh"), &lines)?;
    let mut hashes = hashes.lines();
    for at in begun {
        let file = &mut wanted[at];
        let same = file
            .has
            .as_ref()
            .zip(hashes.next())
            .is_some_and(|(has, hash)| hash_of(has, file.offset).is_ok_and(|here| here == hash));
        if !same {
            (file.has, file.offset) = (None, 0);
        }
    }
    // Checkpoints last: rows that are ahead of them do no harm to whoever goes on with the run.
    wanted.sort_by_key(|file| file.path.starts_with(CHECKPOINTS));
    wanted.retain(|file| file.has.as_ref() != Some(&file.to) || file.offset < file.size);
    room(into, wanted.iter().map(|file| file.size - file.offset).sum(), shell.name())?;
    let lines: String = wanted
        .iter()
        .map(|file| format!("{} {} {}\n", file.offset, file.size - file.offset, file.path))
        .collect();
    let mut fetched = Fetched::default();
    if !wanted.is_empty() {
        let (ended, ()) = shell::run(
            shell,
            include_str!("scripts/send.sh"),
            &arguments,
            |out| out.write_all(lines.as_bytes()),
            |from| wanted.iter().try_for_each(|file| take(file, from, &mut fetched)),
        )?;
        if ended.code != Some(0) {
            return Err(ended.error(shell, "read the run"));
        }
    }
    if !list.is_empty() && fetched.changing == 0 {
        remove_old_checkpoints(into, &there)?;
    }
    Ok(fetched)
}

/// Whether so many bytes have room here.
pub(crate) fn room(into: &Path, coming: u64, name: &str) -> Result<()> {
    let Some(free) = free(into).filter(|free| coming.saturating_add(SPARE) > *free) else { return Ok(()) };
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (coming, spare, free) = (mib(coming), mib(SPARE), mib(free));
    let problem = format!(
        "{name}: {coming} MiB of the run are to come, and {spare} MiB left free; here are {free} MiB"
    );
    Err(Error::target(problem, "make room here, and fetch again"))
}

/// Bytes that are free where a folder is, or will be; none where that cannot be found out.
fn free(folder: &Path) -> Option<u64> {
    let folder = folder.ancestors().find(|path| path.as_os_str().is_empty() || path.exists())?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let out = Command::new("df").arg("-Pk").arg(folder).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let kib: u64 = text.lines().last()?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The files of a list, each with a place in the folder. One that would have none is refused.
pub(crate) fn listed(list: &str, into: &Path, name: &str) -> Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for line in list.lines() {
        let refused = |why: &str| {
            let problem = format!("{name}: the run has a file that is not taken, {}: {why}", printable(line));
            Error::target(problem, "see what happened to the run there")
        };
        let (size, path) = line.split_once(' ').ok_or_else(|| refused("no line of a list"))?;
        let size: u64 = size.parse().map_err(|_| refused("no size"))?;
        let path = path.strip_prefix("./").unwrap_or(path);
        let parts: Vec<Component<'_>> = Path::new(path).components().collect();
        let plain = parts.iter().all(|part| matches!(part, Component::Normal(_)));
        let stays = plain && !path.is_empty() && !path.contains("//") && !path.ends_with('/');
        if !stays || path.chars().any(char::is_control) || path.contains('\u{fffd}') {
            return Err(refused("the path would leave the folder, or is none"));
        }
        if parts.len() > DEEPEST || wanted.len() >= MOST_FILES {
            return Err(refused("too many files, or too deep"));
        }
        let last = path.rsplit('/').next().unwrap_or(path);
        if last == LOCK || path.split('/').any(|part| part.starts_with('.') && part.ends_with(".tmp")) {
            continue;
        }
        // Nothing is written through a link that somebody made here.
        let mut folder = into.to_owned();
        for part in &parts {
            folder.push(part);
            if fs::symlink_metadata(&folder).is_ok_and(|found| found.is_symlink()) {
                return Err(refused("a link is in its place here"));
            }
        }
        wanted.push(Wanted { path: path.to_owned(), size, to: folder, has: None, offset: 0 });
    }
    Ok(wanted)
}

/// Finds what is here of a file: whether something is.
fn begin(file: &mut Wanted) -> bool {
    for path in [file.to.clone(), file.part()] {
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let is_empty = file.size == 0 && path == file.to && path.exists();
        if (bytes > 0 || is_empty) && bytes <= file.size {
            (file.has, file.offset) = (Some(path), bytes);
            return true;
        }
    }
    false
}

pub(crate) fn hash_of(path: &Path, bytes: u64) -> io::Result<String> {
    Ok(sha256_of_reader(File::open(path)?.take(bytes))?.1)
}

/// Takes what comes of a file.
fn take(file: &Wanted, from: &mut dyn Read, fetched: &mut Fetched) -> Result<()> {
    let folder = file.to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    let grows = file.has.as_ref() == Some(&file.to);
    let part = if grows { file.to.clone() } else { file.part() };
    let failed = |error: io::Error| Error::file("write", &part)(error);
    let mut out = File::options().create(true).truncate(false).write(true).open(&part).map_err(failed)?;
    out.set_len(file.offset).map_err(failed)?;
    out.seek(SeekFrom::Start(file.offset)).map_err(failed)?;
    let length = file.size - file.offset;
    let came = io::copy(&mut from.take(length), &mut out);
    let mut hash = [0; HASH_LINE];
    let whole = matches!(came, Ok(bytes) if bytes == length) && from.read_exact(&mut hash).is_ok();
    if !whole {
        if let Err(error) = came {
            return Err(failed(error));
        }
        if grows {
            // Unproven bytes of a file that is read here.
            out.set_len(file.offset).map_err(failed)?;
        }
        return Err(Error::target(
            format!("the connection ended while {} came", file.path),
            "fetch again: it goes on with what has come",
        ));
    }
    out.sync_all().map_err(failed)?;
    let right = hash_of(&part, file.size).is_ok_and(|here| here.as_bytes() == &hash[..HASH_LINE - 1]);
    if !right {
        fetched.changing += 1;
        if grows {
            out.set_len(file.offset).map_err(failed)?;
        } else {
            fs::remove_file(&part).map_err(failed)?;
        }
        return Ok(());
    }
    if !grows {
        fs::rename(&part, &file.to).map_err(Error::file("write", &file.to))?;
    }
    fetched.files += 1;
    fetched.bytes += length;
    Ok(())
}

/// Removes checkpoints that are not there any more.
pub(crate) fn remove_old_checkpoints(into: &Path, there: &HashSet<PathBuf>) -> Result<()> {
    remove_old(&into.join(CHECKPOINTS), there, DEEPEST)
}

fn remove_old(folder: &Path, there: &HashSet<PathBuf>, depth: usize) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(Error::file("read", folder))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::file("read", folder))?);
        if kind.is_dir() && depth > 0 {
            remove_old(&path, there, depth - 1)?;
            // One that still holds something stays.
            let _ = fs::remove_dir(&path);
        } else if kind.is_file() && !there.contains(&path) {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Fetched, fetch, listed};
    use crate::Record;
    use crate::local::Local;
    use std::fs;
    use std::path::Path;

    fn record(root: &Path) -> Record {
        Record { root: root.display().to_string(), ..Record::of_a_test("a", "local") }
    }

    #[test]
    fn only_what_is_new_comes_and_a_cut_file_is_gone_on_with() {
        let place = tempfile::tempdir().unwrap();
        let there = place.path().join("jobs/a/1/run");
        fs::create_dir_all(there.join("checkpoints/1")).unwrap();
        fs::write(there.join("rows.csv"), "a\nb\n").unwrap();
        fs::write(there.join("summary.json"), "one").unwrap();
        fs::write(there.join("checkpoints/1/w"), "0123456789").unwrap();
        fs::write(there.join("empty"), "").unwrap();
        fs::write(there.join("run.lock"), "12").unwrap();
        let (shell, record) = (Local { name: "local".to_owned() }, record(place.path()));
        let here = place.path().join("here");
        // So much came before the connection was cut.
        fs::create_dir_all(here.join("checkpoints/1")).unwrap();
        fs::write(here.join("checkpoints/1/.w.launch.tmp"), "01234").unwrap();
        let fetched = fetch(&shell, &record, 1, &here).unwrap();
        assert_eq!(fetched, Fetched { files: 4, bytes: 4 + 3 + 5, changing: 0 });
        assert_eq!(fs::read_to_string(here.join("checkpoints/1/w")).unwrap(), "0123456789");
        assert!(!here.join("run.lock").exists() && here.join("empty").exists());
        assert_eq!(fetch(&shell, &record, 1, &here).unwrap().bytes, 0);

        fs::write(there.join("rows.csv"), "a\nb\nc\n").unwrap();
        fs::write(there.join("summary.json"), "two").unwrap();
        fs::remove_dir_all(there.join("checkpoints/1")).unwrap();
        fs::create_dir_all(there.join("checkpoints/2")).unwrap();
        fs::write(there.join("checkpoints/2/w"), "x").unwrap();
        assert_eq!(
            fetch(&shell, &record, 1, &here).unwrap(),
            Fetched { files: 3, bytes: 2 + 3 + 1, changing: 0 }
        );
        assert_eq!(fs::read_to_string(here.join("rows.csv")).unwrap(), "a\nb\nc\n");
        assert_eq!(fs::read_to_string(here.join("summary.json")).unwrap(), "two");
        assert!(!here.join("checkpoints/1").exists());
    }

    #[test]
    fn no_path_leaves_the_folder() {
        let here = tempfile::tempdir().unwrap();
        for line in
            ["1 ./../x", "1 /etc/passwd", "1 ./a/../../x", "1 ", "x ./a", "1 ./a\u{1b}[2J", "1 ./a//b"]
        {
            let error = listed(line, here.path(), "lab").err().unwrap().to_string();
            assert!(error.contains("is not taken") && !error.contains('\u{1b}'), "{error}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/tmp", here.path().join("link")).unwrap();
            let error = listed("1 ./link/x", here.path(), "lab").err().unwrap().to_string();
            assert!(error.contains("a link is in its place"), "{error}");
        }
    }
}
