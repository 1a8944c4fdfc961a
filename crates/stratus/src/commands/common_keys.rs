//! Flags for the most common configuration keys: the same names in every command.

use crate::errors::{Failure, Result};
use crate::globals::Globals;
use clap::Args;
use std::path::Path;
use stratus_base::text::shell_word;
use stratus_data::datasets::table::looks_like_table;

/// Flags for the most common configuration keys of a training.
#[derive(Args, Debug, Default)]
pub struct CommonKeyArguments {
    /// Number of epochs: `train.epochs`
    #[arg(long, value_name = "NUMBER")]
    pub epochs: Option<String>,
    /// Batch size and device.
    #[command(flatten)]
    pub batch_and_device: BatchAndDeviceArguments,
    /// Learning rate: `optimiser.learning_rate`
    #[arg(long, value_name = "RATE", visible_alias = "learning-rate")]
    pub lr: Option<String>,
    /// Data folder.
    #[command(flatten)]
    pub data: DataArgument,
    /// Seed of initial weights, shuffling and augmentation: `train.seed`
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<String>,
}

/// Flags for the batch size and the device.
#[derive(Args, Debug, Default)]
pub struct BatchAndDeviceArguments {
    /// Batch size: `train.batch_size`
    #[arg(long, value_name = "SAMPLES", visible_alias = "batch-size")]
    pub batch: Option<String>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgument,
}

/// The flag for the device.
#[derive(Args, Debug, Default)]
pub struct DeviceArgument {
    /// Device, `auto`, `cpu` or `gpu`: `train.device`
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// The flag for the data folder.
#[derive(Args, Debug, Default)]
pub struct DataArgument {
    /// Data folder, or table (CSV, Parquet): `data.path`
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
}

/// Flags for the keys of a benchmark.
#[derive(Args, Debug, Default)]
pub struct BenchKeyArguments {
    /// Batch size and device.
    #[command(flatten)]
    pub batch_and_device: BatchAndDeviceArguments,
    /// Data folder.
    #[command(flatten)]
    pub data: DataArgument,
}

/// A flag on the command line.
#[derive(Clone, Copy, Debug)]
pub struct KeyFlag<'a> {
    /// The flag, like `--batch`.
    pub flag: &'static str,
    /// The configuration key that it sets.
    pub key: &'static str,
    /// Its value, as in `--set KEY=VALUE`.
    pub value: &'a str,
}

/// A group of flags that set configuration keys.
pub trait KeyFlags {
    /// The flags on the command line.
    fn flags(&self) -> Vec<KeyFlag<'_>>;

    /// Prepends the flags as overrides to the `--set` overrides.
    ///
    /// # Errors
    /// If `--set` gives the key of a flag another value.
    fn prepend_to(&self, globals: &Globals) -> Result<Globals> {
        let flags = self.flags();
        flags.iter().try_for_each(|flag| flag.check_agreement(globals))?;
        let given = flags.iter().map(|flag| (flag.key.to_owned(), flag.value.to_owned()));
        Ok(Globals { set: given.chain(globals.set.iter().cloned()).collect(), ..globals.clone() })
    }
}

impl KeyFlag<'_> {
    /// Checks that `--set` does not give the key of the flag another value.
    ///
    /// # Errors
    /// If it does; the message names both.
    pub fn check_agreement(&self, globals: &Globals) -> Result {
        let KeyFlag { flag, key, value } = *self;
        match globals.set.iter().find(|(name, other)| name == key && other.trim() != value.trim()) {
            None => Ok(()),
            Some((_, other)) => Err(Failure::usage(format!(
                "`{flag} {}` and `--set {}` contradict each other",
                shell_word(value),
                shell_word(&format!("{key}={other}"))
            ))
            .with_hint(format!("{flag} sets {key}; give one of them"))),
        }
    }
}

/// Returns whether a path is that of a table of labels or numbers, or of a folder with one.
fn is_table(path: &str) -> bool {
    looks_like_table(Path::new(path))
}

/// The flag, if it is on the command line.
fn flag<'a>(flag: &'static str, key: &'static str, value: &'a Option<String>) -> Vec<KeyFlag<'a>> {
    value.iter().map(|value| KeyFlag { flag, key, value }).collect()
}

impl KeyFlags for CommonKeyArguments {
    fn flags(&self) -> Vec<KeyFlag<'_>> {
        let Self { epochs, batch_and_device, lr, data, seed } = self;
        [
            flag("--epochs", "train.epochs", epochs),
            batch_and_device.flags(),
            flag("--lr", "optimiser.learning_rate", lr),
            data.flags(),
            flag("--seed", "train.seed", seed),
        ]
        .concat()
    }
}

impl KeyFlags for BatchAndDeviceArguments {
    fn flags(&self) -> Vec<KeyFlag<'_>> {
        [flag("--batch", "train.batch_size", &self.batch), self.device.flags()].concat()
    }
}

impl KeyFlags for DeviceArgument {
    fn flags(&self) -> Vec<KeyFlag<'_>> {
        flag("--device", "train.device", &self.device)
    }
}

impl KeyFlags for DataArgument {
    fn flags(&self) -> Vec<KeyFlag<'_>> {
        let path = flag("--data", "data.path", &self.data);
        let is_table = self.data.as_deref().is_some_and(is_table);
        let name = is_table.then_some(KeyFlag { flag: "--data", key: "data.name", value: "table" });
        path.into_iter().chain(name).collect()
    }
}

impl KeyFlags for BenchKeyArguments {
    fn flags(&self) -> Vec<KeyFlag<'_>> {
        [self.batch_and_device.flags(), self.data.flags()].concat()
    }
}
