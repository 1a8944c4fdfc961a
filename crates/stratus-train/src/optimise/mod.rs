//! Makes a run's network smaller: channels are removed, and what is left is trained on for a while. The
//! result is a run of its own, which resumes, is evaluated and reported as any other.
//!
//! ```text
//! run ──gradients of calibration batches──▶ importance of channels ──choose, remove──▶ smaller model
//!     ──optimise/network.toml, weights.safetensors──▶ run::start ──▶ run directory
//! ```
//!
//! Every step is a function of the run and the request, so a request that was killed is repeated or resumed
//! with the same bits.

mod fine_tuning;
mod gradients;
mod variants;

use crate::run::{self, RunOptions, RunOutcome};
use crate::weights::{CheckpointChoice, TrainedNetwork, load_trained_network};
use crate::{Observer, TrainError};
use fine_tuning::fine_tuning;
use gradients::for_each_gradient;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use stratus_base::text::shell_path;
use stratus_experiment::Experiment;
use stratus_graph::layer_file;
use stratus_optimise::Model;
use stratus_optimise::prune::{Importance, PruneError, Target, TaylorScores, choose, multiply_adds, remove};
use stratus_run::checkpoint::Values;
use stratus_run::machine::Machine;
use stratus_run::sources::Source;
use stratus_run::summary::{Status, Summary};
use stratus_run::{RunDir, atomic};
use stratus_weights::{TensorRef, write_safetensors};
pub use variants::{VariantTable, measure_variants};

/// The measure by which channels are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportanceMeasure {
    /// The expected change of the loss, by its gradients on training images (Molchanov et al.: "Importance
    /// estimation for neural network pruning", 2019).
    #[default]
    Taylor,
    /// The magnitude of the weights.
    L1,
    /// None: channels are drawn at random, to compare.
    Random,
}

/// The request: a run, its weights and options. The content of `optimise/request.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimiseRequest {
    /// The run whose network is made smaller.
    pub run: String,
    /// The weights of that run: SHA-256 in lower-case hexadecimal, and path.
    pub weights: Source,
    /// The share of the multiply-adds to remove, above 0 and below 1.
    pub prune: f64,
    /// The measure by which channels are chosen.
    pub importance: ImportanceMeasure,
    /// The number of training batches whose gradients are used.
    pub calibration_batches: usize,
    /// A multiple of this number of channels remains of each layer.
    pub granularity: usize,
    /// The epochs of training afterwards.
    pub epochs: u64,
    /// Configuration keys of that training, with their values.
    pub set: Vec<(String, String)>,
}

/// The options of [`optimise`].
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiseOptions {
    /// The checkpoint to start from.
    pub checkpoint: CheckpointChoice,
    /// The share of the multiply-adds to remove, above 0 and below 1.
    pub prune: f64,
    /// The measure by which channels are chosen.
    pub importance: ImportanceMeasure,
    /// The number of training batches whose gradients are used, at least one.
    pub calibration_batches: usize,
    /// A multiple of this number of channels remains of each layer, at least one.
    pub granularity: usize,
    /// The epochs of training afterwards; `None` for a fifth of those of the run, at least one.
    pub epochs: Option<u64>,
    /// Configuration keys of that training, with their values.
    pub set: Vec<(String, String)>,
}

/// The effect of the removal of channels. The content of `optimise/pruning.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pruning {
    /// Multiply-adds of an image, before and afterwards.
    pub multiply_adds: [u64; 2],
    /// Trained parameters, before and afterwards.
    pub parameters: [usize; 2],
    /// The output channels of each convolution and linear layer that lost some.
    pub layers: Vec<PrunedLayer>,
}

/// A layer that lost output channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedLayer {
    /// Its name.
    pub layer: String,
    /// Output channels, before and afterwards.
    pub channels: [usize; 2],
}

/// Makes the network of a finished run smaller and trains it in the directory `options.out`, or resumes
/// that.
///
/// # Errors
/// If the run is not finished or cannot be read, the target cannot be reached, the directory has another
/// request, or training fails.
pub fn optimise(
    source: &Path,
    request: &OptimiseOptions,
    options: &RunOptions,
    machine: Machine,
    observer: &mut dyn Observer,
) -> Result<RunOutcome, TrainError> {
    let Some(out) = &options.out else {
        return Err(configuration("the directory of the optimised run is not set", "give it with --out DIR"));
    };
    let mut warn = |text: &str| observer.warn(text);
    let origin = RunDir::open(source)?;
    check_finished(&origin)?;
    let experiment = Experiment::load(&origin.experiment())?;
    // Its keys are checked before anything is computed or written.
    experiment.clone().with_overrides(&request.set)?;
    let trained = load_trained_network(source, request.checkpoint, &mut warn)?;
    let weights = Source::from_file(&trained.checkpoint.evaluation_weights_file())?;
    let epochs = request.epochs.unwrap_or((experiment.train.epochs / 5).max(1));
    let OptimiseOptions { prune, importance, calibration_batches, granularity, set, .. } = request.clone();
    let run = source.display().to_string();
    let request =
        OptimiseRequest { run, weights, prune, importance, calibration_batches, granularity, epochs, set };
    if RunDir::is_run(out) {
        check_same_request(&RunDir::open(out)?, &request)?;
        return run::resume(out, &RunOptions { out: None, ..options.clone() }, observer);
    }
    RunDir::check_creatable(out)?;
    let model = trained_model(&trained);
    let pruned = remove_channels(&model, &experiment, &request, &mut warn)?;
    let target = RunDir::create_at(out)?;
    std::fs::create_dir_all(target.optimise())
        .map_err(stratus_run::Error::io("create", &target.optimise()))?;
    atomic::write_json(&target.optimise_request(), &request)?;
    write_model(&pruned, &trained, &target)?;
    let pruning = describe(&model, &pruned);
    atomic::write_json(&target.optimise_pruning(), &pruning)?;
    report(&pruning, observer);
    let experiment = fine_tuning(&experiment, &request, &target)?;
    run::start(&experiment, options, machine, observer)
}

fn configuration(problem: &str, hint: &str) -> TrainError {
    TrainError::Configuration { problem: problem.to_owned(), hint: hint.to_owned() }
}

/// Checks that a run has trained all of its epochs.
fn check_finished(run: &RunDir) -> Result<(), TrainError> {
    let path = shell_path(run.path());
    let problem = match Summary::read(&run.summary()).map(|summary| summary.status) {
        Ok(Status::Completed) => return Ok(()),
        Ok(status) => format!("the run {path} is {}", status.name()),
        Err(_) => format!("the run {path} has no summary: it has not finished"),
    };
    let hint = format!("finish it with `stratus train {path}`");
    Err(TrainError::Configuration { problem, hint })
}

/// Checks that a run is the answer to a request.
fn check_same_request(run: &RunDir, request: &OptimiseRequest) -> Result<(), TrainError> {
    let folder = shell_path(run.path());
    if !run.optimise_request().exists() {
        let problem = format!("{folder} is another run");
        return Err(configuration(&problem, "choose another directory with --out"));
    }
    let known: OptimiseRequest = atomic::read_json(&run.optimise_request())?;
    if known == *request {
        return Ok(());
    }
    Err(configuration(
        &format!("{folder} was begun with other options or weights"),
        "repeat those, which `optimise/request.json` in it names, or choose another directory with --out",
    ))
}

/// Removes channels of a trained network.
fn remove_channels(
    model: &Model,
    experiment: &Experiment,
    request: &OptimiseRequest,
    warn: &mut dyn FnMut(&str),
) -> Result<Model, TrainError> {
    let scores = match request.importance {
        ImportanceMeasure::Random => Importance::Random { seed: experiment.train.seed }.scores(model)?,
        ImportanceMeasure::L1 => Importance::L1.scores(model)?,
        ImportanceMeasure::Taylor => {
            let mut taylor = TaylorScores::new(model)?;
            let (graph, values) = (&model.graph, &model.values);
            let mut failure = None;
            for_each_gradient(experiment, graph, values, request.calibration_batches, warn, |gradients| {
                failure = failure.take().or(taylor.add(gradients).err());
            })?;
            failure.map_or(Ok(()), Err)?;
            Importance::Taylor(&taylor).scores(model)?
        }
    };
    let selection = choose(&model.graph, &scores, &pruning_target(request))?;
    Ok(remove(model, &selection)?)
}

fn pruning_target(request: &OptimiseRequest) -> Target {
    Target { granularity: request.granularity, ..Target::new(request.prune) }
}

/// Reads the effect of the removal of channels in an optimised run.
///
/// # Errors
/// If the file cannot be read.
pub fn read_pruning(run: &RunDir) -> Result<Pruning, TrainError> {
    Ok(atomic::read_json(&run.optimise_pruning())?)
}

/// A trained network with auxiliary outputs, which training needs.
fn trained_model(trained: &TrainedNetwork) -> Model {
    let tensors = trained.checkpoint.evaluation_weights().iter();
    let values: BTreeMap<String, Vec<f32>> = tensors
        .filter_map(|tensor| match &tensor.values {
            Values::F32(values) => Some((tensor.name.clone(), values.clone())),
            Values::I64(_) => None,
        })
        .collect();
    Model { graph: trained.graph.clone(), values }
}

/// Writes the layer file and the weights of the smaller network to the directory `optimise` of a run.
fn write_model(model: &Model, trained: &TrainedNetwork, target: &RunDir) -> Result<(), TrainError> {
    let path = target.optimise_network();
    let text = layer_file::write(&model.graph)
        .map_err(|error| TrainError::LayerFile { problem: error.to_string(), path: path.clone() })?;
    atomic::write(&path, text.as_bytes())?;
    let parameters = model.graph.parameters.iter();
    let tensors: Vec<TensorRef<'_>> = parameters
        .map(|parameter| TensorRef::f32(&parameter.name, &parameter.shape, &model.values[&parameter.name]))
        .collect();
    let path = target.optimise_weights();
    Ok(atomic::write_with(&path, |out| {
        write_safetensors(out, &tensors, &trained.metadata.entries())
            .map_err(stratus_run::Error::io("write", &path))
    })?)
}

fn describe(before: &Model, after: &Model) -> Pruning {
    let channels = |model: &Model, position: usize| {
        let node = &model.graph.nodes[position];
        (!node.parameters.is_empty()).then(|| model.graph.shape(node.output).0.first().copied().unwrap_or(0))
    };
    let layers = before.graph.nodes.iter().enumerate().filter_map(|(position, node)| {
        let channels = [channels(before, position)?, channels(after, position)?];
        let layer = node.name.clone();
        (channels[0] != channels[1]).then_some(PrunedLayer { layer, channels })
    });
    let graphs = [&before.graph, &after.graph];
    Pruning {
        multiply_adds: graphs.map(|graph| multiply_adds(&graph.for_inference())),
        parameters: graphs.map(|graph| graph.for_inference().trained_parameters()),
        layers: layers.collect(),
    }
}

fn report(pruning: &Pruning, observer: &mut dyn Observer) {
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
            PruneError::Unreachable { .. } => "ask for a smaller share with --prune",
            PruneError::NothingToPrune { .. } => "let fewer channels remain with a smaller --granularity",
            _ => "choose another network, or other weights",
        };
        configuration(&error.to_string(), hint)
    }
}
