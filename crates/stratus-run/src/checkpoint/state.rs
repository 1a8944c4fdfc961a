//! The state of a run, except for its tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Everything except tensors that a run needs to resume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The version of this format; filled in when saved.
    pub version: u32,
    /// The epoch that the next batch belongs to.
    pub epoch: u32,
    /// Iterations completed since the start of the run; also the number of the checkpoint.
    pub iteration: u64,
    /// Batches completed in this epoch: the index of the next one.
    pub batch: u64,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The length in bytes of every growing file, by its name in the run directory, to truncate it to.
    pub positions: BTreeMap<String, u64>,
    /// The best value so far of the monitored metric.
    pub best: Option<BestCheckpoint>,
    /// The number of threads used for computing.
    pub threads: u32,
    /// The device used for computing: `cpu`, `cuda:0`.
    pub device: String,
    /// Versions of the libraries used for computing, by name.
    pub libraries: BTreeMap<String, String>,
    /// The hash of the plan; with a different plan, results may differ in their last bits.
    pub plan_hash: String,
    /// The checksum of the weights; filled in when saved.
    pub weights_sha256: String,
    /// Number of times the run was resumed before.
    pub resumed: u64,
    /// Additional values of the writer.
    pub extra: Map<String, Value>,
}

/// The best value of a metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestCheckpoint {
    /// Its name, as a column of `epochs.csv`: `val_top1`.
    pub metric: String,
    /// Its value. JSON has no NaN or infinity: both are read back as NaN.
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
