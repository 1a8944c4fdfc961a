//! The step of one of several devices, from which a step on all of them is forecast.

use super::Planner;
use super::run_times::RunTimes;
use crate::TrainError;
use crate::bench::probe::ProbeReport;
use std::collections::BTreeMap;
use stratus_engine::{Kernel, Phase, Program};
use stratus_forecast::catalogue::{Machine, Processor};
use stratus_forecast::forecast;
use stratus_forecast::peaks::{NumberFormat, on_matrix_units};
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::{DeviceStep, StepTemplate, TemplateAction, TemplateKernel};
use stratus_forecast::work::Work;
use stratus_forecast::work::program::work;

/// Operations that take as long as moving a byte, to divide the time of a layer among its kernels.
const OPERATIONS_PER_BYTE: f64 = 5.0;

/// The step of one of several devices with `batch` images each, without times, and the work of its kernels.
fn template(
    machine: &Machine,
    format: NumberFormat,
    batch: u64,
    planner: &Planner,
) -> Result<(StepTemplate, Work), TrainError> {
    let (program, device_bytes) = planner.worker(&machine.processor, format, batch as usize)?;
    let all = work(&program, on_matrix_units(&machine.processor, format));
    // Also where gradients pass through host memory: an upper bound, as runs plan it.
    let sums = match machine.processor {
        Processor::Gpu(_) => stratus_cuda::direct_sum_bytes(program.largest_bucket_bytes()) as u64,
        Processor::Cpu(_) => 0,
    };
    let device_bytes = device_bytes + sums + forecast::context_bytes(machine);
    let mut template = StepTemplate { batch, device_bytes, ..StepTemplate::default() };
    let mut kernels = Vec::new();
    for (step, kernel) in program.steps.iter().zip(all.kernels) {
        let action = match &step.kernel {
            Kernel::AllReduceBucket(exchange) if exchange.waits => {
                TemplateAction::Wait { bucket: exchange.bucket }
            }
            Kernel::AllReduceBucket(exchange) => {
                let bytes: usize = step.inputs.iter().map(|&id| program.value(id).bytes()).sum();
                TemplateAction::Start { bucket: exchange.bucket, bytes: bytes as f64 }
            }
            _ => {
                template.kernels.push(TemplateKernel {
                    layer: program.layer_name(step),
                    phase: step.phase.name(),
                    weight: kernel.flops + kernel.bytes * OPERATIONS_PER_BYTE,
                });
                kernels.push(kernel);
                TemplateAction::Kernel(kernels.len() - 1)
            }
        };
        template.actions.push(action);
    }
    check_communication(&program)?;
    Ok((template, Work { kernels }))
}

/// Checks that gradients are all that workers exchange.
fn check_communication(program: &Program) -> Result<(), TrainError> {
    let other = program.steps.iter().find(|step| {
        step.phase == Phase::Communication && !matches!(step.kernel, Kernel::AllReduceBucket(_))
    });
    match other {
        None => Ok(()),
        Some(step) => Err(TrainError::Configuration {
            problem: format!(
                "the exchange of `{}` between devices is not forecast",
                program.layer_name(step)
            ),
            hint: "forecast one device, without --devices".to_owned(),
        }),
    }
}

/// The step of one device, from timed kernels of this machine.
///
/// # Errors
/// If the network cannot be built.
pub fn step_from_probe(
    machine: &Machine,
    probed: &ProbeReport,
    planner: &Planner,
) -> Result<DeviceStep, TrainError> {
    let format = match probed.precision {
        stratus_engine::Precision::Bf16 => NumberFormat::Bf16,
        stratus_engine::Precision::F16 => NumberFormat::F16,
        _ => NumberFormat::F32,
    };
    let mut times: BTreeMap<(String, &'static str), f64> = BTreeMap::new();
    for kernel in &probed.kernels {
        *times.entry((kernel.layer.clone(), kernel.phase)).or_default() += kernel.seconds;
    }
    let (template, _) = template(machine, format, probed.batch as u64, planner)?;
    template.with_layer_times(&times).ok_or_else(|| TrainError::Configuration {
        problem: "the timed kernels are not those of a worker".to_owned(),
        hint: "forecast one device, without --devices".to_owned(),
    })
}

/// The step of one device, from the times of a run.
///
/// # Errors
/// If the run is of another network, or the network cannot be built.
pub fn step_from_run(machine: &Machine, run: &RunTimes, planner: &Planner) -> Result<DeviceStep, TrainError> {
    let (template, _) = template(machine, run.format, run.batch, planner)?;
    template.with_layer_times(&run.layers).ok_or_else(|| TrainError::Configuration {
        problem: format!("{} trained a network with other layers than this experiment", run.path.display()),
        hint: "name a run of this experiment, or the run itself in place of the experiment".to_owned(),
    })
}

/// The step of one device, from a profile.
///
/// # Errors
/// If the machine does not support the experiment, or the network cannot be lowered.
pub fn step_from_profile(
    machine: &Machine,
    batch: u64,
    planner: &Planner,
    profiles: &[Profile],
) -> Result<DeviceStep, TrainError> {
    let format = planner.format(machine)?;
    let (template, work) = template(machine, format, batch, planner)?;
    let seconds = forecast::kernels(machine, format, (planner.framework(), &work), profiles)?;
    Ok(template.with_seconds(&seconds))
}
