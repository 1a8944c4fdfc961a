//! The files of a run, with their sizes.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::Serialize;

/// Maximum number of files that are listed, and of folders that are looked into.
const MAX_FILES: usize = 1000;

/// A file of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunFile {
    /// Its path in the run directory.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// The time of its last modification, in seconds since 1970.
    pub modified: Option<u64>,
}

/// The files of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunFiles {
    /// The run directory.
    pub folder: String,
    /// The files by name.
    pub files: Vec<RunFile>,
    /// The sum of their lengths in bytes.
    pub bytes: u64,
    /// True if there are more files, which are not counted.
    pub has_more: bool,
}

/// Lists the files of a run directory. Links are listed with the length of the link itself; files that vanish
/// meanwhile are left out.
pub fn list(run: &Path) -> RunFiles {
    let mut listed = RunFiles { folder: run.display().to_string(), ..RunFiles::default() };
    let mut folders = vec![run.to_owned()];
    let mut opened = 0;
    while let Some(folder) = folders.pop() {
        opened += 1;
        if opened > MAX_FILES {
            listed.has_more = true;
            break;
        }
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if listed.files.len() >= MAX_FILES || folders.len() >= MAX_FILES {
                listed.has_more = true;
                break;
            }
            let Ok(facts) = entry.path().symlink_metadata() else { continue };
            if facts.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let modified = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let path = entry.path();
            let name = path.strip_prefix(run).unwrap_or(&path).display().to_string();
            listed.bytes = listed.bytes.saturating_add(facts.len());
            let modified = modified.map(|time| time.as_secs());
            listed.files.push(RunFile { name, bytes: facts.len(), modified });
        }
    }
    listed.files.sort_by(|a, b| a.name.cmp(&b.name));
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_counted_and_links_are_not_followed() {
        let run = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join("checkpoints")).unwrap();
        fs::write(run.path().join("checkpoints/weights"), vec![0; 100]).unwrap();
        fs::write(run.path().join("log.txt"), "12345").unwrap();
        fs::write(outside.path().join("secret"), vec![0; 1000]).unwrap();
        symlink(outside.path(), run.path().join("link")).unwrap();
        let listed = list(run.path());
        let names: Vec<&str> = listed.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["checkpoints/weights", "link", "log.txt"]);
        assert!(listed.files[1].bytes < 1000 && listed.bytes < 1105 + 200);
        assert!(!listed.has_more && listed.files[2].modified.is_some());
        for number in 0..MAX_FILES {
            fs::write(run.path().join(format!("{number}")), "").unwrap();
        }
        let many = list(run.path());
        assert_eq!((many.files.len(), many.has_more), (MAX_FILES, true));
        assert_eq!(list(&run.path().join("gone")).files, []);
    }
}
