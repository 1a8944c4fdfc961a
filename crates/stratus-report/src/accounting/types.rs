//! The accounting as data.

use serde::{Deserialize, Serialize};
use stratus_run::timeline::Phase;

/// Options of the accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountingOptions {
    /// The number of initial training iterations to skip; `None` means [`crate::default_skip`].
    pub skip: Option<u64>,
}

/// A time over the counted iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The sum in nanoseconds.
    pub total_ns: i128,
    /// Mean milliseconds per iteration, over all counted iterations.
    pub mean_ms: f64,
    /// Median milliseconds per iteration.
    pub median_ms: f64,
    /// Percent of the wall time.
    pub share_percent: f64,
}

/// The time of a layer, or of several fused layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerCost {
    /// The name; `layer1.1+layer1.2` if fused.
    pub layer: String,
    /// The layers.
    pub layers: Vec<String>,
    /// The kind of its first step.
    pub kind: String,
    /// The device.
    pub device: String,
    /// Computing outputs.
    pub forward: Cost,
    /// Computing gradients of inputs and parameters.
    pub backward: Cost,
    /// Computing gradients of inputs.
    pub backward_data: Cost,
    /// Computing gradients of parameters.
    pub backward_weights: Cost,
    /// Updating parameters.
    pub update: Cost,
    /// Total time of the layer.
    pub total: Cost,
}

/// The time of a phase outside layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseCost {
    /// The phase.
    pub phase: Phase,
    /// Its time.
    pub cost: Cost,
}

/// The time of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerCost {
    /// The rank of the worker.
    pub worker: u64,
    /// Wall time of its iterations.
    pub wall: Cost,
    /// Communication with other workers, including waiting for them.
    pub communication: Cost,
    /// Waiting for data.
    pub data_wait: Cost,
    /// The worker that it waited for most during communication; `None` if it waited for none, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_for: Option<WaitTarget>,
}

/// A worker that another one waited for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitTarget {
    /// The rank of the worker.
    pub worker: u64,
    /// Milliseconds per iteration of waiting for it, a part of communication.
    pub mean_ms: f64,
    /// Percent of the wall time of iterations.
    pub share_percent: f64,
}

/// The breakdown of the time of the training iterations of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accounting {
    /// Number of counted iterations.
    pub iterations: u64,
    /// Number of skipped first iterations.
    pub skipped: u64,
    /// Bytes of an incomplete record at the end of the timeline: a write in progress, or torn by a kill.
    pub torn_bytes: u64,
    /// Wall time of the iterations: the sum of all rows and the unattributed time.
    pub wall: Cost,
    /// Layers, in the order of their first steps.
    pub layers: Vec<LayerCost>,
    /// Phases outside layers.
    pub phases: Vec<PhaseCost>,
    /// Unattributed time.
    pub unattributed: Cost,
    /// All workers, including the first, if there were several; the other fields describe the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerCost>,
}
