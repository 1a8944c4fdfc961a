//! The variants of a network that are compared: how good, how fast and how large each is.

use super::compared_precisions;
use crate::TrainError;
use crate::evaluate::{EvaluatedForm, ImageSelection, TaskMetrics, evaluate_run_as};
use crate::infer::{InferenceLatency, Predictor, measure_latency};
use crate::weights::CheckpointChoice;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_optimise::Model;
use stratus_optimise::prune::multiply_adds;
use stratus_run::RunDir;
use stratus_run::csv::Task;
use stratus_run::quantisation::Quantisation;
use stratus_run::variants::{self, Variant};

/// The batch sizes that are measured: a single image, and a batch.
const BATCHES: [usize; 2] = [1, 8];

/// The variants, and the name of their measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariantTable {
    /// The name of the measure: `top-1`, `mean IoU`, `mean average precision` or `R²`.
    pub measure: &'static str,
    /// The task of the network.
    #[serde(skip)]
    pub task: Task,
    /// The rows of `variants.csv`.
    pub variants: Vec<Variant>,
}

/// A network to be compared.
struct ComparedNetwork<'a> {
    name: String,
    run: &'a Path,
    checkpoint: CheckpointChoice,
    /// The number format of layers that do not run in int8.
    precision: &'a str,
    /// The layers that run in int8.
    quantisation: Option<&'a Quantisation>,
}

/// Measures the network of a run before and after [`optimise`](super::optimise), in f32, in bf16 if the
/// device has native bf16, and in int8 if layers run in it; writes `variants.csv` of the optimised
/// run. `overrides` are keys of both experiments, such as where their data are.
///
/// # Errors
/// If a run cannot be read or evaluated, or the file cannot be written.
pub fn measure_variants(
    source: &Path,
    checkpoint: CheckpointChoice,
    target: &Path,
    overrides: &[(String, String)],
    runs: usize,
    stop: &AtomicBool,
    warn: &mut dyn FnMut(&str),
) -> Result<VariantTable, TrainError> {
    let run = RunDir::open(target)?;
    let precisions = compared_precisions(target, overrides)?;
    let (is_pruned, quantisation) =
        (run.optimise_pruning().exists(), Quantisation::read(&run.optimise_quantisation())?);
    let subjects =
        compared_networks(source, checkpoint, target, precisions, is_pruned, quantisation.as_ref());
    let (mut measured, mut predictors) = (Vec::new(), Vec::new());
    let (mut name, mut task) = ("top-1", Task::Classification);
    for subject in &subjects {
        if stop.load(Ordering::Relaxed) {
            return Err(TrainError::Interrupted { activity: "comparing the networks" });
        }
        let precision = ("train.precision".to_owned(), subject.precision.to_owned());
        let overrides = [overrides, &[precision]].concat();
        let (images, form) = (ImageSelection::default(), EvaluatedForm::Chosen(subject.quantisation));
        let evaluated =
            evaluate_run_as(subject.run, subject.checkpoint, &overrides, &images, None, form, warn)?;
        let metrics = &evaluated.scores.metrics;
        (name, task) = match metrics {
            TaskMetrics::Classification(_) => ("top-1", Task::Classification),
            TaskMetrics::Segmentation(_) => ("mean IoU", Task::Segmentation),
            TaskMetrics::MultiLabel(_) => ("mean average precision", Task::MultiLabel),
            TaskMetrics::Regression(_) => ("R²", Task::Regression),
        };
        measured.push((subject.name.clone(), metrics.score(), subject));
        let quantisation = subject.quantisation.cloned();
        predictors.push(Predictor::from_run_as(
            subject.run,
            subject.checkpoint,
            &overrides,
            quantisation,
            warn,
        )?);
    }
    let predictors_of: Vec<&Predictor> = predictors.iter().collect();
    let latencies = measure_latency(&predictors_of, &BATCHES, runs, stop, warn)?;
    let mut rows = Vec::new();
    for (((variant, measure, subject), predictor), latency) in
        measured.into_iter().zip(&predictors).zip(&latencies)
    {
        let model = predictor.folded_model()?;
        let [single, batch] = batches(latency);
        rows.push(Variant {
            variant,
            measure,
            ms_median: single[0],
            ms_p99: single[1],
            ms_batch8: batch[0],
            bytes: stored_bytes(&model, subject),
            multiply_adds: multiply_adds(&model.graph),
        });
    }
    variants::write(&RunDir::open(target)?.variants(), &rows)?;
    Ok(VariantTable { measure: name, task, variants: rows })
}

/// The networks to be compared: the original, the pruned and the quantised one, in each number format.
fn compared_networks<'a>(
    source: &'a Path,
    checkpoint: CheckpointChoice,
    target: &'a Path,
    precisions: &[&'a str],
    is_pruned: bool,
    quantisation: Option<&'a Quantisation>,
) -> Vec<ComparedNetwork<'a>> {
    let real = |name: &str, run, checkpoint| {
        let networks = precisions.iter().map(|precision| ComparedNetwork {
            name: format!("{name} {precision}"),
            run,
            checkpoint,
            precision,
            quantisation: None,
        });
        networks.collect::<Vec<_>>()
    };
    let mut networks = real("original", source, checkpoint);
    if is_pruned {
        networks.extend(real("pruned", target, CheckpointChoice::Newest));
    }
    if let Some(quantisation) = quantisation {
        networks.push(ComparedNetwork {
            name: format!("{}int8 and {}", if is_pruned { "pruned " } else { "" }, quantisation.precision),
            run: target,
            checkpoint: CheckpointChoice::Newest,
            precision: &quantisation.precision,
            quantisation: Some(quantisation),
        });
    }
    networks
}

/// The bytes of parameters and running statistics in the number format of the network. A weight of an int8
/// layer has one byte; its output channels have a scale and a bias in f32.
fn stored_bytes(model: &Model, network: &ComparedNetwork<'_>) -> u64 {
    let real: u64 = if network.precision == "f32" { 4 } else { 2 };
    let layers = network.quantisation.map_or(&[][..], |quantisation| &quantisation.layers);
    let sizes = model.graph.parameters.iter().map(|parameter| {
        let (layer, part) = parameter.name.rsplit_once('.').unwrap_or_default();
        let elements = parameter.elements() as u64;
        match part {
            _ if !layers.iter().any(|known| known.layer == layer) => elements * real,
            "weight" => elements + 8 * parameter.shape.first().map_or(0, |&channels| channels as u64),
            // The bias is counted with the weight: folded layers may lack one.
            _ => 0,
        }
    });
    sizes.sum()
}

/// Median and 99th percentile of each of [`BATCHES`].
fn batches(latency: &InferenceLatency) -> [[f64; 2]; 2] {
    BATCHES.map(|size| {
        let found = latency.batches.iter().find(|batch| batch.batch == size);
        found.map_or([0.0; 2], |batch| [batch.ms_median, batch.ms_p99])
    })
}
