//! A run as one row: configuration, machine, times, results.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use stratus_base::read_text_at_most;
use stratus_run::RunDir;
use stratus_run::csv::{self, CsvReader, IterationRow};
use stratus_run::labels::RunLabels;
use stratus_run::machine::{Identity, Machine};
use stratus_run::remote::RemoteRun;
use stratus_run::summary::{Status, Summary};

use crate::text::fit;
use crate::{Error, Result, default_skip, remote, status};

/// The maximum size of `experiment.toml`, as for training.
const MAX_EXPERIMENT_BYTES: u64 = 1 << 20;
/// Maximum number of characters of the reason why it cannot be read.
const MAX_REASON_CHARS: usize = 400;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunRecord {
    /// The run directory.
    pub path: PathBuf,
    /// The number of the run: the repetition.
    pub repetition: Option<u64>,
    /// The status; a run whose writer was killed counts as interrupted.
    pub status: Status,
    /// The name, note, tags and commit of the run.
    pub labels: RunLabels,
    /// The machine that trains the run, if it is another one.
    pub remote: Option<RemoteRun>,
    /// `experiment.toml`.
    pub configuration: Value,
    /// `summary.json`; `None` if the run ended before it was written.
    pub summary: Option<Summary>,
    /// `machine.json`; `None` if the run ended before it was written.
    pub machine: Option<Machine>,
    /// Times during the run.
    pub progress: Progress,
    /// Seconds not attributed to startup, training, validation, data or checkpoints.
    pub unexplained_s: Option<f64>,
}

/// Wall seconds up to a quarter, half, three quarters and all of the iterations after the skipped ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    /// Number of recorded iterations.
    pub iterations: u64,
    /// Number of skipped first iterations.
    pub skipped: u64,
    /// Seconds up to 25 % of the iterations.
    pub time_25_s: f64,
    /// Seconds up to 50 % of the iterations.
    pub time_50_s: f64,
    /// Seconds up to 75 % of the iterations.
    pub time_75_s: f64,
    /// Seconds of all iterations.
    pub time_100_s: f64,
}

impl Progress {
    /// The progress from the wall seconds of each iteration, without the first `skip` or [`default_skip`].
    #[must_use]
    pub fn from_wall_times(walls: &[f64], skip: Option<u64>) -> Self {
        let iterations = walls.len() as u64;
        let skipped = skip.unwrap_or_else(|| default_skip(iterations)).min(iterations);
        let until = |quarter: usize| {
            let end = (walls.len() * quarter).div_ceil(4);
            walls[..end].iter().skip(skipped as usize).sum()
        };
        let [time_25_s, time_50_s, time_75_s, time_100_s] = [1, 2, 3, 4].map(until);
        Self { iterations, skipped, time_25_s, time_50_s, time_75_s, time_100_s }
    }
}

impl RunRecord {
    /// Reads a run, finished or not. The first `skip` iterations are skipped; `None`: [`default_skip`].
    pub fn read(run: &RunDir, skip: Option<u64>) -> Result<Self> {
        let configuration = read_configuration(run)?;
        let summary = present(Summary::read(&run.summary()))?;
        let machine = present(Machine::read(&run.machine()))?;
        let walls = match present(CsvReader::<IterationRow>::open(&run.iterations()))? {
            Some(rows) => rows
                .map(|row| row.map(|row| row.data_s + row.train_s + row.unattributed_s))
                .collect::<Result<Vec<f64>, _>>()?,
            None => Vec::new(),
        };
        Ok(Self {
            path: run.path().to_path_buf(),
            repetition: run.number(),
            status: status(run, summary.as_ref().unwrap_or(&Summary::default())),
            labels: RunLabels::read(&run.labels()).unwrap_or_default(),
            remote: remote(run),
            configuration,
            unexplained_s: summary.as_ref().map(|summary| summary.time.unexplained_s()),
            summary,
            machine,
            progress: Progress::from_wall_times(&walls, skip),
        })
    }

    /// Removes the identity of the machine: its UUID and the addresses of its network cards. The
    /// `machine.json` of the run keeps them.
    #[must_use]
    pub fn without_identity(mut self) -> Self {
        if let Some(machine) = &mut self.machine {
            machine.identity = Identity::default();
        }
        self
    }

    /// The row as columns with their text; unknown values are empty. `uuid` and `mac` of the machine are
    /// columns only with `identity`. Keys of the configuration are last, as `config.<table>.<key>`.
    #[must_use]
    pub fn fields(&self, identity: bool) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let mut put = |name: &str, value: String| fields.push((name.to_string(), value));
        let default = Summary::default();
        let has_summary = self.summary.is_some();
        let summary = self.summary.as_ref().unwrap_or(&default);
        let known = |text: String| if has_summary { text } else { String::new() };
        put("experiment", known(summary.experiment.clone()));
        put("repetition", show(self.repetition));
        put("path", self.path.display().to_string());
        put("status", self.status.name().into());
        put("resumed", known(summary.resumed.to_string()));
        put("model", summary.model.clone());
        put("dataset", summary.dataset.clone());
        put("device", summary.device.clone());
        put("threads", known(summary.threads.to_string()));
        put("precision", summary.precision.clone());
        put("batch_size", known(summary.batch_size.to_string()));
        put("epochs", known(summary.epochs.to_string()));
        let progress = &self.progress;
        put("iterations", progress.iterations.to_string());
        put("skipped_iterations", progress.skipped.to_string());
        put("time_25_s", seconds(progress.time_25_s));
        put("time_50_s", seconds(progress.time_50_s));
        put("time_75_s", seconds(progress.time_75_s));
        put("time_100_s", seconds(progress.time_100_s));
        let time = &summary.time;
        put("startup_s", known(seconds(time.startup_s)));
        put("data_s", known(seconds(time.data_wait_s)));
        put("training_s", known(seconds(time.train_s)));
        put("validation_s", known(seconds(time.validation_s)));
        put("checkpoint_s", known(seconds(time.checkpoint_s)));
        put("overall_s", known(seconds(time.total_s)));
        put("unexplained_s", known(seconds(time.unexplained_s())));
        put("unattributed_percent", known(format!("{:?}", summary.accounting.unattributed_percent)));
        let speed = &summary.images_per_second;
        put("images_per_second_median", csv::exact(speed.median));
        put("images_per_second_p10", csv::exact(speed.p10));
        put("images_per_second_p90", csv::exact(speed.p90));
        let last = &summary.final_metrics;
        put("train_loss", csv::exact(last.train_loss));
        put("val_loss", csv::exact(last.val_loss));
        put("val_top1", csv::exact(last.val_top1));
        put("val_top5", csv::exact(last.val_top5));
        put("val_accuracy", csv::exact(last.val_accuracy));
        put("val_mean_accuracy", csv::exact(last.val_mean_accuracy));
        put("val_miou", csv::exact(last.val_miou));
        put("val_label_accuracy", csv::exact(last.val_label_accuracy));
        put("val_map", csv::exact(last.labels.val_map));
        put("val_auc", csv::exact(last.labels.val_auc));
        put("val_f1", csv::exact(last.labels.val_f1));
        put("val_exact_match", csv::exact(last.labels.val_exact_match));
        put("val_r2", csv::exact(last.val_r2));
        put("val_mae", csv::exact(last.numbers.val_mae));
        put("val_rmse", csv::exact(last.numbers.val_rmse));
        put("val_bf", csv::exact(last.val_bf));
        let memory = &summary.memory;
        put("planned_peak_bytes", show(memory.planned_peak_bytes));
        put("measured_peak_rss_bytes", show(memory.measured_peak_rss_bytes));
        put("device_peak_bytes", show(memory.device_peak_bytes));
        let usage = &summary.usage;
        put("cpu_percent_mean", csv::exact(usage.cpu_percent_mean));
        put("stolen_percent", csv::exact(usage.stolen_percent));
        put("gpu_percent_mean", csv::exact(usage.gpu_percent_mean));
        put("gpu_memory_peak_bytes", show(usage.gpu_memory_peak_bytes));
        put("gpu_watts_mean", csv::exact(usage.gpu_watts_mean));
        let energy = &summary.energy;
        put("energy_wh", csv::exact(energy.energy_wh));
        put("cpu_energy_wh", csv::exact(energy.cpu_energy_wh));
        put("gpu_energy_wh", csv::exact(energy.gpu_energy_wh));
        put("disk_read_bytes", show(usage.disk_read_bytes));
        put("disk_write_bytes", show(usage.disk_write_bytes));
        put("net_bytes", show(usage.net_bytes));
        put("weights_sha256", summary.weights_sha256.clone().unwrap_or_default());
        let RunLabels { name, note, tags, git } = &self.labels;
        put("name", name.clone().unwrap_or_default());
        put("tags", tags.join(" "));
        put("note", note.clone().unwrap_or_default());
        let git = git.as_ref();
        put("git_commit", git.map(|git| git.commit.clone()).unwrap_or_default());
        put("git_branch", git.and_then(|git| git.branch.clone()).unwrap_or_default());
        put("git_dirty", show(git.and_then(|git| git.has_changes)));
        let default = Machine::default();
        let machine = self.machine.as_ref().unwrap_or(&default);
        put("host", machine.host.clone());
        if identity {
            put("uuid", machine.identity.uuid.clone().unwrap_or_default());
            put("mac", machine.identity.mac.clone().unwrap_or_default());
        }
        put("os", machine.os.clone());
        put("kernel", machine.kernel.clone());
        put("cpu", machine.cpu.model.clone());
        put("cpu_cores", show(machine.cpu.cores));
        put("cpu_threads", show(machine.cpu.threads));
        put("ram_bytes", show(machine.ram_bytes));
        put("gpu", machine.devices.first().map(|device| device.name.clone()).unwrap_or_default());
        put(
            "gpu_count",
            if self.machine.is_some() { machine.devices.len().to_string() } else { String::new() },
        );
        let libraries = machine.libraries.iter().map(|(name, library)| format!("{name} {}", library.version));
        put("libraries", libraries.collect::<Vec<_>>().join("; "));
        let peaks = machine.peaks.iter().map(|(name, value)| format!("{name}={value:?}"));
        put("peaks", peaks.collect::<Vec<_>>().join("; "));
        let configuration = flatten(&self.configuration).into_iter();
        fields.extend(configuration.map(|(key, value)| (format!("config.{key}"), value)));
        fields
    }
}

/// Runs as CSV with a header, with or without the `identity` of machines. Keys that a run does not have are
/// empty.
#[must_use]
pub fn to_csv(experiments: &[RunRecord], identity: bool) -> String {
    let rows: Vec<Vec<(String, String)>> =
        experiments.iter().map(|experiment| experiment.fields(identity)).collect();
    let is_config = |name: &&str| name.starts_with("config.");
    let names = || rows.iter().flatten().map(|(name, _)| name.as_str());
    let Some(first) = rows.first() else { return String::new() };
    let mut columns: Vec<&str> =
        first.iter().map(|(name, _)| name.as_str()).filter(|n| !is_config(n)).collect();
    columns.extend(names().filter(is_config).collect::<std::collections::BTreeSet<_>>());
    let row = |row: &Vec<(String, String)>| {
        let row: BTreeMap<&str, &str> =
            row.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        columns.iter().map(|name| row.get(name).copied().unwrap_or("").to_owned()).collect()
    };
    let header = columns.iter().map(ToString::to_string).collect();
    csv::to_text(std::iter::once::<Vec<String>>(header).chain(rows.iter().map(row)))
}

/// Reads `experiment.toml` of a run.
pub(crate) fn read_configuration(run: &RunDir) -> Result<Value> {
    let path = run.experiment();
    let text = read_text_at_most(&path, MAX_EXPERIMENT_BYTES).map_err(Error::io("read", &path))?;
    toml::from_str(&text).map_err(|error| {
        // The message quotes the line, which may be very long.
        let reason = fit(&error.to_string().trim().replace('\n', " "), MAX_REASON_CHARS);
        Error::Configuration { path, reason: reason.trim_end().to_owned() }
    })
}

/// Maps a missing file to `None`.
pub(crate) fn present<T>(read: stratus_run::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// All keys of a configuration, such as `train.epochs`, with their values as text.
pub(crate) fn flatten(configuration: &Value) -> BTreeMap<String, String> {
    fn insert(name: String, value: &Value, out: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(table) => {
                let above = if name.is_empty() { name } else { name + "." };
                table.iter().for_each(|(key, value)| insert(format!("{above}{key}"), value, out));
            }
            Value::String(text) => _ = out.insert(name, text.clone()),
            other => _ = out.insert(name, other.to_string()),
        }
    }
    let mut out = BTreeMap::new();
    insert(String::new(), configuration, &mut out);
    out
}

fn show<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn seconds(value: f64) -> String {
    // Adding positive zero removes the sign of negative zero.
    format!("{:.6}", value + 0.0)
}
