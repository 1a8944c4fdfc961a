//! `summary.json`: the results of a run, rewritten after every epoch.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::BestCheckpoint;
use crate::classes::OutputMetrics;
use crate::csv::{LabelColumns, NumberColumns};
use crate::{Result, atomic};

pub use crate::forecast::Forecast;

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Training, or killed: the lock of the run distinguishes the two.
    #[default]
    Running,
    /// All epochs have completed.
    Completed,
    /// Stopped on request; it can be resumed.
    Interrupted,
    /// Stopped by an error.
    Failed,
}

impl Status {
    /// The name in files: `completed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// The content of `summary.json`. Every key is always written, `null` if unknown, unless its description
/// states otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The state of the run.
    pub status: Status,
    /// The experiment's name.
    pub experiment: String,
    /// The network's name.
    pub model: String,
    /// The data set's name.
    pub dataset: String,
    /// The device: `cpu`, `cuda:0`.
    pub device: String,
    /// Number of CPU threads used for computing.
    pub threads: u32,
    /// Number of loader threads at the end.
    pub data_workers: u32,
    /// `f32`, `bf16`, `f16`.
    pub precision: String,
    /// Samples per iteration.
    pub batch_size: u64,
    /// Epochs done.
    pub epochs: u32,
    /// Iterations done.
    pub iterations: u64,
    /// Training speed.
    pub images_per_second: SpeedPercentiles,
    /// Breakdown of the time.
    pub time: TimeBreakdown,
    /// The part of the iteration time that the timeline attributes.
    pub accounting: TimeAccount,
    /// The metrics at the end.
    #[serde(rename = "final")]
    pub final_metrics: FinalMetrics,
    /// Bytes planned and used.
    pub memory: Memory,
    /// The forecast made before the first iteration, with the measured step time; `None` without one.
    pub forecast: Option<Forecast>,
    /// Utilisation of the machine.
    pub usage: Usage,
    /// Energy of the machine; its keys are those of the summary itself.
    #[serde(flatten)]
    pub energy: Energy,
    /// The checksum of the weights, see [`weights_sha256`](crate::checkpoint::weights_sha256).
    pub weights_sha256: Option<String>,
    /// Number of times the run was resumed.
    pub resumed: u64,
    /// Loss scaling; not written unless training in f16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleSummary>,
    /// Samples that could not be decoded and were skipped since the last resume; not written if
    /// `data.on_bad_sample` is `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_samples: Option<BadSamples>,
    /// The best epoch so far, whose checkpoint is kept; not written unless `checkpoint.keep_best` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
    /// The pre-training stage; not written without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_stage: Option<FirstStageSummary>,
    /// Metrics of each class, label or target in the last validation; not written before the first
    /// validation, nor for more than 100 classes (see `classes.csv`).
    #[serde(flatten)]
    pub outputs: OutputMetrics,
    /// The early stop, if training stopped before its last epoch; not written otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_early: Option<StoppedEarly>,
}

/// Energy of the machine over the whole run, in Wh, including the parts before a resume and the energy that
/// other programs use meanwhile. `None` if a part of the run was not measured, as by earlier versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Energy {
    /// Energy of all packages of the processor and, if the run computed on a GPU, of the GPU; `None` if one
    /// of them is unknown.
    pub energy_wh: Option<f64>,
    /// Energy of all packages of the processor, by RAPL; with several workers, of the first one's machine.
    pub cpu_energy_wh: Option<f64>,
    /// Energy of the GPU, by NVML; `None` on a CPU, and with several workers.
    pub gpu_energy_wh: Option<f64>,
}

/// Utilisation of the machine since the last resume, see `usage.csv`. `None` if the system does not provide a
/// value, or in the first second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of the run, in percent of the time of all CPUs that it may use.
    pub cpu_percent_mean: Option<f64>,
    /// CPU time of other programs, and of other virtual machines if the hypervisor reports it.
    pub stolen_percent: Option<f64>,
    /// Busy time of the compute device, in percent.
    pub gpu_percent_mean: Option<f64>,
    /// Peak memory in use on the device over all samples, including that of other programs.
    pub gpu_memory_peak_bytes: Option<u64>,
    /// Mean power draw of the device.
    pub gpu_watts_mean: Option<f64>,
    /// Peak resident memory of the run over all samples.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes read from disks for the run.
    pub disk_read_bytes: Option<u64>,
    /// Bytes written to disks for the run.
    pub disk_write_bytes: Option<u64>,
    /// Bytes that the machine received and sent, without the loopback interface.
    pub net_bytes: Option<u64>,
    /// CPU time of sampling, in percent of the CPU time of the run.
    pub sampling_percent: Option<f64>,
}

/// The pre-training stage of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstStageSummary {
    /// The network that was trained.
    pub model: String,
    /// Its epochs.
    pub epochs: u32,
    /// Total seconds, which the times of the run do not include.
    pub total_s: f64,
}

/// Loss scaling of a run in f16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossScaleSummary {
    /// The factor on the loss, at the end.
    pub scale: f64,
    /// Iterations without an update, since a gradient overflowed.
    pub skipped_iterations: u64,
}

/// A stop of training before its last epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoppedEarly {
    /// The last epoch.
    pub epoch: u32,
    /// The monitored metric, a column of `epochs.csv`.
    pub metric: String,
    /// Its best value; `None` if it never was finite.
    pub best: Option<f64>,
    /// The epoch of that value.
    pub best_epoch: Option<u32>,
}

impl fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, metric, best, best_epoch } = self;
        write!(f, "stopped early after epoch {epoch}: ")?;
        match (best, best_epoch) {
            (Some(best), Some(best_epoch)) => {
                write!(f, "{metric} has not improved since epoch {best_epoch} ({best:.4})")
            }
            _ => write!(f, "{metric} was never finite"),
        }
    }
}

/// Samples that were skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSamples {
    /// Number of skipped samples.
    pub count: u64,
    /// The first skipped samples.
    pub listed: Vec<BadSample>,
}

/// A sample that was skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// Its file.
    pub sample: String,
    /// The reason why it could not be decoded.
    pub problem: String,
}

/// Images per second over the iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedPercentiles {
    /// The median: half of the iterations are faster.
    pub median: Option<f64>,
    /// A tenth of the iterations are slower.
    pub p10: Option<f64>,
    /// A tenth of the iterations are faster.
    pub p90: Option<f64>,
}

/// Seconds, including those before a resume. The parts do not overlap; [`TimeBreakdown::unexplained_s`] is
/// the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeBreakdown {
    /// Total, from the start of the process to its end.
    pub total_s: f64,
    /// Startup, before the first iteration.
    pub startup_s: f64,
    /// Iterations, without waiting for data and without checkpoints.
    pub train_s: f64,
    /// Validation.
    pub validation_s: f64,
    /// Waiting for data during iterations.
    pub data_wait_s: f64,
    /// Saving checkpoints.
    pub checkpoint_s: f64,
}

impl TimeBreakdown {
    /// The total minus all parts.
    #[must_use]
    pub fn unexplained_s(&self) -> f64 {
        let Self { total_s, startup_s, train_s, validation_s, data_wait_s, checkpoint_s } = self;
        total_s - (startup_s + train_s + validation_s + data_wait_s + checkpoint_s)
    }
}

/// The wall time of all iterations, and the part that the timeline attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeAccount {
    /// Wall seconds of the iterations.
    pub iteration_s: f64,
    /// Seconds attributed to slots.
    pub attributed_s: f64,
    /// The unattributed rest, in percent of the wall time.
    pub unattributed_percent: f64,
}

impl TimeAccount {
    /// An account of wall seconds in iterations and their attributed seconds.
    #[must_use]
    pub fn new(iteration_s: f64, attributed_s: f64) -> Self {
        let rest = if iteration_s > 0.0 { 100.0 * (iteration_s - attributed_s) / iteration_s } else { 0.0 };
        Self { iteration_s, attributed_s, unattributed_percent: rest }
    }
}

/// Metrics at the end of the last epoch. Accuracies are fractions, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalMetrics {
    /// Mean loss over the training samples of the last epoch.
    pub train_loss: Option<f64>,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Classification: top-1 accuracy on the validation samples.
    pub val_top1: Option<f64>,
    /// Classification: top-5 accuracy on the validation samples.
    pub val_top5: Option<f64>,
    /// Segmentation: the fraction of validation pixels whose class is correct. Like the next three, not
    /// written if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_accuracy: Option<f64>,
    /// Segmentation: the mean of the classes' accuracies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_mean_accuracy: Option<f64>,
    /// Segmentation: mean intersection over union.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_miou: Option<f64>,
    /// Segmentation: mean boundary F1 score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_bf: Option<f64>,
    /// Several labels: the fraction of validation labels that are predicted correctly. Not written for other
    /// tasks, like the fields down to `val_rmse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_label_accuracy: Option<f64>,
    /// Several labels: their other measures.
    #[serde(flatten)]
    pub labels: LabelColumns,
    /// Regression: mean R² of the targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_r2: Option<f64>,
    /// Regression: the errors.
    #[serde(flatten)]
    pub numbers: NumberColumns,
    /// Number of views per image whose probabilities were averaged; not written for a single view.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_views: Option<u64>,
    /// The decay of the moving average of weights that was evaluated; not written if the raw weights were
    /// evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_ema_decay: Option<f64>,
}

/// Planned and used memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of the plan.
    pub planned_peak_bytes: Option<u64>,
    /// Peak resident set of the process.
    pub measured_peak_rss_bytes: Option<u64>,
    /// Bytes of the plan on the device; not written without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_device_bytes: Option<u64>,
    /// Peak bytes on the device.
    pub device_peak_bytes: Option<u64>,
}

impl Summary {
    /// Replaces `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }

    /// Reads `path`.
    pub fn read(path: &Path) -> Result<Self> {
        atomic::read_json(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_documented_keys() {
        let value = serde_json::to_value(Summary::default()).unwrap();
        let mut keys: Vec<String> = Vec::new();
        for (key, value) in value.as_object().unwrap() {
            let inner = value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>().join(" "));
            keys.push(inner.map_or(key.clone(), |inner| format!("{key}{{{inner}}}")));
        }
        keys.sort();
        assert_eq!(
            keys.join("\n"),
            "accounting{attributed_s iteration_s unattributed_percent}\nbatch_size\ncpu_energy_wh\n\
             data_workers\ndataset\ndevice\nenergy_wh\nepochs\nexperiment\n\
             final{train_loss val_loss val_top1 val_top5}\nforecast\n\
             gpu_energy_wh\nimages_per_second{median p10 p90}\niterations\n\
             memory{device_peak_bytes measured_peak_rss_bytes planned_peak_bytes}\nmodel\nprecision\n\
             resumed\nstatus\nthreads\n\
             time{checkpoint_s data_wait_s startup_s total_s train_s validation_s}\n\
             usage{cpu_percent_mean disk_read_bytes disk_write_bytes gpu_memory_peak_bytes \
             gpu_percent_mean gpu_watts_mean net_bytes rss_peak_bytes sampling_percent \
             stolen_percent}\nweights_sha256"
        );
        assert_eq!(value["status"], "running");
    }

    #[test]
    fn missing_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        std::fs::write(&path, "{\"status\": \"completed\"}").unwrap();
        let error = Summary::read(&path).unwrap_err().to_string();
        assert!(error.contains("summary.json is damaged") && error.contains("is missing"), "{error}");
    }

    #[test]
    fn survives_a_round_trip_and_ignores_unknown_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        let mut summary = Summary { status: Status::Interrupted, resumed: 2, ..Default::default() };
        summary.final_metrics.val_top1 = Some(0.1 + 0.2);
        summary.final_metrics.train_loss = Some(f64::NAN);
        summary.stopped_early =
            Some(StoppedEarly { epoch: 9, metric: "val_loss".into(), best: Some(0.25), best_epoch: Some(4) });
        let stopped = "stopped early after epoch 9: val_loss has not improved since epoch 4 (0.2500)";
        summary.write(&path).unwrap();
        let back = Summary::read(&path).unwrap();
        assert_eq!(back.final_metrics, FinalMetrics { train_loss: None, ..summary.final_metrics });
        assert_eq!(back.stopped_early.unwrap().to_string(), stopped);
        assert_eq!((back.status, back.resumed), (summary.status, 2));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen('{', "{\"later\": 1,", 1)).unwrap();
        assert_eq!(Summary::read(&path).unwrap().resumed, 2);
        for damaged in ["{\"status\": 5}", "{}"] {
            std::fs::write(&path, damaged).unwrap();
            assert!(Summary::read(&path).unwrap_err().to_string().contains("summary.json is damaged"));
        }
    }

    #[test]
    fn summary_of_an_earlier_version_has_no_energy() {
        let mut value = serde_json::to_value(Summary::default()).unwrap();
        let keys = value.as_object_mut().unwrap();
        for key in ["energy_wh", "cpu_energy_wh", "gpu_energy_wh"] {
            assert!(keys.remove(key).is_some_and(|value| value.is_null()), "unknown values are written");
        }
        let summary: Summary = serde_json::from_value(value).unwrap();
        assert_eq!(summary.energy, Energy::default());
        let energy = Energy { energy_wh: Some(1.5), cpu_energy_wh: Some(1.5), gpu_energy_wh: None };
        let value = serde_json::to_value(Summary { energy, ..summary }).unwrap();
        assert_eq!(serde_json::from_value::<Summary>(value).unwrap().energy, energy);
    }
}
