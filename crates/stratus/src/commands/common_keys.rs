//! Flags for the most common configuration keys.

use crate::globals::Globals;
use clap::Args;

/// Flags for the most common configuration keys; `--set` overrides them.
#[derive(Args, Debug, Default)]
pub struct CommonKeyArguments {
    /// Number of epochs: `train.epochs`
    #[arg(long, value_name = "NUMBER")]
    pub epochs: Option<String>,
    /// Batch size: `train.batch_size`
    #[arg(long, value_name = "SAMPLES", visible_alias = "batch-size")]
    pub batch: Option<String>,
    /// Learning rate: `optimiser.learning_rate`
    #[arg(long, value_name = "RATE", visible_alias = "learning-rate")]
    pub lr: Option<String>,
    /// Data folder: `data.path`
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// Device, `auto`, `cpu` or `gpu`: `train.device`
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Seed of initial weights, shuffling and augmentation: `train.seed`
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<String>,
}

impl CommonKeyArguments {
    /// The flags on the command line, with their keys and values.
    pub(super) fn flags(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
        let Self { epochs, batch, lr, data, device, seed } = self;
        [
            ("--epochs", "train.epochs", epochs),
            ("--batch", "train.batch_size", batch),
            ("--lr", "optimiser.learning_rate", lr),
            ("--data", "data.path", data),
            ("--device", "train.device", device),
            ("--seed", "train.seed", seed),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some((flag, key, value.as_ref()?)))
    }

    /// Prepends the flags as overrides to the `--set` overrides.
    pub(super) fn prepend_to(&self, globals: &Globals) -> Globals {
        let given = self.flags().map(|(_, key, value)| (key.to_owned(), value.clone()));
        Globals { set: given.chain(globals.set.iter().cloned()).collect(), ..globals.clone() }
    }
}
