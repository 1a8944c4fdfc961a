//! Finding runs in folders, without leaving the folders.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stratus_base::checksum::sha256_hex;
use stratus_run::layout::{EXPERIMENT, LAUNCHES, SWEEP};
use stratus_run::{SEARCH_DEPTH, searched_folders};

/// Maximum number of runs.
const MAX_RUNS: usize = 100_000;
/// Maximum number of sweeps, and of records of launches.
const MAX_ITEMS: usize = 2000;
/// Maximum number of entries of a run directory that are checked for links.
const MAX_ENTRIES: usize = 10_000;
/// Hexadecimal digits of an id: 64 bits.
const ID_DIGITS: usize = 16;

/// The identity of a run, a sweep or a launch in addresses: a hash of its path, which is never a path itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct ItemId(String);

impl ItemId {
    /// The id of a canonical path.
    pub fn of(path: &Path) -> Self {
        let mut digits = sha256_hex([path.as_os_str().as_encoded_bytes()]);
        digits.truncate(ID_DIGITS);
        Self(digits)
    }

    /// Reads an id of an address; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(text.to_ascii_lowercase()))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A run, a sweep, or the record of a launch that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundItem {
    /// Its id.
    pub id: ItemId,
    /// The directory of the run or the sweep, or the file of the record, without links.
    pub path: PathBuf,
    /// Its path from the folder, for people.
    pub label: String,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    /// The runs, in the order of folders and names.
    pub runs: Vec<FoundItem>,
    /// The directories of sweeps, in the same order.
    pub sweeps: Vec<FoundItem>,
    /// The records of launches.
    pub launches: Vec<FoundItem>,
    /// The folders without links; runs in them may be read.
    pub roots: Vec<PathBuf>,
    /// Folders that are not shown, or not completely: path and reason.
    pub problems: Vec<(String, String)>,
}

/// Finds the runs in `folders`: each one itself, if it is a run, or those below it. Links and hidden folders
/// are not followed.
pub fn find(folders: &[PathBuf]) -> Found {
    let mut found = Found::default();
    for folder in folders {
        let root = match folder.canonicalize() {
            Ok(root) => root,
            Err(error) => {
                found.problems.push((folder.display().to_string(), reason(&error)));
                continue;
            }
        };
        let prefix = (folders.len() > 1).then(|| from_here(folder).display().to_string());
        let mut search = Search { root: &root, prefix: prefix.as_deref(), found: &mut found };
        search.folder(&root, SEARCH_DEPTH);
        found.roots.push(root);
    }
    for list in [&mut found.runs, &mut found.sweeps, &mut found.launches] {
        let mut seen = std::collections::HashSet::new();
        list.retain(|one| seen.insert(one.id.clone()));
    }
    found
}

/// A folder as people call it: from the working folder, if it is in that.
fn from_here(folder: &Path) -> &Path {
    let below = std::env::current_dir().ok().and_then(|here| folder.strip_prefix(here).ok());
    below.filter(|below| !below.as_os_str().is_empty()).unwrap_or(folder)
}

struct Search<'a> {
    root: &'a Path,
    /// The given folder, if there are several.
    prefix: Option<&'a str>,
    found: &'a mut Found,
}

impl Search<'_> {
    fn folder(&mut self, folder: &Path, depth: usize) {
        if self.found.runs.len() >= MAX_RUNS {
            let reason = format!("only the first {MAX_RUNS} runs are shown");
            let problem = (self.root.display().to_string(), reason);
            if !self.found.problems.contains(&problem) {
                self.found.problems.push(problem);
            }
            return;
        }
        // Something else in place of the file is reported by who reads it.
        if fs::symlink_metadata(folder.join(EXPERIMENT)).is_ok_and(|facts| !facts.is_dir()) {
            let label = self.label(folder);
            self.found.runs.push(FoundItem { id: ItemId::of(folder), path: folder.to_owned(), label });
            return;
        }
        self.sweep(folder);
        self.launches(folder);
        if depth == 0 {
            return;
        }
        let below = match searched_folders(folder) {
            Ok(below) => below,
            // It vanished meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && folder != self.root => return,
            Err(error) => {
                self.found.problems.push((folder.display().to_string(), reason(&error)));
                return;
            }
        };
        for path in below {
            self.folder(&path, depth - 1);
        }
    }

    /// Notes a folder if it is that of a sweep. Its runs are found below it.
    fn sweep(&mut self, folder: &Path) {
        if fs::symlink_metadata(folder.join(SWEEP)).is_ok_and(|facts| !facts.is_dir()) {
            let (id, path, label) = (ItemId::of(folder), folder.to_owned(), self.label(folder));
            self.add(|found| &mut found.sweeps, "sweeps", FoundItem { id, path, label });
        }
    }

    /// Notes the records of the launches whose runs are in a folder.
    fn launches(&mut self, folder: &Path) {
        let records = folder.join(LAUNCHES);
        if !fs::symlink_metadata(&records).is_ok_and(|facts| facts.is_dir()) {
            return;
        }
        let read = match fs::read_dir(&records) {
            Ok(read) => read,
            Err(error) => {
                self.found.problems.push((records.display().to_string(), reason(&error)));
                return;
            }
        };
        let mut files: Vec<PathBuf> = read.flatten().map(|entry| entry.path()).collect();
        files.sort_unstable();
        for path in files {
            let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && path.extension().is_some_and(|extension| extension == "toml") {
                let label = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let found = FoundItem { id: ItemId::of(&path), path, label };
                self.add(|found| &mut found.launches, "launches", found);
            }
        }
    }

    /// Adds a sweep or a launch; past the limit, a problem.
    fn add(&mut self, list: impl Fn(&mut Found) -> &mut Vec<FoundItem>, what: &str, one: FoundItem) {
        if list(self.found).len() < MAX_ITEMS {
            list(self.found).push(one);
            return;
        }
        let reason = format!("only the first {MAX_ITEMS} {what} are shown");
        let problem = (self.root.display().to_string(), reason);
        if !self.found.problems.contains(&problem) {
            self.found.problems.push(problem);
        }
    }

    fn label(&self, run: &Path) -> String {
        let below = run.strip_prefix(self.root).unwrap_or(run).display().to_string();
        match (self.prefix, below.is_empty()) {
            (Some(prefix), true) => prefix.to_owned(),
            (Some(prefix), false) => format!("{}/{below}", prefix.trim_end_matches('/')),
            (None, true) => {
                let names: Vec<_> = run.iter().map(|name| name.to_string_lossy()).collect();
                names[names.len().saturating_sub(2)..].join("/")
            }
            (None, false) => below,
        }
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "it does not exist".to_owned(),
        ErrorKind::NotADirectory => "it is not a folder".to_owned(),
        _ => error.to_string(),
    }
}

/// The state of a file: if none of it differs, the content is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its length in bytes.
    pub length: u64,
    /// The time of its last modification, in nanoseconds since 1970.
    pub modified_ns: i128,
    inode: u64,
}

/// The state of a file of a run; `None` if it does not exist.
///
/// # Errors
/// The reason, if it is a link that leads out of the folders `roots`, or not a file.
pub fn stamp(path: &Path, roots: &[PathBuf]) -> Result<Option<Stamp>, String> {
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |error: &io::Error| format!("cannot read {}: {error}", name());
    let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    let facts = match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_symlink() => match followed(path, roots) {
            Ok(Some(facts)) => facts,
            Ok(None) => return Err(format!("{} is a link that leads out of the folders", name())),
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(failed(&error)),
        },
        Ok(facts) => facts,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    if !facts.is_file() {
        return Err(format!("{} is not a file", name()));
    }
    let modified_ns = i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec());
    Ok(Some(Stamp { length: facts.len(), modified_ns, inode: facts.ino() }))
}

/// The target of a link; `None` outside of `roots`.
fn followed(path: &Path, roots: &[PathBuf]) -> io::Result<Option<Metadata>> {
    let target = path.canonicalize()?;
    let is_inside = roots.iter().any(|root| target.starts_with(root));
    if is_inside { fs::metadata(&target).map(Some) } else { Ok(None) }
}

/// Checks that all files below a run directory may be opened: they are files, and no link leads out of the
/// folders.
///
/// # Errors
/// The reason, with the first file that may not be opened.
pub fn check_files(run: &Path, roots: &[PathBuf]) -> Result<(), String> {
    let mut entries = 0;
    let mut folders = vec![run.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(read) = fs::read_dir(&folder) else { continue };
        for entry in read.flatten() {
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(format!("it has more than {MAX_ENTRIES} files"));
            }
            let (path, kind) = (entry.path(), entry.file_type().map_err(|error| error.to_string())?);
            let name = || path.strip_prefix(run).unwrap_or(&path).display().to_string();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                match followed(&path, roots) {
                    Ok(Some(facts)) if facts.is_file() => {}
                    Ok(Some(_)) => return Err(format!("{} is a link, but not to a file", name())),
                    Ok(None) => return Err(format!("{} is a link that leads out of the folders", name())),
                    // Reading it reports it as missing.
                    Err(_) => {}
                }
            } else if !kind.is_file() {
                return Err(format!("{} is not a file", name()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn make(root: &Path, run: &str) -> PathBuf {
        let path = root.join(run);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(EXPERIMENT), "").unwrap();
        path
    }

    #[test]
    fn finds_runs_in_order_and_does_not_follow_links() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        for run in ["digits/10", "digits/9", "vgg/1", ".hidden/1", "1/2/3/4/5/6/7"] {
            make(root.path(), run);
        }
        make(elsewhere.path(), "other/1");
        symlink(elsewhere.path(), root.path().join("link")).unwrap();
        let labels = |folders: &[PathBuf]| -> Vec<String> {
            find(folders).runs.into_iter().map(|run| run.label).collect()
        };
        assert_eq!(labels(&[root.path().to_owned()]), ["digits/9", "digits/10", "vgg/1"]);
        let run = root.path().join("digits/9");
        assert_eq!(labels(std::slice::from_ref(&run)), ["digits/9"]);
        // A run in two of the folders is listed once.
        let found = find(&[run.clone(), root.path().to_owned(), root.path().join("gone")]);
        assert_eq!(found.runs.len(), 3);
        assert_eq!(found.runs[0].label, run.display().to_string());
        assert_eq!(found.problems.len(), 1);
        assert_eq!(found.problems[0].1, "it does not exist");
    }

    #[test]
    fn ids_are_not_paths() {
        let id = ItemId::of(Path::new("/runs/digits/1"));
        assert_eq!(ItemId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(ItemId::parse(&id.as_str().to_uppercase()), Some(id));
        for text in [
            "",
            "..",
            "../../etc/passwd",
            "0123456789abcde",
            "0123456789abcdeg",
            "%2e%2e",
            "é234567890abcdef",
        ] {
            assert_eq!(ItemId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn files_outside_of_the_folders_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let run = make(root.path(), "digits/1");
        let roots = [root.path().canonicalize().unwrap()];
        assert!(check_files(&run, &roots).is_ok());
        fs::write(root.path().join("shared.json"), "{}").unwrap();
        symlink(root.path().join("shared.json"), run.join("machine.json")).unwrap();
        assert!(check_files(&run, &roots).is_ok(), "a link inside the folders");
        assert_eq!(stamp(&run.join("machine.json"), &roots).unwrap().unwrap().length, 2);
        fs::write(elsewhere.path().join("secret"), "secret").unwrap();
        symlink(elsewhere.path().join("secret"), run.join("log.txt")).unwrap();
        let reason = check_files(&run, &roots).unwrap_err();
        assert_eq!(reason, "log.txt is a link that leads out of the folders");
        assert_eq!(stamp(&run.join("log.txt"), &roots).unwrap_err(), reason);
        fs::remove_file(run.join("log.txt")).unwrap();
        symlink(elsewhere.path(), run.join("timeline")).unwrap();
        assert!(check_files(&run, &roots).unwrap_err().contains("timeline"));
        fs::remove_file(run.join("timeline")).unwrap();
        symlink(run.join("nowhere"), run.join("plan.json")).unwrap();
        assert!(check_files(&run, &roots).is_ok());
        assert_eq!(stamp(&run.join("plan.json"), &roots), Ok(None));
        fs::create_dir(run.join("summary.json")).unwrap();
        assert_eq!(stamp(&run.join("summary.json"), &roots).unwrap_err(), "summary.json is not a file");
        assert_eq!(stamp(&run.join("epochs.csv"), &roots), Ok(None));
    }
}
