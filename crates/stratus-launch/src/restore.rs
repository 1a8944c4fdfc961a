//! Bringing a run to a machine, to go on with what another one began.

use crate::shell::{self, Shell};
use crate::{Error, Record, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use stratus_run::layout::{CHECKPOINTS, LOCK};

/// The deepest folder in a run.
const DEEPEST: usize = 8;

/// Brings what is here of a repetition's run, if it has a checkpoint; returns how many bytes. Whatever the
/// machine had of that repetition is gone.
///
/// # Errors
/// Where the machine cannot be reached, or a file cannot be read.
pub(crate) fn restore(shell: &dyn Shell, launch: &Record, repetition: usize, run: &Path) -> Result<u64> {
    let mut files = Vec::new();
    // Without a checkpoint a run is not worth bringing.
    let is_begun = fs::read_dir(run.join(CHECKPOINTS)).is_ok_and(|mut entries| entries.next().is_some());
    if is_begun {
        search(run, "", DEEPEST, &mut files).map_err(Error::file("read", run))?;
    }
    let number = repetition.to_string();
    let arguments = [launch.root.as_str(), launch.id.as_str(), number.as_str()];
    let send = |out: &mut dyn Write| {
        let mut tar = tar::Builder::new(out);
        for (path, source, size) in &files {
            let mut header = tar::Header::new_gnu();
            header.set_size(*size);
            header.set_mode(0o600);
            tar.append_data(&mut header, path, File::open(source)?.take(*size))?;
        }
        tar.finish()
    };
    let script = include_str!("scripts/restore.sh");
    let (ended, ()) = shell::run(shell, script, &arguments, send, shell::drain)?;
    if ended.code != Some(0) {
        return Err(ended.error(shell, "take the run"));
    }
    Ok(files.iter().map(|(_, _, size)| size).sum())
}

fn search(
    folder: &Path,
    above: &str,
    depth: usize,
    files: &mut Vec<(String, PathBuf, u64)>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // Neither what is still coming, nor who wrote it.
        if name == LOCK || name.starts_with('.') && name.ends_with(".tmp") {
            continue;
        }
        let named = format!("{above}{name}");
        if kind.is_dir() && depth > 0 {
            search(&path, &format!("{named}/"), depth - 1, files)?;
        } else if kind.is_file() {
            files.push((named, path, entry.metadata()?.len()));
        }
    }
    Ok(())
}
