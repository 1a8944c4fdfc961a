//! The state of a run beside its tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Everything but tensors that a run needs to continue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The version of this format; filled in when saved.
    #[serde(default)]
    pub version: u32,
    /// The epoch that the next batch belongs to.
    pub epoch: u32,
    /// Iterations done since the start of the run. It numbers the checkpoint.
    pub iteration: u64,
    /// Batches of this epoch that are done: the index of the next.
    pub batch: u64,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The length in bytes of every growing file, by its name in the run directory, to cut back to.
    #[serde(default)]
    pub positions: BTreeMap<String, u64>,
    /// The best value so far of the watched metric.
    #[serde(default)]
    pub best: Option<Best>,
    /// Threads that computed.
    #[serde(default)]
    pub threads: u32,
    /// The device that computed: `cpu`, `cuda:0`.
    #[serde(default)]
    pub device: String,
    /// Versions of the libraries that computed, by name.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
    /// What identifies the plan: another plan may give other bits.
    #[serde(default)]
    pub plan_hash: String,
    /// The checksum of the weights; filled in when saved.
    #[serde(default)]
    pub weights_sha256: String,
    /// How often the run was continued before.
    #[serde(default)]
    pub resumed: u64,
    /// Whatever else the writer wants back.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

/// The best value of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its name, as a column of `epochs.csv`: `val_top1`.
    pub metric: String,
    /// Its value. JSON knows no NaN or infinity: both come back as NaN.
    #[serde(deserialize_with = "null_is_nan")]
    pub value: f64,
    /// The epoch that reached it.
    pub epoch: u32,
    /// The iteration at the end of that epoch: the number of its checkpoint.
    pub iteration: u64,
}

fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
