//! A run: started or resumed in its directory, trained to the end or until told to stop.

mod announce;
mod best;
mod board;
mod first_stage;
mod loss_watch;
mod outlook;
pub(crate) mod pipeline;
mod process_group;
mod records;
mod same_data;
mod setup;
mod trainer;
mod usage;
mod workers;

use crate::allowance::Allowance;
use crate::compile::{KernelSelection, Plans};
use crate::device::LoadedLibrary;
use crate::experiment::{Decode, ScheduleName};
use crate::weights::session_state::{self, Restored};
use crate::{Experiment, Observer, TrainError};
use first_stage::FirstStage;
pub use process_group::{ProcessGroup, parts_among};
use same_data::Begun;
pub use setup::expect_parts;
use setup::{RunSetup, RunStart};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use stratus_data::{JpegLibrary, Position};
use stratus_engine::Plan;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, State};
use stratus_run::lock::Lock;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::sources::Sources;
use stratus_run::summary::{Status, Summary};
use trainer::{Loaders, Trainer};

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The run directory; `None`: the next free number under `runs/<experiment>/`.
    pub out: Option<PathBuf>,
    /// Measure kernels again, whatever the cache of plans holds.
    pub remeasure: bool,
    /// Set from another thread to stop after the current iteration, with a checkpoint.
    pub stop: Arc<AtomicBool>,
    /// When the process began, from which a deadline is counted; `None`: when the run did.
    pub process_begun: Option<Instant>,
    /// Of a run that is continued: `train.deadline` and `train.budget` in the place of those it began with.
    pub allowance: Vec<(String, String)>,
    /// Of a run that is continued: train it to this epoch, later than it was to, where its learning rate does
    /// not depend on how many there are.
    pub extend_to: Option<u64>,
    /// Stop after this epoch, counted from 1, with a checkpoint. Of a run of two stages, an epoch of the
    /// second.
    pub until_epoch: Option<u64>,
    /// The workers that train the run with this one.
    pub group: ProcessGroup,
}

impl Options {
    fn since(&self, begun: Instant) -> Instant {
        self.process_begun.unwrap_or(begun)
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct RunOutcome {
    /// Its directory.
    pub run: RunDir,
    /// Its summary.
    pub summary: Summary,
    /// Whether it was stopped early and can be resumed.
    pub interrupted: bool,
}

/// The key of the JPEG decoder among a checkpoint's libraries.
const JPEG: &str = "jpeg";

/// Starts a run.
///
/// # Errors
/// Before the first iteration: configuration, data, device, memory or disk. Later: what stopped training.
pub fn start(
    experiment: &Experiment,
    options: &Options,
    machine: Machine,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let begun = Instant::now();
    let group = &options.group;
    let experiment = &group.with_parts(experiment, false)?;
    group.expect_same(&[experiment.to_toml().as_bytes()])?;
    Allowance::of(experiment, 0.0, [begun, options.since(begun)])?;
    let runs = Path::new("runs").join(experiment.name());
    if group.is_first() {
        RunDir::check_new(options.out.as_deref().unwrap_or(&runs.join("new")))?;
    }
    let create = || match &options.out {
        Some(out) => RunDir::create_at(out),
        None => RunDir::create(Path::new("runs"), experiment.name()),
    };
    if let Some(first) = experiment.first_stage() {
        let data = first_stage::check(experiment, &first)?;
        let run = create()?;
        let lock = run.lock()?;
        run.prepare()?;
        machine.write(&run.machine())?;
        data.write(&run.data())?;
        // From here on it is a run, which can be continued.
        stratus_run::atomic::write(&run.experiment(), experiment.to_toml().as_bytes())?;
        return match first_stage::train(&run, experiment, &first, options, observer)? {
            FirstStage::Interrupted(summary) => Ok(RunOutcome { run, summary: *summary, interrupted: true }),
            FirstStage::Complete(experiment) => {
                let begun = Some(Begun { run: &run, state: None });
                let setup = RunStart::New.set_up(&experiment, begun, options, observer)?;
                begin(setup, run, lock, machine, options, Instant::now(), observer)
            }
        };
    }
    let setup = RunStart::New.set_up(experiment, None, options, observer)?;
    // From here on the disk is written to.
    if group.is_first() {
        let run = create()?;
        let lock = run.lock()?;
        return begin(setup, run, lock, machine, options, begun, observer);
    }
    setup.0.give_sources(group)?;
    // The first worker has made it.
    let run = group.own_folder(&RunDir::open(&group.directory(None)?)?)?;
    let lock = run.lock()?;
    run.prepare()?;
    let log = Log::open(&run.log())?;
    train(setup.0, setup.1, run, lock, log, None, options, begun, observer)
}

/// Trains from the first iteration on, in a directory that is not yet a run, or whose first stage is
/// complete.
fn begin(
    (setup, loaders): (RunSetup, Loaders),
    run: RunDir,
    lock: Lock,
    mut machine: Machine,
    options: &Options,
    begun: Instant,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    run.prepare()?;
    for LoadedLibrary { name, version, path } in setup.device.libraries.clone() {
        machine.libraries.insert(name, Library { version, path });
    }
    machine.write(&run.machine())?;
    stratus_run::atomic::write_json(&run.plan(), &setup.compiled.plans)?;
    stratus_run::classes::write(&run.classes(), &setup.unmeasured_classes())?;
    setup.keep_sources(&run, &options.group)?;
    setup.data.write(&run.data())?;
    // Written last, since it makes the directory a run: all other files are there by then.
    stratus_run::atomic::write(&run.experiment(), setup.resolved.to_toml().as_bytes())?;
    let mut log = Log::open(&run.log())?;
    log.say(&format!("started on {}", setup.device.backend.describe()))?;
    setup.say_sources(&mut log)?;
    if let Some(decay) = setup.resolved.settings().train.ema_decay {
        let text = format!("the moving average of the weights is measured and exported, decay {decay}");
        log.say(&text)?;
        observer.say(&text);
    }
    announce::place(&setup, run.path()).iter().for_each(|line| observer.say(line));
    options.group.directory(Some(run.path()))?;
    train(setup, loaders, run, lock, log, None, options, begun, observer)
}

/// The experiment of a run that is to train to a later epoch than it was to: its result is that of a run
/// which was to train so far from the beginning.
///
/// # Errors
/// If it ended early, or what it did depends on how long it was to train.
fn extended(run: &RunDir, mut experiment: Experiment, epochs: u64) -> Result<Experiment, TrainError> {
    let refused = |problem: String| {
        let path = run.path().display();
        Err(TrainError::Configuration {
            problem: format!("{path} cannot be extended: {problem}"),
            hint: format!(
                "begin a new run with its weights: `stratus train {path}/experiment.toml --weights {path} \
                 --epochs EPOCHS`"
            ),
        })
    };
    let trained = experiment.train.epochs;
    if epochs <= trained {
        return refused(format!("it is to train {trained} epochs already"));
    }
    if !matches!(experiment.schedule.name, ScheduleName::Constant | ScheduleName::Step) {
        return refused(format!(
            "its learning rate ({}) was to have fallen after {trained} epochs",
            experiment.schedule.name
        ));
    }
    if Summary::read(&run.summary()).is_ok_and(|summary| summary.stopped_early.is_some()) {
        return refused("it ended early, as it gained nothing any more".to_owned());
    }
    experiment.train.epochs = epochs;
    Ok(experiment)
}

/// Continues a run from its newest good checkpoint.
///
/// # Errors
/// If it is no run, another process holds it, or it cannot be trained to [`Options::extend_to`]; else as
/// [`start`].
pub fn resume(path: &Path, options: &Options, observer: &mut dyn Observer) -> Result<RunOutcome, TrainError> {
    let begun = Instant::now();
    let run = RunDir::open(path)?;
    let group = &options.group;
    let is_first = group.is_first();
    let own_folder = group.own_folder(&run)?;
    let lock = own_folder.lock()?;
    if is_first {
        run.keep_workers(group.place().workers)?;
    }
    own_folder.prepare()?;
    let mut own = Experiment::load(&run.experiment())?;
    let trained = own.train.epochs;
    if let Some(epochs) = options.extend_to {
        own = extended(&run, own, epochs)?;
    }
    let experiment = group.with_parts(&own.clone().with_overrides(&options.allowance)?, true)?;
    // Only a run that can go on is changed.
    let keep_extension = |log: &mut Log| -> Result<(), TrainError> {
        let Some(epochs) = options.extend_to.filter(|_| is_first) else { return Ok(()) };
        stratus_run::atomic::write(&run.experiment(), own.to_toml().as_bytes())?;
        Ok(log.say(&format!("extended from {trained} to {epochs} epochs"))?)
    };
    let mut log = Log::open(&own_folder.log())?;
    let recovery = Checkpoints::new(run.checkpoints()).load_latest()?;
    for damage in &recovery.damaged {
        let text =
            format!("checkpoint {} is damaged and left aside: {}", damage.path.display(), damage.reason);
        observer.warn(&text);
        log.say(&text)?;
    }
    let plan = std::fs::read(run.plan()).unwrap_or_default();
    let newest = recovery.checkpoint.as_ref().map(|checkpoint| &checkpoint.state.weights_sha256);
    let newest = newest.map_or("", String::as_str);
    // From here on the first worker writes what the others have read.
    group.expect_same(&[experiment.to_toml().as_bytes(), newest.as_bytes(), &plan])?;
    if let (Ok(summary), Some(checkpoint)) = (Summary::read(&run.summary()), &recovery.checkpoint)
        && summary.status == Status::Completed
        && summary.iterations == checkpoint.state.iteration
        && (u64::from(summary.epochs) >= experiment.train.epochs || summary.stopped_early.is_some())
    {
        observer.say(&format!("{} is complete: nothing is left to train", run.path().display()));
        return Ok(RunOutcome { run, summary, interrupted: false });
    }
    if let (Some(first), None) = (experiment.first_stage(), &recovery.checkpoint) {
        keep_extension(&mut log)?;
        return match first_stage::train(&run, &experiment, &first, options, observer)? {
            FirstStage::Interrupted(summary) => Ok(RunOutcome { run, summary: *summary, interrupted: true }),
            FirstStage::Complete(experiment) => {
                let known = Some(Begun { run: &run, state: None });
                let setup = RunStart::New.set_up(&experiment, known, options, observer)?;
                let machine = Machine::read(&run.machine())?;
                begin(setup, run, lock, machine, options, begun, observer)
            }
        };
    }
    let recorded: Option<Plans> = serde_json::from_slice(&plan).ok();
    let choices = recorded.as_ref().map(Plans::choices);
    let selection = match &choices {
        Some(choices) if !options.remeasure => KernelSelection::Repeat(choices),
        _ => KernelSelection::Cached,
    };
    let start = if recovery.checkpoint.is_some() { RunStart::Continued } else { RunStart::New };
    let state = recovery.checkpoint.as_ref().map(|checkpoint| &checkpoint.state);
    let known = Some(Begun { run: &run, state });
    let mut setup = match RunSetup::new(&experiment, start, known, &selection, group, observer) {
        Err(TrainError::Engine(error)) if matches!(selection, KernelSelection::Repeat(_)) => {
            observer.warn(&format!("the plan of this run cannot be repeated here ({error})"));
            RunSetup::new(&experiment, start, known, &KernelSelection::Cached, group, observer)?
        }
        other => other?,
    };
    expect_sources(&run, &setup.sources())?;
    keep_extension(&mut log)?;
    if is_first && !run.data().exists() {
        setup.data.write(&run.data())?;
    }
    if recorded.as_ref() != Some(&setup.compiled.plans) && is_first {
        stratus_run::atomic::write_json(&run.plan(), &setup.compiled.plans)?;
    }
    if !recorded.as_ref().is_some_and(|recorded| recorded.has_kernels_of(&setup.compiled.plans)) && is_first {
        let recorded = recorded.map_or("nothing".to_owned(), |plans| kernels(&plans.train));
        let text = format!(
            "this run continues with another plan: it was planned for {recorded}, and runs now on {}. Its \
             results are as good, but not the same bits as without the interruption",
            kernels(&setup.compiled.plans.train)
        );
        observer.warn(&text);
        log.say(&text)?;
    }
    match &recovery.checkpoint {
        Some(checkpoint) => {
            let copies = setup.compiled.ids.refresh;
            let session = &mut setup.compiled.session;
            session_state::restore(session, copies, checkpoint, Restored::Training)?;
            let decode = setup.resolved.settings().data.decode;
            let decoder = jpeg_decoder(JpegLibrary::of_process(), decode);
            if let Some(text) = other_decoder(&checkpoint.state, &decoder) {
                observer.warn(&text);
                log.say(&text)?;
            }
            let text = format!("continued after iteration {}", checkpoint.state.iteration);
            log.say(&text)?;
            observer.say(&format!("{}: {text}", run.path().display()));
        }
        None => {
            setup.first_weights(observer)?;
            if recovery.damaged.is_empty() {
                let text = "there is no checkpoint yet: training begins at the first iteration";
                log.say(text)?;
                observer.say(&format!("{}: {text}", run.path().display()));
            } else {
                let text = "no checkpoint can be used: training starts over at the first iteration";
                log.say(text)?;
                observer.warn(&format!("{}: {text}", run.path().display()));
            }
        }
    }
    let state = recovery.checkpoint.map(|checkpoint| checkpoint.state);
    let position = state
        .as_ref()
        .map_or(Position::default(), |state| Position { epoch: state.epoch, batch: state.batch });
    let loaders = Loaders::new(&setup, position)?;
    train(setup, loaders, own_folder, lock, log, state, options, begun, observer)
}

/// The library and kernels that a plan was made for.
fn kernels(plan: &Plan) -> String {
    let Plan { library, kernels, .. } = plan;
    if kernels.is_empty() { library.clone() } else { format!("{library}, kernels {kernels}") }
}

/// How a run's JPEG files are decoded, as it is recorded.
fn jpeg_decoder(library: &JpegLibrary, decode: Decode) -> String {
    match decode {
        Decode::Exact => library.to_string(),
        Decode::Fast => format!("{library}, fast"),
    }
}

/// A warning, if the run's JPEG files were decoded otherwise than they are `now`.
fn other_decoder(state: &State, now: &str) -> Option<String> {
    let recorded = state.libraries.get(JPEG)?;
    (recorded != now).then(|| {
        format!(
            "this run continues with another decoder: its JPEG files were decoded by {recorded}, and are now \
             by \
             {now}. Its results are as good, but not the same bits as without the interruption"
        )
    })
}

/// Checks that the files from outside are those that the run started from.
fn expect_sources(run: &RunDir, sources: &Sources) -> Result<(), TrainError> {
    let recorded = Sources::read(&run.sources())?;
    let pairs = [(&recorded.weights, &sources.weights), (&recorded.network, &sources.network)];
    for (recorded, found) in pairs {
        if let (Some(recorded), Some(found)) = (recorded, found)
            && recorded.sha256 != found.sha256
        {
            return Err(TrainError::Configuration {
                problem: format!(
                    "{} has sha256 {}, the run began with {}",
                    found.path, found.sha256, recorded.sha256
                ),
                hint: format!("restore the file, or start a new run; {} has changed since", recorded.path),
            });
        }
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)] // `start` and `resume` both end here, with all that they have opened.
fn train(
    setup: RunSetup,
    loaders: Loaders,
    run: RunDir,
    lock: Lock,
    log: Log,
    state: Option<State>,
    options: &Options,
    begun: Instant,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let mut trainer = Trainer::new(setup, loaders, &run, log, state, options, begun)?;
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
    drop(lock);
    Ok(RunOutcome { run, summary, interrupted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_decoder_is_told_where_there_was_one() {
        let mut state = State::default();
        let zune = jpeg_decoder(&JpegLibrary::Zune, Decode::Exact);
        assert_eq!(other_decoder(&state, &zune), None);
        state.libraries.insert(JPEG.to_owned(), JpegLibrary::Zune.to_string());
        assert_eq!(other_decoder(&state, &zune), None);
        // The same library, and other pixels.
        let fast = jpeg_decoder(&JpegLibrary::Zune, Decode::Fast);
        let text = other_decoder(&state, &fast).unwrap();
        assert!(text.contains("by zune-jpeg 0.5, and are now by zune-jpeg 0.5, fast. Its"), "{text}");
        state.libraries.insert(JPEG.to_owned(), "libjpeg-turbo 3.0.0".to_owned());
        let text = other_decoder(&state, &zune).unwrap();
        assert!(text.contains("by libjpeg-turbo 3.0.0, and are now by zune-jpeg 0.5"), "{text}");
    }
}
