//! A run: started or continued in its directory, trained to its end or until it is told to stop.

mod records;
mod trainer;

use crate::compile::{Compiled, Datasets, Planning, Plans, open_datasets};
use crate::device::{self, LoadedLibrary, Opened};
use crate::experiment::Precision;
use crate::fit::fit;
use crate::initialise::initialise;
use crate::network::{LayerFile, Network};
use crate::state::Snapshot;
use crate::weights::{Pretrained, Use};
use crate::{Experiment, Observer, TrainError, state};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use stratus_data::{JpegLibrary, Position};
use stratus_engine::{Plan, Precision as Types};
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, Retention, State};
use stratus_run::layout::NETWORK;
use stratus_run::lock::Lock;
use stratus_run::log::Log;
use stratus_run::machine::{Library, Machine};
use stratus_run::sources::{Source, Sources};
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
    layer_file: Option<LayerFile>,
    /// What the weights begin with, where that is asked for.
    pretrained: Option<Pretrained>,
    opened: Opened,
    compiled: Compiled,
}

/// The key of what decodes JPEG files among a checkpoint's libraries.
const JPEG: &str = "jpeg";

/// Whether a run begins, so that its first weights are needed, or continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    First,
    Continued,
}

fn prepare(
    mut experiment: Experiment,
    beginning: Beginning,
    planning: &Planning<'_>,
    observer: &mut dyn Observer,
) -> Result<Prepared, TrainError> {
    let datasets = open_datasets(&experiment)?;
    let Network { graph, layer_file } = Network::of(&experiment, datasets.train.as_ref(), datasets.shape)?;
    let weights = experiment.model.weights.as_deref().filter(|_| beginning == Beginning::First);
    let mut warn = |text: &str| observer.warn(text);
    let pretrained = weights
        .map(|path| Pretrained::open(Path::new(path), &graph, Use::Training, &mut warn))
        .transpose()?;
    let opened = device::open(&experiment.train)?;
    for warning in &opened.warnings {
        observer.warn(warning);
    }
    let precision = opened.precision(experiment.train.precision)?;
    if precision == Types::Bf16 && !opened.fast_bf16 {
        observer.warn(
            "train.precision is bf16, and this processor has no instructions for it: f32 is faster here",
        );
    }
    let damaged = datasets.train.damaged().len() + datasets.validation.damaged().len();
    if damaged > 0 {
        observer.warn(&format!("damaged images are left out ({damaged}); the summary lists them"));
    }
    let mut warn = |text: &str| observer.warn(text);
    let (_, planned) = fit(&mut experiment, &graph, &opened, datasets.train.as_ref(), planning, &mut warn)?;
    let compiled = planned.allocate(opened.backend.as_ref())?;
    // What was left open is now decided, and must be the same when the run is continued.
    experiment.train.precision = match precision {
        Types::F16 => Precision::F16,
        Types::Bf16 => Precision::Bf16,
        Types::F32 | Types::F64 => Precision::F32,
    };
    experiment.train.threads = opened.backend.threads();
    experiment.train.tile_kib = Some(opened.tile_kib(experiment.train.tile_kib));
    experiment.model.classes = Some(graph.shape(graph.output).elements());
    experiment.data.shape = Some(datasets.shape.to_vec());
    let normalisation = datasets.train.normalisation().for_channels(datasets.shape[0]);
    let numbers = |values: &[f32]| Some(values.iter().map(|&value| round_trip(value)).collect());
    experiment.data.mean = experiment.data.mean.clone().or_else(|| numbers(&normalisation.mean));
    experiment.data.std = experiment.data.std.clone().or_else(|| numbers(&normalisation.std));
    Ok(Prepared { experiment, datasets, graph, layer_file, pretrained, opened, compiled })
}

impl Prepared {
    /// Sets the first weights; says where they come from.
    fn first_weights(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Compiled { session, ids, .. } = &mut self.compiled;
        initialise(session, &self.graph, &self.experiment, &self.datasets)?;
        if let Some(pretrained) = &self.pretrained {
            pretrained.write_to(session)?;
            observer.say(&format!("weights of {}", pretrained.source().path));
            pretrained.begins_anew().into_iter().for_each(|layers| observer.say(layers));
        }
        state::refresh(session, ids.refresh)
    }

    /// The files from outside that the run begins with.
    fn sources(&self) -> Sources {
        Sources {
            weights: self.pretrained.as_ref().map(|pretrained| pretrained.source().clone()),
            network: self.layer_file.as_ref().map(|file| Source::of_bytes(&file.path, file.text.as_bytes())),
        }
    }

    /// What a checkpoint records beside tensors and positions, whenever it is written.
    fn state(&self) -> State {
        State {
            seed: self.experiment.train.seed,
            threads: u32::try_from(self.opened.backend.threads()).unwrap_or(u32::MAX),
            device: self.opened.backend.name().to_owned(),
            libraries: self
                .opened
                .libraries
                .iter()
                .map(|library| (library.name.clone(), library.version.clone()))
                .collect(),
            plan_hash: self.compiled.plans.hash(),
            ..State::default()
        }
    }

    /// Writes what the run took from outside into its directory, so that nobody needs it again: the layer file, and the weights as a checkpoint
    /// before the first iteration.
    fn keep_sources(&self, run: &RunDir) -> Result<(), TrainError> {
        let checkpoints = Checkpoints::new(run.checkpoints());
        // Of a start that was killed in the same directory.
        checkpoints.remove_all()?;
        self.sources().write(&run.sources())?;
        if let Some(file) = &self.layer_file {
            stratus_run::atomic::write(&run.network(), file.text.as_bytes())?;
        }
        if self.pretrained.is_some() {
            let snapshot = Snapshot::new(&self.compiled, &self.graph, 0)?;
            let (weights, optimiser) = (snapshot.weights(), snapshot.optimiser());
            checkpoints.save(&self.state(), &weights, &optimiser, &Retention::default())?;
        }
        Ok(())
    }

    /// What the run took from outside, for the log.
    fn say_sources(&self, log: &mut Log) -> Result<(), TrainError> {
        let Sources { weights, network } = self.sources();
        for source in [network, weights].into_iter().flatten() {
            log.say(&format!("begins with {}, sha256 {}", source.path, source.sha256))?;
        }
        let anew = self.pretrained.as_ref().and_then(Pretrained::begins_anew);
        Ok(anew.map_or(Ok(()), |layers| log.say(layers))?)
    }
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
    let mut prepared = prepare(experiment, Beginning::First, &planning, observer)?;
    prepared.first_weights(observer)?;
    let feed = Feed::new(&prepared, Position::default())?;
    // From here on the disk is written to.
    let run = match &options.out {
        Some(out) => RunDir::create_at(out)?,
        None => RunDir::create(Path::new("runs"), prepared.experiment.name())?,
    };
    let lock = run.lock()?;
    run.prepare()?;
    for LoadedLibrary { name, version, path } in prepared.opened.libraries.clone() {
        machine.libraries.insert(name, Library { version, path });
    }
    machine.write(&run.machine())?;
    stratus_run::atomic::write_json(&run.plan(), &prepared.compiled.plans)?;
    prepared.keep_sources(&run)?;
    let mut recorded = prepared.experiment.clone();
    if prepared.layer_file.is_some() {
        // The copy, beside the configuration.
        recorded.experiment.name = Some(recorded.name().to_owned());
        recorded.model.name = NETWORK.to_owned();
    }
    // The last, since it makes the directory a run: whoever continues it finds the others.
    stratus_run::atomic::write(&run.experiment(), recorded.to_toml().as_bytes())?;
    let mut log = Log::open(&run.log())?;
    log.say(&format!("started on {}", prepared.opened.backend.describe()))?;
    prepared.say_sources(&mut log)?;
    observer.say(&format!(
        "{} on {}: {}, {}",
        prepared.graph.name,
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
    let chosen = recorded.as_ref().map(Plans::chosen);
    let planning = match &chosen {
        Some(chosen) if !options.remeasure => Planning::Repeat(chosen),
        _ => Planning::Cached,
    };
    let beginning = if recovery.checkpoint.is_some() { Beginning::Continued } else { Beginning::First };
    let mut prepared = match prepare(experiment.clone(), beginning, &planning, observer) {
        Err(TrainError::Engine(error)) if matches!(planning, Planning::Repeat(_)) => {
            observer.warn(&format!("the plan of this run cannot be repeated here ({error})"));
            prepare(experiment, beginning, &Planning::Cached, observer)?
        }
        other => other?,
    };
    expect_sources(&run, &prepared.sources())?;
    if recorded.as_ref() != Some(&prepared.compiled.plans) {
        let recorded = recorded.map_or("nothing".to_owned(), |plans| kernels(&plans.train));
        let text = format!(
            "this run continues with another plan: it was planned for {recorded}, and runs now on {}. Its results are as good, and \
             not the same bits as without the interruption",
            kernels(&prepared.compiled.plans.train)
        );
        observer.warn(&text);
        log.say(&text)?;
        stratus_run::atomic::write_json(&run.plan(), &prepared.compiled.plans)?;
    }
    match &recovery.checkpoint {
        Some(checkpoint) => {
            state::restore(&mut prepared.compiled, checkpoint, true)?;
            if let Some(text) = other_decoder(&checkpoint.state, JpegLibrary::of_process()) {
                observer.warn(&text);
                log.say(&text)?;
            }
            let text = format!("continued after iteration {}", checkpoint.state.iteration);
            log.say(&text)?;
            observer.say(&format!("{}: {text}", run.path().display()));
        }
        None => {
            prepared.first_weights(observer)?;
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

/// The kernels that a plan was made for.
fn kernels(plan: &Plan) -> String {
    let Plan { library, kernels, .. } = plan;
    if kernels.is_empty() { library.clone() } else { format!("{library}, kernels {kernels}") }
}

/// What to say where a run has decoded JPEG files by another library than the one that does now.
fn other_decoder(state: &State, library: &JpegLibrary) -> Option<String> {
    let recorded = state.libraries.get(JPEG)?;
    (*recorded != library.to_string()).then(|| {
        format!(
            "this run continues with another decoder: its JPEG files were decoded by {recorded}, and are now by {library}. Its results are \
             as good, and not the same bits as without the interruption"
        )
    })
}

/// Checks that what a run begins with again is what it began with.
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

#[allow(clippy::too_many_arguments)] // The two ways into a run meet here, each with all that it found.
fn train(
    prepared: Prepared,
    feed: Feed,
    run: RunDir,
    lock: Lock,
    log: Log,
    state: Option<State>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_decoder_is_told_where_there_was_one() {
        let mut state = State::default();
        assert_eq!(other_decoder(&state, &JpegLibrary::Zune), None);
        state.libraries.insert(JPEG.to_owned(), JpegLibrary::Zune.to_string());
        assert_eq!(other_decoder(&state, &JpegLibrary::Zune), None);
        state.libraries.insert(JPEG.to_owned(), "libjpeg-turbo 3.0.0".to_owned());
        let text = other_decoder(&state, &JpegLibrary::Zune).unwrap();
        assert!(text.contains("by libjpeg-turbo 3.0.0, and are now by zune-jpeg 0.5"), "{text}");
    }
}
