//! A forecast for this machine, whose kernels are timed.

use super::planning::Planner;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::progress::Progress;
use stratus_forecast::catalogue::Machine;
use stratus_forecast::forecast::{self, Forecast, LayerForecast, MeasuredStep, Memory, Plan};
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::Format;
use stratus_forecast::work::{Kind, Work};
use stratus_train::Observer;
use stratus_train::bench::probe::{Probed, probe};
use stratus_train::experiment::Experiment;

/// Times the kernels of a batch size.
///
/// # Errors
/// As starting a run.
pub(super) fn measure(planner: &Planner, batch: usize, output: &Output) -> Result<Probed> {
    if planner.framework() == Framework::Tensorflow {
        return Err(Failure::usage("on this machine Stratus' kernels are timed, not TensorFlow's")
            .hint("name machines of the catalogue with --on; `stratus forecast machines` lists them"));
    }
    let mut experiment: Experiment = planner.experiment().clone();
    experiment.train.batch_size = batch;
    // Shows on a terminal what is measured.
    let mut progress = Progress::new(*output);
    Ok(probe(&experiment, &planner.datasets(), &mut |text| progress.warn(text))?)
}

/// The row of what was timed.
///
/// # Errors
/// Where the network cannot be lowered.
pub(super) fn row(machine: &Machine, probed: &Probed, planner: &mut Planner) -> Result<Forecast> {
    let format = match probed.precision {
        stratus_engine::Precision::Bf16 => Format::Bf16,
        stratus_engine::Precision::F16 => Format::F16,
        _ => Format::F32,
    };
    let sketched = planner.plan(&machine.processor, format, probed.batch)?;
    // What an image takes follows from the sketch, what there is from the plan that would run.
    let memory = Memory { device: probed.arena_bytes, beside: Some(probed.host.bytes()), ..sketched.memory };
    let plan = Plan { memory, validation_batch: probed.validation_batch as u64, ..sketched };
    let measured = MeasuredStep {
        step_s: probed.step_s,
        validation_s: probed.validation_s,
        arithmetic_s: arithmetic(probed, &plan.train),
        spread: probed.spread,
    };
    let mut length = planner.length();
    // Planning is what takes until the first iteration; it was just done.
    length.conditions.set_up = Some(probed.planning_s);
    Ok(forecast::measured(machine, format, &plan, &length, &measured))
}

/// Seconds of convolutions and fully connected layers, which the sketch of the same program names.
fn arithmetic(probed: &Probed, work: &Work) -> f64 {
    let computes = |kind: Kind| {
        matches!(
            kind,
            Kind::Filtering
                | Kind::Convolution
                | Kind::FirstForward
                | Kind::FirstWeights
                | Kind::Depthwise
                | Kind::Linear
        )
    };
    let is_one = |name: &str| work.kernels.iter().any(|kernel| kernel.name == name && computes(kernel.kind));
    probed.kernels.iter().filter(|kernel| is_one(&kernel.kernel)).map(|kernel| kernel.seconds).sum()
}

/// The seconds of each layer, in the order in which they begin.
pub(super) fn layers(probed: &Probed) -> Vec<LayerForecast> {
    let mut layers: Vec<LayerForecast> = Vec::new();
    for kernel in &probed.kernels {
        let at = layers.iter().position(|layer| layer.layer == kernel.layer).unwrap_or_else(|| {
            layers.push(LayerForecast { layer: kernel.layer.clone(), ..LayerForecast::default() });
            layers.len() - 1
        });
        let layer = &mut layers[at];
        layer.kernels += 1;
        layer.flops += kernel.flops as f64;
        layer.bytes += kernel.bytes as f64;
        layer.seconds += kernel.seconds;
    }
    layers
}
