//! Flags for the keys that everybody sets.

use crate::cli::Globals;
use clap::Args;

/// Short forms of the keys that everybody sets; `--set` wins over them.
#[derive(Args, Debug, Default)]
pub struct Often {
    /// Epochs to train: `train.epochs`
    #[arg(long, value_name = "NUMBER")]
    pub epochs: Option<String>,
    /// Samples per iteration: `train.batch_size`
    #[arg(long, value_name = "SAMPLES", visible_alias = "batch-size")]
    pub batch: Option<String>,
    /// Learning rate: `optimiser.learning_rate`
    #[arg(long, value_name = "RATE", visible_alias = "learning-rate")]
    pub lr: Option<String>,
    /// Where the data are: `data.path`
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,
    /// What computes, auto, cpu or gpu: `train.device`
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Seed of weights, order and augmentation: `train.seed`
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<String>,
}

impl Often {
    /// The flags that were given, with their keys and values.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static str, &'static str, &String)> {
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

    /// The overrides that they are, before those of `--set`.
    pub(super) fn before(&self, globals: &Globals) -> Globals {
        let given = self.given().map(|(_, key, value)| (key.to_owned(), value.clone()));
        Globals { set: given.chain(globals.set.iter().cloned()).collect(), ..globals.clone() }
    }
}
