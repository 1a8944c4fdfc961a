//! Checkpoints as they lie on the disk, described by their small files.

use std::fs;
use std::time::SystemTime;

use super::{Checkpoints, Manifest, State, check_version, parse, read, reason};
use crate::Result;
use crate::atomic::MAX_JSON_BYTES;
use crate::layout::{MANIFEST, STATE};

/// A checkpoint, whose tensors are not verified.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointInfo {
    /// Its iteration.
    pub iteration: u64,
    /// Completed epochs, and batches of the next one: `(2, 0)` at the end of the second epoch. `None` if its
    /// state cannot be read.
    pub progress: Option<(u32, u64)>,
    /// The length of its files in bytes, by its manifest.
    pub bytes: Option<u64>,
    /// The time at which it was completed.
    pub saved: Option<SystemTime>,
    /// The reason why it cannot be used, as far as its small files tell.
    pub problem: Option<String>,
}

impl Checkpoints {
    /// Describes all checkpoints, in ascending order. One that is removed meanwhile is left out.
    ///
    /// # Errors
    /// If the folder cannot be listed.
    pub fn describe(&self) -> Result<Vec<CheckpointInfo>> {
        let infos = self.list()?.into_iter().map(|iteration| self.describe_one(iteration));
        Ok(infos.flatten().collect())
    }

    fn describe_one(&self, iteration: u64) -> Option<CheckpointInfo> {
        let path = self.path(iteration);
        let manifest = read_json::<Manifest>(&path.join(MANIFEST), |manifest| manifest.version);
        let state = read_json::<State>(&path.join(STATE), |state| state.version);
        // Removal renames the folder first.
        if !path.is_dir() {
            return None;
        }
        let saved = fs::metadata(path.join(MANIFEST)).and_then(|facts| facts.modified()).ok();
        let problem = manifest.as_ref().err().or(state.as_ref().err()).map(reason);
        let bytes = manifest
            .ok()
            .map(|manifest| manifest.files.values().fold(0, |sum: u64, file| sum.saturating_add(file.bytes)));
        let progress = state.ok().map(|state| (state.epoch.saturating_sub(1), state.batch));
        Some(CheckpointInfo { iteration, progress, bytes, saved, problem })
    }
}

fn read_json<T: for<'a> serde::Deserialize<'a>>(
    path: &std::path::Path,
    version: impl Fn(&T) -> u32,
) -> Result<T> {
    let parsed: T = parse(path, &read(path, MAX_JSON_BYTES)?)?;
    check_version(path, version(&parsed))?;
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Retention, Tensors};

    #[test]
    fn checkpoints_are_described_without_their_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
        assert_eq!(checkpoints.describe().unwrap(), []);
        let all = Retention { last: 9, pinned: None };
        for (iteration, epoch, batch) in [(20, 3, 0), (25, 3, 5)] {
            let state = State { iteration, epoch, batch, ..State::default() };
            checkpoints.save(&state, &Tensors::default(), &all).unwrap();
        }
        let found = checkpoints.describe().unwrap();
        let of = |info: &CheckpointInfo| (info.iteration, info.progress, info.problem.clone());
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [(20, Some((2, 0)), None), (25, Some((2, 5)), None)]
        );
        assert!(found.iter().all(|info| info.bytes.is_some_and(|bytes| bytes > 0) && info.saved.is_some()));
        fs::write(checkpoints.path(20).join(STATE), "{\"version\"").unwrap();
        fs::remove_file(checkpoints.path(25).join(MANIFEST)).unwrap();
        let found = checkpoints.describe().unwrap();
        assert_eq!(found[0].progress, None);
        assert!(found[0].problem.as_ref().unwrap().starts_with("state.json: "), "{found:?}");
        assert_eq!((found[1].bytes, found[1].saved), (None, None));
        assert!(found[1].problem.as_ref().unwrap().contains("manifest.json"), "{found:?}");
    }
}
