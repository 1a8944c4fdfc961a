//! Forecasts for this machine, from timing its kernels.

use super::Planner;
use crate::TrainError;
use crate::bench::probe::{ProbeReport, probe};
use stratus_engine::StartupMonitor;
use stratus_experiment::Experiment;
use stratus_forecast::catalogue::Machine;
use stratus_forecast::forecast::{self, Forecast, LayerForecast, PlannedMemory, ProbedStep, TrainingWork};
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::NumberFormat;
use stratus_forecast::work::{KernelKind, Work};

/// Times the kernels for a batch size.
///
/// # Errors
/// If no run can be started, or the framework is not Stratus.
pub fn probe_kernels(
    planner: &Planner,
    batch: usize,
    monitor: &StartupMonitor,
    warn: &mut dyn FnMut(&str),
) -> Result<ProbeReport, TrainError> {
    if planner.framework() == Framework::Tensorflow {
        return Err(TrainError::Configuration {
            problem: "--on here does not support TensorFlow".to_owned(),
            hint: "use --on with machines of the catalogue; `stratus forecast machines` lists them"
                .to_owned(),
        });
    }
    let mut experiment: Experiment = planner.experiment().clone();
    experiment.train.batch_size = batch;
    probe(&experiment, &planner.datasets(), monitor, warn)
}

/// The forecast from timed kernels.
///
/// # Errors
/// If the network cannot be lowered.
pub fn forecast_from_probe(
    machine: &Machine,
    probed: &ProbeReport,
    planner: &mut Planner,
) -> Result<Forecast, TrainError> {
    let format = match probed.precision {
        stratus_engine::Precision::Bf16 => NumberFormat::Bf16,
        stratus_engine::Precision::F16 => NumberFormat::F16,
        _ => NumberFormat::F32,
    };
    let planned = planner.plan(&machine.processor, format, probed.batch)?;
    // The memory per image comes from the forecast's plan, the total from the plan that was timed.
    let memory = PlannedMemory {
        device: probed.arena_bytes,
        planned_host_bytes: Some(probed.host.bytes()),
        ..planned.memory
    };
    let plan = TrainingWork { memory, validation_batch: probed.validation_batch as u64, ..planned };
    let measured = ProbedStep {
        step_s: probed.step_s,
        validation_s: probed.validation_s,
        arithmetic_s: arithmetic_seconds(probed, &plan.train),
        spread: probed.spread,
    };
    let mut length = planner.length();
    // Planning, which was just timed, takes the time until the first iteration.
    length.conditions.startup_s = Some(probed.planning_s);
    Ok(forecast::forecast_from_probe(machine, format, &plan, &length, &measured))
}

/// The seconds of convolutions and fully connected layers. `work` has the kinds of the same kernels.
fn arithmetic_seconds(probed: &ProbeReport, work: &Work) -> f64 {
    let computes = |kind: KernelKind| {
        matches!(
            kind,
            KernelKind::Filtering
                | KernelKind::Convolution
                | KernelKind::FirstForward
                | KernelKind::FirstWeights
                | KernelKind::Depthwise
                | KernelKind::Linear
        )
    };
    let is_arithmetic =
        |name: &str| work.kernels.iter().any(|kernel| kernel.name == name && computes(kernel.kind));
    probed.kernels.iter().filter(|kernel| is_arithmetic(&kernel.kernel)).map(|kernel| kernel.seconds).sum()
}

/// The seconds of each layer, in execution order.
pub fn layers_from_probe(probed: &ProbeReport) -> Vec<LayerForecast> {
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
