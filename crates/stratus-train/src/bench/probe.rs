//! What training takes on this machine, before anything is trained: the real plan's steps, timed one by one
//! without data and without room for the network ([`stratus_engine::probe`]).

use crate::compile::{FittedRun, KernelSelection, StepTimes, fit};
use crate::input::{Datasets, HostMemory};
use crate::network::Network;
use crate::resolve::Resolved;
use crate::{Experiment, TrainError, device};
use serde::Serialize;
use std::time::{Duration, Instant};
use stratus_engine::Precision;
use stratus_engine::ops::KernelSpec;
use stratus_engine::probe::ProgramTime;
use stratus_run::machine::{Machine, caches};

/// How long the training step is timed, and how long validation, whose kernels are mostly the same.
const BUDGETS: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(1500)];
/// Bytes of the last-level cache where the system does not say, and at most.
const LAST_LEVEL: [u64; 2] = [32 << 20, 512 << 20];

/// A kernel of the training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbedKernel {
    /// The layers it computes.
    pub layer: String,
    /// The kernel.
    pub kernel: String,
    /// Its phase: forward, backward, ....
    pub phase: &'static str,
    /// The implementation's name.
    pub implementation: String,
    /// Seconds of all its tiles.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of its operands.
    pub bytes: u64,
}

/// What was found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probed {
    /// The network.
    pub network: String,
    /// What it computes in.
    pub precision: Precision,
    /// Samples per training step.
    pub batch: usize,
    /// Library and threads.
    pub library: String,
    /// Each kernel of the training step.
    pub kernels: Vec<ProbedKernel>,
    /// Seconds of a training step.
    pub step_s: f64,
    /// How far times of the same step lay apart, in parts of it; `None` where each was timed too seldom.
    pub spread: Option<f64>,
    /// Samples per step of validation.
    pub validation_batch: usize,
    /// Seconds of such a step.
    pub validation_s: f64,
    /// Bytes that a session would allocate.
    pub arena_bytes: u64,
    /// Beside them.
    pub host: HostMemory,
    /// Bytes that were allocated instead.
    pub scratch_bytes: u64,
    /// How many of the training step's kernels differ.
    pub kinds: usize,
    /// How many times were taken.
    pub timings: usize,
    /// Seconds until kernels were chosen.
    pub planning_s: f64,
    /// Seconds of timing.
    pub probing_s: f64,
}

/// Plans an experiment's programs and times their steps. Its data sets need not be here: what stands for them
/// has the images' shape and the classes.
///
/// # Errors
/// As starting a run; where the experiment trains on a GPU.
pub fn probe(
    experiment: &Experiment,
    datasets: &Datasets,
    warn: &mut dyn FnMut(&str),
) -> Result<Probed, TrainError> {
    let begun = Instant::now();
    let mut experiment = experiment.clone();
    // The last batch of an epoch counts as a part of the others.
    experiment.data.drop_last = true;
    let dataset = datasets.train.as_ref();
    let graph = Network::of(&experiment, dataset)?.graph;
    let device = device::open(&experiment.train)?;
    if device.beside_cores {
        return Err(TrainError::Configuration {
            problem: format!(
                "this experiment trains on {}, and kernels are timed on processors alone",
                device.backend.describe()
            ),
            hint: "forecast the GPU by its name (`stratus forecast machines` lists them), or the processor \
                   with --set train.device=cpu"
                .to_owned(),
        });
    }
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = Resolved::new(&experiment, dataset, &graph, &device)?;
    let FittedRun { resolved, mut planned, .. } =
        fit(resolved, &graph, &device, &KernelSelection::Cached, None, warn)?;
    let planning_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let StepTimes { train, evaluate: validation, kinds, scratch_bytes } =
        planned.timed(device.backend.as_ref(), cold_bytes(), BUDGETS)?;
    let arena_bytes = planned.arena_bytes() as u64;
    let [plan, evaluate] = planned.plans();
    let kernel = |(position, seconds): (usize, &f64)| {
        let step = &plan.program.steps[position];
        ProbedKernel {
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
    Ok(Probed {
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
        host: HostMemory::of(&resolved, datasets, plan, evaluate)?,
        scratch_bytes: scratch_bytes as u64,
        kinds,
        timings: *timings,
        planning_s,
        probing_s: begun.elapsed().as_secs_f64(),
    })
}

/// More bytes than this machine's caches hold.
pub(crate) fn cold_bytes() -> usize {
    let last_level = caches::last_level(&Machine::probe().cpu.caches).unwrap_or(LAST_LEVEL[0]);
    2 * last_level.min(LAST_LEVEL[1]) as usize
}
