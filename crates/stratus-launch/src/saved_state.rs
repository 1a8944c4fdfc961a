//! A launch without a query of its target: its state at the last query, and its events since it was started.
//! Two files beside its record:
//!
//! ```text
//! ID.state.json      the last state, replaced as a whole
//! ID.events.jsonl    one event per line, only appended to
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use stratus_base::read_text_at_most;
use stratus_run::atomic::json_problem;
use stratus_run::layout::LAUNCHES;

use crate::shell::escape_control_characters;
use crate::{Error, LaunchRecord, LaunchState, Result};

/// The maximum size of a saved state: [`crate::MAX_RUNS`] repetitions with a line of log each.
const MAX_STATE_BYTES: u64 = 4 << 20;
/// The bytes at the end of the file of events that are read.
const MAX_EVENT_BYTES: u64 = 256 << 10;

/// The state of a launch at the last query of its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedState {
    /// The time of the query, in seconds since 1970.
    pub asked: u64,
    /// The last state that the target gave; `None` if it never answered.
    pub state: Option<LaunchState>,
    /// The time of this state, in seconds since 1970.
    pub answered: Option<u64>,
    /// The reason why the target did not answer at `asked`.
    pub problem: Option<String>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchEventKind {
    /// Repetitions were started again, or moved to another host.
    Rescheduled,
    /// The target could not be reached, or did not answer as expected; the text is the error.
    Unreachable,
    /// The first fetch that succeeded after that.
    Reachable,
    /// This machine could not fetch, as with a full disk; the text is the error.
    LocalFailure,
    /// The first fetch that succeeded after that.
    Recovered,
    /// The launch was resumed by a command.
    Resumed,
    /// The launch was stopped by a command.
    Stopped,
    /// A search started its next steps.
    Step,
}

impl LaunchEventKind {
    /// The name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rescheduled => "rescheduled",
            Self::Unreachable => "unreachable",
            Self::Reachable => "reachable",
            Self::LocalFailure => "local_failure",
            Self::Recovered => "recovered",
            Self::Resumed => "resumed",
            Self::Stopped => "stopped",
            Self::Step => "step",
        }
    }

    /// Returns whether the event trains something again.
    #[must_use]
    pub fn is_retry(self) -> bool {
        matches!(self, Self::Rescheduled | Self::Resumed)
    }
}

/// Something that has happened to a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchEvent {
    /// The time, in seconds since 1970.
    pub at: u64,
    /// The kind.
    pub kind: LaunchEventKind,
    /// The event, in one line.
    pub text: String,
}

/// The file with the last state of the launch of a record.
#[must_use]
pub fn state_file(record: &Path) -> PathBuf {
    record.with_extension("state.json")
}

/// The file with the events of the launch of a record.
#[must_use]
pub fn events_file(record: &Path) -> PathBuf {
    record.with_extension("events.jsonl")
}

impl SavedState {
    /// Reads the state that is saved beside a record; `None` before the first query of the target.
    ///
    /// # Errors
    /// If the file cannot be read, or has another content.
    pub fn read(record: &Path) -> Result<Option<Self>> {
        let path = state_file(record);
        let text = match read_text_at_most(&path, MAX_STATE_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file("read", &path)(error)),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            let reason = json_problem(&error);
            let problem = format!("{}: not the state of a launch ({reason})", path.display());
            Error::usage(problem, "remove the file; `stratus launch status` writes it again")
        })
    }
}

/// Reads the last events of a launch, the oldest first. Lines that are damaged or half-written are left out.
///
/// # Errors
/// If the file cannot be read.
pub fn read_events(record: &Path) -> Result<Vec<LaunchEvent>> {
    let path = events_file(record);
    let mut text = Vec::new();
    let mut read = || -> io::Result<bool> {
        let mut file = File::open(&path)?;
        let start = file.metadata()?.len().saturating_sub(MAX_EVENT_BYTES);
        file.seek(SeekFrom::Start(start))?;
        file.take(MAX_EVENT_BYTES).read_to_end(&mut text)?;
        Ok(start > 0)
    };
    let is_cut = match read() {
        Ok(is_cut) => is_cut,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file("read", &path)(error)),
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = text.lines().skip(usize::from(is_cut));
    Ok(lines.filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// The file of the record of a launch, in a folder of runs.
#[must_use]
pub fn record_file(runs: &Path, id: &str) -> PathBuf {
    runs.join(LAUNCHES).join(format!("{id}.toml"))
}

impl LaunchRecord {
    /// Saves what the target answered, for programs that do not contact it, such as `stratus ui`. If it did
    /// not answer, the last state is kept.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_state(&self, runs: &Path, answer: std::result::Result<&LaunchState, String>) -> Result<()> {
        let record = self.file(runs);
        let asked = now();
        let saved = match answer {
            Ok(state) => {
                SavedState { asked, state: Some(state.clone()), answered: Some(asked), problem: None }
            }
            Err(problem) => {
                // A damaged file is replaced.
                let before = SavedState::read(&record).ok().flatten().unwrap_or_default();
                SavedState { asked, problem: Some(escape_control_characters(&problem)), ..before }
            }
        };
        stratus_run::atomic::write_json(&state_file(&record), &saved)
            .map_err(|error| Error::usage(error.to_string(), ""))
    }

    /// Appends events to those of the launch.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add_events<T: AsRef<str>>(&self, runs: &Path, kind: LaunchEventKind, texts: &[T]) -> Result<()> {
        if texts.is_empty() {
            return Ok(());
        }
        let path = events_file(&self.file(runs));
        let mut lines = String::new();
        for text in texts {
            let text = escape_control_characters(text.as_ref()).replace('\n', " ");
            let event = LaunchEvent { at: now(), kind, text };
            // It has strings and numbers only, which cannot fail.
            lines.push_str(&serde_json::to_string(&event).unwrap_or_default());
            lines.push('\n');
        }
        let append = || OpenOptions::new().append(true).create(true).open(&path)?.write_all(lines.as_bytes());
        append().map_err(Error::file("write", &path))
    }

    /// The file of the record.
    #[must_use]
    pub fn file(&self, runs: &Path) -> PathBuf {
        record_file(runs, &self.id)
    }

    /// The price per hour and the budget of a repetition, counted from 1, if its experiment has them.
    #[must_use]
    pub fn price_and_budget(&self, repetition: usize) -> (Option<f64>, Option<f64>) {
        let experiment = repetition.checked_sub(1).and_then(|at| self.experiments.get(at));
        let priced: Option<PricedExperiment> = experiment.and_then(|text| toml::from_str(text).ok());
        let PricedTraining { price_per_hour, budget } = priced.unwrap_or_default().train;
        let is_price = |price: &f64| price.is_finite() && *price > 0.0;
        (price_per_hour.filter(is_price), budget.filter(is_price))
    }
}

/// The keys of an experiment that limit what a repetition costs. The file may be of another version, with
/// keys that are unknown here.
#[derive(Default, Deserialize)]
struct PricedExperiment {
    #[serde(default)]
    train: PricedTraining,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PricedTraining {
    price_per_hour: Option<f64>,
    budget: Option<f64>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use crate::{RepetitionState, RepetitionStatus};

    fn record() -> LaunchRecord {
        LaunchRecord {
            id: "digits-1".to_owned(),
            experiments: vec![
                "[train]\nprice_per_hour = 2\nbudget = 1.5\n".to_owned(),
                "[train]\nprice_per_hour = \"x\"\n".to_owned(),
                "[[[".to_owned(),
                "name = 1\n".to_owned(),
                "[train]\nprice_per_hour = nan\nbudget = -1\n".to_owned(),
                "[train]\nprice_per_hour = 0.25\nlater_key = [1]\n".to_owned(),
            ],
            ..LaunchRecord::default()
        }
    }

    #[test]
    fn the_last_answer_stays_when_the_target_is_lost() {
        let runs = tempfile::tempdir().unwrap();
        let record = record();
        record.write(runs.path()).unwrap();
        let file = record.file(runs.path());
        assert_eq!(SavedState::read(&file).unwrap(), None);
        let one = RepetitionState {
            repetition: 1,
            status: RepetitionStatus::Running,
            last_line: "epoch 1".to_owned(),
            ..RepetitionState::default()
        };
        let state = LaunchState { is_running: true, repetitions: vec![one], ..LaunchState::default() };
        record.save_state(runs.path(), Ok(&state)).unwrap();
        assert_eq!(SavedState::read(&file).unwrap().unwrap().state.as_ref(), Some(&state));
        record.save_state(runs.path(), Err("no route\u{1b}[31m to host".to_owned())).unwrap();
        let saved = SavedState::read(&file).unwrap().unwrap();
        assert_eq!((saved.state, saved.answered.is_some()), (Some(state), true));
        let problem = saved.problem.unwrap();
        assert!(problem.starts_with("no route") && !problem.contains('\u{1b}'), "{problem}");
        fs::write(state_file(&file), "{\"asked\": 5").unwrap();
        let error = SavedState::read(&file).unwrap_err().to_string();
        assert!(error.contains("not the state of a launch"), "{error}");
        // The files are not records.
        assert_eq!(LaunchRecord::all(runs.path()).unwrap().len(), 1);
        assert_eq!(LaunchRecord::read(&file).unwrap(), record);
    }

    #[test]
    fn events_are_read_without_half_written_lines() {
        let runs = tempfile::tempdir().unwrap();
        let record = record();
        record.write(runs.path()).unwrap();
        let file = record.file(runs.path());
        assert_eq!(read_events(&file).unwrap(), []);
        record.add_events(runs.path(), LaunchEventKind::Unreachable, &["lab: no route\nto host"]).unwrap();
        record.add_events::<&str>(runs.path(), LaunchEventKind::Stopped, &[]).unwrap();
        record.add_events(runs.path(), LaunchEventKind::Rescheduled, &["a", "b"]).unwrap();
        let mut text = fs::read_to_string(events_file(&file)).unwrap();
        text.push_str("{\"at\": 3, \"kind\": \"stop");
        fs::write(events_file(&file), &text).unwrap();
        let events = read_events(&file).unwrap();
        let kinds: Vec<&str> = events.iter().map(|event| event.kind.name()).collect();
        assert_eq!(kinds, ["unreachable", "rescheduled", "rescheduled"]);
        let serialized = |kind: LaunchEventKind| serde_json::to_value(kind).unwrap();
        for kind in [LaunchEventKind::LocalFailure, LaunchEventKind::Recovered, LaunchEventKind::Step] {
            assert_eq!(serialized(kind), kind.name(), "as pages show it");
        }
        assert!(!events[0].text.contains('\n'), "{:?}", events[0]);
        assert_eq!(events.iter().filter(|event| event.kind.is_retry()).count(), 2);
        // Of a long file the end is read.
        fs::write(events_file(&file), text.repeat(5000)).unwrap();
        let events = read_events(&file).unwrap();
        assert!((100..5000).contains(&events.len()), "{}", events.len());
    }

    #[test]
    fn prices_are_read_from_the_uploaded_experiments() {
        let record = record();
        assert_eq!(record.price_and_budget(1), (Some(2.0), Some(1.5)));
        assert_eq!(record.price_and_budget(6), (Some(0.25), None));
        for repetition in [0, 2, 3, 4, 5, 7] {
            assert_eq!(record.price_and_budget(repetition), (None, None), "{repetition}");
        }
    }
}
