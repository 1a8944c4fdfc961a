//! The step of one device, from which a step on several devices is forecast.

use super::Planner;
use crate::TrainError;
use crate::bench::probe::ProbeReport;
use stratus_forecast::catalogue::Machine;
use stratus_forecast::forecast;
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::DeviceStep;
use stratus_forecast::work::KernelKind;

/// The step on one device, from timed kernels.
///
/// # Errors
/// If the network cannot be built.
pub fn step_from_probe(probed: &ProbeReport, planner: &Planner) -> Result<DeviceStep, TrainError> {
    let is_update = |phase: &str| phase == "update";
    let kernels = probed.kernels.iter().filter(|kernel| !is_update(kernel.phase));
    let update_s =
        probed.kernels.iter().filter(|kernel| is_update(kernel.phase)).map(|kernel| kernel.seconds);
    let kernels = kernels.map(|kernel| (kernel.layer.as_str(), kernel.seconds));
    Ok(DeviceStep::new(kernels, &planner.gradients()?, update_s.sum()).sent_as(planner.sent_fraction()))
}

/// The step on one device, from a profile.
///
/// # Errors
/// If the machine does not support the experiment, or the network cannot be lowered.
pub fn step_from_profile(
    machine: &Machine,
    batch: u64,
    planner: &mut Planner,
    profiles: &[Profile],
) -> Result<DeviceStep, TrainError> {
    let format = planner.format(machine)?;
    let plan = planner.plan(&machine.processor, format, batch as usize)?;
    let seconds = forecast::kernels(machine, format, (plan.framework, &plan.train), profiles)?;
    let all = || plan.train.kernels.iter().zip(&seconds);
    let is_update = |kind: KernelKind| kind == KernelKind::Update;
    let update_s = all().filter(|(kernel, _)| is_update(kernel.kind)).map(|(_, seconds)| seconds).sum();
    let kernels = all().filter(|(kernel, _)| !is_update(kernel.kind));
    let kernels = kernels.map(|(kernel, &seconds)| (kernel.layer.as_str(), seconds));
    Ok(DeviceStep::new(kernels, &planner.gradients()?, update_s).sent_as(planner.sent_fraction()))
}
