//! Measures the time and memory of a training before it starts: the steps of the real plan, timed one by one
//! without data and without allocating the network ([`stratus_engine::profile`]).

use crate::compile::{FittedRun, KernelSelection, StepTimes, fit};
use crate::input::{Datasets, HostMemory};
use crate::network::Network;
use crate::resolve::ResolvedProcess;
use crate::{TrainError, device};
use serde::Serialize;
use std::time::{Duration, Instant};
use stratus_engine::ops::KernelSpec;
use stratus_engine::profile::ProgramTime;
use stratus_engine::{Precision, StartupMonitor};
use stratus_experiment::Experiment;
use stratus_run::machine::{Machine, caches};

/// The times for measuring the training step, and validation, whose kernels are mostly the same.
const PROBE_TIMES: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(1500)];
/// Bytes of the last-level cache if the system does not report it.
const DEFAULT_LLC_BYTES: u64 = 32 << 20;
/// The maximum bytes of the last-level cache.
const MAX_LLC_BYTES: u64 = 512 << 20;

/// A kernel of the training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeKernel {
    /// The layers that it computes.
    pub layer: String,
    /// The kernel.
    pub kernel: String,
    /// Its phase: forward, backward, ....
    pub phase: &'static str,
    /// The implementation's name.
    pub implementation: String,
    /// Total seconds of its tiles.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of its operands.
    pub bytes: u64,
}

/// The measured time and memory of a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeReport {
    /// The network.
    pub network: String,
    /// The number format.
    pub precision: Precision,
    /// Samples per training step.
    pub batch: usize,
    /// Library and threads.
    pub library: String,
    /// Each kernel of the training step.
    pub kernels: Vec<ProbeKernel>,
    /// Seconds of a training step.
    pub step_s: f64,
    /// The relative spread of the times of a step; `None` with too few times.
    pub spread: Option<f64>,
    /// Samples per step of validation.
    pub validation_batch: usize,
    /// Seconds of a validation step.
    pub validation_s: f64,
    /// Bytes that a session would allocate.
    pub arena_bytes: u64,
    /// Host memory besides the arena.
    pub host: HostMemory,
    /// Bytes that were allocated for probing.
    pub scratch_bytes: u64,
    /// Number of distinct kernels of the training step.
    pub kinds: usize,
    /// Number of times that were measured.
    pub timings: usize,
    /// Seconds until kernels were chosen.
    pub planning_s: f64,
    /// Seconds of timing.
    pub probing_s: f64,
}

/// Plans an experiment's programs and times their steps. `datasets` may be placeholders with the images'
/// shape and the classes.
///
/// # Errors
/// As starting a run, and if the experiment trains on a GPU.
pub fn probe(
    experiment: &Experiment,
    datasets: &Datasets,
    monitor: &StartupMonitor,
    warn: &mut dyn FnMut(&str),
) -> Result<ProbeReport, TrainError> {
    let started = Instant::now();
    let mut experiment = experiment.clone();
    // Only whole batches are timed.
    experiment.data.drop_last = true;
    let dataset = datasets.train.as_ref();
    let graph = Network::for_dataset(&experiment, dataset)?.graph;
    let device = device::open_monitored(&experiment.train, 0, monitor)?;
    if device.is_accelerator {
        return Err(TrainError::Configuration {
            problem: format!(
                "this experiment trains on {}, but kernels can be timed on CPUs only",
                device.backend.describe()
            ),
            hint: "forecast the GPU by its name (`stratus forecast machines` lists them), or the CPU with \
                   --set train.device=cpu"
                .to_owned(),
        });
    }
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = ResolvedProcess::for_training(&experiment, dataset, &graph, &device)?;
    let FittedRun { resolved, mut planned, .. } =
        fit(&resolved, &graph, &device, &KernelSelection::Cached, None, warn)?;
    let planning_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let StepTimes { train, evaluate: validation, kinds, scratch_bytes } =
        planned.probe_steps(device.backend.as_ref(), cold_bytes(), PROBE_TIMES)?;
    let arena_bytes = planned.arena_bytes() as u64;
    let [plan, evaluate] = planned.plans();
    let kernel = |(position, seconds): (usize, &f64)| {
        let step = &plan.program.steps[position];
        ProbeKernel {
            layer: plan.program.layer_name(step),
            kernel: step.kernel.name().to_owned(),
            phase: step.phase.name(),
            implementation: plan.steps[position].implementation.clone(),
            seconds: *seconds,
            flops: plan.program.step_flops(position),
            bytes: plan.step_bytes(position),
        }
    };
    let ProgramTime { steps, spread, timings } = &train;
    Ok(ProbeReport {
        network: plan.program.network.clone(),
        precision: plan.program.precision,
        batch: plan.program.batch,
        library: device.backend.describe(),
        kernels: steps.iter().enumerate().map(kernel).collect(),
        step_s: train.seconds(),
        spread: *spread,
        validation_batch: evaluate.program.batch,
        validation_s: validation.seconds(),
        arena_bytes,
        host: HostMemory::for_run(&resolved, datasets, plan, evaluate)?,
        scratch_bytes: scratch_bytes as u64,
        kinds,
        timings: *timings,
        planning_s,
        probing_s: started.elapsed().as_secs_f64(),
    })
}

/// A number of bytes that exceeds this machine's caches.
pub(crate) fn cold_bytes() -> usize {
    let last_level = caches::last_level_bytes(&Machine::probe().cpu.caches).unwrap_or(DEFAULT_LLC_BYTES);
    2 * last_level.min(MAX_LLC_BYTES) as usize
}
