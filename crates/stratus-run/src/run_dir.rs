//! A run directory: creating, finding and locking it, and the paths of its files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::layout::{
    self, CHECKPOINTS, CLASSES, DATA, EVENTS, EXPERIMENT, LABELS, LOCK, MACHINE, NETWORK, ONNX_MODEL,
    OPTIMISE, OPTIMISE_FAKE_QUANTISATION, OPTIMISE_PRUNING, OPTIMISE_QUANTISATION, OPTIMISE_REQUEST, PLAN,
    SOURCES, TENSORBOARD, TIMELINE, VALIDATION, VARIANTS, WEIGHTS, WORKERS,
};
use crate::lock::{Lock, LockState, lock_state};
use crate::remote::RemoteRun;
use crate::validation::ValidationDir;
use crate::{Error, Result, atomic};

/// Maximum depth of folders that are searched for runs.
pub const SEARCH_DEPTH: usize = 6;

/// A run directory. A writer must take its [`Lock`] first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates `<root>/<experiment>/<n>` with the next free number, from 1.
    ///
    /// Concurrent calls get different numbers, since creating the directory is atomic.
    pub fn create(root: &Path, experiment: &str) -> Result<Self> {
        let folder = root.join(experiment);
        let plain = !experiment.is_empty()
            && !experiment.starts_with('.')
            && !experiment.contains(['/', '\\', ':', '\0'])
            && experiment.trim() == experiment;
        if !plain {
            return Err(Error::invalid(
                &folder,
                format!(
                    "the experiment name {experiment:?} is not a valid folder name; use letters, digits, - \
                     and _"
                ),
            ));
        }
        fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
        loop {
            let next = numbers(&folder)?.last().map_or(1, |n| n.saturating_add(1));
            let path = folder.join(next.to_string());
            match fs::create_dir(&path) {
                Ok(()) => {
                    atomic::sync_folder(&folder)?;
                    return Ok(Self { path });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("create the folder", &path)(e)),
            }
        }
    }

    /// Makes `path` itself the run directory. It must be absent, empty, or contain only the files of a start
    /// that was killed before it wrote [`EXPERIMENT`].
    pub fn create_at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(Error::io("create the folder", path))?;
        for entry in fs::read_dir(path).map_err(Error::io("read the folder", path))? {
            let name = entry.map_err(Error::io("read the folder", path))?.file_name();
            let is_from_killed_start = [
                LOCK,
                MACHINE,
                NETWORK,
                SOURCES,
                LABELS,
                DATA,
                PLAN,
                CLASSES,
                TIMELINE,
                CHECKPOINTS,
                OPTIMISE,
            ]
            .iter()
            .any(|&known| name == known);
            if !is_from_killed_start && !atomic::is_temporary(&name) {
                // A run that is being trained was begun by another process, perhaps by the same command.
                return Err(match lock_state(path) {
                    Ok(LockState::Held(pid)) => Error::Locked { path: path.to_path_buf(), pid },
                    _ => Error::NotEmpty { path: path.to_path_buf() },
                });
            }
        }
        Ok(Self { path: path.to_path_buf() })
    }

    /// Checks that [`RunDir::create_at`] can make `path` a run directory, without creating it. It is called
    /// before anything costly is prepared.
    pub fn check_creatable(path: &Path) -> Result<()> {
        if path.exists() {
            Self::create_at(path)?;
        }
        let existing = path.ancestors().find(|ancestor| ancestor.exists());
        let folder = existing.unwrap_or(Path::new("."));
        let probe = folder.join(format!(".stratus-{}.tmp", std::process::id()));
        fs::File::create_new(&probe).map_err(Error::io("create a file in", folder))?;
        fs::remove_file(&probe).map_err(Error::io("remove", &probe))
    }

    /// Opens an existing run directory.
    pub fn open(path: &Path) -> Result<Self> {
        fs::metadata(path).map_err(Error::io("open", path))?;
        if !Self::is_run(path) {
            return Err(Error::NotARun { path: path.to_path_buf(), missing: EXPERIMENT });
        }
        Ok(Self { path: path.to_path_buf() })
    }

    /// Returns whether `path` is a run directory.
    #[must_use]
    pub fn is_run(path: &Path) -> bool {
        path.join(EXPERIMENT).is_file()
    }

    /// The runs in the folder of an experiment, by number.
    pub fn list(folder: &Path) -> Result<Vec<Self>> {
        let runs = numbers(folder)?.into_iter().map(|n| folder.join(n.to_string()));
        Ok(runs.filter(|path| Self::is_run(path)).map(|path| Self { path }).collect())
    }

    /// The runs at `path`: itself if it is a run directory, otherwise those below it, ordered by name with
    /// numbers in numeric order. Symbolic links, hidden folders and folders deeper than six levels
    /// are not searched.
    pub fn find(path: &Path) -> Result<Vec<Self>> {
        if Self::is_run(path) {
            return Ok(vec![Self { path: path.to_path_buf() }]);
        }
        if path.is_file() {
            return Err(Error::NotARun { path: path.to_path_buf(), missing: EXPERIMENT });
        }
        let mut found = Vec::new();
        search(path, SEARCH_DEPTH, &mut found)?;
        Ok(found)
    }

    /// Locks the run for this process, and removes the temporary files of killed writers.
    pub fn lock(&self) -> Result<Lock> {
        let lock = Lock::acquire(&self.path)?;
        atomic::clean(&self.path)?;
        atomic::clean(&self.checkpoints())?;
        atomic::clean(self.validation().path())?;
        Ok(lock)
    }

    /// Creates the folders that training writes into.
    pub fn prepare(&self) -> Result<()> {
        for folder in [self.timeline(), self.checkpoints()] {
            fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
        }
        atomic::sync_folder(&self.path)
    }

    /// Removes the record that another machine trains the run, since it is trained here from now on, and
    /// returns it.
    pub fn forget_remote(&self) -> Result<Option<RemoteRun>> {
        let path = self.remote();
        // A damaged record is removed too.
        let remote = RemoteRun::read(&path).ok().flatten();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &path)(error)),
            _ => Ok(remote),
        }
    }

    /// Creates the folder of [`EVENTS`].
    pub fn prepare_events(&self) -> Result<()> {
        let folder = self.path.join(TENSORBOARD);
        fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
        atomic::sync_folder(&self.path)
    }

    /// Creates the folder of a worker's own files, such as its timeline. It is not a run directory.
    pub fn worker(&self, rank: usize) -> Result<Self> {
        let path = self.path.join(WORKERS).join(rank.to_string());
        fs::create_dir_all(&path).map_err(Error::io("create the folder", &path))?;
        Ok(Self { path })
    }

    /// The folders of workers, by rank; empty for a run trained by one process.
    #[must_use]
    pub fn workers(&self) -> Vec<(u64, Self)> {
        let folder = self.path.join(WORKERS);
        let ranks = numbers(&folder).unwrap_or_default();
        ranks.into_iter().map(|rank| (rank, Self { path: folder.join(rank.to_string()) })).collect()
    }

    /// Removes the folders of workers `count` and above, since the run resumes with `count` workers and
    /// repeats iterations that those folders may contain.
    pub fn remove_workers_from(&self, count: usize) -> Result<()> {
        let beyond = self.workers().into_iter().filter(|(rank, _)| *rank >= count as u64);
        beyond
            .map(|(_, folder)| folder.path)
            .try_for_each(|path| fs::remove_dir_all(&path).map_err(Error::io("remove the folder", &path)))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the run; `None` if the directory is not named by a number.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.path.file_name()?.to_str()?.parse().ok()
    }

    /// Returns whether `stratus optimise` made this run of another one.
    #[must_use]
    pub fn is_optimised(&self) -> bool {
        self.optimise_request().is_file()
    }

    /// The folder [`OPTIMISE`].
    #[must_use]
    pub fn optimise(&self) -> PathBuf {
        self.path.join(OPTIMISE)
    }

    /// The layer file of the smaller network in [`OPTIMISE`].
    #[must_use]
    pub fn optimise_network(&self) -> PathBuf {
        self.optimise().join(NETWORK)
    }

    /// The weights of the smaller network in [`OPTIMISE`], before it is trained again.
    #[must_use]
    pub fn optimise_weights(&self) -> PathBuf {
        self.optimise().join(WEIGHTS)
    }

    /// The path of [`OPTIMISE_REQUEST`].
    #[must_use]
    pub fn optimise_request(&self) -> PathBuf {
        self.optimise().join(OPTIMISE_REQUEST)
    }

    /// The path of [`OPTIMISE_PRUNING`].
    #[must_use]
    pub fn optimise_pruning(&self) -> PathBuf {
        self.optimise().join(OPTIMISE_PRUNING)
    }

    /// The path of [`OPTIMISE_QUANTISATION`].
    #[must_use]
    pub fn optimise_quantisation(&self) -> PathBuf {
        self.optimise().join(OPTIMISE_QUANTISATION)
    }

    /// The path of [`OPTIMISE_FAKE_QUANTISATION`].
    #[must_use]
    pub fn optimise_fake_quantisation(&self) -> PathBuf {
        self.optimise().join(OPTIMISE_FAKE_QUANTISATION)
    }

    /// The path of [`VARIANTS`].
    #[must_use]
    pub fn variants(&self) -> PathBuf {
        self.path.join(VARIANTS)
    }

    /// The path of [`ONNX_MODEL`].
    #[must_use]
    pub fn onnx_model(&self) -> PathBuf {
        self.path.join(ONNX_MODEL)
    }

    /// The folder [`VALIDATION`].
    #[must_use]
    pub fn validation(&self) -> ValidationDir {
        ValidationDir::new(self.path.join(VALIDATION))
    }

    /// The path of [`EVENTS`].
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.path.join(TENSORBOARD).join(EVENTS)
    }
}

/// Adds a method for the path of each file.
macro_rules! paths {
    ($($method:ident: $name:ident,)*) => {
        impl RunDir {
            $(
                #[doc = concat!("The path of [`layout::", stringify!($name), "`].")]
                #[must_use]
                pub fn $method(&self) -> PathBuf {
                    self.path.join(layout::$name)
                }
            )*
        }
    };
}

paths! {
    experiment: EXPERIMENT,
    machine: MACHINE,
    network: NETWORK,
    sources: SOURCES,
    labels: LABELS,
    remote: REMOTE,
    data: DATA,
    plan: PLAN,
    iterations: ITERATIONS,
    first_stage: FIRST_STAGE,
    classes: CLASSES,
    epochs: EPOCHS,
    usage: USAGE,
    timeline: TIMELINE,
    checkpoints: CHECKPOINTS,
    summary: SUMMARY,
    log: LOG,
    layers: LAYERS,
}

/// The folders in a folder that are searched for runs, ordered by name with numbers in numeric order: those
/// that are not hidden, and no symbolic links.
///
/// # Errors
/// If the folder cannot be read.
pub fn searched_folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && !name.as_encoded_bytes().starts_with(b".") {
            let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
            below.push((number, name));
        }
    }
    below.sort_unstable();
    Ok(below.into_iter().map(|(_, name)| folder.join(name)).collect())
}

/// Adds the runs below `folder` to `found`.
fn search(folder: &Path, depth: usize, found: &mut Vec<RunDir>) -> Result<()> {
    for path in searched_folders(folder).map_err(Error::io("read the folder", folder))? {
        if RunDir::is_run(&path) {
            found.push(RunDir { path });
        } else if depth > 1 {
            search(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

/// The numbers that name entries of `folder`, ascending.
fn numbers(folder: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("read the folder", folder))? {
        let name = entry.map_err(Error::io("read the folder", folder))?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_highest_and_names_are_validated() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(RunDir::create(root.path(), "digits").unwrap().number(), Some(1));
        fs::create_dir(root.path().join("digits/7")).unwrap();
        fs::create_dir(root.path().join("digits/notes")).unwrap();
        assert_eq!(RunDir::create(root.path(), "digits").unwrap().number(), Some(8));
        for name in ["", "..", "a/b", ".hidden", " x"] {
            RunDir::create(root.path(), name).unwrap_err();
        }
    }

    #[test]
    fn finds_the_runs_below_a_folder() {
        let root = tempfile::tempdir().unwrap();
        for run in ["digits/10", "digits/9", "vgg/1", "vgg/.old/1", "1/2/3/4/5/6/7"] {
            let path = root.path().join(run);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(EXPERIMENT), "").unwrap();
        }
        fs::create_dir_all(root.path().join("digits/notes")).unwrap();
        let found = RunDir::find(root.path()).unwrap();
        let names: Vec<_> = found.iter().map(|run| run.path().strip_prefix(root.path()).unwrap()).collect();
        assert_eq!(names, ["digits/9", "digits/10", "vgg/1"].map(Path::new));
        let one = root.path().join("vgg/1");
        assert_eq!(RunDir::find(&one).unwrap(), [RunDir::open(&one).unwrap()]);
        RunDir::find(&root.path().join("none")).unwrap_err();
    }

    #[test]
    fn concurrent_creation_gives_different_numbers() {
        let root = tempfile::tempdir().unwrap();
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let create = || RunDir::create(root.path(), "x").unwrap().number().unwrap();
                        (0..10).map(|_| create()).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (1..=80).collect::<Vec<_>>());
    }

    #[test]
    fn recognises_a_run_by_its_experiment_file() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "digits").unwrap();
        let error = RunDir::open(run.path()).unwrap_err().to_string();
        assert!(error.contains("experiment.toml is missing"), "{error}");
        assert!(RunDir::list(&root.path().join("digits")).unwrap().is_empty());
        atomic::write(&run.experiment(), b"").unwrap();
        assert_eq!(RunDir::open(run.path()).unwrap(), run);
        assert_eq!(RunDir::list(&root.path().join("digits")).unwrap(), std::slice::from_ref(&run));
        assert!(matches!(RunDir::create_at(run.path()), Err(Error::NotEmpty { .. })));
        let lock = run.lock().unwrap();
        assert!(matches!(RunDir::create_at(run.path()), Err(Error::Locked { .. })));
        drop(lock);
        fs::remove_file(run.experiment()).unwrap();
        drop(run.lock().unwrap());
        run.prepare().unwrap();
        atomic::write(&run.machine(), b"").unwrap();
        assert_eq!(RunDir::create_at(run.path()).unwrap(), run, "a killed start can be repeated");
        assert!(RunDir::open(&root.path().join("absent")).unwrap_err().is_not_found());
    }
}
