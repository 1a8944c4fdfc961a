//! The commit of the folder in which a run was started.
//!
//! A repository may be hostile: its configuration and hooks can name programs. Nothing of it is executed. The
//! commit is read from its files. Whether files have changed is asked of `git`, with a configuration that
//! lacks the repository's own, so that only filters of the user's configuration can run.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stratus_base::read_text_at_most;
use stratus_base::text::is_printable;

/// How long `git` may take to compare the files.
const MAX_COMPARISON_TIME: Duration = Duration::from_secs(3);
/// The time between two checks whether `git` has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The maximum size of a file that contains a reference or a path.
const MAX_REFERENCE_BYTES: u64 = 4 << 10;
/// The maximum size of the list of references, of which a large repository has 100,000.
const MAX_PACKED_REFS_BYTES: u64 = 64 << 20;
/// The maximum size of a repository's configuration.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The maximum number of references that refer to another one.
const MAX_SYMBOLIC_REFERENCES: usize = 5;
/// The maximum length of the name of a branch in characters.
const MAX_BRANCH_CHARS: usize = 255;
/// Digits of a shortened commit.
const SHORT_DIGITS: usize = 10;

/// The commit of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommit {
    /// The hash, in hexadecimal digits.
    pub commit: String,
    /// The branch; `None` if the commit itself is checked out.
    pub branch: Option<String>,
    /// True if files of the commit were changed; `None` if that is unknown.
    #[serde(rename = "dirty")]
    pub has_changes: Option<bool>,
}

impl GitCommit {
    /// The commit of the repository that contains a folder; `None` outside of a repository, before its first
    /// commit, and if its references are not stored as files.
    #[must_use]
    pub fn of_folder(folder: &Path) -> Option<Self> {
        let repository = Repository::containing(folder)?;
        let (commit, branch) = repository.head()?;
        let has_changes = repository.has_changes(&commit);
        Some(Self { commit, branch, has_changes })
    }

    /// The first digits of the hash, with `-dirty` if files were changed.
    #[must_use]
    pub fn short(&self) -> String {
        let digits: String = self.commit.chars().take(SHORT_DIGITS).collect();
        if self.has_changes == Some(true) { digits + "-dirty" } else { digits }
    }

    /// Returns whether the texts are a hash and the name of a branch.
    pub(crate) fn is_valid(&self) -> bool {
        is_hash(&self.commit) && self.branch.as_deref().is_none_or(is_branch_name)
    }
}

/// The folders of a repository.
#[derive(Debug)]
struct Repository {
    /// The checked-out files.
    work_tree: PathBuf,
    /// The folder with `HEAD` and the index.
    git_dir: PathBuf,
    /// The folder with objects and branches; other than `git_dir` for a linked work tree.
    common_dir: PathBuf,
}

impl Repository {
    fn containing(folder: &Path) -> Option<Self> {
        let folder = folder.canonicalize().ok()?;
        folder.ancestors().find_map(|work_tree| {
            let entry = work_tree.join(".git");
            let git_dir = if entry.is_dir() {
                entry
            } else {
                let text = read_reference(&entry)?;
                work_tree.join(text.strip_prefix("gitdir:")?.trim())
            };
            git_dir.join("HEAD").is_file().then_some(())?;
            let common_dir = match read_reference(&git_dir.join("commondir")) {
                Some(path) => git_dir.join(path),
                None => git_dir.clone(),
            };
            Some(Self { work_tree: work_tree.to_owned(), git_dir, common_dir })
        })
    }

    /// The commit of `HEAD`, and its branch.
    fn head(&self) -> Option<(String, Option<String>)> {
        let head = read_reference(&self.git_dir.join("HEAD"))?;
        if is_hash(&head) {
            return Some((head, None));
        }
        let name = head.strip_prefix("ref:")?.trim();
        let branch = name.strip_prefix("refs/heads/").filter(|branch| is_branch_name(branch));
        Some((self.resolve(name)?, branch.map(str::to_owned)))
    }

    /// The commit of a reference.
    fn resolve(&self, name: &str) -> Option<String> {
        let mut name = name.to_owned();
        for _ in 0..MAX_SYMBOLIC_REFERENCES {
            // A name must not lead out of the repository.
            let is_plain = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
            (is_plain && name.starts_with("refs/")).then_some(())?;
            let Some(text) = read_reference(&self.common_dir.join(&name)) else {
                return self.packed_reference(&name);
            };
            match text.strip_prefix("ref:") {
                Some(next) => next.trim().clone_into(&mut name),
                None => return Some(text).filter(|text| is_hash(text)),
            }
        }
        None
    }

    /// The commit of a reference in the file that lists many, a line `<hash> <name>` for each.
    fn packed_reference(&self, name: &str) -> Option<String> {
        let path = self.common_dir.join("packed-refs");
        path.is_file().then_some(())?;
        let lines = BufReader::new(File::open(path).ok()?.take(MAX_PACKED_REFS_BYTES)).lines();
        lines.map_while(Result::ok).find_map(|line| {
            let (hash, found) = line.split_once(' ')?;
            (found == name && is_hash(hash)).then(|| hash.to_owned())
        })
    }

    /// Returns whether files of the commit were changed, added or removed; `None` without `git`, or if it
    /// fails or takes too long. Files that are not part of the repository do not count, nor do submodules.
    fn has_changes(&self, commit: &str) -> Option<bool> {
        let scratch = ScratchRepository::create(self, commit)?;
        let mut git = Command::new("git");
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_git_variable(name)) {
            git.env_remove(name);
        }
        git.args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"])
            .args(["diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD"])
            .current_dir(&self.work_tree)
            .env("GIT_DIR", &scratch.folder)
            .env("GIT_WORK_TREE", &self.work_tree)
            .env("GIT_INDEX_FILE", self.git_dir.join("index"))
            .env("GIT_OBJECT_DIRECTORY", self.common_dir.join("objects"))
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = git.spawn().ok()?;
        let started = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    return match status.code() {
                        Some(0) => Some(false),
                        Some(1) => Some(true),
                        _ => None,
                    };
                }
                Ok(None) if started.elapsed() < MAX_COMPARISON_TIME => std::thread::sleep(POLL_INTERVAL),
                _ => {
                    // Fails only if it has ended meanwhile.
                    let _ = child.kill();
                    let _ = child.wait();
                    return None;
                }
            }
        }
    }
}

/// A temporary repository without a configuration of its own, at the commit of another one.
struct ScratchRepository {
    folder: PathBuf,
}

impl ScratchRepository {
    fn create(of: &Repository, commit: &str) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".stratus-git.{}.{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // Fails if somebody else has created it.
        builder.create(&folder).ok()?;
        let scratch = Self { folder };
        let write = |name: &str, text: String| fs::write(scratch.folder.join(name), text);
        fs::create_dir(scratch.folder.join("refs")).ok()?;
        write("HEAD", format!("{commit}\n")).ok()?;
        write("config", scratch_config(of, commit)).ok()?;
        Some(scratch)
    }
}

impl Drop for ScratchRepository {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder of temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The configuration of a scratch repository: the hash function, and the properties of the file system that
/// the repository's configuration records.
fn scratch_config(of: &Repository, commit: &str) -> String {
    let (version, hash) = match commit.len() {
        40 => (0, ""),
        _ => (1, "[extensions]\nobjectFormat = sha256\n"),
    };
    let mut text = format!("{hash}[core]\nrepositoryFormatVersion = {version}\nbare = false\n");
    let path = of.common_dir.join("config");
    let config = if path.is_file() { read_text_at_most(&path, MAX_CONFIG_BYTES).ok() } else { None };
    for line in config.iter().flat_map(|config| config.lines()) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        let is_copied = matches!(key.as_str(), "filemode" | "symlinks" | "ignorecase" | "autocrlf" | "eol");
        if is_copied && value.chars().all(|c| c.is_ascii_alphanumeric()) {
            text.push_str(&format!("{key} = {value}\n"));
        }
    }
    text
}

/// Reads a small file without the space around its text; `None` if it is not a regular file with one line.
fn read_reference(path: &Path) -> Option<String> {
    // Opening a named pipe would wait for a writer.
    path.is_file().then_some(())?;
    let text = read_text_at_most(path, MAX_REFERENCE_BYTES).ok()?;
    let text = text.trim();
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

fn is_git_variable(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with("GIT_")
}

/// Returns whether a text is a hash: SHA-1 or SHA-256 in hexadecimal digits.
fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_branch_name(name: &str) -> bool {
    (1..=MAX_BRANCH_CHARS).contains(&name.chars().count()) && name.chars().all(is_printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs `git` in a folder, without the configuration of the user.
    fn git(folder: &Path, arguments: &[&str]) {
        let mut git = Command::new("git");
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_git_variable(name)) {
            git.env_remove(name);
        }
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgSign=false"];
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").current_dir(folder);
        let done = git.args(identity).args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A repository with one commit of the file `a`, and a folder below it.
    fn committed(folder: &Path) -> PathBuf {
        git(folder, &["init", "--quiet", "--initial-branch=trunk"]);
        write(&folder.join("a"), "one\n");
        git(folder, &["add", "a"]);
        git(folder, &["commit", "--quiet", "--message=first"]);
        let below = folder.join("below/it");
        fs::create_dir_all(&below).unwrap();
        below
    }

    #[test]
    fn head_is_read_from_loose_packed_and_symbolic_references() {
        let folder = tempfile::tempdir().unwrap();
        let head = || Repository::containing(folder.path())?.head();
        let at = |name: &str| folder.path().join(".git").join(name);
        assert_eq!(head(), None);
        write(&at("HEAD"), "ref: refs/heads/main\n");
        assert_eq!(head(), None, "there is no commit yet");
        write(&at("refs/heads/main"), &format!("{HASH}\n"));
        assert_eq!(head(), Some((HASH.to_owned(), Some("main".to_owned()))));
        write(&at("HEAD"), &format!("{HASH}\n"));
        assert_eq!(head(), Some((HASH.to_owned(), None)));
        let other = HASH.replace('0', "f");
        write(&at("packed-refs"), &format!("# pack-refs with: peeled\n{other} refs/heads/a/b\n^{HASH}\n"));
        write(&at("HEAD"), "ref: refs/heads/a/b\n");
        assert_eq!(head(), Some((other.clone(), Some("a/b".to_owned()))));
        write(&at("refs/heads/a/b"), "ref: refs/heads/main\n");
        assert_eq!(head().unwrap().0, HASH);
        // A linked work tree has its own HEAD, and the branches of the repository.
        let linked = folder.path().join("linked");
        write(&linked.join(".git"), "gitdir: ../.git/worktrees/x\n");
        write(&at("worktrees/x/HEAD"), "ref: refs/heads/main\n");
        write(&at("worktrees/x/commondir"), "../..\n");
        let found = Repository::containing(&linked).unwrap();
        assert_eq!(found.head().unwrap().0, HASH);
    }

    #[test]
    fn invalid_references_are_no_commit() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(".git").join(name);
        write(&folder.path().join("secret"), HASH);
        write(&at("refs/heads/loop"), "ref: refs/heads/loop");
        write(&at("refs/heads/short"), "0123");
        write(&at("refs/heads/large"), &HASH.repeat(1000));
        for head in [
            "",
            "0123",
            "ref:",
            "ref: refs/heads/loop",
            "ref: refs/heads/short",
            "ref: refs/heads/large",
            "ref: refs/../../secret",
            "ref: ../secret",
            "ref: refs/heads/.invalid",
            "\u{1b}[2J",
        ] {
            write(&at("HEAD"), head);
            assert_eq!(GitCommit::of_folder(folder.path()), None, "{head}");
        }
        fs::write(at("HEAD"), [0xff; 40]).unwrap();
        assert_eq!(GitCommit::of_folder(folder.path()), None);
        fs::remove_dir_all(folder.path().join(".git")).unwrap();
        write(&folder.path().join(".git"), "gitdir: /nowhere");
        assert_eq!(GitCommit::of_folder(folder.path()), None);
    }

    #[test]
    fn changed_files_are_noticed_in_every_folder_of_the_repository() {
        let folder = tempfile::tempdir().unwrap();
        let below = committed(folder.path());
        let found = || GitCommit::of_folder(&below).unwrap();
        let first = found();
        assert_eq!((first.branch.as_deref(), first.has_changes), (Some("trunk"), Some(false)));
        assert_eq!(first.short(), first.commit[..10]);
        write(&below.join("untracked"), "");
        assert_eq!(found(), first);
        write(&folder.path().join("a"), "two\n");
        assert_eq!(found(), GitCommit { has_changes: Some(true), ..first.clone() });
        assert!(found().short().ends_with("-dirty"));
        git(folder.path(), &["add", "a"]);
        assert_eq!(found().has_changes, Some(true), "a file that will be committed has changed too");
        git(folder.path(), &["commit", "--quiet", "--message=second"]);
        assert_eq!(found().has_changes, Some(false));
        assert_ne!(found().commit, first.commit);
        fs::remove_file(folder.path().join(".git/index")).unwrap();
        assert_eq!(found().has_changes, Some(true), "without an index all files count as removed");
    }

    #[cfg(unix)]
    #[test]
    fn nothing_of_a_hostile_repository_is_executed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        committed(folder.path());
        let marker = folder.path().join("executed");
        let program = folder.path().join("program");
        write(&program, &format!("#!/bin/sh\necho ran >> '{}'\ncat\n", marker.display()));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let hooks = folder.path().join(".git/hooks");
        for hook in ["post-index-change", "pre-auto-gc", "reference-transaction", "query-watchman"] {
            fs::create_dir_all(&hooks).unwrap();
            fs::copy(&program, hooks.join(hook)).unwrap();
        }
        let run = program.display();
        write(&folder.path().join("evil"), &format!("[core]\nfsmonitor = {run}\n"));
        let config = format!(
            "[core]\nrepositoryformatversion = 0\nbare = false\nfsmonitor = {run}\npager = {run}\n\
             sshCommand = {run}\n[filter \"x\"]\nclean = {run}\nprocess = {run}\nrequired = true\n\
             [diff]\nexternal = {run}\n[diff \"x\"]\ntextconv = {run}\ncommand = {run}\n\
             [alias]\ndiff = !{run}\n[include]\npath = {}\n",
            folder.path().join("evil").display()
        );
        write(&folder.path().join(".git/config"), &config);
        write(&folder.path().join(".gitattributes"), "* filter=x diff=x\n");
        write(&folder.path().join("a"), "two\n");
        let found = GitCommit::of_folder(folder.path()).unwrap();
        assert_eq!(found.has_changes, Some(true));
        assert!(!marker.exists(), "{}", fs::read_to_string(&marker).unwrap_or_default());
        // The same question to the repository itself does run its programs.
        let status = Command::new("git").args(["status"]).current_dir(folder.path()).output().unwrap();
        assert!(marker.exists(), "{status:?}");
    }
}
