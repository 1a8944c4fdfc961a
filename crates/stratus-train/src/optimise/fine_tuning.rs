//! The fine-tuning that follows the removal of channels: the end of the run's recipe.

use super::{OptimiseRequest, configuration_error, directory, write_model};
use crate::input::{open_datasets, with_class_weights};
use crate::resolve::ResolvedProcess;
use crate::run::{self, RunOptions, RunOutcome};
use crate::weights::TrainedNetwork;
use crate::{Observer, TrainError, device};
use std::fs;
use std::path::{Path, PathBuf};
use stratus_experiment::{Experiment, FakeQuantisation, Schedule};
use stratus_graph::Graph;
use stratus_optimise::Model;
use stratus_run::layout::{LOCK, NETWORK, OPTIMISE, WEIGHTS};
use stratus_run::lock::{LockState, lock_state};
use stratus_run::machine::Machine;
use stratus_run::{RunDir, atomic};

/// The keys that cannot be set: they are those of the smaller network, or have an option of their own.
const FIXED_KEYS: [(&str, &str); 6] = [
    ("model.", "the network is the smaller one of the run"),
    ("data.shape", "the network is made for images of the shape of the run"),
    ("first_stage.", "the network is not trained in two stages"),
    ("train.epochs", "use --epochs"),
    ("train.fake_quantisation.", "use --int8 with --epochs, without --prune"),
    ("experiment.", "use --out"),
];

/// The experiment that fine-tunes the smaller network, which is stored in the directory `out`.
///
/// It is that of the run, with all layers trained, also those that were frozen. The learning rate begins with
/// the highest one of the run in as many epochs before its end, and falls along a straight line to its last
/// one, or to 0 if it had not fallen. `trained_epochs` are the epochs that the run was trained, which may
/// have stopped early.
///
/// # Errors
/// If a key of the request is invalid, cannot be set, or contradicts its teacher.
pub(super) fn fine_tuning_experiment(
    experiment: &Experiment,
    trained_epochs: u64,
    request: &OptimiseRequest,
    out: &Path,
) -> Result<Experiment, TrainError> {
    for (key, _) in &request.set {
        if let Some((_, reason)) = FIXED_KEYS.iter().find(|(fixed, _)| key.starts_with(fixed)) {
            return Err(configuration_error(&format!("`{key}` cannot be set when optimising"), reason));
        }
    }
    let [first, last] = learning_rates(experiment, trained_epochs, request.epochs);
    let file = |name: &str| Some(out.join(OPTIMISE).join(name).display().to_string());
    let mut tuned = experiment.clone();
    tuned.experiment.name = Some(format!("{}-optimised", experiment.name()));
    tuned.model.name = file(NETWORK).unwrap_or_default();
    tuned.model.width = None;
    tuned.model.weights = file(WEIGHTS);
    tuned.model.freeze.clear();
    tuned.first_stage.network = None;
    tuned.train.epochs = request.epochs;
    tuned.fake_quantisation = FakeQuantisation::default();
    tuned.train.deadline = None;
    tuned.train.budget = None;
    // The run may have had another teacher itself. An absolute path, so that it resumes in any folder.
    let teacher = std::path::absolute(&request.run).unwrap_or_else(|_| request.run.clone().into());
    tuned.train.teacher = request.teacher.then(|| teacher.display().to_string());
    let keys = [
        ("optimiser.learning_rate", first.to_string()),
        ("optimiser.learning_rate_batch", String::new()),
        ("schedule.name", "poly".to_owned()),
        ("schedule.power", "1".to_owned()),
        ("schedule.final_learning_rate", last.to_string()),
        ("schedule.warmup_epochs", "0".to_owned()),
    ];
    let tuned = tuned.with_overrides(&keys)?.with_overrides(&request.set)?;
    let is_teacher = tuned.teacher() == Some(&*teacher);
    if request.teacher && !is_teacher {
        return Err(configuration_error(
            "`train.teacher` or `train.teacher_weight` contradicts --teacher",
            "leave out --teacher, or these keys",
        ));
    }
    Ok(tuned)
}

/// Checks that the fine-tuning of a network, which has not lost its channels yet, can start: its device, its
/// data, and the keys that depend on them.
///
/// # Errors
/// If it cannot.
pub(super) fn check_fine_tuning(tuned: &Experiment, graph: &Graph) -> Result<(), TrainError> {
    let device = device::open(&tuned.train)?;
    let datasets = open_datasets(tuned)?;
    let tuned = &*with_class_weights(tuned, datasets.train.as_ref())?;
    ResolvedProcess::for_training(tuned, datasets.train.as_ref(), graph, &device).map(drop)
}

/// A fine-tuning that begins in a new directory.
pub(super) struct FineTuning<'a> {
    pub request: &'a OptimiseRequest,
    /// The experiment.
    pub tuned: &'a Experiment,
    /// The network that it starts from.
    pub start: &'a Model,
    pub trained: &'a TrainedNetwork,
}

impl FineTuning<'_> {
    /// Writes the directory `optimise` of the new run, with what `write_record` adds, and trains; `None` if
    /// another process ran the same command in the meantime. If it cannot start, nothing is left.
    ///
    /// # Errors
    /// If a file cannot be written, another process uses the directory, or training fails.
    pub fn begin(
        &self,
        write_record: impl FnOnce(&RunDir) -> Result<(), TrainError>,
        options: &RunOptions,
        machine: Machine,
        observer: &mut dyn Observer,
    ) -> Result<Option<RunOutcome>, TrainError> {
        let out = directory(options)?;
        let remains = StartFiles::before(out);
        match self.write(out, write_record) {
            Err(_) if RunDir::is_run(out) && lock_state(out)? == LockState::Free => return Ok(None),
            written => written?,
        }
        let started = run::start(self.tuned, options, machine, observer);
        if started.is_err() {
            remains.remove();
        }
        started.map(Some)
    }

    fn write(
        &self,
        out: &Path,
        write_record: impl FnOnce(&RunDir) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let target = RunDir::create_at(out)?;
        // Another process with the same directory waits, or is refused.
        let _lock = target.lock()?;
        if RunDir::is_run(out) {
            return Err(stratus_run::Error::NotEmpty { path: out.to_owned() }.into());
        }
        let folder = target.optimise();
        fs::create_dir_all(&folder).map_err(stratus_run::Error::io("create the folder", &folder))?;
        atomic::write_json(&target.optimise_request(), self.request)?;
        write_model(self.start, self.trained, &target)?;
        write_record(&target)
    }
}

/// The files to remove of a directory in which no run could be started.
struct StartFiles {
    target: PathBuf,
    is_new_folder: bool,
    is_new_lock: bool,
}

impl StartFiles {
    /// The state of a directory before anything is written.
    fn before(target: &Path) -> Self {
        Self {
            target: target.to_owned(),
            is_new_folder: !target.exists(),
            is_new_lock: !target.join(LOCK).exists(),
        }
    }

    /// Removes the files of a start, unless they belong to a run. What cannot be removed stays: the next
    /// start replaces it.
    fn remove(&self) {
        let Ok(target) = RunDir::create_at(&self.target) else { return };
        let Ok(lock) = target.lock() else { return };
        if RunDir::is_run(&self.target) {
            return;
        }
        let files = [
            target.optimise_request(),
            target.optimise_pruning(),
            target.optimise_fake_quantisation(),
            target.optimise_network(),
            target.optimise_weights(),
        ];
        files.iter().for_each(|file| _ = fs::remove_file(file));
        // Folders are removed only if nothing else is in them.
        let _ = fs::remove_dir(target.optimise());
        if self.is_new_lock {
            let _ = fs::remove_file(lock.path());
        }
        if self.is_new_folder {
            let _ = fs::remove_dir(&self.target);
        }
    }
}

/// The first and the last learning rate of `epochs` epochs at the end of a run of `trained` epochs.
fn learning_rates(experiment: &Experiment, trained: u64, epochs: u64) -> [f64; 2] {
    /// Iterations of an epoch: their number does not change the shape of a schedule.
    const PER_EPOCH: u64 = 1000;
    /// Points of the schedule that are compared.
    const POINTS: u64 = 1000;
    let schedule = Schedule::from_experiment(experiment);
    let total = experiment.train.epochs.saturating_mul(PER_EPOCH);
    let rate = |iteration: u64| schedule.learning_rate(iteration, PER_EPOCH, total);
    let end = trained.min(experiment.train.epochs).max(1).saturating_mul(PER_EPOCH);
    let begin = end.saturating_sub(epochs.saturating_mul(PER_EPOCH));
    let step = ((end - begin) / POINTS).max(1);
    // The end of a warm-up counts with its highest rate, or a short run would be tuned at almost none.
    let first = (0..POINTS).map(|point| rate((begin + point * step).min(end - 1))).fold(0.0, f64::max);
    let first = if first > 0.0 { first } else { schedule.rate };
    let last = rate(end - 1);
    [first, if last < first { last } else { 0.0 }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(keys: &[(&str, &str)], trained: u64, epochs: u64) -> [f64; 2] {
        let base = [("optimiser.learning_rate", "0.1"), ("optimiser.learning_rate_batch", "")];
        let keys: Vec<_> = base.iter().chain(keys).copied().collect();
        learning_rates(
            &Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap(),
            trained,
            epochs,
        )
    }

    fn assert_close(got: [f64; 2], expected: [f64; 2]) {
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-3 * 0.1, "{got:?} is not {expected:?}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_end_of_the_schedule() {
        let constant = [("train.epochs", "10"), ("schedule.name", "constant")];
        assert_close(rates(&constant, 10, 2), [0.1, 0.0]);
        let line = [
            ("train.epochs", "10"),
            ("schedule.name", "poly"),
            ("schedule.power", "1"),
            ("schedule.final_learning_rate", "0"),
            ("schedule.warmup_epochs", "0"),
        ];
        assert_close(rates(&line, 10, 2), [0.02, 0.0]);
        // A run that stopped after five epochs had half of the rate left.
        assert_close(rates(&line, 5, 1), [0.06, 0.05]);
        // More epochs than the run had begin with its highest rate.
        assert_close(rates(&line, 10, 50), [0.1, 0.0]);
    }

    #[test]
    fn a_warm_up_and_a_rate_of_zero_do_not_stop_the_training() {
        let warmup =
            [("train.epochs", "1"), ("schedule.name", "constant"), ("schedule.warmup_epochs", "0.5")];
        assert_close(rates(&warmup, 1, 1), [0.1, 0.0]);
        let step = [
            ("train.epochs", "4"),
            ("schedule.name", "step"),
            ("schedule.step_epochs", "1"),
            ("schedule.gamma", "0"),
            ("schedule.warmup_epochs", "0"),
        ];
        assert_close(rates(&step, 4, 1), [0.1, 0.0]);
    }

    #[test]
    fn the_run_itself_is_the_teacher_if_that_is_asked_for() {
        let experiment = Experiment::builtin("digits").unwrap();
        let tuned = |teacher: bool, key: &str, value: &str| {
            let set = vec![(key.to_owned(), value.to_owned())];
            let request = OptimiseRequest { epochs: 1, teacher, set, ..OptimiseRequest::example() };
            fine_tuning_experiment(&experiment, 1, &request, Path::new("out"))
        };
        let run = std::path::absolute(OptimiseRequest::example().run).unwrap().display().to_string();
        let teacher = |teacher, key, value| tuned(teacher, key, value).unwrap().train.teacher;
        assert_eq!(teacher(false, "train.seed", "2"), None);
        assert_eq!(teacher(true, "train.teacher_weight", "0.9"), Some(run));
        assert_eq!(teacher(false, "train.teacher", "runs/other").as_deref(), Some("runs/other"));
        for (key, value) in [("train.teacher", "runs/other"), ("train.teacher_weight", "0")] {
            let error = tuned(true, key, value).unwrap_err().to_string();
            assert!(error.contains("contradicts --teacher"), "{error}");
        }
    }

    #[test]
    fn keys_of_the_smaller_network_cannot_be_set() {
        let experiment = Experiment::builtin("digits").unwrap();
        for (key, value, hint) in [
            ("model.weights", "x.pth", "smaller one"),
            ("train.epochs", "3", "--epochs"),
            ("data.shape", "[1, 32, 32]", "images of the shape of the run"),
            ("model.name", "vgg11", ""),
        ] {
            let request = OptimiseRequest {
                epochs: 1,
                set: vec![(key.to_owned(), value.to_owned())],
                ..OptimiseRequest::example()
            };
            let error = fine_tuning_experiment(&experiment, 1, &request, Path::new("out")).unwrap_err();
            assert!(error.to_string().contains(key) && error.hint().unwrap().contains(hint), "{error}");
        }
    }
}
