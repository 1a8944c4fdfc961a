//! Resumes a run from its newest good checkpoint.

use super::jpeg::{decoder_warning, jpeg_decoder};
use super::same_data::StartedRun;
use super::setup::{RunSetup, RunStart};
use super::shared_run::{RunCopy, SharedFiles, SharedRun};
use super::trainer::Loaders;
use super::{OpenRun, PreparedRun, RunOptions, RunOutcome, train, train_in_two_stages};
use crate::compile::{KernelSelection, Plans};
use crate::weights::session_state::{self, RestoreMode};
use crate::{Observer, TrainError, exchange};
use std::path::Path;
use std::time::Instant;
use stratus_base::read_at_most;
use stratus_base::text::{counted, shell_path};
use stratus_data::{JpegLibrary, Position};
use stratus_engine::Plan;
use stratus_experiment::{Experiment, ScheduleName};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, Recovery};
use stratus_run::layout::NETWORK;
use stratus_run::log::Log;
use stratus_run::sources::Sources;
use stratus_run::summary::{Status, Summary};

/// The maximum size of the recorded plan; that of a network of hundreds of layers has some MiB.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// Resumes a run from its newest good checkpoint.
///
/// # Errors
/// If the directory is not a run, another process holds it, or it cannot be trained to
/// [`RunOptions::extend_to`]; else as [`start`](super::start).
pub fn resume(
    path: &Path,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let started = Instant::now();
    let group = &options.group;
    let is_first = group.is_first();
    let SharedRun { run, own, copy } = group.share_run(path, SharedFiles::ForResume, observer)?;
    let open = OpenRun { copy, ..OpenRun::lock(own, started)? };
    if is_first {
        run.remove_workers_from(group.rank().world_size)?;
    }
    open.folder.prepare()?;
    if is_first
        && let Some(remote) = run.forget_remote()?
        && remote.run_status() == Status::Running
    {
        let (path, place) = (run.path().display(), remote.place());
        observer.warn(&format!(
            "{path} was being trained on {place} when it was last fetched; it is resumed here as another copy"
        ));
    }
    let mut experiment = Experiment::load(&run.experiment())?;
    let extension = match options.extend_to {
        Some(epochs) => Some(Extension::new(&run, &experiment, epochs)?),
        None => None,
    };
    if let Some(extension) = &extension {
        experiment = extension.experiment.clone();
    }
    let experiment = group.with_parts(&experiment.with_overrides(&options.limit_overrides)?, true)?;
    let mut log = Log::open(&open.folder.log())?;
    let recovery = load_checkpoint(&run, &mut log, observer)?;
    let plan = read_at_most(&run.plan(), MAX_PLAN_BYTES).unwrap_or_default();
    let state = recovery.checkpoint.as_ref().map(|checkpoint| &checkpoint.state);
    let weights_sha256 = state.map_or("", |state| state.weights_sha256.as_str());
    // From here on worker 0 changes files that the others have read.
    let content = comparable(&experiment);
    group.check_same_run(&[content.as_bytes(), weights_sha256.as_bytes(), &plan])?;
    if let Some(summary) = complete_summary(&run, &experiment, &recovery) {
        observer.info(&format!("{} is complete: nothing is left to train", run.path().display()));
        return Ok(RunOutcome { run, summary, interrupted: false });
    }
    // A run that cannot be resumed stays unchanged, so the extension is recorded late.
    let extension = extension.filter(|_| is_first);
    let record_extension =
        |log: &mut Log| extension.as_ref().map_or(Ok(()), |extension| extension.record(&run, log));
    if let (Some(first), None) = (experiment.first_stage(), state) {
        record_extension(&mut log)?;
        return train_in_two_stages(open, &experiment, &first, options, observer);
    }
    let recorded: Option<Plans> = serde_json::from_slice(&plan).ok();
    let mut setup =
        set_up(&experiment, StartedRun { run: &run, state }, recorded.as_ref(), options, observer)?;
    check_sources(&run, &setup.sources())?;
    record_extension(&mut log)?;
    setup.log_exchange(&mut log)?;
    if is_first {
        record_setup(&run, &setup, recorded.as_ref(), &mut log, observer)?;
    }
    restore(&run, &mut setup, &recovery, &mut log, observer)?;
    open.copy.iter().for_each(RunCopy::remove_checkpoints);
    let state = recovery.checkpoint.map(|checkpoint| checkpoint.state);
    let position = state
        .as_ref()
        .map_or(Position::default(), |state| Position { epoch: state.epoch, batch: state.batch });
    let loaders = Loaders::new(&setup, position)?;
    train(PreparedRun { setup, loaders }, open, log, state, options, observer)
}

/// The text of an experiment for a comparison between workers, whose copies of the layer file are in
/// different folders. The file's own content is compared with the one that the run started with.
fn comparable(experiment: &Experiment) -> String {
    let mut experiment = experiment.clone();
    if experiment.layer_file().is_some() {
        NETWORK.clone_into(&mut experiment.model.name);
    }
    experiment.to_toml()
}

/// A run that is trained for more epochs than it was started with.
struct Extension {
    /// The run's experiment with the new number of epochs.
    experiment: Experiment,
    /// The previous number of epochs.
    previous_epochs: u64,
}

impl Extension {
    /// Extends a run, if the result equals that of a run started with that many epochs.
    ///
    /// # Errors
    /// If the run stopped early, or its results depend on the number of epochs.
    fn new(run: &RunDir, experiment: &Experiment, epochs: u64) -> Result<Self, TrainError> {
        let refused = |problem: String| {
            let (shown, path) = (run.path().display(), shell_path(run.path()));
            Err(TrainError::Configuration {
                problem: format!("{shown} cannot be extended: {problem}"),
                hint: format!(
                    "start a new run from its weights: `stratus train {path}/experiment.toml --weights \
                     {path} --epochs EPOCHS`"
                ),
            })
        };
        let previous_epochs = experiment.train.epochs;
        if epochs <= previous_epochs {
            return refused(format!("it already trains {}", counted(previous_epochs, "epoch")));
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
        let mut experiment = experiment.clone();
        experiment.train.epochs = epochs;
        Ok(Self { experiment, previous_epochs })
    }

    /// Records the new number of epochs in the run directory.
    fn record(&self, run: &RunDir, log: &mut Log) -> Result<(), TrainError> {
        stratus_run::atomic::write(&run.experiment(), self.experiment.to_toml().as_bytes())?;
        let epochs = self.experiment.train.epochs;
        Ok(log.write(&format!("extended from {} to {epochs} epochs", self.previous_epochs))?)
    }
}

/// Loads the newest checkpoint that verifies, and warns about those that do not.
fn load_checkpoint(run: &RunDir, log: &mut Log, observer: &mut dyn Observer) -> Result<Recovery, TrainError> {
    let recovery = Checkpoints::new(run.checkpoints()).load_latest()?;
    for damage in &recovery.skipped {
        let text = format!("skipping damaged checkpoint {}: {}", damage.path.display(), damage.reason);
        observer.warn(&text);
        log.write(&text)?;
    }
    Ok(recovery)
}

/// The summary of a run that has nothing left to train.
fn complete_summary(run: &RunDir, experiment: &Experiment, recovery: &Recovery) -> Option<Summary> {
    let checkpoint = recovery.checkpoint.as_ref()?;
    let summary = Summary::read(&run.summary()).ok()?;
    let is_complete = summary.status == Status::Completed
        && summary.iterations == checkpoint.state.iteration
        && (u64::from(summary.epochs) >= experiment.train.epochs || summary.stopped_early.is_some());
    is_complete.then_some(summary)
}

/// Prepares a run that was started before, with the kernels of its recorded plans if they can be used here.
fn set_up(
    experiment: &Experiment,
    started: StartedRun<'_>,
    recorded: Option<&Plans>,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<RunSetup, TrainError> {
    let start = if started.state.is_some() { RunStart::Resumed } else { RunStart::New };
    let choices = recorded.filter(|_| !options.remeasure).map(Plans::choices);
    if let Some(choices) = &choices {
        let replay = KernelSelection::Replay(choices);
        match RunSetup::new(experiment, start, Some(started), &replay, options, observer) {
            Err(TrainError::Engine(error)) => {
                observer.warn(&format!("the plan of this run cannot be used here ({error})"));
            }
            other => return other,
        }
    }
    RunSetup::new(experiment, start, Some(started), &KernelSelection::Cached, options, observer)
}

/// Records the data set, if that is missing, and the plans, if they have changed. Warns if results will not
/// be bit-identical to those of the recorded plans.
fn record_setup(
    run: &RunDir,
    setup: &RunSetup,
    recorded: Option<&Plans>,
    log: &mut Log,
    observer: &mut dyn Observer,
) -> Result<(), TrainError> {
    if !run.data().exists() {
        setup.data.write(&run.data())?;
    }
    let plans = &setup.compiled.plans;
    if recorded != Some(plans) {
        stratus_run::atomic::write_json(&run.plan(), plans)?;
    }
    if let Some(recorded) = recorded.filter(|recorded| recorded.depends_on_other_workers_than(plans)) {
        let settings = setup.resolved.settings();
        // Each worker, or pipeline of several stages, has a share of the batch.
        let of_batch = |plans: &Plans| settings.train.batch_size / plans.train.program.batch.max(1);
        let text = format!(
            "resuming with {} instead of {}: with {} results depend on this number, so they will not be \
             bit-identical to an uninterrupted run",
            counted(of_batch(plans) as u64, if settings.train.stages > 1 { "pipeline" } else { "worker" }),
            of_batch(recorded),
            exchange::irreproducible_keys(settings).join(" and ")
        );
        observer.warn(&text);
        log.write(&text)?;
    } else if !recorded.is_some_and(|recorded| recorded.gives_same_bits_as(plans)) {
        let recorded = recorded.map_or("nothing".to_owned(), |plans| kernels(&plans.train));
        let text = format!(
            "resuming with a different plan: it was made for {recorded}, but runs on {} now; results are \
             equivalent, but not bit-identical to an uninterrupted run",
            kernels(&plans.train)
        );
        observer.warn(&text);
        log.write(&text)?;
    }
    Ok(())
}

/// The library and kernels that a plan was made for.
fn kernels(plan: &Plan) -> String {
    let Plan { library_description: library, kernel_revision: kernels, .. } = plan;
    if kernels.is_empty() { library.clone() } else { format!("{library}, kernels {kernels}") }
}

/// Checks that the external files are those that the run started from.
fn check_sources(run: &RunDir, sources: &Sources) -> Result<(), TrainError> {
    let recorded = Sources::read(&run.sources())?;
    let pairs = [
        (&recorded.weights, &sources.weights),
        (&recorded.network, &sources.network),
        (&recorded.teacher, &sources.teacher),
    ];
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

/// Sets the values of the checkpoint, or the initial weights if there is none, and reports which.
fn restore(
    run: &RunDir,
    setup: &mut RunSetup,
    recovery: &Recovery,
    log: &mut Log,
    observer: &mut dyn Observer,
) -> Result<(), TrainError> {
    let path = run.path().display();
    let Some(checkpoint) = &recovery.checkpoint else {
        setup.set_initial_weights(observer)?;
        if recovery.skipped.is_empty() {
            let text = "no checkpoint yet: starting at the first iteration";
            log.write(text)?;
            observer.info(&format!("{path}: {text}"));
        } else {
            let text = "no usable checkpoint: restarting at the first iteration";
            log.write(text)?;
            observer.warn(&format!("{path}: {text}"));
        }
        return Ok(());
    };
    let copies = setup.compiled.ids.refresh;
    session_state::restore(&mut setup.compiled.session, copies, checkpoint, RestoreMode::Training)?;
    let decoder = jpeg_decoder(JpegLibrary::for_process(), setup.resolved.settings().data.decode);
    if let Some(text) = decoder_warning(&checkpoint.state, &decoder) {
        observer.warn(&text);
        log.write(&text)?;
    }
    let text = format!("resumed after iteration {}", checkpoint.state.iteration);
    log.write(&text)?;
    observer.info(&format!("{path}: {text}"));
    Ok(())
}
