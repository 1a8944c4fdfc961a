//! Copies of a finished run with one of its checkpoints.

use crate::layout::{CHECKPOINTS, EXPERIMENT, LOCAL_FILES, ONNX_MODEL, OPTIMISE, REPORT, VARIANTS};
use crate::{Error, Result, RunDir, atomic};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// The files that a copy does not have: those that `stratus optimise` and `stratus report` made.
const OWN_FILES: [&str; 5] = [CHECKPOINTS, OPTIMISE, VARIANTS, ONNX_MODEL, REPORT];

impl RunDir {
    /// Copies the files of the run, and the folder `checkpoint` in it, to another directory, which becomes a
    /// run with the last file. Links are not followed.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn copy_to(&self, to: &Self, checkpoint: &Path) -> Result<()> {
        let is_own = |name: &OsStr| OWN_FILES.iter().chain(&LOCAL_FILES).any(|own| name == *own);
        for entry in entries(self.path())? {
            let name = entry.file_name();
            if !is_own(&name) && name != EXPERIMENT {
                copy(&entry.path(), &to.path().join(name))?;
            }
        }
        if let Some(name) = checkpoint.file_name() {
            let folder = to.path().join(CHECKPOINTS);
            fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
            copy(checkpoint, &folder.join(name))?;
        }
        let experiment = self.experiment();
        let text = fs::read(&experiment).map_err(Error::io("read", &experiment))?;
        atomic::write(&to.experiment(), &text)
    }
}

fn entries(folder: &Path) -> Result<Vec<fs::DirEntry>> {
    let failed = || Error::io("list", folder);
    let entries = fs::read_dir(folder).map_err(failed())?;
    entries.collect::<std::io::Result<_>>().map_err(failed())
}

/// Copies a file, or a folder with all it contains.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(from).map_err(Error::io("read", from))?.file_type();
    if kind.is_dir() {
        fs::create_dir_all(to).map_err(Error::io("create the folder", to))?;
        return entries(from)?.iter().try_for_each(|entry| copy(&entry.path(), &to.join(entry.file_name())));
    }
    if kind.is_file() {
        fs::copy(from, to).map_err(Error::io("write", to))?;
    }
    Ok(())
}
