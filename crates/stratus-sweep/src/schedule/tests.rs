use super::*;
use crate::{CELLS, DEFINITION, Definition};
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use stratus_run::csv::{CsvWriter, Task};
use stratus_run::layout;

pub(crate) const SWEEP: &str = "[model]\nname = \"digits\"\n[train]\nepochs = 6\n[sweep]\n\
     repetitions = 2\n[sweep.keys]\n\
                     \"model.width\" = [4, 8, 16, 32, 64]\n";
pub(crate) const HALVED: &str = "[sweep.halving]\nepochs = 2\nfactor = 2\nmetric = \"val_top1\"\n";

/// Writes runs as training does, without any training. Wide networks do better; what a cell of width 64 does
/// is said by the test.
pub(crate) struct Pretender {
    /// Epochs that may be trained before it is stopped.
    budget: usize,
    pub(crate) trained: HashMap<PathBuf, usize>,
    of_64: Ended,
}

impl Pretender {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, trained: HashMap::new(), of_64: Ended::AsItsRunSays }
    }
}

impl Trainer for Pretender {
    fn is_stopped(&self) -> bool {
        self.budget == 0
    }

    fn begins(&mut self, sweep: &Sweep, row: &Row) {
        assert!(sweep.rows().contains(row));
    }

    fn shortage(&mut self, experiment: &Experiment) -> Option<String> {
        let too_large = experiment.model.width == Some(64) && matches!(self.of_64, Ended::DoesNotFit(_));
        too_large.then(|| "it needs 31 GiB, 23 GiB are there".to_owned())
    }

    fn train(&mut self, experiment: &Experiment, run: &Path, until: Option<u64>) -> Ended {
        let width = experiment.model.width.unwrap_or(0);
        if width == 64 && self.of_64 != Ended::AsItsRunSays {
            return self.of_64.clone();
        }
        fs::create_dir_all(run).unwrap();
        fs::write(run.join(layout::EXPERIMENT), "").unwrap();
        let mut writer =
            CsvWriter::<EpochRow>::open(&run.join(layout::EPOCHS), Task::Classification).unwrap();
        let begun = epochs(run).len() as u64;
        let end = until.unwrap_or(experiment.train.epochs);
        let mut summary = Summary::default();
        for epoch in begun + 1..=end {
            if self.budget == 0 {
                summary.status = RunStatus::Interrupted;
                break;
            }
            self.budget -= 1;
            *self.trained.entry(run.to_owned()).or_default() += 1;
            let accuracy = width as f64 / 100.0 + epoch as f64 / 1e3 + experiment.train.seed as f64 / 1e6;
            let row = EpochRow { epoch: epoch as u32, val_accuracy: Some(accuracy), ..EpochRow::default() };
            writer.append(&row).unwrap();
        }
        writer.sync().unwrap();
        fs::write(run.join(layout::ITERATIONS), "").unwrap();
        summary.epochs = epochs(run).len() as u32;
        let interrupted = summary.status == RunStatus::Interrupted;
        if !interrupted {
            let complete = end == experiment.train.epochs;
            summary.status = if complete { RunStatus::Completed } else { RunStatus::Interrupted };
        }
        summary.write(&run.join(layout::SUMMARY)).unwrap();
        if interrupted { Ended::Interrupted } else { Ended::AsItsRunSays }
    }

    fn ended(&mut self, sweep: &Sweep, row: &Row) {
        assert!(sweep.rows().contains(row));
    }
}

pub(crate) fn create(folder: &Path, text: &str) -> Sweep {
    let path = Path::new("sweep.toml");
    let definition = Definition::parse::<&str, &str>(text, path, &[]).unwrap();
    let text = definition.with_command(text, path).unwrap();
    Sweep::create(folder, definition, &text).unwrap()
}

pub(crate) fn table(folder: &Path) -> String {
    fs::read_to_string(folder.join(CELLS)).unwrap()
}

#[test]
fn every_row_is_trained_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), SWEEP);
    let mut trainer = Pretender::new(usize::MAX);
    assert!(!sweep.train(&mut trainer).unwrap());
    assert!(sweep.rows().iter().all(|row| row.status == Status::Completed && row.reason.is_empty()));
    assert_eq!(trainer.trained.len(), 10);
    assert!(trainer.trained.values().all(|&epochs| epochs == 6));
    assert_eq!(sweep.runs().count(), 10);
    assert!(table(folder.path()).contains("\n3,2,completed,,runs/3/2,16\n"), "{}", table(folder.path()));
}

/// Stopped after any number of epochs, with its process gone, the sweep goes on to the same table.
#[test]
fn wherever_it_is_stopped_the_table_is_the_same() {
    for text in [SWEEP.to_owned(), format!("{SWEEP}{HALVED}")] {
        let whole = tempfile::tempdir().unwrap();
        let mut trainer = Pretender::new(usize::MAX);
        create(whole.path(), &text).train(&mut trainer).unwrap();
        let all: usize = trainer.trained.values().sum();
        for budget in (1..all).step_by(5) {
            let folder = tempfile::tempdir().unwrap();
            let mut sweep = create(folder.path(), &text);
            assert!(sweep.train(&mut Pretender::new(budget)).unwrap(), "{budget}");
            drop(sweep);
            let mut sweep = Sweep::open(folder.path()).unwrap();
            let mut rest = Pretender::new(usize::MAX);
            assert!(!sweep.train(&mut rest).unwrap());
            assert_eq!(table(folder.path()), table(whole.path()), "after {budget} epochs");
            assert_eq!(rest.trained.values().sum::<usize>(), all - budget, "no epoch twice");
        }
    }
}

#[test]
fn cells_that_do_badly_are_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{SWEEP}{HALVED}"));
    let mut trainer = Pretender::new(usize::MAX);
    assert!(!sweep.train(&mut trainer).unwrap());
    // Five cells to epoch 2, three to epoch 4, two to epoch 6.
    let epochs: Vec<usize> = sweep.runs().map(|(_, run)| trainer.trained[&run]).collect();
    assert_eq!(epochs, [2, 2, 2, 2, 4, 4, 6, 6, 6, 6]);
    let first = &sweep.rows()[0];
    assert_eq!(first.status, Status::StoppedEarly);
    assert_eq!(first.reason, "after epoch 2: val_top1 0.0420, 3 of 5 went on");
}

#[test]
fn what_is_not_measured_is_no_reason_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{SWEEP}{}", HALVED.replace("val_top1", "val_miou")));
    let error = sweep.train(&mut Pretender::new(usize::MAX)).unwrap_err();
    assert!(error.to_string().contains("no run has measured `val_miou` by the end of epoch 2"), "{error}");
    assert!(sweep.rows().iter().all(|row| row.status == Status::Interrupted));
}

#[test]
fn what_fails_and_what_does_not_fit_are_results() {
    for (ended, status) in [
        (Ended::Failed("the loss is NaN, \"diverged\"".to_owned()), Status::Failed),
        (Ended::DoesNotFit(String::new()), Status::DoesNotFit),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut sweep = create(folder.path(), &format!("{SWEEP}{HALVED}"));
        let mut trainer = Pretender { of_64: ended, ..Pretender::new(usize::MAX) };
        assert!(!sweep.train(&mut trainer).unwrap());
        drop(sweep);
        let mut sweep = Sweep::open(folder.path()).unwrap();
        let last = &sweep.rows()[9];
        assert_eq!((last.status, last.run.as_str()), (status, ""));
        assert!(last.reason.contains("31 GiB") || last.reason.contains("\"diverged\""), "{}", last.reason);
        // Four cells, of which it is none, were judged.
        assert_eq!(sweep.rows()[0].reason, "after epoch 2: val_top1 0.0420, 2 of 4 went on");
        sweep.retry_failed().unwrap();
        assert_eq!(sweep.rows()[9].status, Status::Waiting);
    }
}

#[test]
fn a_directory_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep");
    drop(create(&path, SWEEP));
    let definition = Definition::parse::<&str, &str>(SWEEP, Path::new("a.toml"), &[]).unwrap();
    let error = Sweep::create(&path, definition.clone(), SWEEP).unwrap_err();
    assert!(error.to_string().contains("there is a sweep already"), "{error}");
    fs::remove_file(path.join(DEFINITION)).unwrap();
    let error = Sweep::create(&path, definition, SWEEP).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(Sweep::open(&path).unwrap_err().to_string().contains("it is no sweep"));
}

#[test]
fn a_damaged_table_is_named_and_leads_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    drop(create(folder.path(), SWEEP));
    let whole = table(folder.path());
    for (from, to, expected) in [
        ("1,1,waiting,,,4", "1,1,waiting,,../../../etc,4", "line 2"),
        ("1,1,waiting,,,4", "1,1,asleep,,,4", "line 2"),
        ("1,1,waiting,,,4", "1,1,waiting,\",,4", "line 2"),
        ("1,2,waiting,,,4", "1,2,waiting,,,5", "line 3"),
        ("5,2,waiting,,,64\n", "", "has 9 rows, the sweep has 10"),
        ("cell,repetition", "repetition,cell", "columns"),
    ] {
        fs::write(folder.path().join(CELLS), whole.replace(from, to)).unwrap();
        let error = Sweep::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn one_process_works_on_a_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = create(folder.path(), SWEEP);
    assert!(Sweep::open(folder.path()).is_err());
    drop(sweep);
    Sweep::open(folder.path()).unwrap();
}
