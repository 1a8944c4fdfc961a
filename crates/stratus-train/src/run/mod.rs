//! Runs: started or resumed in their directory, and trained to the end or until stopped.

mod announce;
mod best;
mod chance;
mod checkpointer;
mod first_stage;
mod jpeg;
mod loader_threads;
mod loss_monitor;
pub(crate) mod pipeline;
mod process_group;
mod recorder;
mod resume;
mod run_position;
mod run_time;
mod same_data;
mod setup;
mod shared_run;
mod stop_policy;
mod time_estimator;
mod trainer;
mod worker_role;

use crate::compile::KernelSelection;
use crate::device::LoadedLibrary;
use crate::run_limits::RunLimits;
use crate::{Observer, TrainError};
use first_stage::FirstStageOutcome;
pub use process_group::{ProcessGroup, for_workers, with_parts_for};
pub use resume::resume;
use same_data::StartedRun;
pub use setup::check_parts;
use setup::{RunSetup, RunStart};
use shared_run::{RunCopy, SharedFiles, SharedRun};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use stratus_data::Position;
use stratus_engine::StartupMonitor;
use stratus_experiment::Experiment;
use stratus_run::RunDir;
use stratus_run::checkpoint::State;
use stratus_run::labels::RunLabels;
use stratus_run::layout::RUNS;
use stratus_run::lock::Lock;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::summary::{Status, Summary};
use trainer::{Loaders, Trainer};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The run directory; `None` for the next free number under `runs/<experiment>/`.
    pub out: Option<PathBuf>,
    /// Measure kernels again instead of using the plan cache.
    pub remeasure: bool,
    /// Set by another thread to stop after the current iteration, with a checkpoint.
    pub stop: Arc<AtomicBool>,
    /// Follows how the device is opened and kernels are chosen; `stop` ends that too.
    pub monitor: StartupMonitor,
    /// The start of the process, from which a deadline is counted; `None` for the start of the run.
    pub process_started: Option<Instant>,
    /// Overrides of `train.deadline` and `train.budget`; only when resuming.
    pub limit_overrides: Vec<(String, String)>,
    /// Later epoch to train to; only when resuming, and if the learning rate does not depend on the number of
    /// epochs.
    pub extend_to: Option<u64>,
    /// Stop after this epoch, counted from 1, with a checkpoint. Epochs of the pre-training stage do not
    /// count.
    pub until_epoch: Option<u64>,
    /// The workers that train the run with this one.
    pub group: ProcessGroup,
    /// The labels of a new run.
    pub labels: RunLabels,
}

impl RunOptions {
    fn since(&self, started: Instant) -> Instant {
        self.process_started.unwrap_or(started)
    }

    /// The monitor of the device, which the stop flag stops.
    fn device_monitor(&self) -> StartupMonitor {
        StartupMonitor { stop: Some(Arc::clone(&self.stop)), ..self.monitor.clone() }
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub struct RunOutcome {
    /// Its directory.
    pub run: RunDir,
    /// Its summary.
    pub summary: Summary,
    /// True if it was stopped early and can be resumed.
    pub interrupted: bool,
}

/// A run directory that this process has locked.
struct OpenRun {
    folder: RunDir,
    lock: Lock,
    /// When this process started or resumed the run.
    started: Instant,
    /// The copy of the run of a worker that does not see it, which contains `folder`.
    copy: Option<RunCopy>,
}

impl OpenRun {
    fn lock(folder: RunDir, started: Instant) -> Result<Self, TrainError> {
        let lock = folder.lock()?;
        Ok(Self { folder, lock, started, copy: None })
    }
}

/// A run that is ready for its first iteration of this process.
struct PreparedRun {
    setup: RunSetup,
    loaders: Loaders,
}

/// Starts a run.
///
/// # Errors
/// If the configuration, data, device, memory or disk does not allow the run, or training fails.
pub fn start(
    experiment: &Experiment,
    options: &RunOptions,
    machine: Machine,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let started = Instant::now();
    let group = &options.group;
    let experiment = &group.with_parts(experiment, false)?;
    group.check_same_run(&[experiment.to_toml().as_bytes()])?;
    RunLimits::new(experiment, 0.0, [started, options.since(started)])?;
    let runs = Path::new(RUNS).join(experiment.name());
    if group.is_first() {
        RunDir::check_creatable(options.out.as_deref().unwrap_or(&runs.join("new")))?;
    }
    let create = || match &options.out {
        Some(out) => RunDir::create_at(out),
        None => RunDir::create(Path::new(RUNS), experiment.name()),
    };
    if let Some(first) = experiment.first_stage() {
        let data = first_stage::check(experiment, &first)?;
        let open = OpenRun::lock(create()?, started)?;
        let run = &open.folder;
        run.prepare()?;
        machine.write(&run.machine())?;
        data.write(&run.data())?;
        write_labels(run, &options.labels)?;
        // From here on the directory is a run that can be resumed.
        stratus_run::atomic::write(&run.experiment(), experiment.to_toml().as_bytes())?;
        return train_in_two_stages(open, experiment, &first, options, observer);
    }
    let prepared = set_up(experiment, None, options, observer)?;
    // From here on the disk is written to.
    if group.is_first() {
        let open = OpenRun::lock(create()?, started)?;
        write_labels(&open.folder, &options.labels)?;
        return start_training(prepared, open, machine, options, observer);
    }
    prepared.setup.serve_source_weights()?;
    // Worker 0 has created the directory.
    let SharedRun { own, copy, .. } = group.share_run(Path::new(""), SharedFiles::None, observer)?;
    let open = OpenRun { copy, ..OpenRun::lock(own, started)? };
    open.folder.prepare()?;
    let log = Log::open(&open.folder.log())?;
    train(prepared, open, log, None, options, observer)
}

/// Writes the labels of a new run, whose directory may have those of a start that was killed.
fn write_labels(run: &RunDir, labels: &RunLabels) -> Result<(), TrainError> {
    let path = run.labels();
    Ok(if labels.is_empty() && !path.exists() { Ok(()) } else { labels.write(&path) }?)
}

/// Starts or resumes the pre-training stage of a run, and then trains its network from the weights of that
/// stage.
fn train_in_two_stages(
    mut open: OpenRun,
    experiment: &Experiment,
    first: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    match first_stage::train(&open.folder, experiment, first, options, observer)? {
        FirstStageOutcome::Interrupted(summary) => {
            Ok(RunOutcome { run: open.folder, summary: *summary, interrupted: true })
        }
        FirstStageOutcome::Complete(experiment) => {
            // The summary of the pre-training stage accounts for the time until now.
            open.started = Instant::now();
            let started = Some(StartedRun { run: &open.folder, state: None });
            let prepared = set_up(&experiment, started, options, observer)?;
            let machine = Machine::read(&open.folder.machine())?;
            start_training(prepared, open, machine, options, observer)
        }
    }
}

/// Prepares a new run with its initial weights, and starts reading its data from the first batch.
fn set_up(
    experiment: &Experiment,
    started: Option<StartedRun<'_>>,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<PreparedRun, TrainError> {
    let selection = if options.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
    let mut setup = RunSetup::new(experiment, RunStart::New, started, &selection, options, observer)?;
    setup.set_initial_weights(observer)?;
    let loaders = Loaders::new(&setup, Position::default())?;
    Ok(PreparedRun { setup, loaders })
}

/// Trains from the first iteration, in a directory that is not a run yet, or whose pre-training stage is
/// complete.
fn start_training(
    prepared: PreparedRun,
    open: OpenRun,
    mut machine: Machine,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let (setup, run) = (&prepared.setup, &open.folder);
    run.prepare()?;
    for LoadedLibrary { name, version, path } in &setup.device.libraries {
        let library = Library { version: version.clone(), path: path.clone() };
        machine.libraries.insert(name.clone(), library);
    }
    machine.write(&run.machine())?;
    stratus_run::atomic::write_json(&run.plan(), &setup.compiled.plans)?;
    stratus_run::classes::write(&run.classes(), &setup.output_names_only())?;
    setup.copy_sources(run)?;
    setup.data.write(&run.data())?;
    // Written last, since it makes the directory a run, which must have all other files.
    stratus_run::atomic::write(&run.experiment(), setup.resolved.to_toml().as_bytes())?;
    let mut log = Log::open(&run.log())?;
    log.write(&format!("started on {}", setup.device.backend.describe()))?;
    setup.log_sources(&mut log)?;
    setup.log_exchange(&mut log)?;
    if let Some(decay) = setup.resolved.settings().train.ema_decay {
        let text = format!("evaluation and export use the moving average of the weights, decay {decay}");
        log.write(&text)?;
        observer.info(&text);
    }
    announce::device_lines(&setup.device, &setup.compiled, run.path())
        .iter()
        .for_each(|line| observer.info(line));
    options.group.share_run(run.path(), SharedFiles::None, observer)?;
    train(prepared, open, log, None, options, observer)
}

/// Trains a run that is set up, and writes its summary.
fn train(
    prepared: PreparedRun,
    run: OpenRun,
    log: Log,
    state: Option<State>,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let mut trainer = Trainer::new(prepared, &run, log, state, options)?;
    let outcome = trainer.run(observer);
    let (summary, interrupted) = match outcome {
        Ok(interrupted) => {
            (trainer.finish(if interrupted { Status::Interrupted } else { Status::Completed })?, interrupted)
        }
        Err(error) => {
            // The error that stopped training is the one to report, even if the summary cannot be written.
            let _ = trainer.finish(Status::Failed);
            return Err(error);
        }
    };
    drop(trainer);
    let OpenRun { folder, lock, copy, .. } = run;
    drop(lock);
    drop(copy);
    Ok(RunOutcome { run: folder, summary, interrupted })
}
