//! Sweeps and launches as the last scan saw them: where they are, and the state of their files, whose content
//! is read when a page asks for it.

use std::path::{Path, PathBuf};

use stratus_run::layout::{CELLS, SWEEP};

use super::find::{FoundItem, ItemId, Stamp, stamp};

/// A sweep or the record of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedItem {
    /// Its id, path and label.
    pub found: FoundItem,
    /// The state of its files: if none of them differs, neither does the content.
    pub stamps: Vec<Option<Stamp>>,
    /// The reason why a file must not be opened.
    pub refused: Option<String>,
}

impl ScannedItem {
    /// A sweep.
    pub fn of_sweep(found: FoundItem, roots: &[PathBuf]) -> Self {
        let files = [found.path.join(SWEEP), found.path.join(CELLS)];
        Self::new(found, &files, roots)
    }

    /// The record of a launch, with the files that are kept beside it.
    pub fn of_launch(found: FoundItem, roots: &[PathBuf]) -> Self {
        let record = &found.path;
        let files = [record.clone(), stratus_launch::state_file(record), stratus_launch::events_file(record)];
        Self::new(found, &files, roots)
    }

    fn new(found: FoundItem, files: &[PathBuf], roots: &[PathBuf]) -> Self {
        let mut refused = None;
        let look = |file: &PathBuf| {
            stamp(file, roots).unwrap_or_else(|reason| {
                refused.get_or_insert(reason);
                None
            })
        };
        let stamps = files.iter().map(look).collect();
        Self { found, stamps, refused }
    }

    /// The id.
    pub fn id(&self) -> &ItemId {
        &self.found.id
    }

    /// The directory of the sweep, or the file of the record.
    pub fn path(&self) -> &Path {
        &self.found.path
    }
}
