//! Generated sweeps: the files that `stratus sweep` writes.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::{MadeRun, make};
use stratus_run::summary::Status;

/// A sweep of two keys with halving: cell 1 is completed, cell 2 was stopped after the first epoch, cell 3
/// has failed, cell 4 waits. Each has two repetitions.
pub fn make_sweep(root: &Path, path: &str) -> PathBuf {
    let sweep = root.join(path);
    fs::create_dir_all(&sweep).unwrap();
    let text = "[model]\nname = \"digits\"\n[train]\nepochs = 4\n[sweep]\nrepetitions = 2\n[sweep.keys]\n\
                \"train.batch_size\" = [32, 64]\n\"model.width\" = [8, 16]\n[sweep.halving]\nmetric = \
                \"val_top1\"\n";
    fs::write(sweep.join("sweep.toml"), text).unwrap();
    let mut table = "cell,repetition,status,reason,run,train.batch_size,model.width\n".to_owned();
    for (cell, status, reason) in [
        (1, "completed", ""),
        (2, "stopped_early", "\"after epoch 1: val_top1 0.7500, 1 of 2 cells continue\""),
        (3, "failed", "<script>alert(1)</script>"),
        (4, "waiting", ""),
    ] {
        for repetition in 1..=2 {
            let run = if cell < 3 { format!("runs/{cell}/{repetition}") } else { String::new() };
            let (batch_size, width) = (if cell < 3 { 32 } else { 64 }, if cell % 2 == 1 { 8 } else { 16 });
            writeln!(table, "{cell},{repetition},{status},{reason},{run},{batch_size},{width}").unwrap();
            if cell < 3 {
                let (epochs, status) =
                    if cell == 1 { (4, Status::Completed) } else { (1, Status::Interrupted) };
                let path = format!("{path}/{run}");
                make(
                    root,
                    &MadeRun { path: &path, epochs, status, iterations_per_epoch: 2, ..MadeRun::default() },
                );
            }
        }
    }
    fs::write(sweep.join("cells.csv"), table).unwrap();
    sweep
}

/// A sweep of a number of cells that have not been started.
pub fn make_huge_sweep(root: &Path, path: &str, cells: usize) -> PathBuf {
    let sweep = root.join(path);
    fs::create_dir_all(&sweep).unwrap();
    let values: Vec<String> = (1..=cells).map(|value| value.to_string()).collect();
    let text =
        format!("[model]\nname = \"digits\"\n[sweep.keys]\n\"train.batch_size\" = [{}]\n", values.join(", "));
    fs::write(sweep.join("sweep.toml"), text).unwrap();
    let mut table = "cell,repetition,status,reason,run,train.batch_size\n".to_owned();
    for cell in 1..=cells {
        writeln!(table, "{cell},1,waiting,,,{cell}").unwrap();
    }
    fs::write(sweep.join("cells.csv"), table).unwrap();
    sweep
}
