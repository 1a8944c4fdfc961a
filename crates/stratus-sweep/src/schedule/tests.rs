use super::*;
use crate::Definition;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use stratus_run::csv::{CsvWriter, Task};
use stratus_run::layout::{self, CELLS};

pub(crate) const SWEEP: &str = "[model]\nname = \"digits\"\n[train]\nepochs = 6\n[sweep]\n\
     repetitions = 2\n[sweep.keys]\n\
                     \"model.width\" = [4, 8, 16, 32, 64]\n";
pub(crate) const HALVED: &str = "[sweep.halving]\nepochs = 2\nfactor = 2\nmetric = \"val_top1\"\n";

pub(crate) const RANDOM: &str = "[model]\nname = \"digits\"\n[train]\nepochs = 6\n[sweep]\n\
     search = \"random\"\ntrials = 14\n[sweep.keys]\n\"model.width\" = { uniform = [1, 100] }\n";
pub(crate) const ASYNCHRONOUS: &str = "[sweep.halving]\nepochs = 1\nfactor = 2\nmetric = \"val_top1\"\n\
     asynchronous = true\n";

/// A sweep by TPE, with the keys of a random one.
pub(crate) fn tpe() -> String {
    RANDOM.replace("\"random\"", "\"tpe\"\nobjective = \"val_top1\"")
}

/// Writes the files of runs without training. Wider networks have a better metric; the test sets the outcome
/// of a cell of width 64.
pub(crate) struct FakeTrainer {
    /// Epochs until it is stopped.
    budget: usize,
    pub(crate) trained: HashMap<PathBuf, usize>,
    width_64_outcome: RowOutcome,
}

impl FakeTrainer {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, trained: HashMap::new(), width_64_outcome: RowOutcome::Succeeded }
    }
}

impl Trainer for FakeTrainer {
    fn is_stopped(&self) -> bool {
        self.budget == 0
    }

    fn on_start(&mut self, sweep: &Sweep, row: &Row) {
        assert!(sweep.rows().contains(row));
    }

    fn memory_shortage(&mut self, experiment: &Experiment) -> Option<String> {
        let too_large =
            experiment.model.width == Some(64) && matches!(self.width_64_outcome, RowOutcome::DoesNotFit(_));
        too_large.then(|| "it needs 31 GiB, 23 GiB are free".to_owned())
    }

    fn train(&mut self, experiment: &Experiment, run: &Path, until_epoch: Option<u64>) -> RowOutcome {
        let width = experiment.model.width.unwrap_or(0);
        if width == 64 && self.width_64_outcome != RowOutcome::Succeeded {
            return self.width_64_outcome.clone();
        }
        fs::create_dir_all(run).unwrap();
        fs::write(run.join(layout::EXPERIMENT), "").unwrap();
        let mut writer = CsvWriter::<EpochRow>::open(&run.join(EPOCHS), Task::Classification).unwrap();
        let trained = epochs(run).len() as u64;
        let end = until_epoch.unwrap_or(experiment.train.epochs);
        let mut summary = Summary::default();
        for epoch in trained + 1..=end {
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
        summary.write(&run.join(SUMMARY)).unwrap();
        if interrupted { RowOutcome::Interrupted } else { RowOutcome::Succeeded }
    }

    fn on_end(&mut self, sweep: &Sweep, row: &Row) {
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
    let mut trainer = FakeTrainer::new(usize::MAX);
    assert!(!sweep.train(&mut trainer).unwrap());
    assert!(sweep.rows().iter().all(|row| row.status == Status::Completed && row.reason.is_empty()));
    assert_eq!(trainer.trained.len(), 10);
    assert!(trainer.trained.values().all(|&epochs| epochs == 6));
    assert_eq!(sweep.runs().count(), 10);
    assert!(table(folder.path()).contains("\n3,2,completed,,runs/3/2,16\n"), "{}", table(folder.path()));
}

#[test]
fn sweep_stopped_after_any_epoch_resumes_to_the_same_table() {
    let repeated = SWEEP.replace("[sweep.keys]", "[sweep.keys]\n\"train.batch_size\" = [16, 32]");
    for text in [
        SWEEP.to_owned(),
        format!("{SWEEP}{HALVED}"),
        format!("{repeated}{ASYNCHRONOUS}"),
        tpe(),
        format!("{RANDOM}{ASYNCHRONOUS}"),
        format!("{}{ASYNCHRONOUS}", tpe()),
    ] {
        let whole = tempfile::tempdir().unwrap();
        let mut trainer = FakeTrainer::new(usize::MAX);
        create(whole.path(), &text).train(&mut trainer).unwrap();
        let all: usize = trainer.trained.values().sum();
        for budget in (1..all).step_by(all.div_ceil(8)) {
            let folder = tempfile::tempdir().unwrap();
            let mut sweep = create(folder.path(), &text);
            assert!(sweep.train(&mut FakeTrainer::new(budget)).unwrap(), "{budget}");
            drop(sweep);
            let mut sweep = Sweep::open(folder.path()).unwrap();
            let mut rest = FakeTrainer::new(usize::MAX);
            assert!(!sweep.train(&mut rest).unwrap());
            assert_eq!(table(folder.path()), table(whole.path()), "after {budget} epochs");
            assert_eq!(rest.trained.values().sum::<usize>(), all - budget, "no epoch twice");
        }
    }
}

#[test]
fn halving_stops_the_worse_cells() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{SWEEP}{HALVED}"));
    let mut trainer = FakeTrainer::new(usize::MAX);
    assert!(!sweep.train(&mut trainer).unwrap());
    // Five cells to epoch 2, three to epoch 4, two to epoch 6.
    let epochs: Vec<usize> = sweep.runs().map(|(_, run)| trainer.trained[&run]).collect();
    assert_eq!(epochs, [2, 2, 2, 2, 4, 4, 6, 6, 6, 6]);
    let first = &sweep.rows()[0];
    assert_eq!(first.status, Status::StoppedEarly);
    assert_eq!(first.reason, "after epoch 2: val_top1 0.0420, 3 of 5 cells continue");
}

#[test]
fn asynchronous_halving_trains_good_cells_further() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{RANDOM}{ASYNCHRONOUS}"));
    let mut trainer = FakeTrainer::new(usize::MAX);
    assert!(!sweep.train(&mut trainer).unwrap());
    let width = |row: &Row| sweep.definition.cells[row.cell - 1].experiment.model.width.unwrap();
    let best = sweep.rows().iter().max_by_key(|row| width(row)).unwrap();
    assert_eq!(best.status, Status::Completed);
    let epochs: Vec<usize> = sweep.runs().map(|(_, run)| trainer.trained[&run]).collect();
    let reached = |epoch: usize| epochs.iter().filter(|&&trained| trained >= epoch).count();
    assert_eq!(reached(1), 14, "every cell is started");
    // Cells that were promoted before better ones came may be more than a half.
    assert!((7..=11).contains(&reached(2)), "{epochs:?}");
    assert!((3..=8).contains(&reached(4)), "{epochs:?}");
    assert!(epochs.iter().all(|trained| [1, 2, 4, 6].contains(trained)), "{epochs:?}");
    let worst = sweep.rows().iter().min_by_key(|row| width(row)).unwrap();
    assert_eq!(worst.status, Status::StoppedEarly);
    assert!(worst.reason.starts_with("after epoch 1: val_top1 "), "{}", worst.reason);
    assert!(worst.reason.ends_with("of 14 cells continue"), "{}", worst.reason);
}

#[test]
fn asynchronous_halving_of_few_cells_completes_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let halving = ASYNCHRONOUS.replace("factor = 2", "factor = 4");
    let mut sweep = create(folder.path(), &format!("{}{halving}", RANDOM.replace("14", "3")));
    assert!(!sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap());
    let width = |row: &&Row| sweep.definition.cells[row.cell - 1].experiment.model.width.unwrap();
    let completed: Vec<&Row> = sweep.rows().iter().filter(|row| row.status == Status::Completed).collect();
    assert_eq!(completed, [sweep.rows().iter().max_by_key(width).unwrap()]);
}

#[test]
fn tpe_prefers_values_of_good_cells() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &tpe());
    assert_eq!(sweep.rows().len(), 10);
    assert!(!sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap());
    let widths: Vec<usize> =
        sweep.definition.cells.iter().map(|cell| cell.experiment.model.width.unwrap()).collect();
    assert_eq!(widths.len(), 14);
    let mean = |widths: &[usize]| widths.iter().sum::<usize>() / widths.len();
    assert!(mean(&widths[10..]) > mean(&widths[..10]) + 15, "{widths:?}");
}

#[test]
fn tpe_without_its_objective_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &tpe().replace("val_top1", "val_miou"));
    let error = sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap_err();
    assert!(error.to_string().contains("no run has the objective `val_miou`"), "{error}");
}

#[test]
fn missing_metric_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{SWEEP}{}", HALVED.replace("val_top1", "val_miou")));
    let error = sweep.train(&mut FakeTrainer::new(usize::MAX)).unwrap_err();
    assert!(error.to_string().contains("no run has the metric `val_miou` by the end of epoch 2"), "{error}");
    assert!(sweep.rows().iter().all(|row| row.status == Status::Interrupted));
}

#[test]
fn failed_and_too_large_cells_are_results() {
    for (ended, status) in [
        (RowOutcome::Failed("the loss is NaN, \"diverged\"".to_owned()), Status::Failed),
        (RowOutcome::DoesNotFit(String::new()), Status::DoesNotFit),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut sweep = create(folder.path(), &format!("{SWEEP}{HALVED}"));
        let mut trainer = FakeTrainer { width_64_outcome: ended, ..FakeTrainer::new(usize::MAX) };
        assert!(!sweep.train(&mut trainer).unwrap());
        drop(sweep);
        let mut sweep = Sweep::open(folder.path()).unwrap();
        let last = &sweep.rows()[9];
        assert_eq!((last.status, last.run.as_str()), (status, ""));
        assert!(last.reason.contains("31 GiB") || last.reason.contains("\"diverged\""), "{}", last.reason);
        // The other four cells were ranked.
        assert_eq!(sweep.rows()[0].reason, "after epoch 2: val_top1 0.0420, 2 of 4 cells continue");
        sweep.retry_failed().unwrap();
        assert_eq!(sweep.rows()[9].status, Status::Waiting);
    }
}

#[test]
fn rejects_a_folder_that_is_not_a_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep");
    drop(create(&path, SWEEP));
    let definition = Definition::parse::<&str, &str>(SWEEP, Path::new("a.toml"), &[]).unwrap();
    let error = Sweep::create(&path, definition.clone(), SWEEP).unwrap_err();
    assert!(error.to_string().contains("already contains a sweep"), "{error}");
    fs::remove_file(path.join(layout::SWEEP)).unwrap();
    let begun = table(&path).replace("1,1,waiting,", "1,1,completed,");
    fs::remove_file(path.join(layout::LOCK)).unwrap();
    for (name, text) in [("notes.txt", "mine"), (CELLS, "cell,volts\n1,1.5\n"), (CELLS, begun.as_str())] {
        let file = path.join(name);
        fs::write(&file, text).unwrap();
        let error = Sweep::create(&path, definition.clone(), SWEEP).unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert!(!path.join(layout::LOCK).exists(), "a file is left in the folder of the user");
        fs::remove_file(file).unwrap();
    }
    assert!(Sweep::open(&path).unwrap_err().to_string().contains("not a sweep"));
}

/// A kill before the sweep file is written leaves the lock, the table and a temporary file.
#[test]
fn killed_start_does_not_occupy_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep");
    drop(create(&path, SWEEP));
    let temporary = path.join(".sweep.toml.123.4.tmp");
    fs::rename(path.join(layout::SWEEP), &temporary).unwrap();
    drop(create(&path, SWEEP));
    assert!(!temporary.exists());
    assert!(Sweep::open(&path).unwrap().rows().iter().all(|row| row.status == Status::Waiting));
}

#[test]
fn rejects_a_damaged_table() {
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
fn files_beyond_the_limit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    drop(create(folder.path(), SWEEP));
    for (name, limit) in [(CELLS, "64 MiB"), (layout::SWEEP, "1 MiB")] {
        fs::File::create(folder.path().join(name)).unwrap().set_len((64 << 20) + 1).unwrap();
        let error = Sweep::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(&format!("larger than {limit}")), "{error}");
    }
}

#[test]
fn sweep_is_locked_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = create(folder.path(), SWEEP);
    assert!(Sweep::open(folder.path()).is_err());
    drop(sweep);
    Sweep::open(folder.path()).unwrap();
}
