//! What a bill depends on beside the network and the machine: the link, the disk, how often the machine is
//! taken away.

use super::planning::Planner;
use crate::errors::{Failure, Result};
use clap::Args;
use std::path::Path;
use stratus_forecast::bill::{Conditions, DISK};
use stratus_forecast::text;

/// Arguments that say it.
#[derive(Args, Debug)]
pub(super) struct ConditionsArguments {
    /// How fast the data set comes to the machine, like 1Gbit/s or 100MB/s; without it that is not counted
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    link: Option<String>,
    /// How large the data set is that comes over the link, like 150GB; without it the files at `data.path`
    #[arg(long, value_name = "SIZE", requires = "link", allow_hyphen_values = true)]
    data_size: Option<String>,
    /// How fast checkpoints are written, like 500MB/s; without it 125MiB/s
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    disk: Option<String>,
    /// How often the machine is taken away, like 0.05/h or 1/d: prices are those of spot instances
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    preemptions: Option<String>,
}

impl ConditionsArguments {
    /// What they say, of the planned experiment.
    ///
    /// # Errors
    /// Where a rate or a size is none, the size is not known, or the framework's bill cannot be made.
    pub fn read(&self, planner: &Planner) -> Result<Conditions> {
        let rate = |flag, given: &Option<String>| {
            given.as_deref().map(|given| text::bytes_per_second(flag, given)).transpose()
        };
        let link = rate("link", &self.link)?;
        let size = self.data_size.as_deref().map(|size| text::bytes("data-size", size)).transpose()?;
        let preemptions =
            self.preemptions.as_deref().map(|given| text::per_hour("preemptions", given)).transpose()?;
        let path = planner.experiment().data_path();
        let data = match link {
            Some(_) => size.or_else(|| bytes_under(&path)),
            None => None,
        };
        if link.is_some() && data.is_none() {
            return Err(Failure::usage(format!(
                "how long the data set takes over the link depends on its size, and {} cannot be read",
                path.display()
            ))
            .hint("give it with --data-size, like --data-size 150GB"));
        }
        let conditions = Conditions {
            link,
            data,
            disk: rate("disk", &self.disk)?.unwrap_or(DISK),
            preemptions: preemptions.unwrap_or(0.0),
            checkpoint_every: planner.experiment().checkpoint.every_seconds,
            set_up: None,
        };
        conditions.check(planner.framework())?;
        Ok(conditions)
    }
}

/// Bytes of a file, or of all files in a folder and its folders; links to folders are not followed, which
/// could lead round in a circle. `None` where one cannot be read.
fn bytes_under(path: &Path) -> Option<u64> {
    let whole = path.metadata().ok()?;
    if !whole.is_dir() {
        return Some(whole.len());
    }
    let mut folders = vec![path.to_owned()];
    let mut bytes = 0_u64;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().ok()? {
            let entry = entry.ok()?;
            if entry.file_type().ok()?.is_dir() {
                folders.push(entry.path());
                continue;
            }
            let file = entry.path().metadata().ok()?;
            bytes = bytes.saturating_add(if file.is_file() { file.len() } else { 0 });
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_in_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("one"), [0; 10]).unwrap();
        std::fs::write(folder.path().join("a/b/two"), [0; 32]).unwrap();
        assert_eq!(bytes_under(folder.path()), Some(42));
        assert_eq!(bytes_under(&folder.path().join("one")), Some(10));
        assert_eq!(bytes_under(&folder.path().join("absent")), None);
    }
}
