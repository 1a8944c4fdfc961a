//! A run: started or continued in its directory, trained to its end or until it is told to stop.

mod records;
mod trainer;

use crate::compile::{Compiled, Datasets, Planning, Plans, compile, network, open_datasets, programs};
use crate::device::{self, Opened};
use crate::experiment::Precision;
use crate::initialise::initialise;
use crate::{Experiment, Observer, TrainError, state};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use stratus_data::Position;
use stratus_engine::Precision as Types;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::Checkpoints;
use stratus_run::lock::Lock;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::summary::{Status, Summary};
use trainer::{Feed, Trainer};

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The run directory; without it the next free number under `runs/<experiment>/`.
    pub out: Option<PathBuf>,
    /// Measure kernels anew.
    pub remeasure: bool,
    /// Set from outside to stop after the iteration at hand, with a checkpoint.
    pub stop: Arc<AtomicBool>,
}

/// A run that has come to its end or to a stop.
#[derive(Debug)]
pub struct Finished {
    /// Its directory.
    pub run: RunDir,
    /// Its summary.
    pub summary: Summary,
    /// Whether it can be continued.
    pub interrupted: bool,
}

/// Everything that is needed before the first iteration.
struct Prepared {
    experiment: Experiment,
    datasets: Datasets,
    graph: Graph,
    opened: Opened,
    compiled: Compiled,
}

fn prepare(
    mut experiment: Experiment,
    planning: &Planning<'_>,
    observer: &mut dyn Observer,
) -> Result<Prepared, TrainError> {
    let datasets = open_datasets(&experiment)?;
    let graph = network(&experiment, datasets.train.as_ref())?;
    let opened = device::open(experiment.train.device, experiment.train.threads)?;
    for warning in &opened.warnings {
        observer.warn(warning);
    }
    let precision = opened.precision(experiment.train.precision);
    if precision == Types::Bf16 && !opened.fast_bf16 {
        observer.warn(
            "train.precision is bf16, and this processor has no instructions for it: f32 is faster here",
        );
    }
    let programs = programs(&experiment, &graph, &opened, datasets.train.len())?;
    let compiled = compile(&programs, &opened, planning, &mut |text| observer.warn(text))?;
    // What was left open is now decided, and must be the same when the run is continued.
    experiment.train.precision = if precision == Types::Bf16 { Precision::Bf16 } else { Precision::F32 };
    experiment.train.threads = opened.backend.threads();
    experiment.train.tile_kib = Some(opened.tile_kib(experiment.train.tile_kib));
    experiment.model.classes = Some(experiment.model.classes.unwrap_or(datasets.train.classes()));
    let normalisation = datasets.train.normalisation();
    let numbers = |values: &[f32]| Some(values.iter().map(|&value| round_trip(value)).collect());
    experiment.data.mean = experiment.data.mean.clone().or_else(|| numbers(&normalisation.mean));
    experiment.data.std = experiment.data.std.clone().or_else(|| numbers(&normalisation.std));
    Ok(Prepared { experiment, datasets, graph, opened, compiled })
}

/// The shortest decimal that reads as the same `f32`, as an `f64`: 0.1307, not 0.13070000708.
fn round_trip(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// Starts a run.
///
/// # Errors
/// Configuration, data, device, memory or disk, before the first iteration; later, what stopped it.
pub fn start(
    experiment: Experiment,
    options: &Options,
    mut machine: Machine,
    observer: &mut dyn Observer,
) -> Result<Finished, TrainError> {
    let begun = Instant::now();
    let runs = Path::new("runs").join(experiment.name());
    RunDir::check_new(options.out.as_deref().unwrap_or(&runs.join("new")))?;
    let planning = if options.remeasure { Planning::Remeasure } else { Planning::Cached };
    let mut prepared = prepare(experiment, &planning, observer)?;
    initialise(&mut prepared.compiled.session, &prepared.graph, prepared.experiment.train.seed)?;
    state::refresh(&mut prepared.compiled)?;
    let feed = Feed::new(&prepared, Position::default())?;
    // From here on the disk is written to.
    let run = match &options.out {
        Some(out) => RunDir::create_at(out)?,
        None => RunDir::create(Path::new("runs"), prepared.experiment.name())?,
    };
    let lock = run.lock()?;
    run.prepare()?;
    if let Some((version, path)) = prepared.opened.library.clone() {
        machine.libraries.insert("onednn".to_owned(), Library { version, path });
    }
    machine.write(&run.machine())?;
    stratus_run::atomic::write_json(&run.plan(), &prepared.compiled.plans)?;
    // The last, since it makes the directory a run: whoever continues it finds the others.
    stratus_run::atomic::write(&run.experiment(), prepared.experiment.to_toml().as_bytes())?;
    let mut log = Log::open(&run.log())?;
    log.say(&format!("started on {}", prepared.opened.backend.describe()))?;
    observer.say(&format!(
        "{} on {}: {}, {}",
        prepared.experiment.model.name,
        prepared.experiment.data.name,
        prepared.opened.backend.describe(),
        prepared.compiled.plans.train.program.precision
    ));
    observer.say(&format!("run directory {}", run.path().display()));
    train(prepared, feed, run, lock, log, None, options, begun, observer)
}

/// Continues a run from its newest good checkpoint.
///
/// # Errors
/// Where it is no run, another process holds it, or as [`start`].
pub fn resume(path: &Path, options: &Options, observer: &mut dyn Observer) -> Result<Finished, TrainError> {
    let begun = Instant::now();
    let run = RunDir::open(path)?;
    let lock = run.lock()?;
    run.prepare()?;
    let experiment = Experiment::load(&run.experiment())?;
    let mut log = Log::open(&run.log())?;
    let recovery = Checkpoints::new(run.checkpoints()).load_latest()?;
    for damage in &recovery.damaged {
        let text =
            format!("checkpoint {} is damaged and left aside: {}", damage.path.display(), damage.reason);
        observer.warn(&text);
        log.say(&text)?;
    }
    if let (Ok(summary), Some(checkpoint)) = (Summary::read(&run.summary()), &recovery.checkpoint)
        && summary.status == Status::Completed
        && summary.iterations == checkpoint.state.iteration
    {
        observer.say(&format!("{} is complete: nothing is left to train", run.path().display()));
        return Ok(Finished { run, summary, interrupted: false });
    }
    let recorded: Option<Plans> = stratus_run::atomic::read_json(&run.plan()).ok();
    let planning = match &recorded {
        Some(plans) if !options.remeasure => Planning::Repeat(plans),
        _ => Planning::Cached,
    };
    let mut prepared = match prepare(experiment.clone(), &planning, observer) {
        Err(TrainError::Engine(error)) if matches!(planning, Planning::Repeat(_)) => {
            observer.warn(&format!("the plan of this run cannot be repeated here ({error})"));
            prepare(experiment, &Planning::Cached, observer)?
        }
        other => other?,
    };
    if recorded.as_ref() != Some(&prepared.compiled.plans) {
        let recorded = recorded.map_or("nothing".to_owned(), |plans| plans.train.library);
        let text = format!(
            "this run continues with another plan: it was planned for {recorded}, and runs now on {}. Its results are as good, and \
             not the same bits as without the interruption",
            prepared.opened.backend.describe()
        );
        observer.warn(&text);
        log.say(&text)?;
        stratus_run::atomic::write_json(&run.plan(), &prepared.compiled.plans)?;
    }
    match &recovery.checkpoint {
        Some(checkpoint) => {
            state::restore(&mut prepared.compiled, checkpoint, true)?;
            let text = format!("continued after iteration {}", checkpoint.state.iteration);
            log.say(&text)?;
            observer.say(&format!("{}: {text}", run.path().display()));
        }
        None => {
            initialise(&mut prepared.compiled.session, &prepared.graph, prepared.experiment.train.seed)?;
            state::refresh(&mut prepared.compiled)?;
            if recovery.damaged.is_empty() {
                let text = "there is no checkpoint yet: training begins at the first iteration";
                log.say(text)?;
                observer.say(&format!("{}: {text}", run.path().display()));
            } else {
                let text = "no checkpoint can be used: training begins again at the first iteration";
                log.say(text)?;
                observer.warn(&format!("{}: {text}", run.path().display()));
            }
        }
    }
    let state = recovery.checkpoint.map(|checkpoint| checkpoint.state);
    let position = state
        .as_ref()
        .map_or(Position::default(), |state| Position { epoch: state.epoch, batch: state.batch });
    let feed = Feed::new(&prepared, position)?;
    train(prepared, feed, run, lock, log, state, options, begun, observer)
}

#[allow(clippy::too_many_arguments)] // The two ways into a run meet here, each with all that it found.
fn train(
    prepared: Prepared,
    feed: Feed,
    run: RunDir,
    lock: Lock,
    log: Log,
    state: Option<stratus_run::checkpoint::State>,
    options: &Options,
    begun: Instant,
    observer: &mut dyn Observer,
) -> Result<Finished, TrainError> {
    let mut trainer = Trainer::new(prepared, feed, &run, log, state, options, begun)?;
    let outcome = trainer.run(observer);
    let (summary, interrupted) = match outcome {
        Ok(interrupted) => {
            (trainer.finish(if interrupted { Status::Interrupted } else { Status::Completed })?, interrupted)
        }
        Err(error) => {
            // The error that stopped training is the one to tell; that the summary cannot be written either adds nothing.
            let _ = trainer.finish(Status::Failed);
            return Err(error);
        }
    };
    drop(trainer);
    drop(lock);
    Ok(Finished { run, summary, interrupted })
}
