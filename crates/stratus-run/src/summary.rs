//! `summary.json`: the results of a run, rewritten after every epoch.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use stratus_measures::ClassMeasures;

use crate::checkpoint::Best;
use crate::{Result, atomic};

/// The state of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Training, or killed without warning: the run's lock tells which.
    #[default]
    Running,
    /// All epochs are done.
    Completed,
    /// Stopped on request; it can be continued.
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

/// The content of `summary.json`. Every key is always written, `null` if unknown, but for those that say
/// otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// CPU threads that computed.
    pub threads: u32,
    /// Loader threads, at the end.
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
    pub images_per_second: Spread,
    /// How the time was spent.
    pub time: Time,
    /// How much of the iterations is accounted for.
    pub accounting: TimeAccount,
    /// The metrics at the end.
    #[serde(rename = "final")]
    pub last: FinalMetrics,
    /// Bytes planned and used.
    pub memory: Memory,
    /// What was forecast before the first iteration, and how it compares; `None` where nothing was.
    pub forecast: Option<Forecast>,
    /// How the machine was used.
    pub usage: Usage,
    /// The checksum of the weights, see [`weights_sha256`](crate::checkpoint::weights_sha256).
    pub weights_sha256: Option<String>,
    /// How often the run was continued.
    pub resumed: u64,
    /// Loss scaling, in f16 only; `None` is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Samples that could not be decoded and were skipped, since the run was last continued; `None`, which is
    /// not written, if `data.on_bad_sample` is `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad_samples: Option<BadSamples>,
    /// The best epoch so far, whose checkpoint is kept; `None`, which is not written, unless
    /// `checkpoint.keep_best` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// The stage before; not written without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_stage: Option<FirstStage>,
    /// What the last validation measured of each class; not written before there was one, nor of more than
    /// 100 classes, which `classes.csv` has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassMeasures>,
    /// Why training ended before its last epoch; `None`, which is not written, unless it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_early: Option<StoppedEarly>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The forecast of a run, since it was last continued, by its kernels timed alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forecast {
    /// Seconds of a training step, without waiting for data.
    pub step_s: f64,
    /// Four times of five it takes at least this,
    pub low_s: f64,
    /// and at most this.
    pub high_s: f64,
    /// Seconds of all steps and validations of the run.
    pub total_s: f64,
    /// What it is from: `measured`.
    pub source: String,
    /// The mean of the steps; `None` before there were two.
    pub measured_step_s: Option<f64>,
    /// By how much the forecast is more than that, in percent of it.
    pub error_percent: Option<f64>,
}

/// How the machine was used since the run was last continued, see `usage.csv`. `None` where the system does
/// not tell, or in the first second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// The run's share of the processors that it may use, in percent of their time.
    pub cpu_percent_mean: Option<f64>,
    /// That of other programs, and of other virtual machines where the hypervisor says so.
    pub stolen_percent: Option<f64>,
    /// The time in which the device that computed was busy, in percent.
    pub gpu_percent_mean: Option<f64>,
    /// The most memory of that device in use at a sample, other programs' included.
    pub gpu_memory_peak_bytes: Option<u64>,
    /// The power that it drew.
    pub gpu_watts_mean: Option<f64>,
    /// The run's most resident memory at a sample.
    pub rss_peak_bytes: Option<u64>,
    /// What disks read for the run.
    pub disk_read_bytes: Option<u64>,
    /// What disks wrote for the run.
    pub disk_write_bytes: Option<u64>,
    /// What the machine received and sent, its loopback left out.
    pub net_bytes: Option<u64>,
    /// What sampling all this took, in percent of the run's processor time.
    pub sampling_percent: Option<f64>,
}

/// The stage before a run's training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FirstStage {
    /// The network that was trained.
    pub model: String,
    /// Its epochs.
    pub epochs: u32,
    /// Seconds in all, which the run's own do not include.
    pub total_s: f64,
}

/// The scale of the loss of a run in f16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LossScale {
    /// The factor on the loss, at the end.
    pub scale: f64,
    /// Iterations without an update, as a gradient overflowed.
    pub skipped_iterations: u64,
}

/// Why training ended before its last epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoppedEarly {
    /// The last epoch.
    pub epoch: u32,
    /// The measure that decided, a column of `epochs.csv`.
    pub metric: String,
    /// Its best value; none if it never was finite.
    pub best: Option<f64>,
    /// The epoch of that value.
    pub best_epoch: Option<u32>,
}

impl fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, metric, best, best_epoch } = self;
        write!(f, "training ended early, after epoch {epoch}: ")?;
        match (best, best_epoch) {
            (Some(best), Some(best_epoch)) => {
                write!(f, "{metric} has gained nothing since epoch {best_epoch}, {best:.4}")
            }
            _ => write!(f, "{metric} has never been a finite number"),
        }
    }
}

/// Samples that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadSamples {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub listed: Vec<BadSample>,
}

/// A sample that was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSample {
    /// Its file.
    pub sample: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Images per second over the iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// Half of the iterations are faster.
    pub median: Option<f64>,
    /// A tenth of the iterations are slower.
    pub p10: Option<f64>,
    /// A tenth of the iterations are faster.
    pub p90: Option<f64>,
}

/// Seconds, including those before a resume. The parts do not overlap; [`Time::unexplained_s`] is the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Time {
    /// From the start of the process to its end.
    pub total_s: f64,
    /// Before the first iteration.
    pub startup_s: f64,
    /// In iterations, without waiting for data and without checkpoints.
    pub train_s: f64,
    /// In validation.
    pub validation_s: f64,
    /// Waiting for data in iterations.
    pub data_wait_s: f64,
    /// Saving checkpoints.
    pub checkpoint_s: f64,
}

impl Time {
    /// The part of the total that is in no other part.
    #[must_use]
    pub fn unexplained_s(&self) -> f64 {
        let Self { total_s, startup_s, train_s, validation_s, data_wait_s, checkpoint_s } = self;
        total_s - (startup_s + train_s + validation_s + data_wait_s + checkpoint_s)
    }
}

/// The wall time of all iterations against what the timeline attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeAccount {
    /// Wall seconds of the iterations.
    pub iteration_s: f64,
    /// Seconds that a slot accounts for.
    pub attributed_s: f64,
    /// The rest, in percent of the wall time.
    pub unattributed_percent: f64,
}

impl TimeAccount {
    /// From wall seconds in iterations and the seconds of them that are attributed.
    #[must_use]
    pub fn new(iteration_s: f64, attributed_s: f64) -> Self {
        let rest = if iteration_s > 0.0 { 100.0 * (iteration_s - attributed_s) / iteration_s } else { 0.0 };
        Self { iteration_s, attributed_s, unattributed_percent: rest }
    }
}

/// Metrics at the end of the last epoch. Accuracies are fractions, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FinalMetrics {
    /// Mean loss over the training samples of the last epoch.
    pub train_loss: Option<f64>,
    /// Mean loss over the validation samples.
    pub val_loss: Option<f64>,
    /// Classification: top-1 accuracy on the validation samples.
    pub val_top1: Option<f64>,
    /// Classification: top-5 accuracy on the validation samples.
    pub val_top5: Option<f64>,
    /// Segmentation: the share of validation pixels whose class is right. Not written without one, as the
    /// next three.
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
    /// Views of each image whose probabilities were averaged; not written for the image alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_views: Option<u64>,
    /// The decay of the moving average of the weights that were measured; not written for the weights
    /// themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val_ema_decay: Option<f64>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The plan's bytes.
    pub planned_peak_bytes: Option<u64>,
    /// The process's peak resident set.
    pub measured_peak_rss_bytes: Option<u64>,
    /// The plan's bytes on the device; not written without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_device_bytes: Option<u64>,
    /// The peak on the device.
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
    fn keys_are_those_of_the_contract() {
        let value = serde_json::to_value(Summary::default()).unwrap();
        let mut keys: Vec<String> = Vec::new();
        for (key, value) in value.as_object().unwrap() {
            let inner = value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>().join(" "));
            keys.push(inner.map_or(key.clone(), |inner| format!("{key}{{{inner}}}")));
        }
        keys.sort();
        assert_eq!(
            keys.join("\n"),
            "accounting{attributed_s iteration_s unattributed_percent}\nbatch_size\ndata_workers\n\
             dataset\ndevice\nepochs\nexperiment\nfinal{train_loss val_loss val_top1 val_top5}\n\
             forecast\nimages_per_second{median p10 p90}\niterations\n\
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
    fn it_comes_back_with_unknown_keys_and_without_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        let mut summary = Summary { status: Status::Interrupted, resumed: 2, ..Default::default() };
        summary.last.val_top1 = Some(0.1 + 0.2);
        summary.last.train_loss = Some(f64::NAN);
        summary.extra.insert("later".into(), Value::from(1));
        summary.stopped_early =
            Some(StoppedEarly { epoch: 9, metric: "val_loss".into(), best: Some(0.25), best_epoch: Some(4) });
        let stopped =
            "training ended early, after epoch 9: val_loss has gained nothing since epoch 4, 0.2500";
        summary.write(&path).unwrap();
        let back = Summary::read(&path).unwrap();
        assert_eq!(back.last, FinalMetrics { train_loss: None, ..summary.last });
        assert_eq!(back.stopped_early.unwrap().to_string(), stopped);
        assert_eq!((back.status, back.resumed, &back.extra), (summary.status, 2, &summary.extra));
        std::fs::write(&path, "{}").unwrap();
        assert_eq!(Summary::read(&path).unwrap(), Summary::default());
        std::fs::write(&path, "{\"status\": 5}").unwrap();
        assert!(Summary::read(&path).unwrap_err().to_string().contains("summary.json is damaged"));
    }
}
