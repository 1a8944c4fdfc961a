//! The request of `stratus optimise` and its record, `optimise/request.json`, by which the same command
//! continues a run.

use super::{LatencyTarget, QuantiseOptions, configuration_error};
use crate::TrainError;
use crate::weights::{CheckpointChoice, TrainedNetwork};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use stratus_base::text::shell_path;
use stratus_run::sources::Source;
use stratus_run::{RunDir, atomic};

/// The criterion by which channels are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceCriterion {
    /// The expected change of the loss, by its gradients on training images (Molchanov et al.: "Importance
    /// estimation for neural network pruning", 2019).
    #[default]
    Taylor,
    /// The magnitude of the weights.
    L1,
    /// None: channels are drawn at random, to compare.
    Random,
}

/// The request: a run, its weights and options. The content of `optimise/request.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimiseRequest {
    /// The run whose network is made smaller.
    pub run: String,
    /// The weights of that run: SHA-256 in lower-case hexadecimal, and path.
    pub weights: Source,
    /// The share of the multiply-adds to remove, above 0 and below 1; `None` if nothing is pruned.
    pub prune: Option<f64>,
    /// The criterion by which channels are chosen.
    pub importance: ImportanceCriterion,
    /// The number of training batches whose gradients are used.
    pub calibration_batches: usize,
    /// Layers that lose channels keep a multiple of this number.
    pub granularity: usize,
    /// The epochs of fine-tuning; 0 for none. Without pruning, it uses fake quantisation.
    pub epochs: u64,
    /// True if the network before the fine-tuning is its teacher.
    #[serde(default)]
    pub teacher: bool,
    /// How layers that run in int8 are chosen; `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8: Option<QuantiseOptions>,
    /// The latency to reach, which determined `prune` and `int8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<LatencyTarget>,
    /// Configuration keys of the fine-tuning, with their values.
    pub set: Vec<(String, String)>,
}

/// The options of [`optimise`](super::optimise).
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiseOptions {
    /// The checkpoint to start from.
    pub checkpoint: CheckpointChoice,
    /// The share of the multiply-adds to remove, above 0 and below 1; `None` to prune nothing.
    pub prune: Option<f64>,
    /// How layers that run in int8 are chosen; `None` for none.
    pub int8: Option<QuantiseOptions>,
    /// The latency to reach, by which `prune` and `int8` are chosen; they are `None` then.
    pub target: Option<LatencyTarget>,
    /// The criterion by which channels are chosen.
    pub importance: ImportanceCriterion,
    /// The number of training batches whose gradients are used, at least one.
    pub calibration_batches: usize,
    /// Layers that lose channels keep a multiple of this number, at least one.
    pub granularity: usize,
    /// True if the network before the fine-tuning is its teacher.
    pub teacher: bool,
    /// The epochs of fine-tuning; `None` for a fifth of those of the run, at least one, or none if nothing is
    /// pruned.
    pub epochs: Option<u64>,
    /// Configuration keys of the fine-tuning, with their values.
    pub set: Vec<(String, String)>,
}

impl OptimiseRequest {
    pub(super) fn new(
        run: &Path,
        options: &OptimiseOptions,
        trained: &TrainedNetwork,
        trained_epochs: u64,
    ) -> Result<Self, TrainError> {
        Ok(Self {
            run: run.display().to_string(),
            weights: Source::from_file(&trained.checkpoint.evaluation_weights_file())?,
            prune: options.prune,
            importance: options.importance,
            calibration_batches: options.calibration_batches,
            granularity: options.granularity,
            epochs: match (options.prune, options.target) {
                (None, None) => options.epochs.unwrap_or(0),
                _ => options.epochs.unwrap_or((trained_epochs / 5).max(1)),
            },
            teacher: options.teacher,
            int8: options.int8,
            target: options.target,
            set: options.set.clone(),
        })
    }

    /// The request as it was given: without what `target` determined, and without the paths of the run, which
    /// may be written in several ways.
    fn as_given(&self) -> Self {
        let weights = Source { path: String::new(), ..self.weights.clone() };
        let mut given = Self { run: String::new(), weights, ..self.clone() };
        if given.target.is_some() {
            (given.prune, given.int8) = (None, None);
        }
        given
    }

    #[cfg(test)]
    pub(super) fn example() -> Self {
        Self {
            run: "runs/digits/1".to_owned(),
            weights: Source::from_bytes(Path::new("weights.safetensors"), b"1"),
            prune: Some(0.5),
            teacher: false,
            int8: None,
            target: None,
            importance: ImportanceCriterion::Taylor,
            calibration_batches: 16,
            granularity: 16,
            epochs: 2,
            set: Vec::new(),
        }
    }
}

/// The recorded request of a run, which must equal this one. It adds what `target` determined.
pub(super) fn recorded_request(
    run: &RunDir,
    request: &OptimiseRequest,
) -> Result<OptimiseRequest, TrainError> {
    let folder = shell_path(run.path());
    if !run.optimise_request().exists() {
        let problem = format!("{folder} is a run that `stratus optimise` did not make");
        return Err(configuration_error(&problem, "choose another directory with --out"));
    }
    let known: OptimiseRequest = atomic::read_json(&run.optimise_request())?;
    let Some(difference) = difference(&known.as_given(), &request.as_given()) else {
        return Ok(known);
    };
    Err(configuration_error(
        &format!("{folder} was begun by another request: {difference}"),
        "repeat that request, which `optimise/request.json` in it names, or choose another directory with \
         --out",
    ))
}

/// The first difference of two requests; `None` if they are equal.
fn difference(known: &OptimiseRequest, request: &OptimiseRequest) -> Option<String> {
    let fields = |request: &OptimiseRequest| match serde_json::to_value(request) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let [known, now] = [known, request].map(fields);
    // An option that is not set may be absent.
    let keys: BTreeSet<&String> = known.keys().chain(now.keys()).collect();
    let value = |fields: &serde_json::Map<_, _>, key: &String| fields.get(key).cloned().unwrap_or_default();
    let key = keys.into_iter().find(|key| value(&known, key) != value(&now, key))?;
    if key == "weights" {
        return Some("the weights of the source run have changed".to_owned());
    }
    let shown = |fields| match value(fields, key) {
        serde_json::Value::Null => "not set".to_owned(),
        value => value.to_string(),
    };
    Some(format!("`{key}` was {}, not {}", shown(&known), shown(&now)))
}
