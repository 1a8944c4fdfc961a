//! The runs under a folder, a line each: how they stand, what was trained, what came of it.
//!
//! Only small files are read, so that hundreds of long runs are listed at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::summary::{Status, Summary};

use crate::report::{flatten, is_place, score_name, settle_rate};
use crate::{Error, Result, status};

/// A run in a few words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunLine {
    /// The run directory.
    pub path: PathBuf,
    /// How it stands; a run whose writer was killed counts as interrupted.
    pub status: Status,
    /// The experiment's name.
    pub experiment: String,
    /// The network.
    pub network: String,
    /// The data set.
    pub data: String,
    /// Epochs done.
    pub epochs: u64,
    /// Epochs wanted.
    pub of_epochs: Option<u64>,
    /// What [`RunLine::best`] is: `top-1` or `mean IoU`; none before the first epoch.
    pub score: Option<&'static str>,
    /// The best on the validation data so far.
    pub best: Option<f64>,
    /// The last training loss.
    pub train_loss: Option<f64>,
    /// Images a second: the median.
    pub images_per_second: Option<f64>,
    /// Seconds in all.
    pub total_s: Option<f64>,
    /// Keys of the configuration in which runs of this experiment's name differ, with this run's values.
    pub differences: BTreeMap<String, String>,
    #[serde(skip)]
    settings: BTreeMap<String, String>,
}

/// A run that cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unlisted {
    /// The run directory.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

impl RunLine {
    /// Reads a run, finished or not.
    fn of(run: &RunDir) -> Result<Self> {
        let path = run.experiment();
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let configuration: Value = toml::from_str(&text)
            .map_err(|e| Error::Configuration { path, reason: e.to_string().trim().replace('\n', " ") })?;
        let key = |table: &str, key: &str| configuration.get(table).and_then(|table| table.get(key)).cloned();
        let words =
            |value: Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut settings = BTreeMap::new();
        if let Some(tables) = configuration.as_object() {
            tables.iter().for_each(|(name, value)| flatten(name, value, &mut settings));
        }
        settle_rate(&mut settings);
        settings.retain(|key, _| !is_place(key));
        let summary = match Summary::read(&run.summary()) {
            Ok(summary) => Some(summary),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let of_epochs = |task: Task, rows: Vec<EpochRow>| {
            let score = |row: &EpochRow| match task {
                Task::Classification => row.val_accuracy,
                Task::Segmentation => row.val_miou,
            };
            let best = rows.iter().filter_map(score).reduce(f64::max);
            (score_name(task), best, rows.last().map(|row| (u64::from(row.epoch), row.train_loss)))
        };
        let epochs = match CsvReader::<EpochRow>::open(&run.epochs()) {
            Ok(reader) => {
                let task = reader.task();
                Some(of_epochs(task, reader.collect::<stratus_run::Result<_>>()?))
            }
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let last = epochs.and_then(|(.., last)| last);
        Ok(Self {
            path: run.path().to_path_buf(),
            status: status(run, summary.as_ref().unwrap_or(&Summary::default())),
            experiment: words(key("experiment", "name")),
            network: words(key("model", "name")),
            data: words(key("data", "name")),
            epochs: last.map_or(0, |(epoch, _)| epoch),
            of_epochs: key("train", "epochs").as_ref().and_then(Value::as_u64),
            score: last.and(epochs).map(|(score, ..)| score),
            best: epochs.and_then(|(_, best, _)| best),
            train_loss: last.map(|(_, loss)| loss),
            images_per_second: summary.as_ref().and_then(|summary| summary.images_per_second.median),
            total_s: summary.as_ref().map(|summary| summary.time.total_s),
            differences: BTreeMap::new(),
            settings,
        })
    }

    /// The value of a key of the configuration, as text.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }
}

/// The runs that `paths` stand for, in their order.
///
/// # Errors
/// Where a folder cannot be searched. A run that cannot be read is listed as such.
pub fn list<P: AsRef<Path>>(paths: &[P]) -> Result<(Vec<RunLine>, Vec<Unlisted>)> {
    let (mut lines, mut unlisted) = (Vec::new(), Vec::new());
    for path in paths {
        for run in RunDir::find(path.as_ref())? {
            match RunLine::of(&run) {
                Ok(line) => lines.push(line),
                Err(error) => {
                    unlisted.push(Unlisted { path: run.path().to_owned(), reason: error.to_string() });
                }
            }
        }
    }
    find_differences(&mut lines);
    Ok((lines, unlisted))
}

/// What runs of one experiment's name do not have in common.
fn find_differences(lines: &mut [RunLine]) {
    let mut values: BTreeMap<(String, String), (usize, Vec<String>)> = BTreeMap::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines.iter() {
        *counts.entry(line.experiment.clone()).or_default() += 1;
        for (key, value) in &line.settings {
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
    // Validation's batch is mostly training's.
    let follows = |line: &RunLine| {
        let [of_validation, of_training] =
            ["validation.batch_size", "train.batch_size"].map(|key| line.differences.get(key));
        of_validation.is_none() || of_validation == of_training
    };
    if lines.iter().all(follows) {
        lines.iter_mut().for_each(|line| _ = line.differences.remove("validation.batch_size"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_run::csv::CsvWriter;
    use stratus_run::layout;

    fn run(root: &Path, name: &str, configuration: &str) -> RunDir {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(layout::EXPERIMENT), configuration).unwrap();
        RunDir::open(&path).unwrap()
    }

    fn of(width: usize, seed: usize) -> String {
        format!(
            "[experiment]\nname = \"digits\"\n[model]\nname = \"digits\"\n\
             width = {width}\n[data]\nname = \"mnist\"\n\
             path = \"/a/{seed}\"\n[train]\nepochs = 5\nseed = {seed}\n"
        )
    }

    #[test]
    fn runs_are_listed_with_what_differs() {
        let root = tempfile::tempdir().unwrap();
        let first = run(root.path(), "digits/1", &of(8, 1));
        run(root.path(), "digits/2", &of(16, 2));
        run(root.path(), "vgg/1", "[experiment]\nname = \"vgg\"\n");
        run(root.path(), "bad/1", "not TOML");
        let mut rows = CsvWriter::<EpochRow>::open(&first.epochs(), Task::Classification).unwrap();
        for (epoch, accuracy) in [(1, 0.5), (2, 0.9), (3, 0.8)] {
            let row =
                EpochRow { epoch, train_loss: 1.0, val_accuracy: Some(accuracy), ..EpochRow::default() };
            rows.append(&row).unwrap();
        }
        rows.flush().unwrap();
        let (lines, unlisted) = list(&[root.path()]).unwrap();
        assert_eq!(unlisted.len(), 1);
        assert!(unlisted[0].reason.contains("bad/1/experiment.toml"), "{}", unlisted[0].reason);
        let [one, two, vgg] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((one.epochs, one.of_epochs, one.best, one.score), (3, Some(5), Some(0.9), Some("top-1")));
        assert_eq!((two.epochs, two.best, two.score, two.total_s), (0, None, None, None));
        // Where the data are and what the seed is makes no other experiment.
        assert_eq!(one.differences, BTreeMap::from([("model.width".to_owned(), "8".to_owned())]));
        assert_eq!(two.setting("model.width"), Some("16"));
        assert!(vgg.differences.is_empty());
        assert_eq!(one.status, Status::Interrupted, "nobody writes it");
    }
}
