//! The fastest implementations of convolutions, measured by this process or by earlier ones on the same GPU
//! with the same libraries and kernels. Networks have many equal convolutions, and experiments share them.

use crate::ffi::cudnn::Problem;
use crate::gpu::write_atomically;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use stratus_base::checksum::hex;

/// Implementations by convolution.
pub(crate) struct FastestCache {
    /// The file that keeps them for later processes.
    path: Option<PathBuf>,
    names: Mutex<CacheEntries>,
}

#[derive(Default)]
struct CacheEntries {
    by_problem: BTreeMap<String, String>,
    is_changed: bool,
}

impl FastestCache {
    /// Opens the entries in a file of `folder` that were measured on `machine`, which identifies the GPU,
    /// libraries and kernels. An unreadable file counts as empty.
    pub fn open(folder: Option<&Path>, machine: &str) -> Self {
        let name = hex(&Sha256::digest(machine.as_bytes())[..16]);
        let path = folder.map(|folder| folder.join(format!("measured-{name}.txt")));
        let text = path.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        let line =
            |line: &str| line.split_once('\t').map(|(name, problem)| (problem.to_owned(), name.to_owned()));
        let by_problem = text.lines().filter_map(line).collect();
        Self { path, names: Mutex::new(CacheEntries { by_problem, is_changed: false }) }
    }

    fn names(&self) -> MutexGuard<'_, CacheEntries> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the fastest implementation of a convolution, if known.
    pub fn get(&self, problem: &Problem) -> Option<String> {
        self.names().by_problem.get(&format!("{problem:?}")).cloned()
    }

    /// Stores the name of the fastest implementation.
    pub fn set(&self, problem: &Problem, name: &str) {
        let mut names = self.names();
        names.by_problem.insert(format!("{problem:?}"), name.to_owned());
        names.is_changed = true;
    }

    /// Clears all entries, so that they are measured again.
    pub fn forget(&self) {
        self.names().by_problem.clear();
    }

    /// Writes the entries to the file if they have changed. If writing fails, the next process measures
    /// again.
    pub fn save(&self) {
        let mut names = self.names();
        let (Some(path), true) = (&self.path, std::mem::take(&mut names.is_changed)) else { return };
        let lines = names.by_problem.iter().map(|(problem, name)| format!("{name}\t{problem}\n"));
        let _ = write_atomically(path, lines.collect::<String>().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::cudnn::Pass;
    use stratus_engine::DType;

    fn problem(batch: usize) -> Problem {
        Problem {
            pass: Pass::Forward,
            x: [batch, 64, 56, 56],
            weight: [64, 64, 3, 3],
            y: [batch, 64, 56, 56],
            padding_before: [1, 1],
            padding_after: [1, 1],
            stride: [1, 1],
            dilation: [1, 1],
            types: [DType::Bf16; 3],
            tf32: false,
        }
    }

    #[test]
    fn entries_are_shared_with_later_processes_on_the_same_machine() {
        let folder = std::env::temp_dir().join(format!("stratus-measured-{}", std::process::id()));
        let first = FastestCache::open(Some(&folder), "one GPU");
        assert_eq!(first.get(&problem(8)), None);
        first.set(&problem(8), "cudnn:3:2=1");
        first.set(&problem(16), "stratus:plain");
        first.save();
        let next = FastestCache::open(Some(&folder), "one GPU");
        assert_eq!(next.get(&problem(8)).as_deref(), Some("cudnn:3:2=1"));
        assert_eq!(next.get(&problem(16)).as_deref(), Some("stratus:plain"));
        assert_eq!(next.get(&problem(32)), None);
        assert_eq!(FastestCache::open(Some(&folder), "another GPU").get(&problem(8)), None);
        next.forget();
        assert_eq!(next.get(&problem(8)), None);
        // Nothing was measured since: the file is unchanged.
        next.save();
        assert!(FastestCache::open(Some(&folder), "one GPU").get(&problem(8)).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
        // Without a folder, entries last as long as the process.
        let in_memory = FastestCache::open(None, "one GPU");
        in_memory.set(&problem(8), "cublas");
        in_memory.save();
        assert_eq!(in_memory.get(&problem(8)).as_deref(), Some("cublas"));
    }
}
