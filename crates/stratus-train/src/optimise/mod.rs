//! Makes a run's network smaller: channels are removed, and the network that is left is fine-tuned. The
//! result is a run of its own, which resumes, is evaluated and reported as any other.
//!
//! ```text
//! run ──gradients of calibration batches──▶ importance of channels ──choose, remove──▶ smaller model
//!     ──optimise/network.toml, weights.safetensors──▶ run::start ──▶ run directory
//! ```
//!
//! A request that is killed before the first iteration is repeated: it removes the same channels with the
//! same kernels, which the plan cache of the machine keeps. From then on it resumes with the same bits.

mod fake_quantisation;
mod fine_tuning;
mod gradients;
mod latency_target;
mod quantise;
mod request;
mod variants;

use crate::input::open_datasets;
use crate::run::{self, RunOptions, RunOutcome};
use crate::weights::{TrainedNetwork, load_trained_network, model_from_tensors, model_tensors};
use crate::{Observer, TrainError};
use fine_tuning::{check_fine_tuning, fine_tuning_experiment};
use gradients::for_each_gradient;
pub use latency_target::LatencyTarget;
use latency_target::{LatencyChoice, LatencySearch};
pub use quantise::{QuantiseOptions, quantise_run};
use request::recorded_request;
pub use request::{ImportanceCriterion, OptimiseOptions, OptimiseRequest};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use stratus_base::text::shell_path;
use stratus_experiment::Experiment;
use stratus_graph::{Op, Parameter, ParameterKind, layer_file};
use stratus_optimise::Model;
use stratus_optimise::prune::{
    Importance, PruneError, Scores, Selection as ChannelSelection, Target, TaylorScores, channel_groups,
    choose, multiply_adds, remove,
};
use stratus_run::layout::{LOCK, OPTIMISE, OPTIMISE_REQUEST};
use stratus_run::lock::{Lock, LockState, lock_state};
use stratus_run::machine::Machine;
use stratus_run::optimised::{PrunedLayer, Pruning};
use stratus_run::quantisation::Quantisation;
use stratus_run::summary::{Status, Summary};
use stratus_run::{RunDir, atomic};
use stratus_weights::write_safetensors;
pub use variants::{VariantTable, measure_variants};

/// An optimised run.
#[derive(Debug)]
pub struct Optimised {
    /// The run, and whether its training was interrupted.
    pub outcome: RunOutcome,
    /// The request, with what was chosen to reach a latency.
    pub request: OptimiseRequest,
}

/// Makes the network of a finished run smaller and fine-tunes it in the directory `options.out`, or resumes
/// that.
///
/// # Errors
/// If the run is not finished or cannot be read, the target cannot be reached, the directory has another
/// request, or training fails.
pub fn optimise(
    source: &Path,
    asked: &OptimiseOptions,
    options: &RunOptions,
    machine: Machine,
    observer: &mut dyn Observer,
) -> Result<Optimised, TrainError> {
    let Some(out) = &options.out else {
        return Err(configuration_error(
            "the directory of the optimised run is not set",
            "give it with --out DIR",
        ));
    };
    let origin = RunDir::open(source)?;
    let trained_epochs = finished_epochs(&origin)?;
    let experiment = Experiment::load(&origin.experiment())?;
    let trained = load_trained_network(source, asked.checkpoint, &mut |text: &str| observer.warn(text))?;
    let mut request = OptimiseRequest::new(source, asked, &trained, trained_epochs)?;
    if RunDir::is_run(out) {
        request = recorded_request(&RunDir::open(out)?, &request)?;
    }
    let model = trained_model(&trained)?;
    let mut chosen = None;
    if let (Some(target), false) = (request.target, RunDir::is_run(out)) {
        RunDir::check_creatable(out)?;
        let tuned = fine_tuning_experiment(&experiment, trained_epochs, &request, out)?;
        check_fine_tuning(&tuned, &model.graph)?;
        let search = LatencySearch {
            run: source,
            checkpoint: asked.checkpoint,
            experiment: &experiment.clone().with_overrides(&request.set)?,
            model: &model,
            request: &request,
            stop: &options.stop,
        };
        let choice = search.choose(target, observer)?;
        request.prune = choice.share;
        request.int8 = choice.quantisation.as_ref().map(|_| target.int8());
        chosen = Some(choice);
    }
    let Some(share) = request.prune else {
        if request.epochs > 0 && request.target.is_none() {
            let start =
                fake_quantisation::FineTuningStart { run: source, experiment, trained, trained_epochs };
            let outcome = start.fine_tune(&request, options, machine, observer)?;
            return Ok(Optimised { outcome, request });
        }
        // The calibration needs images: checked before anything is written.
        open_datasets(&experiment.clone().with_overrides(&request.set)?)?;
        if chosen.is_some() && (request.teacher || asked.epochs.is_some()) {
            observer.warn(
                "int8 alone is fast enough: nothing is pruned or fine-tuned, so --teacher and --epochs have \
                 no effect",
            );
        }
        let quantisation = chosen.and_then(|LatencyChoice { quantisation, .. }| quantisation);
        let outcome = copy_run(&origin, &trained, &request, quantisation.as_ref(), out)?;
        return Ok(Optimised { outcome, request });
    };
    let tuned = fine_tuning_experiment(&experiment, trained_epochs, &request, out)?;
    if RunDir::is_run(out) {
        return resume(out, request, options, observer);
    }
    RunDir::check_creatable(out)?;
    let pruned = match chosen.and_then(|LatencyChoice { pruned, .. }| pruned) {
        Some(pruned) => pruned,
        None => {
            check_fine_tuning(&tuned, &model.graph)?;
            remove_channels(&model, &experiment, &request, share, &options.stop, observer)?
        }
    };
    let remains = StartFiles::before(out);
    match write_start(out, &request, [&model, &pruned], &trained, observer) {
        // Another process ran the same command in the meantime.
        Err(_) if RunDir::is_run(out) && lock_state(out)? == LockState::Free => {
            let request = recorded_request(&RunDir::open(out)?, &request)?;
            return resume(out, request, options, observer);
        }
        written => written?,
    }
    let started = run::start(&tuned, options, machine, observer);
    if started.is_err() {
        remains.remove();
    }
    Ok(Optimised { outcome: started?, request })
}

/// Resumes the run of the same request, or does nothing if it is complete.
fn resume(
    out: &Path,
    request: OptimiseRequest,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Optimised, TrainError> {
    let run = RunDir::open(out)?;
    // It is a part of the result: it must be readable before hours of training.
    Pruning::read(&run)?;
    let outcome = run::resume(out, &RunOptions { out: None, ..options.clone() }, observer)?;
    Ok(Optimised { outcome, request })
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

    /// Removes the files that [`write_start`] wrote, unless they belong to a run. What cannot be removed
    /// stays: the next start replaces it.
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

/// The number formats in which networks are compared: bf16 only if the device has native bf16.
fn compared_precisions(
    run: &Path,
    overrides: &[(String, String)],
) -> Result<&'static [&'static str], TrainError> {
    let experiment = Experiment::load(&RunDir::open(run)?.experiment())?.with_overrides(overrides)?;
    let has_bf16 = crate::device::open(&experiment.train)?.has_native_bf16;
    Ok(if has_bf16 { &["f32", "bf16"] } else { &["f32"] })
}

/// Copies a run whose network is only quantised, with its int8 layers if they are chosen, unless that was
/// done before.
fn copy_run(
    origin: &RunDir,
    trained: &TrainedNetwork,
    request: &OptimiseRequest,
    quantisation: Option<&Quantisation>,
    out: &Path,
) -> Result<RunOutcome, TrainError> {
    let summary = Summary::read(&origin.summary())?;
    let iteration = trained.checkpoint.state.iteration;
    if summary.iterations != iteration {
        let problem = format!(
            "the results of the run are those after iteration {}, not after {iteration}",
            summary.iterations
        );
        return Err(configuration_error(
            &problem,
            "int8 alone copies the run with its results: choose its last checkpoint, or add --prune",
        ));
    }
    if !RunDir::is_run(out) {
        RunDir::check_creatable(out)?;
        // A copy that was killed is not a run: it is replaced.
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = out.with_file_name(name);
        if let Err(error) = RunDir::create_at(&part) {
            let is_copy = atomic::read_json::<OptimiseRequest>(&part.join(OPTIMISE).join(OPTIMISE_REQUEST));
            is_copy.map_err(|_| error)?;
            fs::remove_dir_all(&part).map_err(stratus_run::Error::io("remove", &part))?;
        }
        let target = RunDir::create_at(&part)?;
        let folder = target.optimise();
        fs::create_dir_all(&folder).map_err(stratus_run::Error::io("create the folder", &folder))?;
        atomic::write_json(&target.optimise_request(), request)?;
        if let Some(quantisation) = quantisation {
            quantisation.write(&target.optimise_quantisation())?;
        }
        let weights = trained.checkpoint.evaluation_weights_file();
        origin.copy_to(&target, weights.parent().unwrap_or(&weights))?;
        fs::rename(&part, out).map_err(stratus_run::Error::io("create", out))?;
    }
    let run = RunDir::open(out)?;
    recorded_request(&run, request)?;
    Ok(RunOutcome { run, summary, interrupted: false })
}

/// Writes the directory `optimise` of a new run: the request, the smaller network, and how they compare.
fn write_start(
    out: &Path,
    request: &OptimiseRequest,
    [model, pruned]: [&Model; 2],
    trained: &TrainedNetwork,
    observer: &mut dyn Observer,
) -> Result<(), TrainError> {
    let (target, _lock) = start_directory(out, request, pruned, trained)?;
    let pruning = compare(model, pruned);
    atomic::write_json(&target.optimise_pruning(), &pruning)?;
    announce(&pruning, observer);
    Ok(())
}

/// Locks a new run, and writes the request and the network that its training starts from.
fn start_directory(
    out: &Path,
    request: &OptimiseRequest,
    start: &Model,
    trained: &TrainedNetwork,
) -> Result<(RunDir, Lock), TrainError> {
    let target = RunDir::create_at(out)?;
    // Another process with the same directory waits, or is refused.
    let lock = target.lock()?;
    if RunDir::is_run(out) {
        return Err(stratus_run::Error::NotEmpty { path: out.to_owned() }.into());
    }
    let folder = target.optimise();
    fs::create_dir_all(&folder).map_err(stratus_run::Error::io("create the folder", &folder))?;
    atomic::write_json(&target.optimise_request(), request)?;
    write_model(start, trained, &target)?;
    Ok((target, lock))
}

fn configuration_error(problem: &str, hint: &str) -> TrainError {
    TrainError::Configuration { problem: problem.to_owned(), hint: hint.to_owned() }
}

/// The epochs of a run that has finished, or stopped early because it no longer improved.
pub(crate) fn finished_epochs(run: &RunDir) -> Result<u64, TrainError> {
    let path = shell_path(run.path());
    let problem = match Summary::read(&run.summary()) {
        Ok(summary) if summary.status == Status::Completed => return Ok(u64::from(summary.epochs)),
        Ok(summary) => format!("the run {path} is {}", summary.status.name()),
        Err(_) => format!("the run {path} has no summary: it has not finished"),
    };
    let hint = format!("finish it with `stratus train {path}`");
    Err(TrainError::Configuration { problem, hint })
}

/// Removes channels of a trained network.
fn remove_channels(
    model: &Model,
    experiment: &Experiment,
    request: &OptimiseRequest,
    share: f64,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Model, TrainError> {
    let scores = channel_scores(model, experiment, request, stop, observer)?;
    let target = Target { granularity: request.granularity, ..Target::new(share) };
    remove_selection(model, &choose(&model.graph, &scores, &target)?, &mut |text| observer.info(text))
}

/// The importance of the channels of a trained network.
fn channel_scores(
    model: &Model,
    experiment: &Experiment,
    request: &OptimiseRequest,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Scores, TrainError> {
    let importance = match request.importance {
        ImportanceCriterion::Random => Importance::Random { seed: experiment.train.seed },
        ImportanceCriterion::L1 => Importance::L1,
        ImportanceCriterion::Taylor => {
            let mut taylor = TaylorScores::new(model)?;
            let batches = request.calibration_batches;
            let of = if batches == 1 { "a batch".to_owned() } else { format!("{batches} batches") };
            observer.info(&format!("importance of channels by the gradients of {of}"));
            for_each_gradient(experiment, model, batches, stop, observer, |gradients| {
                Ok(taylor.add(gradients)?)
            })?;
            return Ok(Importance::Taylor(&taylor).scores(model)?);
        }
    };
    Ok(importance.scores(model)?)
}

/// Removes the selected channels, and says if outputs change by more than their absence.
fn remove_selection(
    model: &Model,
    selection: &ChannelSelection,
    inform: &mut dyn FnMut(&str),
) -> Result<Model, TrainError> {
    let groups = channel_groups(&model.graph)?;
    if selection.removed.keys().any(|group| groups.get(*group).is_some_and(|group| !group.is_exact)) {
        inform("norms over several channels, whose statistics change, have lost some of them");
    }
    Ok(remove(model, selection)?)
}

/// A trained network without auxiliary outputs, which only its first training needs, and without frozen
/// layers: all have to adapt to the channels that are left.
fn trained_model(trained: &TrainedNetwork) -> Result<Model, TrainError> {
    let tensors = trained.checkpoint.evaluation_weights().to_vec();
    let mut model = model_from_tensors(&trained.graph, tensors)?;
    model.graph.nodes.iter_mut().for_each(|node| node.frozen = false);
    model.graph.parameters.iter_mut().for_each(|parameter| parameter.frozen = false);
    Ok(model)
}

/// Writes the layer file and the weights of the smaller network to the directory `optimise` of a run.
fn write_model(model: &Model, trained: &TrainedNetwork, target: &RunDir) -> Result<(), TrainError> {
    let path = target.optimise_network();
    let text = layer_file::write(&model.graph)
        .map_err(|error| TrainError::LayerFile { problem: error.to_string(), path: path.clone() })?;
    atomic::write(&path, text.as_bytes())?;
    let tensors = model_tensors(model);
    let path = target.optimise_weights();
    Ok(atomic::write_with(&path, |out| {
        write_safetensors(out, &tensors, &trained.metadata.entries())
            .map_err(stratus_run::Error::io("write", &path))
    })?)
}

fn compare(before: &Model, after: &Model) -> Pruning {
    let layers = std::iter::zip(&before.graph.nodes, &after.graph.nodes).filter_map(|(node, pruned)| {
        let channels = [output_channels(&node.op)?, output_channels(&pruned.op)?];
        let layer = node.name.clone();
        (channels[0] != channels[1]).then_some(PrunedLayer { layer, channels })
    });
    let parameters = |model: &Model| {
        let trained = model.graph.parameters.iter().filter(|p| p.kind == ParameterKind::Trained);
        trained.map(Parameter::elements).sum()
    };
    Pruning {
        multiply_adds: [before, after].map(|model| multiply_adds(&model.graph)),
        parameters: [before, after].map(parameters),
        layers: layers.collect(),
    }
}

/// The output channels or features of a convolution or linear layer.
fn output_channels(op: &Op) -> Option<usize> {
    match op {
        Op::Conv2d(conv) => Some(conv.out_channels),
        Op::ConvTranspose2d(conv) => Some(conv.out_channels),
        Op::Linear(linear) => Some(linear.out_features),
        Op::PointwiseLinear(linear) => Some(linear.out_channels),
        _ => None,
    }
}

fn announce(pruning: &Pruning, observer: &mut dyn Observer) {
    let percent = |[before, after]: [f64; 2]| 100.0 * after / before.max(1.0);
    let [multiply_adds, parameters] = [
        percent(pruning.multiply_adds.map(|count| count as f64)),
        percent(pruning.parameters.map(|count| count as f64)),
    ];
    observer.info(&format!(
        "pruned: {multiply_adds:.1} % of the multiply-adds and {parameters:.1} % of the parameters are left"
    ));
}

impl From<PruneError> for TrainError {
    fn from(error: PruneError) -> Self {
        let hint = match &error {
            PruneError::Unreachable { .. } => {
                "ask for a smaller share with --prune, or let other numbers of channels remain with a \
                 smaller --granularity"
            }
            PruneError::NothingToPrune { .. } => {
                "let other numbers of channels remain with a smaller --granularity"
            }
            PruneError::NotFinite { .. } => "choose an earlier checkpoint with --checkpoint",
            _ => "this network cannot be pruned",
        };
        configuration_error(&error.to_string(), hint)
    }
}
