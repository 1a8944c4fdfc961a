//! Uploading a run to a host, to resume it there.

use crate::local_file::LocalFile;
use crate::shell::{self, Shell};
use crate::target::append_file;
use crate::{Error, LaunchRecord, Result};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use stratus_run::layout::{CHECKPOINTS, EPOCHS, LOCAL_FILES, LOCK};

/// The maximum depth of folders in a run.
const MAX_DEPTH: usize = 8;

/// Uploads the local run of a repetition if it has a checkpoint, and returns the number of uploaded bytes.
/// Deletes the machine's older copy.
///
/// # Errors
/// If the machine cannot be reached, or a file cannot be read.
pub(crate) fn restore(
    shell: &dyn Shell,
    launch: &LaunchRecord,
    repetition: usize,
    run: &Path,
) -> Result<u64> {
    let mut files = Vec::new();
    // A run without a checkpoint is not uploaded, and starts again.
    if has_checkpoint(run) {
        collect_files(run, "", MAX_DEPTH, &mut files).map_err(Error::file("read", run))?;
    }
    let number = repetition.to_string();
    let arguments = [launch.root.as_str(), launch.id.as_str(), number.as_str()];
    let send = |out: &mut dyn Write| {
        let mut tar = tar::Builder::new(out);
        for (path, source, size) in &files {
            append_file(&mut tar, path, *size, LocalFile::open(source, 0)?.take(*size))?;
        }
        tar.finish()
    };
    let script = include_str!("scripts/restore.sh");
    shell::run_to_success(shell, "receive the run", script, &arguments, send, shell::drain)?;
    Ok(files.iter().map(|(_, _, size)| size).sum())
}

/// Returns whether the local run has a checkpoint and more epochs than the host's copy.
pub(crate) fn is_ahead(run: &Path, host_epochs: Option<u64>) -> bool {
    // A read error ends the count; a folder in place of the file has one at every read.
    let bytes = |file: fs::File| io::BufReader::new(file).bytes().map_while(io::Result::ok);
    let count = |file| bytes(file).filter(|byte| *byte == b'\n').count();
    // The first line has the names of the columns.
    let epochs = fs::File::open(run.join(EPOCHS)).map_or(0, count).saturating_sub(1) as u64;
    epochs > host_epochs.unwrap_or(0) && has_checkpoint(run)
}

fn has_checkpoint(run: &Path) -> bool {
    fs::read_dir(run.join(CHECKPOINTS)).is_ok_and(|mut entries| entries.next().is_some())
}

fn collect_files(
    folder: &Path,
    above: &str,
    depth: usize,
    files: &mut Vec<(String, PathBuf, u64)>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // Skips partial files and locks.
        if name == LOCK || name.starts_with('.') && name.ends_with(".tmp") {
            continue;
        }
        let relative = format!("{above}{name}");
        if LOCAL_FILES.contains(&relative.as_str()) {
            continue;
        }
        if kind.is_dir() && depth > 0 {
            collect_files(&path, &format!("{relative}/"), depth - 1, files)?;
        } else if kind.is_file() {
            files.push((relative, path, entry.metadata()?.len()));
        }
    }
    Ok(())
}
