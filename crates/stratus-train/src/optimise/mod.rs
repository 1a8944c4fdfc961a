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

use crate::infer::load_for_inference;
use crate::input::open_datasets;
use crate::run::{self, RunOptions, RunOutcome};
use crate::weights::{
    CheckpointChoice, TrainedNetwork, finished_epochs, load_trained_network, model_from_tensors,
    model_tensors,
};
use crate::{Observer, TrainError};
use fine_tuning::{FineTuning, check_fine_tuning, fine_tuning_experiment};
use gradients::for_each_gradient;
pub use latency_target::LatencyTarget;
use latency_target::{LatencyChoice, LatencySearch};
pub use quantise::{QuantiseOptions, quantise_run};
use request::recorded_request;
pub use request::{ImportanceCriterion, OptimiseOptions, OptimiseRequest};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use stratus_experiment::Experiment;
use stratus_graph::{Op, Parameter, ParameterKind, layer_file};
use stratus_optimise::Model;
use stratus_optimise::prune::{
    Importance, PruneError, Scores, Selection as ChannelSelection, Target, TaylorScores, channel_groups,
    choose, multiply_adds, remove,
};
use stratus_run::layout::{OPTIMISE, OPTIMISE_REQUEST};
use stratus_run::machine::Machine;
use stratus_run::optimised::{PrunedLayer, Pruning};
use stratus_run::quantisation::Quantisation;
use stratus_run::summary::Summary;
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

/// A finished run whose network is optimised.
struct SourceRun<'a> {
    path: &'a Path,
    run: RunDir,
    /// The experiment as it was trained.
    experiment: Experiment,
    /// The network with the weights of the chosen checkpoint.
    trained: TrainedNetwork,
    /// The epochs that it was trained.
    epochs: u64,
}

/// Makes the network of a finished run smaller and faster in the directory `options.out`, and fine-tunes it;
/// or resumes that.
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
    let out = directory(options)?;
    let source = SourceRun::open(source, asked.checkpoint, observer)?;
    let mut request = OptimiseRequest::new(source.path, asked, &source.trained, source.epochs)?;
    let mut choice = LatencyChoice::default();
    if RunDir::is_run(out) {
        request = recorded_request(&RunDir::open(out)?, &request)?;
    } else if let Some(target) = request.target {
        choice = source.choose(target, asked.checkpoint, &request, options, observer)?;
        request.prune = choice.share;
        request.int8 = choice.quantisation.as_ref().map(|_| target.int8);
        if request.prune.is_none() && (request.teacher || asked.epochs.is_some()) {
            observer.warn(
                "int8 alone is fast enough: nothing is pruned or fine-tuned, so --teacher and --epochs have \
                 no effect",
            );
        }
    }
    if request.prune.is_some() {
        source.prune(request, choice.pruned, options, machine, observer)
    } else if request.epochs > 0 && request.target.is_none() {
        source.fine_tune_for_int8(request, options, machine, observer)
    } else {
        source.copy(&request, choice.quantisation.as_ref(), out)
    }
}

/// The directory of the optimised run.
fn directory(options: &RunOptions) -> Result<&Path, TrainError> {
    options.out.as_deref().ok_or_else(|| {
        configuration_error("the directory of the optimised run is not set", "give it with --out DIR")
    })
}

impl<'a> SourceRun<'a> {
    fn open(
        path: &'a Path,
        checkpoint: CheckpointChoice,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let run = RunDir::open(path)?;
        let epochs = finished_epochs(&run)?;
        let experiment = Experiment::load(&run.experiment())?;
        let trained = load_trained_network(path, checkpoint, &mut |text: &str| observer.warn(text))?;
        Ok(Self { path, run, experiment, trained, epochs })
    }

    /// The experiment with the keys of the request, without what concerns the training of the run only.
    fn experiment_for(&self, request: &OptimiseRequest) -> Result<Experiment, TrainError> {
        load_for_inference(&self.run, None, &request.set)
    }

    /// Chooses how to reach a latency.
    fn choose(
        &self,
        target: LatencyTarget,
        checkpoint: CheckpointChoice,
        request: &OptimiseRequest,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<LatencyChoice, TrainError> {
        let out = directory(options)?;
        RunDir::check_creatable(out)?;
        let model = trained_model(&self.trained)?;
        let tuned = fine_tuning_experiment(&self.experiment, self.epochs, request, out)?;
        check_fine_tuning(&tuned, &model.graph)?;
        let search = LatencySearch {
            run: self.path,
            checkpoint,
            experiment: &self.experiment_for(request)?,
            model: &model,
            request,
            stop: &options.stop,
        };
        search.choose(target, observer)
    }

    /// Fine-tunes the network without some of its channels; `pruned` is that network, if it is known.
    fn prune(
        &self,
        request: OptimiseRequest,
        pruned: Option<Model>,
        options: &RunOptions,
        machine: Machine,
        observer: &mut dyn Observer,
    ) -> Result<Optimised, TrainError> {
        let out = directory(options)?;
        let tuned = fine_tuning_experiment(&self.experiment, self.epochs, &request, out)?;
        // The record of what was removed is a part of the result: it must be readable before the training.
        let check = |run: &RunDir| Ok(Pruning::read(run).map(drop)?);
        if RunDir::is_run(out) {
            return resume(request, check, options, observer);
        }
        RunDir::check_creatable(out)?;
        let model = trained_model(&self.trained)?;
        let pruned = match pruned {
            Some(pruned) => pruned,
            None => {
                check_fine_tuning(&tuned, &model.graph)?;
                let experiment = self.experiment_for(&request)?;
                remove_channels(&model, &experiment, &request, &options.stop, observer)?
            }
        };
        let pruning = compare(&model, &pruned);
        announce(&pruning, observer);
        let start = FineTuning { request: &request, tuned: &tuned, start: &pruned, trained: &self.trained };
        let record = |run: &RunDir| Ok(atomic::write_json(&run.optimise_pruning(), &pruning)?);
        match start.begin(record, options, machine, observer)? {
            Some(outcome) => Ok(Optimised { outcome, request }),
            None => resume(recorded_request(&RunDir::open(out)?, &request)?, check, options, observer),
        }
    }

    /// Copies the run, whose network is only quantised, with its int8 layers if they are chosen, unless that
    /// was done before.
    fn copy(
        &self,
        request: &OptimiseRequest,
        quantisation: Option<&Quantisation>,
        out: &Path,
    ) -> Result<Optimised, TrainError> {
        // The calibration needs images: checked before anything is written.
        open_datasets(&self.experiment_for(request)?)?;
        let summary = Summary::read(&self.run.summary())?;
        let iteration = self.trained.checkpoint.state.iteration;
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
                let is_copy =
                    atomic::read_json::<OptimiseRequest>(&part.join(OPTIMISE).join(OPTIMISE_REQUEST));
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
            let weights = self.trained.checkpoint.evaluation_weights_file();
            self.run.copy_to(&target, weights.parent().unwrap_or(&weights))?;
            fs::rename(&part, out).map_err(stratus_run::Error::io("create", out))?;
        }
        let run = RunDir::open(out)?;
        let request = recorded_request(&run, request)?;
        Ok(Optimised { outcome: RunOutcome { run, summary, interrupted: false }, request })
    }
}

/// Resumes the run of a request, after `check`, or does nothing if it is complete.
fn resume(
    request: OptimiseRequest,
    check: impl FnOnce(&RunDir) -> Result<(), TrainError>,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Optimised, TrainError> {
    let out = directory(options)?;
    check(&RunDir::open(out)?)?;
    let outcome = run::resume(out, &RunOptions { out: None, ..options.clone() }, observer)?;
    Ok(Optimised { outcome, request })
}

/// The number formats in which networks are compared: bf16 only if the device has native bf16.
fn compared_precisions(
    run: &Path,
    overrides: &[(String, String)],
) -> Result<&'static [&'static str], TrainError> {
    let experiment = load_for_inference(&RunDir::open(run)?, None, overrides)?;
    let has_bf16 = crate::device::open(&experiment.train)?.has_native_bf16;
    Ok(if has_bf16 { &["f32", "bf16"] } else { &["f32"] })
}

fn configuration_error(problem: &str, hint: &str) -> TrainError {
    TrainError::Configuration { problem: problem.to_owned(), hint: hint.to_owned() }
}

/// Removes channels of a trained network.
fn remove_channels(
    model: &Model,
    experiment: &Experiment,
    request: &OptimiseRequest,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<Model, TrainError> {
    let scores = channel_scores(model, experiment, request, stop, observer)?;
    let share = request.prune.unwrap_or_default();
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
