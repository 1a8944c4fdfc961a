//! The variants of a network that are compared: how good, how fast and how large each is.

use crate::TrainError;
use crate::evaluate::{ImageSelection, TaskMetrics, evaluate_run};
use crate::infer::{InferenceLatency, Predictor, measure_latency};
use crate::weights::CheckpointChoice;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_optimise::prune::multiply_adds;
use stratus_run::RunDir;
use stratus_run::variants::{self, Variant};

/// The batch sizes that are measured: a single image, and a batch.
const BATCHES: [usize; 2] = [1, 8];

/// The variants, and the name of their measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VariantTable {
    /// `top-1` or `mean IoU`.
    pub measure: &'static str,
    /// The rows of `variants.csv`.
    pub variants: Vec<Variant>,
}

/// A network to be compared.
struct ComparedNetwork<'a> {
    name: &'static str,
    run: &'a Path,
    checkpoint: CheckpointChoice,
}

/// Measures the network of a run before and after [`optimise`](super::optimise), in f32, and in bf16 if the
/// device has native bf16; writes `variants.csv` of the optimised run.
///
/// # Errors
/// If a run cannot be read or evaluated, or the file cannot be written.
pub fn measure_variants(
    source: &Path,
    checkpoint: CheckpointChoice,
    target: &Path,
    runs: usize,
    stop: &AtomicBool,
    warn: &mut dyn FnMut(&str),
) -> Result<VariantTable, TrainError> {
    let subjects = [
        ComparedNetwork { name: "original", run: source, checkpoint },
        ComparedNetwork { name: "pruned", run: target, checkpoint: CheckpointChoice::Newest },
    ];
    let experiment = stratus_experiment::Experiment::load(&RunDir::open(target)?.experiment())?;
    let has_bf16 = crate::device::open(&experiment.train)?.has_native_bf16;
    let precisions: &[&str] = if has_bf16 { &["f32", "bf16"] } else { &["f32"] };
    let (mut measured, mut predictors, mut name) = (Vec::new(), Vec::new(), "top-1");
    for subject in &subjects {
        for precision in precisions {
            if stop.load(Ordering::Relaxed) {
                return Err(TrainError::Interrupted { activity: "comparing the networks" });
            }
            let overrides = [("train.precision".to_owned(), (*precision).to_owned())];
            let images = ImageSelection::default();
            let evaluated = evaluate_run(subject.run, subject.checkpoint, &overrides, &images, None, warn)?;
            let measure = match &evaluated.scores.metrics {
                TaskMetrics::Classification(metrics) => metrics.top1,
                TaskMetrics::Segmentation(metrics) => {
                    name = "mean IoU";
                    metrics.miou
                }
            };
            measured.push((format!("{} {precision}", subject.name), measure, bytes_per_value(precision)));
            predictors.push(Predictor::from_run(subject.run, subject.checkpoint, &overrides, warn)?);
        }
    }
    let predictors_of: Vec<&Predictor> = predictors.iter().collect();
    let latencies = measure_latency(&predictors_of, &BATCHES, runs, stop, warn)?;
    let mut rows = Vec::new();
    for (((variant, measure, value_bytes), predictor), latency) in
        measured.into_iter().zip(&predictors).zip(&latencies)
    {
        let model = predictor.folded_model()?;
        let values: usize = model.values.values().map(Vec::len).sum();
        let [single, batch] = batches(latency);
        rows.push(Variant {
            variant,
            measure,
            ms_median: single[0],
            ms_p99: single[1],
            ms_batch8: batch[0],
            bytes: values as u64 * value_bytes,
            multiply_adds: multiply_adds(&model.graph),
        });
    }
    variants::write(&RunDir::open(target)?.variants(), &rows)?;
    Ok(VariantTable { measure: name, variants: rows })
}

fn bytes_per_value(precision: &str) -> u64 {
    if precision == "f32" { 4 } else { 2 }
}

/// Median and 99th percentile of each of [`BATCHES`].
fn batches(latency: &InferenceLatency) -> [[f64; 2]; 2] {
    BATCHES.map(|size| {
        let found = latency.batches.iter().find(|batch| batch.batch == size);
        found.map_or([0.0; 2], |batch| [batch.ms_median, batch.ms_p99])
    })
}
