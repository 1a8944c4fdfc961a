//! Measures the kernels of a network within whole training steps.

use crate::TrainError;
use crate::bench::median;
use crate::compile::programs;
use crate::device::OpenDevice;
use crate::input::{BatchFormat, open_datasets};
use crate::resolve::ResolvedProcess;
use crate::weights::initialise::initialise;
use crate::weights::session_state;
use std::time::Instant;
use stratus_data::{BatchBuffer, Loader, LoaderError};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::session::IterationScalars;
use stratus_engine::{Choices, Clock, Phase, Session};
use stratus_experiment::Experiment;
use stratus_forecast::calibration::MeasuredNetwork;
use stratus_forecast::calibration::design::Design;
use stratus_forecast::peaks::NumberFormat;
use stratus_forecast::work::Kernel;
use stratus_forecast::work::program::work;

/// Minimum number of steps per network.
const MIN_STEPS: usize = 3;
/// Maximum number of steps per network.
const MAX_STEPS: usize = 12;
/// Seconds per network after which no further step is started.
const MAX_SECONDS: f64 = 0.4;

/// The kernel choices of a network that was measured before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::bench) struct ReusedChoices([Choices; 2]);

/// A planned training step with a batch of synthetic images.
pub(in crate::bench) struct TrainingStep {
    session: Session,
    batch: BatchBuffer,
}

impl TrainingStep {
    /// Plans a network's training step in a number format. Kernels are measured, unless `chosen` contains
    /// their choices, and are not cached elsewhere.
    ///
    /// # Errors
    /// As starting a run.
    pub fn prepare(
        design: &Design,
        format: NumberFormat,
        device: &OpenDevice,
        chosen: &mut Option<ReusedChoices>,
    ) -> Result<Self, TrainError> {
        let experiment = experiment(design, format)?;
        let datasets = open_datasets(&experiment)?;
        let resolved = ResolvedProcess::new(&experiment, datasets.train.as_ref(), &design.graph, device)?;
        let programs = programs(&resolved, &design.graph, device)?;
        let mut persistent = Persistent::default();
        let known = chosen.clone().unwrap_or_default();
        let mut plan = |program, choices| {
            Plan::prepare(device.backend.as_ref(), program, choices, chosen.is_none(), &mut persistent)
        };
        let ReusedChoices([train, refresh]) = known;
        let prepared = vec![plan(&programs.train, train)?, plan(&programs.refresh, refresh)?];
        *chosen = Some(ReusedChoices([0, 1].map(|at: usize| prepared[at].plan.choices.clone())));
        let mut session = Session::on_backend(device.backend.as_ref(), prepared, persistent)?;
        initialise(&mut session, &design.graph, &resolved, &datasets.train)?;
        session_state::refresh(&mut session, 1)?;
        // A learning rate too small to change the weights: every step does the same work.
        session.set_iteration_scalars(IterationScalars {
            learning_rate: 1e-12,
            iteration: 0,
            seed: experiment.train.seed,
        })?;
        let config = resolved.input().training(BatchFormat::from_plan(session.plan(0)));
        let batch = Loader::new(datasets.train, config)?.next()?;
        let batch = batch.ok_or(TrainError::Loader(LoaderError::Stopped))?;
        Ok(Self { session, batch })
    }

    /// The clock for [`Self::run`].
    pub fn clock(&self) -> Clock {
        Clock::new(self.session.slots(0))
    }

    /// Runs the step once; its times are then in `clock`.
    pub fn run(&mut self, clock: &mut Clock) -> Result<(), TrainError> {
        let labels = bytemuck::cast_slice_mut(&mut self.batch.labels);
        clock.begin_iteration();
        clock.restart();
        self.session.run(0, &mut self.batch.images, labels, clock, 0)?;
        Ok(())
    }
}

/// Times a network's training step in a number format, as [`TrainingStep::prepare`]. `on_matrix_units` states
/// whether its convolutions are assumed to run there, see [`work`].
///
/// # Errors
/// As starting a run.
pub(super) fn measure_network(
    design: &Design,
    format: NumberFormat,
    on_matrix_units: bool,
    device: &OpenDevice,
    chosen: &mut Option<ReusedChoices>,
) -> Result<MeasuredNetwork, TrainError> {
    let mut step = TrainingStep::prepare(design, format, device, chosen)?;
    let seconds = time_kernels(&mut step)?;
    Ok(MeasuredNetwork { kernels: kernels(step.session.plan(0), &seconds, on_matrix_units) })
}

fn experiment(design: &Design, format: NumberFormat) -> Result<Experiment, TrainError> {
    let mut experiment = Experiment::default();
    experiment.data.name = "synthetic".to_owned();
    experiment.data.shape = Some(design.graph.input_shape().0.clone());
    experiment.data.drop_last = true;
    experiment.synthetic.images = design.batch;
    experiment.synthetic.validation_images = 1;
    experiment.train.batch_size = design.batch;
    Ok(experiment.with_overrides(&[("train.precision", format.name())])?)
}

/// Median seconds of each kernel, scaled to sum to the median whole step.
fn time_kernels(step: &mut TrainingStep) -> Result<Vec<f64>, TrainError> {
    let mut clock = step.clock();
    let (mut whole, mut within) = (Vec::new(), vec![Vec::new(); step.session.plan(0).program.steps.len()]);
    // The first step runs with cold caches.
    step.run(&mut clock)?;
    let started = Instant::now();
    for count in 1..=MAX_STEPS {
        step.run(&mut clock)?;
        for (times, &nanoseconds) in within.iter_mut().zip(clock.slots()) {
            times.push(nanoseconds as f64 * 1e-9);
        }
        whole.push(clock.slots().iter().sum::<u64>() as f64 * 1e-9);
        if count >= MIN_STEPS && started.elapsed().as_secs_f64() > MAX_SECONDS {
            break;
        }
    }
    let medians: Vec<f64> = within.iter_mut().map(|times| median(times)).collect();
    let factor = median(&mut whole) / medians.iter().sum::<f64>().max(1e-9);
    Ok(medians.into_iter().map(|seconds| seconds * factor).collect())
}

/// The kernels that a forecast distinguishes. The time of layout changes is added to the kernel that follows.
fn kernels(plan: &Plan, seconds: &[f64], on_matrix_units: bool) -> Vec<(Kernel, f64)> {
    let mut kernels: Vec<(Kernel, f64)> = Vec::new();
    let mut before = 0.0;
    for ((kernel, step), seconds) in
        work(&plan.program, on_matrix_units).kernels.into_iter().zip(&plan.program.steps).zip(seconds)
    {
        if step.phase == Phase::Layout {
            before += seconds;
        } else {
            kernels.push((kernel, seconds + std::mem::take(&mut before)));
        }
    }
    if let Some((_, last)) = kernels.last_mut() {
        *last += before;
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_engine::reference::ReferenceBackend;
    use stratus_forecast::work::KernelKind;
    use stratus_graph::ops::{Conv2d, Flatten, Linear, Relu};
    use stratus_graph::{GraphBuilder, Shape};

    /// Every kernel of the program has a time, on any backend.
    #[test]
    fn measures_each_kernel_of_a_step() {
        let (mut graph, x) = GraphBuilder::new("small", Shape::image(3, 8, 8));
        let y = graph.add("conv", Conv2d::new(3, 4, 3, 1, 1), &[x]).unwrap();
        let y = graph.add("relu", Relu, &[y]).unwrap();
        let y = graph.add("flatten", Flatten, &[y]).unwrap();
        let y = graph.add("fc", Linear::new(256, 10), &[y]).unwrap();
        let design = Design { graph: graph.finish(y).unwrap(), batch: 2 };
        let device = OpenDevice::new(Box::new(ReferenceBackend));
        let mut chosen = None;
        let measured = measure_network(&design, NumberFormat::F32, false, &device, &mut chosen).unwrap();
        let again = measure_network(&design, NumberFormat::F32, false, &device, &mut chosen).unwrap();
        let names = |network: &MeasuredNetwork| -> Vec<_> {
            network.kernels.iter().map(|(k, _)| k.clone()).collect()
        };
        assert_eq!(names(&measured), names(&again));
        let count =
            |kind: KernelKind| measured.kernels.iter().filter(|(kernel, _)| kernel.kind == kind).count();
        assert!(count(KernelKind::FirstForward) == 1 && count(KernelKind::FirstWeights) == 1, "{measured:?}");
        assert!(measured.kernels.iter().all(|(_, seconds)| *seconds >= 0.0) && measured.step_s() > 0.0);
    }
}
