//! Runs: started or resumed in their directory, and trained to the end or until stopped.

mod announce;
mod best;
mod checkpointer;
mod first_stage;
mod jpeg;
mod loader_threads;
mod loss_monitor;
pub(crate) mod pipeline;
mod process_group;
mod recorder;
mod run_position;
mod run_time;
mod same_data;
mod setup;
mod stop_policy;
mod time_estimator;
mod trainer;
mod worker_role;

use crate::compile::{KernelSelection, Plans};
use crate::device::LoadedLibrary;
use crate::run_limits::RunLimits;
use crate::weights::session_state::{self, RestoreMode};
use crate::{Observer, TrainError};
use first_stage::FirstStageOutcome;
use jpeg::{decoder_warning, jpeg_decoder};
pub use process_group::{ProcessGroup, with_parts_for};
use same_data::StartedRun;
pub use setup::check_parts;
use setup::{RunSetup, RunStart};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use stratus_data::{JpegLibrary, Position};
use stratus_engine::{Plan, StartupMonitor};
use stratus_experiment::{Experiment, ScheduleName};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, State};
use stratus_run::layout::RUNS;
use stratus_run::lock::Lock;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::sources::Sources;
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
}

impl OpenRun {
    fn lock(folder: RunDir, started: Instant) -> Result<Self, TrainError> {
        let lock = folder.lock()?;
        Ok(Self { folder, lock, started })
    }
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
        let mut open = OpenRun::lock(create()?, started)?;
        let run = &open.folder;
        run.prepare()?;
        machine.write(&run.machine())?;
        data.write(&run.data())?;
        // From here on the directory is a run that can be resumed.
        stratus_run::atomic::write(&run.experiment(), experiment.to_toml().as_bytes())?;
        return match first_stage::train(run, experiment, &first, options, observer)? {
            FirstStageOutcome::Interrupted(summary) => {
                Ok(RunOutcome { run: open.folder, summary: *summary, interrupted: true })
            }
            FirstStageOutcome::Complete(experiment) => {
                let started = Some(StartedRun { run, state: None });
                let prepared = set_up(&experiment, started, options, observer)?;
                open.started = Instant::now();
                start_training(prepared, open, machine, options, observer)
            }
        };
    }
    let prepared = set_up(experiment, None, options, observer)?;
    // From here on the disk is written to.
    if group.is_first() {
        let open = OpenRun::lock(create()?, started)?;
        return start_training(prepared, open, machine, options, observer);
    }
    let (setup, _) = &prepared;
    setup.serve_source_weights()?;
    // Worker 0 has created the directory.
    let run = group.worker_folder(&RunDir::open(&group.share_directory(None)?)?)?;
    let open = OpenRun::lock(run, started)?;
    open.folder.prepare()?;
    let log = Log::open(&open.folder.log())?;
    train(prepared, open, log, None, options, observer)
}

/// Prepares a new run with its initial weights, and starts reading its data from the first batch.
fn set_up(
    experiment: &Experiment,
    started: Option<StartedRun<'_>>,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<(RunSetup, Loaders), TrainError> {
    let selection = if options.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
    let mut setup = RunSetup::new(experiment, RunStart::New, started, &selection, options, observer)?;
    setup.set_initial_weights(observer)?;
    let loaders = Loaders::new(&setup, Position::default())?;
    Ok((setup, loaders))
}

/// Trains from the first iteration, in a directory that is not a run yet, or whose pre-training stage is
/// complete.
fn start_training(
    (setup, loaders): (RunSetup, Loaders),
    open: OpenRun,
    mut machine: Machine,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let run = &open.folder;
    run.prepare()?;
    for LoadedLibrary { name, version, path } in setup.device.libraries.clone() {
        machine.libraries.insert(name, Library { version, path });
    }
    machine.write(&run.machine())?;
    stratus_run::atomic::write_json(&run.plan(), &setup.compiled.plans)?;
    stratus_run::classes::write(&run.classes(), &setup.class_names_only())?;
    setup.copy_sources(run)?;
    setup.data.write(&run.data())?;
    // Written last, since it makes the directory a run, which must have all other files.
    stratus_run::atomic::write(&run.experiment(), setup.resolved.to_toml().as_bytes())?;
    let mut log = Log::open(&run.log())?;
    log.write(&format!("started on {}", setup.device.backend.describe()))?;
    setup.log_sources(&mut log)?;
    if let Some(decay) = setup.resolved.settings().train.ema_decay {
        let text = format!("evaluation and export use the moving average of the weights, decay {decay}");
        log.write(&text)?;
        observer.info(&text);
    }
    announce::device_lines(&setup.device, &setup.compiled, run.path())
        .iter()
        .for_each(|line| observer.info(line));
    options.group.share_directory(Some(run.path()))?;
    train((setup, loaders), open, log, None, options, observer)
}

/// The experiment with more epochs, if the result equals that of a run started with that many.
///
/// # Errors
/// If the run stopped early, or its results depend on the number of epochs.
fn extended(run: &RunDir, mut experiment: Experiment, epochs: u64) -> Result<Experiment, TrainError> {
    let refused = |problem: String| {
        let path = run.path().display();
        Err(TrainError::Configuration {
            problem: format!("{path} cannot be extended: {problem}"),
            hint: format!(
                "start a new run from its weights: `stratus train {path}/experiment.toml --weights {path} \
                 --epochs EPOCHS`"
            ),
        })
    };
    let trained = experiment.train.epochs;
    if epochs <= trained {
        return refused(format!("it already trains {trained} epochs"));
    }
    if !matches!(experiment.schedule.name, ScheduleName::Constant | ScheduleName::Step) {
        return refused(format!(
            "its schedule ({}) depends on the number of epochs",
            experiment.schedule.name
        ));
    }
    if Summary::read(&run.summary()).is_ok_and(|summary| summary.stopped_early.is_some()) {
        return refused("it stopped early".to_owned());
    }
    experiment.train.epochs = epochs;
    Ok(experiment)
}

/// Resumes a run from its newest good checkpoint.
///
/// # Errors
/// If the directory is not a run, another process holds it, or it cannot be trained to
/// [`RunOptions::extend_to`]; else as [`start`].
pub fn resume(
    path: &Path,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let started = Instant::now();
    let run = RunDir::open(path)?;
    let group = &options.group;
    let is_first = group.is_first();
    let worker_folder = group.worker_folder(&run)?;
    let open = OpenRun::lock(worker_folder, started)?;
    let worker_folder = &open.folder;
    if is_first {
        run.remove_workers_from(group.rank().world_size)?;
    }
    worker_folder.prepare()?;
    let mut recorded_experiment = Experiment::load(&run.experiment())?;
    let trained = recorded_experiment.train.epochs;
    if let Some(epochs) = options.extend_to {
        recorded_experiment = extended(&run, recorded_experiment, epochs)?;
    }
    let experiment =
        group.with_parts(&recorded_experiment.clone().with_overrides(&options.limit_overrides)?, true)?;
    // A run that cannot be resumed stays unchanged.
    let keep_extension = |log: &mut Log| -> Result<(), TrainError> {
        let Some(epochs) = options.extend_to.filter(|_| is_first) else { return Ok(()) };
        stratus_run::atomic::write(&run.experiment(), recorded_experiment.to_toml().as_bytes())?;
        Ok(log.write(&format!("extended from {trained} to {epochs} epochs"))?)
    };
    let mut log = Log::open(&worker_folder.log())?;
    let recovery = Checkpoints::new(run.checkpoints()).load_latest()?;
    for damage in &recovery.skipped {
        let text = format!("skipping damaged checkpoint {}: {}", damage.path.display(), damage.reason);
        observer.warn(&text);
        log.write(&text)?;
    }
    let plan = std::fs::read(run.plan()).unwrap_or_default();
    let newest = recovery.checkpoint.as_ref().map(|checkpoint| &checkpoint.state.weights_sha256);
    let newest = newest.map_or("", String::as_str);
    // From here on worker 0 changes files that the others have read.
    group.check_same_run(&[experiment.to_toml().as_bytes(), newest.as_bytes(), &plan])?;
    if let (Ok(summary), Some(checkpoint)) = (Summary::read(&run.summary()), &recovery.checkpoint)
        && summary.status == Status::Completed
        && summary.iterations == checkpoint.state.iteration
        && (u64::from(summary.epochs) >= experiment.train.epochs || summary.stopped_early.is_some())
    {
        observer.info(&format!("{} is complete: nothing is left to train", run.path().display()));
        return Ok(RunOutcome { run, summary, interrupted: false });
    }
    if let (Some(first), None) = (experiment.first_stage(), &recovery.checkpoint) {
        keep_extension(&mut log)?;
        return match first_stage::train(&run, &experiment, &first, options, observer)? {
            FirstStageOutcome::Interrupted(summary) => {
                Ok(RunOutcome { run, summary: *summary, interrupted: true })
            }
            FirstStageOutcome::Complete(experiment) => {
                let known = Some(StartedRun { run: &run, state: None });
                let setup = set_up(&experiment, known, options, observer)?;
                let machine = Machine::read(&run.machine())?;
                start_training(setup, open, machine, options, observer)
            }
        };
    }
    let recorded: Option<Plans> = serde_json::from_slice(&plan).ok();
    let choices = recorded.as_ref().map(Plans::choices);
    let selection = match &choices {
        Some(choices) if !options.remeasure => KernelSelection::Replay(choices),
        _ => KernelSelection::Cached,
    };
    let start = if recovery.checkpoint.is_some() { RunStart::Resumed } else { RunStart::New };
    let state = recovery.checkpoint.as_ref().map(|checkpoint| &checkpoint.state);
    let known = Some(StartedRun { run: &run, state });
    let mut setup = match RunSetup::new(&experiment, start, known, &selection, options, observer) {
        Err(TrainError::Engine(error)) if matches!(selection, KernelSelection::Replay(_)) => {
            observer.warn(&format!("the plan of this run cannot be used here ({error})"));
            RunSetup::new(&experiment, start, known, &KernelSelection::Cached, options, observer)?
        }
        other => other?,
    };
    check_sources(&run, &setup.sources())?;
    keep_extension(&mut log)?;
    if is_first && !run.data().exists() {
        setup.data.write(&run.data())?;
    }
    if recorded.as_ref() != Some(&setup.compiled.plans) && is_first {
        stratus_run::atomic::write_json(&run.plan(), &setup.compiled.plans)?;
    }
    if !recorded.as_ref().is_some_and(|recorded| recorded.gives_same_bits_as(&setup.compiled.plans))
        && is_first
    {
        let recorded = recorded.map_or("nothing".to_owned(), |plans| kernels(&plans.train));
        let text = format!(
            "resuming with a different plan: it was made for {recorded}, but runs on {} now; results are \
             equivalent, but not bit-identical to an uninterrupted run",
            kernels(&setup.compiled.plans.train)
        );
        observer.warn(&text);
        log.write(&text)?;
    }
    match &recovery.checkpoint {
        Some(checkpoint) => {
            let copies = setup.compiled.ids.refresh;
            let session = &mut setup.compiled.session;
            session_state::restore(session, copies, checkpoint, RestoreMode::Training)?;
            let decode = setup.resolved.settings().data.decode;
            let decoder = jpeg_decoder(JpegLibrary::for_process(), decode);
            if let Some(text) = decoder_warning(&checkpoint.state, &decoder) {
                observer.warn(&text);
                log.write(&text)?;
            }
            let text = format!("resumed after iteration {}", checkpoint.state.iteration);
            log.write(&text)?;
            observer.info(&format!("{}: {text}", run.path().display()));
        }
        None => {
            setup.set_initial_weights(observer)?;
            if recovery.skipped.is_empty() {
                let text = "no checkpoint yet: starting at the first iteration";
                log.write(text)?;
                observer.info(&format!("{}: {text}", run.path().display()));
            } else {
                let text = "no usable checkpoint: restarting at the first iteration";
                log.write(text)?;
                observer.warn(&format!("{}: {text}", run.path().display()));
            }
        }
    }
    let state = recovery.checkpoint.map(|checkpoint| checkpoint.state);
    let position = state
        .as_ref()
        .map_or(Position::default(), |state| Position { epoch: state.epoch, batch: state.batch });
    let loaders = Loaders::new(&setup, position)?;
    train((setup, loaders), open, log, state, options, observer)
}

/// The library and kernels that a plan was made for.
fn kernels(plan: &Plan) -> String {
    let Plan { library_description: library, kernel_revision: kernels, .. } = plan;
    if kernels.is_empty() { library.clone() } else { format!("{library}, kernels {kernels}") }
}

/// Checks that the external files are those that the run started from.
fn check_sources(run: &RunDir, sources: &Sources) -> Result<(), TrainError> {
    let recorded = Sources::read(&run.sources())?;
    let pairs = [(&recorded.weights, &sources.weights), (&recorded.network, &sources.network)];
    for (recorded, found) in pairs {
        if let (Some(recorded), Some(found)) = (recorded, found)
            && recorded.sha256 != found.sha256
        {
            return Err(TrainError::Configuration {
                problem: format!(
                    "{} has sha256 {}, but the run started with {}",
                    found.path, found.sha256, recorded.sha256
                ),
                hint: format!("restore {}, or start a new run", recorded.path),
            });
        }
    }
    Ok(())
}

/// Trains a run that is set up, and writes its summary.
fn train(
    prepared: (RunSetup, Loaders),
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
    let OpenRun { folder, lock, .. } = run;
    drop(lock);
    Ok(RunOutcome { run: folder, summary, interrupted })
}
