//! Measures a network's training step: as a whole, kernel by kernel, with and without clock stamps, and
//! before a run; its input pipeline; the peaks of the machine; and the kernels that calibrate a machine.

pub mod calibrate;
pub mod data_rate;
pub mod devices;
pub mod exchange;
pub mod forecast;
pub mod peaks;
pub mod probe;
mod speed_reference;
pub mod threads;
pub mod trace;

use crate::compile::{CompiledRun, FittedRun, KernelSelection, fit};
use crate::input::{BatchFormat, open_datasets, with_class_weights};
use crate::network::Network;
use crate::resolve::ResolvedProcess;
use crate::weights::initialise::initialise;
use crate::weights::session_state;
use crate::{TrainError, device};
use serde::Serialize;
use std::time::Instant;
use stratus_data::{BatchBuffer, Loader};
use stratus_engine::ops::KernelSpec;
use stratus_engine::session::IterationScalars;
use stratus_engine::{Backend, Clock, Phase, Precision};
use stratus_experiment::Experiment;

/// A session with initial weights and one batch, on which training steps are repeated.
pub struct Bench {
    compiled: CompiledRun,
    batch: BatchBuffer,
    backend: Box<dyn Backend>,
    /// True if the batch was copied to the device.
    resident: bool,
    startup_s: f64,
}

/// Runs per measurement, of which the shortest counts.
const BEST_OF: usize = 5;

/// The time of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTime {
    /// The layers that it computes.
    pub layer: String,
    /// The kernel.
    pub kernel: String,
    /// Its phase: forward, backward, ....
    pub phase: &'static str,
    /// The implementation's name.
    pub implementation: String,
    /// Seconds when run alone: the median over rounds of the shortest.
    pub alone_s: f64,
    /// Seconds within whole steps: the median.
    pub within_s: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of its operands.
    pub bytes: u64,
}

/// A network's kernels against its whole step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// The network.
    pub network: String,
    /// Element type.
    pub precision: String,
    /// Samples per step.
    pub batch: usize,
    /// Library and threads.
    pub library: String,
    /// Each kernel.
    pub kernels: Vec<KernelTime>,
    /// Seconds of all kernels run alone, without layout changes: the median over rounds.
    pub floor_s: f64,
    /// Seconds of a whole step: the median over rounds of the shortest.
    pub step_s: f64,
    /// `floor_s / step_s` of the same round, in percent: the median over rounds.
    pub percent_of_floor: f64,
    /// Images per second in whole steps.
    pub images_per_second: f64,
    /// Bytes of device memory: planned, and allocated since the device was opened, as the driver reports.
    /// `None` on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<[u64; 2]>,
}

/// The cost of stamping the clock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overhead {
    /// Number of pairs of steps, with and without stamps.
    pub pairs: u32,
    /// The median step with stamps, in seconds.
    pub stamped_s: f64,
    /// The median step without, in seconds.
    pub unstamped_s: f64,
    /// The median overhead of the stamped step of a pair, in percent.
    pub overhead_percent: f64,
    /// On a GPU: the number of timed steps, and of kernels of a recording that only mark times. `None` on a
    /// CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marks: Option<[usize; 2]>,
    /// Seconds until the first step was ready to run.
    pub startup_s: f64,
    /// The backend's phases of these seconds.
    pub phases: Vec<(&'static str, f64)>,
}

impl Bench {
    /// Prepares an experiment's training step and reads its first batch.
    ///
    /// # Errors
    /// As starting a run.
    pub fn new(experiment: &Experiment, warn: &mut dyn FnMut(&str)) -> Result<Self, TrainError> {
        let started = Instant::now();
        let datasets = open_datasets(experiment)?;
        let graph = Network::for_dataset(experiment, datasets.train.as_ref())?.graph;
        let device = device::open(&experiment.train)?;
        device.warnings.iter().for_each(|warning| warn(warning));
        let experiment = &*with_class_weights(experiment, datasets.train.as_ref())?;
        let resolved = ResolvedProcess::for_training(experiment, datasets.train.as_ref(), &graph, &device)?;
        let FittedRun { resolved, planned, .. } =
            fit(&resolved, &graph, &device, &KernelSelection::Cached, None, warn)?;
        let mut compiled = planned.allocate(device.backend.as_ref())?;
        session_state::set_class_weights(&mut compiled.session, &resolved)?;
        session_state::set_teacher(&mut compiled, &resolved)?;
        initialise(&mut compiled.session, &graph, &resolved, &datasets.train)?;
        session_state::refresh(&mut compiled.session, compiled.ids.refresh)?;
        // A learning rate too small to change the weights: every step does the same work.
        compiled.session.set_iteration_scalars(IterationScalars {
            learning_rate: 1e-12,
            iteration: 0,
            seed: experiment.train.seed,
        })?;
        let plan = compiled.session.plan(compiled.ids.train);
        let config = resolved.input().training(BatchFormat::from_plan(plan));
        let batch = Loader::new(datasets.train, config)?.next()?;
        let batch = batch.ok_or(TrainError::Loader(stratus_data::LoaderError::Stopped))?;
        let startup_s = started.elapsed().as_secs_f64();
        Ok(Self { compiled, batch, backend: device.backend, resident: false, startup_s })
    }

    /// The number format of the step.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.compiled.session.plan(self.compiled.ids.train).program.precision
    }

    fn step(&mut self, clock: &mut Clock) -> Result<f64, TrainError> {
        let Self { compiled, batch, resident, .. } = self;
        let labels = bytemuck::cast_slice_mut(&mut batch.labels);
        clock.begin_iteration();
        clock.restart();
        let started = Instant::now();
        if *resident {
            compiled.session.run(compiled.ids.train, &mut [], &mut [], clock, 0)?;
        } else {
            compiled.session.run(compiled.ids.train, &mut batch.images, labels, clock, 0)?;
            // On an accelerator the batch stays on the device, so that copying it is not measured.
            *resident = !compiled.session.device_slots().is_empty();
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// The shortest of [`BEST_OF`] runs of one kernel, after one to warm up.
    fn time_kernel(&mut self, step: usize) -> Result<f64, TrainError> {
        let Self { compiled, batch, .. } = self;
        let labels: &mut [u8] = bytemuck::cast_slice_mut(&mut batch.labels);
        let mut best = f64::INFINITY;
        for run in 0..=BEST_OF {
            let started = Instant::now();
            compiled.session.run_step(compiled.ids.train, step, &mut batch.images, labels)?;
            if run > 0 {
                best = best.min(started.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }

    fn slots(&self) -> usize {
        self.compiled.session.slots(self.compiled.ids.train)
    }

    fn steps(&self) -> usize {
        self.compiled.session.plan(self.compiled.ids.train).program.steps.len()
    }

    /// Compares whole steps with their kernels run alone. Both take turns, so that other load on the machine
    /// affects them equally: medians over `rounds` rounds of the shortest of five runs.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn floor(&mut self, rounds: usize) -> Result<Floor, TrainError> {
        let (count, rounds) = (self.steps(), rounds.max(1));
        let mut clock = Clock::new(self.slots());
        for _ in 0..BEST_OF {
            self.step(&mut clock)?;
        }
        let (mut whole, mut floors, mut percents) = (Vec::new(), Vec::new(), Vec::new());
        let mut within = vec![Vec::with_capacity(rounds * BEST_OF); count];
        let mut alone = vec![Vec::with_capacity(rounds); count];
        for _ in 0..rounds {
            let mut step_s = f64::INFINITY;
            for _ in 0..BEST_OF {
                step_s = step_s.min(self.step(&mut clock)?);
                for (times, &ns) in within.iter_mut().zip(clock.slots()) {
                    times.push(ns as f64 * 1e-9);
                }
            }
            let mut floor_s = 0.0;
            for (step, times) in alone.iter_mut().enumerate() {
                let best = self.time_kernel(step)?;
                times.push(best);
                let plan = self.compiled.session.plan(self.compiled.ids.train);
                if plan.program.steps[step].phase != Phase::Layout {
                    floor_s += best;
                }
            }
            whole.push(step_s);
            floors.push(floor_s);
            percents.push(100.0 * floor_s / step_s);
        }
        let plan = self.compiled.session.plan(self.compiled.ids.train);
        let kernels: Vec<KernelTime> = plan
            .program
            .steps
            .iter()
            .enumerate()
            .map(|(position, step)| KernelTime {
                layer: plan.program.layer_name(step),
                kernel: step.kernel.name().to_owned(),
                phase: step.phase.name(),
                implementation: plan.steps[position].implementation.clone(),
                alone_s: median(&mut alone[position]),
                within_s: median(&mut within[position]),
                flops: plan.program.step_flops(position),
                bytes: plan.step_bytes(position),
            })
            .collect();
        let step_s = median(&mut whole);
        let planned = self.compiled.session.device_bytes().map(|bytes| bytes as u64);
        let device_bytes = planned.zip(self.backend.device_bytes()).map(<[u64; 2]>::from);
        Ok(Floor {
            device_bytes,
            network: plan.program.network.clone(),
            precision: plan.program.precision.to_string(),
            batch: plan.program.batch,
            library: self.backend.describe(),
            kernels,
            floor_s: median(&mut floors),
            step_s,
            percent_of_floor: median(&mut percents),
            images_per_second: plan.program.batch as f64 / step_s,
        })
    }

    /// The seconds of consecutive whole steps, measured for `seconds` seconds and at least `min_steps` steps.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn time_steps_for(&mut self, seconds: f64, min_steps: usize) -> Result<Vec<f64>, TrainError> {
        let mut clock = Clock::new(self.slots());
        // The first step runs with cold caches.
        self.step(&mut clock)?;
        let started = Instant::now();
        let mut times = Vec::new();
        while times.len() < min_steps || started.elapsed().as_secs_f64() < seconds {
            times.push(self.step(&mut clock)?);
        }
        Ok(times)
    }

    /// Compares steps with and without stamps, in alternating order.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn overhead(&mut self, pairs: u32) -> Result<Overhead, TrainError> {
        let mut clocks = [Clock::new(self.slots()), Clock::disabled(self.slots())];
        for clock in &mut clocks {
            self.step(clock)?;
        }
        let mut times = [Vec::new(), Vec::new()];
        let mut differences = Vec::new();
        for pair in 0..pairs {
            let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
            let mut seconds = [0.0; 2];
            for index in order {
                seconds[index] = self.step(&mut clocks[index])?;
                times[index].push(seconds[index]);
            }
            differences.push(100.0 * (seconds[0] - seconds[1]) / seconds[1]);
        }
        let [stamped, unstamped] = &mut times;
        Ok(Overhead {
            pairs,
            stamped_s: median(stamped),
            unstamped_s: median(unstamped),
            overhead_percent: median(&mut differences),
            marks: self.compiled.session.timing_overhead(self.compiled.ids.train),
            startup_s: self.startup_s,
            phases: self.backend.startup_times(),
        })
    }
}

/// The median; 0 without values.
fn median(values: &mut [f64]) -> f64 {
    stratus_base::median(values).unwrap_or(0.0)
}
