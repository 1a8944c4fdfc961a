//! The runs in a folder, one line each: status, configuration, results.
//!
//! Only small files are read, so that hundreds of long runs are listed quickly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::forecast::{PartForecast, RunPart, largest_error};
use stratus_run::labels::RunLabels;
use stratus_run::remote::RemoteRun;
use stratus_run::summary::{Status, Summary};
use stratus_run::{RunDir, data_label};

use crate::collect::{present, read_configuration};
use crate::report::{Score, effective_settings, is_ignored_key, val_score};
use crate::{Result, network_label, remote, status};

/// A run in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunListing {
    /// The run directory.
    pub path: PathBuf,
    /// The status; a run whose writer was killed counts as interrupted.
    pub status: Status,
    /// The name, note, tags and commit of the run.
    pub labels: RunLabels,
    /// The machine that trains the run, if it is another one.
    pub remote: Option<RemoteRun>,
    /// The experiment's name.
    pub experiment: String,
    /// The network, see [`network_label`].
    pub network: String,
    /// The data set.
    pub data: String,
    /// Completed epochs.
    pub epochs: u64,
    /// Configured epochs.
    pub of_epochs: Option<u64>,
    /// The metric of [`RunListing::best`]; `None` before the first epoch.
    pub score: Option<Score>,
    /// The best validation metric so far.
    pub best: Option<f64>,
    /// Last training loss.
    pub train_loss: Option<f64>,
    /// Median images per second.
    pub images_per_second: Option<f64>,
    /// Total seconds.
    pub total_s: Option<f64>,
    /// The forecast of the run beside what came; `None` if nothing was forecast.
    pub forecast: Option<ListedForecast>,
    /// The values of keys of the configuration that differ between runs of the same experiment name.
    pub differences: BTreeMap<String, String>,
    #[serde(skip)]
    settings: BTreeMap<String, String>,
}

/// The forecast of a run beside what came, for the work that is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ListedForecast {
    /// Forecast seconds.
    pub forecast_s: f64,
    /// Measured seconds, without startup.
    pub measured_s: f64,
    /// Forecast minus measured, in percent of the measured.
    pub error_percent: Option<f64>,
    /// The part with the largest error in seconds.
    pub largest_error: Option<RunPart>,
    /// That error: forecast minus measured seconds.
    pub largest_error_s: Option<f64>,
}

impl ListedForecast {
    fn new(summary: &Summary) -> Option<Self> {
        let parts = summary.forecast_parts();
        let total = parts.last()?;
        let largest = largest_error(&parts);
        Some(Self {
            forecast_s: total.forecast_s,
            measured_s: total.measured_s,
            error_percent: total.error_percent,
            largest_error: largest.map(|part| part.part),
            largest_error_s: largest.map(PartForecast::error_s),
        })
    }
}

/// A run that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadableRun {
    /// The run directory.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

impl RunListing {
    /// Reads a run, finished or not.
    fn read(run: &RunDir) -> Result<Self> {
        let configuration = read_configuration(run)?;
        let key = |table: &str, key: &str| configuration.get(table).and_then(|table| table.get(key)).cloned();
        let words =
            |value: Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let settings = effective_settings(&configuration);
        let summary = present(Summary::read(&run.summary()))?;
        let of_epochs = |task: Task, rows: Vec<EpochRow>| {
            let best = rows.iter().filter_map(|row| val_score(task, row)).reduce(f64::max);
            (Score::Of(task), best, rows.last().map(|row| (u64::from(row.epoch), row.train_loss)))
        };
        let epochs = match present(CsvReader::<EpochRow>::open(&run.epochs()))? {
            Some(reader) => Some(of_epochs(reader.task(), reader.collect::<stratus_run::Result<_>>()?)),
            None => None,
        };
        let last = epochs.and_then(|(.., last)| last);
        Ok(Self {
            path: run.path().to_path_buf(),
            status: status(run, summary.as_ref().unwrap_or(&Summary::default())),
            labels: RunLabels::read(&run.labels()).unwrap_or_default(),
            remote: remote(run),
            experiment: words(key("experiment", "name")),
            network: network_label(run, &words(key("model", "name"))),
            data: words(key("data", "name")),
            epochs: last.map_or(0, |(epoch, _)| epoch),
            of_epochs: key("train", "epochs").as_ref().and_then(Value::as_u64),
            score: last.and(epochs).map(|(score, ..)| score),
            best: epochs.and_then(|(_, best, _)| best),
            train_loss: last.map(|(_, loss)| loss),
            images_per_second: summary.as_ref().and_then(|summary| summary.images_per_second.median),
            total_s: summary.as_ref().map(|summary| summary.time.total_s),
            forecast: summary.as_ref().and_then(ListedForecast::new),
            differences: BTreeMap::new(),
            settings,
        })
    }

    /// The name of the data set; of one of the user's own, the last part of its path.
    #[must_use]
    pub fn data_label(&self) -> String {
        data_label(&self.data, self.settings.get("data.path").map(String::as_str))
    }

    /// Returns whether a key of the configuration has a value, as text or as a number.
    #[must_use]
    pub fn has_setting(&self, key: &str, value: &str) -> bool {
        let number = |text: &str| text.parse::<f64>().ok();
        self.settings.get(key).is_some_and(|found| {
            found == value || number(found).is_some_and(|found| Some(found) == number(value))
        })
    }
}

/// The runs of one or several folders.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunList {
    /// The runs.
    pub runs: Vec<RunListing>,
    /// Runs that cannot be read.
    #[serde(rename = "unlisted")]
    pub unreadable: Vec<UnreadableRun>,
    /// Damaged files of listed runs that are not needed to list them.
    #[serde(skip)]
    pub problems: Vec<String>,
}

/// All keys of a run's configuration, such as `train.epochs`, with their values as text, and the learning
/// rate that was used.
///
/// # Errors
/// If `experiment.toml` cannot be read.
pub fn read_settings(run: &RunDir) -> Result<BTreeMap<String, String>> {
    Ok(effective_settings(&read_configuration(run)?))
}

/// The runs at `paths`, in their order.
///
/// # Errors
/// If a folder cannot be searched. Runs that cannot be read are listed separately.
pub fn list<P: AsRef<Path>>(paths: &[P]) -> Result<RunList> {
    let mut list = RunList::default();
    for path in paths {
        for run in RunDir::find(path.as_ref())? {
            match RunListing::read(&run) {
                Ok(line) => list.runs.push(line),
                Err(error) => {
                    let unreadable = UnreadableRun { path: run.path().to_owned(), reason: error.to_string() };
                    list.unreadable.push(unreadable);
                }
            }
            list.problems.extend(RunLabels::read(&run.labels()).err().map(|error| error.to_string()));
            list.problems.extend(RemoteRun::read(&run.remote()).err().map(|error| error.to_string()));
        }
    }
    find_differences(&mut list.runs);
    Ok(list)
}

/// Finds the keys that differ between runs of the same experiment name.
fn find_differences(lines: &mut [RunListing]) {
    let mut values: BTreeMap<(String, String), (usize, Vec<String>)> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines.iter() {
        *counts.entry(line.experiment.clone()).or_default() += 1;
        for (key, value) in line.settings.iter().filter(|(key, _)| !is_ignored_key(key)) {
            let (count, seen) = values.entry((line.experiment.clone(), key.clone())).or_default();
            *count += 1;
            if !seen.contains(value) {
                seen.push(value.clone());
            }
        }
    }
    for line in lines.iter_mut() {
        let differs = |key: &str| {
            values
                .get(&(line.experiment.clone(), key.to_owned()))
                .is_some_and(|(count, seen)| seen.len() > 1 || *count < counts[&line.experiment])
        };
        let differences = line.settings.iter().filter(|(key, _)| differs(key));
        line.differences = differences.map(|(key, value)| (key.clone(), value.clone())).collect();
    }
    // The validation batch size usually equals the training batch size.
    let is_redundant = |line: &RunListing| {
        let [validation, training] =
            ["validation.batch_size", "train.batch_size"].map(|key| line.differences.get(key));
        validation.is_none() || validation == training
    };
    if lines.iter().all(is_redundant) {
        lines.iter_mut().for_each(|line| _ = line.differences.remove("validation.batch_size"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use stratus_run::csv::CsvWriter;
    use stratus_run::layout;
    use stratus_run::summary::{Forecast, TimeBreakdown};

    fn run(root: &Path, name: &str, configuration: &str) -> RunDir {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(layout::EXPERIMENT), configuration).unwrap();
        RunDir::open(&path).unwrap()
    }

    fn configuration(width: usize, seed: usize) -> String {
        format!(
            "[experiment]\nname = \"digits\"\n[model]\nname = \"digits\"\n\
             width = {width}\n[data]\nname = \"mnist\"\n\
             path = \"/a/{seed}\"\n[train]\nepochs = 5\nseed = {seed}\n"
        )
    }

    #[test]
    fn lists_runs_with_their_differences() {
        let root = tempfile::tempdir().unwrap();
        let first = run(root.path(), "digits/1", &configuration(8, 1));
        run(root.path(), "digits/2", &configuration(16, 2));
        run(root.path(), "vgg/1", "[experiment]\nname = \"vgg\"\n");
        run(root.path(), "bad/1", "not TOML");
        let mut rows = CsvWriter::<EpochRow>::open(&first.epochs(), Task::Classification).unwrap();
        for (epoch, accuracy) in [(1, 0.5), (2, 0.9), (3, 0.8)] {
            let row =
                EpochRow { epoch, train_loss: 1.0, val_accuracy: Some(accuracy), ..EpochRow::default() };
            rows.append(&row).unwrap();
        }
        rows.flush().unwrap();
        let forecast = Forecast { step_s: 0.5, total_s: 9.0, ..Forecast::default() };
        let time = TimeBreakdown { train_s: 8.0, data_wait_s: 1.0, ..TimeBreakdown::default() };
        let summary = Summary { iterations: 10, forecast: Some(forecast), time, ..Summary::default() };
        summary.write(&first.summary()).unwrap();
        let RunList { runs: lines, unreadable, .. } = list(&[root.path()]).unwrap();
        assert_eq!(unreadable.len(), 1);
        assert!(unreadable[0].reason.contains("bad/1/experiment.toml"), "{}", unreadable[0].reason);
        let [one, two, vgg] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(
            (one.epochs, one.of_epochs, one.best, one.score),
            (3, Some(5), Some(0.9), Some(Score::Of(Task::Classification)))
        );
        assert_eq!((two.epochs, two.best, two.score, two.total_s), (0, None, None, None));
        // The data path and the seed do not count as differences.
        assert_eq!(one.differences, BTreeMap::from([("model.width".to_owned(), "8".to_owned())]));
        assert!(two.has_setting("model.width", "16") && !two.has_setting("model.width", "8"));
        assert!(two.has_setting("train.seed", "2.0"), "keys that are no differences have values too");
        assert!(vgg.differences.is_empty());
        let forecast = one.forecast.unwrap();
        assert_eq!((forecast.forecast_s, forecast.measured_s), (5.0, 9.0));
        assert_eq!(
            (forecast.largest_error, forecast.largest_error_s),
            (Some(RunPart::Iterations), Some(-3.0))
        );
        assert_eq!(two.forecast, None);
        assert_eq!(one.status, Status::Interrupted, "no process writes it");
    }
}
