//! The small record of a run, renewed when its files change.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use stratus_base::text;
use stratus_forecast::catalogue::RunPrice;
use stratus_report::report::{Score as ScoreMetric, val_score};
use stratus_report::runs::read_settings;
use stratus_report::text::fit;
use stratus_report::{network_label, status};
use stratus_run::RunDir;
use stratus_run::csv::{EpochRow, Task};
use stratus_run::layout::{CHECKPOINTS, EXPERIMENT, LOCK};
use stratus_run::summary::{Status, Summary};

use super::facts::{Processors, RowLabels, Settings, price_in};
use super::find::{FoundItem, Stamp, stamp};
use super::row::{Pace, Progress, RunRow, Score};
use crate::actions::{Actions, Offer};
use crate::series::Sparkline;
use crate::tail::Tail;

/// Maximum length of `summary.json`.
const MAX_SUMMARY_BYTES: u64 = 16 << 20;
/// The bytes at the end of `iterations.csv` that contain its last row.
const MAX_LAST_ROW_BYTES: u64 = 4 << 10;
/// The time after which the refusal of an action is checked again.
const MAX_REFUSAL_AGE: Duration = Duration::from_secs(10);
/// Length of the time at the beginning of a line of `log.txt`.
const TIME_BYTES: usize = 24;

/// Maximum number of characters of a problem in a row.
const MAX_PROBLEM_CHARS: usize = 400;

/// The number of files opened and bytes read since the start.
#[derive(Debug, Default)]
pub struct ReadCount {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl ReadCount {
    pub(crate) fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Files opened.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The files from which a record is made.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stamps {
    experiment: Option<Stamp>,
    summary: Option<Stamp>,
    epochs: Option<Stamp>,
    iterations: Option<Stamp>,
    log: Option<Stamp>,
    lock: Option<Stamp>,
    remote: Option<Stamp>,
    labels: Option<Stamp>,
    machine: Option<Stamp>,
    /// The request of `stratus optimise`, and the networks that it compared.
    request: Option<Stamp>,
    variants: Option<Stamp>,
    /// The time at which a checkpoint was added or removed.
    checkpoints: Option<SystemTime>,
}

impl Stamps {
    /// Looks at the files. Those that must not be opened count as missing, with a reason.
    fn of(run: &RunDir, roots: &[PathBuf]) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut look = |path: PathBuf| {
            stamp(&path, roots).unwrap_or_else(|problem| {
                problems.push(problem);
                None
            })
        };
        let stamps = Self {
            experiment: look(run.experiment()),
            summary: look(run.summary()),
            epochs: look(run.epochs()),
            iterations: look(run.iterations()),
            log: look(run.log()),
            // These only tell the state of the run.
            lock: look(run.path().join(LOCK)),
            remote: look(run.remote()),
            labels: look(run.labels()),
            machine: look(run.machine()),
            request: look(run.optimise_request()),
            variants: look(run.variants()),
            checkpoints: folder_time(&run.path().join(CHECKPOINTS)),
        };
        (stamps, problems)
    }
}

/// The time at which an entry of a folder was added or removed.
fn folder_time(folder: &Path) -> Option<SystemTime> {
    let facts = std::fs::symlink_metadata(folder).ok().filter(std::fs::Metadata::is_dir)?;
    facts.modified().ok()
}

/// The content of `epochs.csv`.
#[derive(Debug, Default)]
struct Epochs {
    tail: Tail<EpochRow>,
    task: Task,
    count: u32,
    best: Option<f64>,
    train_loss: Option<f64>,
    ends_s: Option<(f64, f64)>,
    scores: Sparkline,
    /// True if the file has more rows, for the next scan.
    has_more: bool,
}

impl Epochs {
    /// Reads new rows, as many as a [`Tail`] reads at once: a file of any length delays no scan of all runs.
    fn read(&mut self, path: &Path, count: &ReadCount) -> Result<(), String> {
        let mut rows = Vec::new();
        let read = self.tail.read(path, &mut rows);
        if read.as_ref().is_ok_and(|read| read.restarted) {
            let tail = std::mem::take(&mut self.tail);
            *self = Self { tail, ..Self::default() };
        }
        self.task = self.tail.task();
        rows.iter().for_each(|row| self.push(row));
        self.has_more = read.as_ref().is_ok_and(|read| read.more);
        count.add(read?.bytes);
        Ok(())
    }

    /// A sentence on the part of a file of `length` bytes that was not read yet; `None` if there is none.
    fn unread(&self, length: u64) -> Option<String> {
        let read = self.tail.position();
        self.has_more.then(|| {
            let (read, length) = (text::bytes(read), text::bytes(length.max(read)));
            format!("epochs.csv is read in parts: {read} of {length} so far")
        })
    }

    fn push(&mut self, row: &EpochRow) {
        self.count = row.epoch;
        self.train_loss = Some(row.train_loss).filter(|loss| loss.is_finite());
        self.ends_s = Some((self.ends_s.map_or(row.elapsed_s, |(first, _)| first), row.elapsed_s));
        if let Some(score) = val_score(self.task, row).filter(|score| score.is_finite()) {
            self.best = Some(self.best.map_or(score, |best| best.max(score)));
            self.scores.push(score);
        }
    }
}

/// The problems of a run in one sentence. Reasons may quote a damaged line.
fn shortened(problems: &[String]) -> String {
    let each: Vec<String> = problems.iter().map(|problem| fit(problem, MAX_PROBLEM_CHARS)).collect();
    each.iter().map(|problem| problem.trim_end()).collect::<Vec<_>>().join("; ")
}

/// The record of a run.
#[derive(Debug)]
pub struct Record {
    run: RunDir,
    found: FoundItem,
    stamps: Stamps,
    /// Links out of the folders, and other files that must not be opened.
    refused: Vec<String>,
    settings: Result<Arc<Settings>, String>,
    summary: Result<Option<Box<Summary>>, String>,
    epochs: Epochs,
    epochs_problem: Option<String>,
    iteration: Option<u64>,
    started: Option<String>,
    labels: Result<RowLabels, String>,
    processors: Processors,
    /// The network, if the run was optimised.
    optimised: Option<String>,
    price: Option<RunPrice>,
    /// The action that the run permits.
    offer: KnownOffer,
    /// The row that was shown last.
    row: Option<Arc<RunRow>>,
}

/// The action that a run permits, as of a state of its files. It is not determined at every scan, since that
/// inspects the process that trains the run.
#[derive(Debug, Default)]
struct KnownOffer {
    /// The state of the run, and of its lock and remote files, for which the offer was determined.
    of: Option<(&'static str, Option<Stamp>, Option<Stamp>)>,
    offer: Offer,
    asked: Option<Instant>,
}

impl KnownOffer {
    fn renew(&mut self, run: &RunDir, state: &'static str, stamps: &Stamps, actions: &Actions) -> Offer {
        let now = Some((state, stamps.lock, stamps.remote));
        // A refusal may no longer hold after a while.
        let is_old = self.asked.is_none_or(|asked| asked.elapsed() > MAX_REFUSAL_AGE);
        if self.of != now || self.offer.refusal.is_some() && is_old {
            *self = Self { of: now, offer: actions.offer(run, state), asked: Some(Instant::now()) };
        }
        self.offer.clone()
    }
}

/// A change of a record.
#[derive(Debug)]
pub struct Change {
    /// The new row.
    pub row: Arc<RunRow>,
    /// True if more than the curves of iterations changed.
    pub is_content: bool,
}

impl Record {
    /// A record that was not read yet.
    ///
    /// # Errors
    /// The reason why it is not a run.
    pub fn new(found: FoundItem) -> Result<Self, String> {
        Ok(Self {
            run: RunDir::open(&found.path).map_err(|_| format!("{EXPERIMENT} is not a file"))?,
            found,
            stamps: Stamps::default(),
            refused: Vec::new(),
            settings: Err("it was not read yet".to_owned()),
            summary: Ok(None),
            epochs: Epochs::default(),
            epochs_problem: None,
            iteration: None,
            started: None,
            labels: Ok(RowLabels::default()),
            processors: Processors::default(),
            optimised: None,
            price: None,
            offer: KnownOffer::default(),
            row: None,
        })
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        self.run.path()
    }

    /// The configuration, if it can be read.
    pub fn settings(&self) -> Option<&Arc<Settings>> {
        self.settings.as_ref().ok()
    }

    /// The time at which a process last acquired the lock.
    pub fn lock_time(&self) -> Option<i128> {
        self.stamps.lock.map(|stamp| stamp.modified_ns)
    }

    /// Reads what changed since the last call; `None` if the row is the same.
    pub fn refresh(&mut self, roots: &[PathBuf], count: &ReadCount, actions: &Actions) -> Option<Change> {
        let (now, refused) = Stamps::of(&self.run, roots);
        let is_first = self.row.is_none();
        let before = std::mem::replace(&mut self.stamps, now.clone());
        self.refused = refused;
        if is_first || now.experiment != before.experiment {
            self.settings = self.read_settings(count);
            self.price = self.settings().and_then(|settings| price_in(settings));
        }
        if is_first || now.summary != before.summary {
            self.summary = self.read_summary(count);
        }
        if is_first || now.epochs != before.epochs || self.epochs.has_more {
            self.epochs_problem = match now.epochs {
                Some(_) => self.epochs.read(&self.run.epochs(), count).err(),
                None => {
                    self.epochs = Epochs::default();
                    None
                }
            };
        }
        if is_first || now.iterations != before.iterations {
            self.iteration = now.iterations.and_then(|_| last_iteration(&self.run.iterations(), count));
        }
        if self.started.is_none() && now.log.is_some() {
            self.started = first_time(&self.run.log(), count);
        }
        if now.labels != before.labels {
            self.labels = match now.labels {
                Some(stamp) => {
                    count.add(stamp.length);
                    RowLabels::read(&self.run.labels())
                }
                None => Ok(RowLabels::default()),
            };
        }
        if let Some(stamp) = now.machine.filter(|_| now.machine != before.machine) {
            count.add(stamp.length.min(MAX_SUMMARY_BYTES));
            self.processors = Processors::read(&self.run.machine());
        }
        if now.request != before.request || now.experiment != before.experiment {
            let has_file = |path: PathBuf| stamp(&path, roots).is_ok();
            let may_be_read = now.request.is_some() && has_file(self.run.optimise_network());
            self.optimised = may_be_read.then(|| network_label(&self.run, &self.configured_network()));
        }
        let row = self.make_row(now != before, actions);
        let is_same = self.row.as_ref().is_some_and(|shown| **shown == row);
        if is_same && now == before {
            return None;
        }
        let with_iterations_of = |stamps: Stamps, log| Stamps { iterations: now.iterations, log, ..stamps };
        let is_content = with_iterations_of(before, now.log) != now
            || self.row.as_ref().is_none_or(|shown| shown.state != row.state);
        let row = Arc::new(row);
        self.row = Some(Arc::clone(&row));
        Some(Change { row, is_content })
    }

    /// The value of `model.name`.
    fn configured_network(&self) -> String {
        self.settings().and_then(|settings| settings.get("model.name")).cloned().unwrap_or_default()
    }

    fn read_settings(&self, count: &ReadCount) -> Result<Arc<Settings>, String> {
        let Some(stamp) = self.stamps.experiment else {
            return Err(self.refused.first().map_or("experiment.toml is missing".to_owned(), Clone::clone));
        };
        count.add(stamp.length);
        read_settings(&self.run).map(Arc::new).map_err(|error| error.to_string())
    }

    fn read_summary(&self, count: &ReadCount) -> Result<Option<Box<Summary>>, String> {
        let Some(stamp) = self.stamps.summary else { return Ok(None) };
        if stamp.length > MAX_SUMMARY_BYTES {
            return Err("summary.json is damaged: it is longer than 16 MiB".to_owned());
        }
        count.add(stamp.length);
        match Summary::read(&self.run.summary()) {
            Ok(summary) => Ok(Some(Box::new(summary))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The state of the run. Whether a process writes it is asked only if its files are at rest, since that
    /// opens its lock file, and not of a run with files that must not be opened.
    fn state(&self, is_changing: bool) -> &'static str {
        if self.settings.is_err() {
            return "unreadable";
        }
        let unknown = Summary::default();
        let summary = self.summary.as_ref().ok().and_then(Option::as_deref).unwrap_or(&unknown);
        let was_running = self.row.as_ref().is_some_and(|row| row.state == Status::Running.name());
        match summary.status {
            Status::Running if !self.refused.is_empty() => "unreadable",
            Status::Running if is_changing && was_running => Status::Running.name(),
            Status::Running => status(&self.run, summary).name(),
            other => other.name(),
        }
    }

    fn make_row(&mut self, is_changing: bool, actions: &Actions) -> RunRow {
        let state = self.state(is_changing);
        let offer = match self.refused.is_empty() {
            true => self.offer.renew(&self.run, state, &self.stamps, actions),
            false => Offer::default(),
        };
        let action = actions.progress(&self.found.id, state, self.lock_time());
        let setting = |key: &str| self.settings().and_then(|settings| settings.get(key)).cloned();
        let summary = self.summary.as_ref().ok().and_then(Option::as_deref);
        let pace = Pace {
            epochs: self.epochs.count,
            of_epochs: setting("train.epochs").and_then(|epochs| epochs.parse().ok()),
            ends_s: self.epochs.ends_s,
            epoch_iterations: summary
                .filter(|summary| summary.epochs == self.epochs.count)
                .map(|summary| summary.iterations),
            iteration: self.iteration,
        };
        let metric = ScoreMetric::Of(self.epochs.task);
        let is_completed = state == Status::Completed.name();
        let elapsed_s = match summary.filter(|_| is_completed) {
            Some(summary) => Some(summary.time.total_s),
            None => self.epochs.ends_s.map(|(_, last)| last),
        };
        let problems: Vec<String> = [
            self.settings.as_ref().err().cloned(),
            self.summary.as_ref().err().cloned(),
            self.epochs_problem.clone(),
            self.stamps.epochs.and_then(|stamp| self.epochs.unread(stamp.length)),
            self.labels.as_ref().err().cloned(),
        ]
        .into_iter()
        .flatten()
        .chain(self.refused.iter().cloned())
        .collect();
        let device = summary.map(|summary| summary.device.clone()).filter(|device| !device.is_empty());
        RunRow {
            id: self.found.id.clone(),
            label: self.found.label.clone(),
            state,
            problem: (!problems.is_empty()).then(|| shortened(&problems)),
            experiment: setting("experiment.name").unwrap_or_default(),
            network: self.optimised.clone().unwrap_or_else(|| self.configured_network()),
            data: setting("data.name").unwrap_or_default(),
            device: self.processors.name_of(&device.or_else(|| setting("train.device")).unwrap_or_default()),
            labels: self.labels.clone().unwrap_or_default(),
            started: self.started.clone(),
            progress: Progress {
                epochs: pace.epochs,
                of_epochs: pace.of_epochs,
                iteration: pace.iteration,
                percent: if is_completed { Some(100.0) } else { pace.percent() },
                left_s: pace.left_s().filter(|_| state == Status::Running.name()),
                elapsed_s,
                images_per_second: summary.and_then(|summary| summary.images_per_second.median),
                price: self.price.as_ref().zip(elapsed_s).map(|(price, seconds)| price.of_seconds(seconds)),
                currency: self.price.as_ref().and_then(|price| price.currency.clone()),
            },
            score: Score {
                score: self.epochs.best.map(|_| metric),
                score_unit: metric.unit(),
                best: self.epochs.best,
                curve: self.epochs.scores.values(),
                train_loss: self.epochs.train_loss,
            },
            offer,
            action,
        }
    }
}

/// The number in the second column of the last whole row of `iterations.csv`; only the file's end is read.
fn last_iteration(path: &Path, count: &ReadCount) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LAST_ROW_BYTES))).ok()?;
    let mut end = Vec::new();
    file.take(MAX_LAST_ROW_BYTES).read_to_end(&mut end).ok()?;
    count.add(end.len() as u64);
    let whole = &end[..end.iter().rposition(|byte| *byte == b'\n')?];
    let row = whole.rsplit(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(row).ok()?.split(',').nth(1)?.parse().ok()
}

/// The time of the first line of `log.txt`; `None` if the line does not begin with one.
fn first_time(path: &Path, count: &ReadCount) -> Option<String> {
    let mut time = [0; TIME_BYTES];
    File::open(path).ok()?.read_exact(&mut time).ok()?;
    count.add(TIME_BYTES as u64);
    let is_time = time.iter().zip(b"0000-00-00T00:00:00.000Z").all(|(byte, pattern)| match pattern {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    });
    is_time.then(|| String::from_utf8_lossy(&time).into_owned())
}
