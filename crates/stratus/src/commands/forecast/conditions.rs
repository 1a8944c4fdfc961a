//! Cost inputs besides network and machine: the link, the disk, the preemption rate.

use crate::errors::{Failure, Result};
use clap::Args;
use std::path::Path;
use stratus_forecast::bill::{DISK_BYTES_PER_S, RunConditions};
use stratus_forecast::supply::Decoding;
use stratus_forecast::text;
use stratus_train::forecast::{Planner, SupplyInputs};

/// Arguments for cost inputs.
#[derive(Args, Debug)]
pub(super) struct ConditionsArguments {
    /// Bandwidth to the machine, like 1Gbit/s or 100MB/s, to count the transfer of the data set, or its
    /// streaming from a store if it exceeds data.cache_mib [default: not counted]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    link: Option<String>,
    /// Size of the data set, like 150GB [default: the size of the files at data.path]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    data_size: Option<String>,
    /// Images per second that one core reads and decodes [default: measured if the data set is on this
    /// machine, else assumed]
    #[arg(long, value_name = "IMAGES", value_parser = parse_decode_rate)]
    decode_rate: Option<f64>,
    /// Bandwidth of checkpoint writes, like 500MB/s [default: 125MiB/s]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    disk: Option<String>,
    /// Preemption rate, like 0.05/h or 1/d; implies spot prices
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    preemptions: Option<String>,
    /// Emissions of the electricity, like 400g/kWh, to estimate those of training
    #[arg(long, value_name = "EMISSIONS", allow_hyphen_values = true)]
    grid: Option<String>,
}

impl ConditionsArguments {
    /// The conditions of the bill, and the supply of images, for the planned experiment.
    ///
    /// # Errors
    /// If a rate or size is invalid, the size is unknown, or the framework does not support a condition.
    pub fn read(&self, planner: &Planner) -> Result<(RunConditions, SupplyInputs)> {
        let rate = |flag, given: &Option<String>| {
            given.as_deref().map(|given| text::bytes_per_second(flag, given)).transpose()
        };
        let link = rate("link", &self.link)?;
        let size = self.data_size.as_deref().map(|size| text::bytes("data-size", size)).transpose()?;
        let preemptions =
            self.preemptions.as_deref().map(|given| text::per_hour("preemptions", given)).transpose()?;
        let grid = self.grid.as_deref().map(|given| text::grams_per_kwh("grid", given)).transpose()?;
        let path = planner.experiment().data_path();
        // The files are counted only if they are transferred, as there may be millions.
        let data = size.or_else(|| link.and_then(|_| bytes_under(&path)));
        if link.is_some() && data.is_none() {
            return Err(Failure::usage(format!(
                "--link needs the data set's size: cannot read {}",
                path.display()
            ))
            .with_hint("set --data-size, like --data-size 150GB"));
        }
        let supply = SupplyInputs {
            decoding: self.decode_rate.map(Decoding::stated),
            data_bytes: data,
            link_bytes_per_s: link,
        };
        let conditions = RunConditions {
            download_bytes_per_s: link.filter(|_| !supply.streams(planner.experiment())),
            data_bytes: data.filter(|_| link.is_some()),
            disk_bytes_per_s: rate("disk", &self.disk)?.unwrap_or(DISK_BYTES_PER_S),
            preemptions_per_hour: preemptions.unwrap_or(0.0),
            checkpoint_interval_s: planner.experiment().checkpoint.every_seconds,
            startup_s: None,
            grid_g_per_kwh: grid,
        };
        conditions.check(planner.framework())?;
        Ok((conditions, supply))
    }
}

/// Parses the argument of `--decode-rate`.
fn parse_decode_rate(text: &str) -> std::result::Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (1e-3..=1e9).contains(rate));
    rate.ok_or_else(|| "must be a number of images per second from 0.001 to 1000000000".to_owned())
}

/// The bytes of a file, or of all files in a folder and its subfolders; `None` if one cannot be read.
///
/// Symbolic links to folders are not followed, as they could form a cycle.
fn bytes_under(path: &Path) -> Option<u64> {
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        return Some(metadata.len());
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
    fn bytes_of_all_subfolders_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("one"), [0; 10]).unwrap();
        std::fs::write(folder.path().join("a/b/two"), [0; 32]).unwrap();
        assert_eq!(bytes_under(folder.path()), Some(42));
        assert_eq!(bytes_under(&folder.path().join("one")), Some(10));
        assert_eq!(bytes_under(&folder.path().join("absent")), None);
    }
}
