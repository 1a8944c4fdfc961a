//! Prepares a run before its first iteration: data, network, device, session, pretrained weights.

use super::RunOptions;
use super::announce;
use super::recorder::energy::SharedEnergyMeter;
use super::same_data::StartedRun;
use super::time_estimator::StepForecast;
use super::worker_role::WorkerRole;
use crate::bench::probe::cold_bytes;
use crate::compile::{
    CompiledRun, FittedRun, KernelSelection, PlannedRun, ProgramVariant, check_batch_norm_samples, fit,
    variant_programs,
};
use crate::device::{self, OpenDevice};
use crate::exchange::{self, ExchangePath};
use crate::input::{Datasets, data_record, open_datasets, with_class_weights};
use crate::network::{Network, check_layer_file};
use crate::resolve::ResolvedProcess;
use crate::weights::initialise::initialise;
use crate::weights::session_state::{self, Snapshot};
use crate::weights::{Pretrained, WeightsPurpose};
use crate::{LayerFile, Observer, TrainError};
use std::path::Path;
use std::time::Duration;
use stratus_data::Dataset;
use stratus_engine::{Precision, Stage};
use stratus_experiment::Experiment;
use stratus_forecast::forecast::probed_interval;
use stratus_graph::Graph;
use stratus_measures::{ClassMetrics, LabelScores, ScoreTable, TargetErrors};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, Retention, State};
use stratus_run::classes::OutputMetrics;
use stratus_run::csv::Task;
use stratus_run::data::DataRecord;
use stratus_run::log::Log;
use stratus_run::sources::{Source, Sources};

/// Everything that a run needs before its first iteration.
pub(super) struct RunSetup {
    pub resolved: ResolvedProcess,
    pub datasets: Datasets,
    pub data: DataRecord,
    pub graph: Graph,
    pub layer_file: Option<LayerFile>,
    /// The weights of `model.weights`, if the run is new.
    pub pretrained: Option<Pretrained>,
    pub device: OpenDevice,
    pub compiled: CompiledRun,
    pub role: WorkerRole,
    /// The forecast of its steps, if their kernels were timed.
    pub step_forecast: Option<StepForecast>,
    /// The path of the exchange with other workers.
    pub path: ExchangePath,
    /// Measures the energy since the device was opened.
    pub energy: SharedEnergyMeter,
}

/// The start of a run: new, with initial weights, or from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStart {
    New,
    Resumed,
}

/// The parts of [`RunSetup`] that need neither plan nor memory.
struct ResolvedRun {
    graph: Graph,
    layer_file: Option<LayerFile>,
    pretrained: Option<Pretrained>,
    device: OpenDevice,
    resolved: ResolvedProcess,
}

impl ResolvedRun {
    /// Builds the network for the training set, opens the weights and the device, and checks that the
    /// experiment can be trained with them.
    fn new(
        experiment: &Experiment,
        start: RunStart,
        train: &dyn Dataset,
        local_rank: usize,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let group = &options.group;
        let Network { graph, layer_file } = Network::for_dataset(experiment, train)?;
        let mut warn = |text: &str| observer.warn(text);
        let weights = experiment.model.weights.as_deref().filter(|_| start == RunStart::New);
        let pretrained = weights
            .map(|path| {
                let purpose = match experiment.first_stage.network {
                    Some(_) => WeightsPurpose::SecondStage,
                    None => WeightsPurpose::Training,
                };
                let mut pretrained = Pretrained::open(Path::new(path), &graph, purpose, &mut warn)?;
                if purpose == WeightsPurpose::Training {
                    pretrained.reinitialise_for_classes(&graph, train, &mut warn);
                }
                Ok::<_, TrainError>(pretrained)
            })
            .transpose()?;
        let device = device::open_monitored(&experiment.train, local_rank, &options.device_monitor())?;
        device.warnings.iter().for_each(|warning| warn(warning));
        let experiment = with_class_weights(experiment, train)?;
        let stage = group.stage(&experiment);
        let rank = group.share(stage);
        let resolved = ResolvedProcess::for_training(&experiment, train, &graph, &device)?
            .with_rank(rank)
            .with_stage(stage);
        check_parts(&resolved)?;
        exchange::unused_keys(&resolved).iter().for_each(|text| warn(text));
        match (check_batch_norm_samples(&resolved, &graph), start) {
            (Err(error), RunStart::New) => return Err(error),
            // Runs of older versions, which did not check this, resume with a warning.
            (Err(error), RunStart::Resumed) => warn(&error.to_string()),
            (Ok(()), _) => {}
        }
        Ok(Self { graph, layer_file, pretrained, device, resolved })
    }
}

impl RunSetup {
    pub fn new(
        experiment: &Experiment,
        start: RunStart,
        started: Option<StartedRun<'_>>,
        selection: &KernelSelection<'_>,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let group = &options.group;
        let datasets = group.agree(check_layer_file(experiment).and_then(|()| open_datasets(experiment)))?;
        let data = data_record(experiment, &datasets);
        group.check_same_data(&data)?;
        let local_rank = group.local_rank()?;
        let same_data = started.map_or(Ok(()), |started| started.check_same_data(&data, observer));
        let resolved = same_data.and_then(|()| {
            ResolvedRun::new(experiment, start, datasets.train.as_ref(), local_rank, options, observer)
        });
        let ResolvedRun { graph, layer_file, pretrained, mut device, resolved } = group.agree(resolved)?;
        let teacher = resolved.teacher().map_or("", |teacher| teacher.source().sha256.as_str());
        group.check_same_run(&[teacher.as_bytes()])?;
        let energy = SharedEnergyMeter::start(device.backend.meter());
        let train = datasets.train.as_ref();
        let mut warn = |text: &str| observer.warn(text);
        group.divide_device(&mut device, &mut warn)?;
        group.compare_devices(&device, &mut warn)?;
        if resolved.precision() == Precision::Bf16 && !device.has_native_bf16 {
            warn("train.precision is bf16, but this CPU has no bf16 instructions: f32 is faster here");
        }
        datasets.warnings().iter().for_each(|text| warn(text));
        if start == RunStart::New {
            announce::run_lines(&resolved, &datasets, &graph).iter().for_each(|line| observer.info(line));
            // The resolved experiment always has a shape; whether the user has set one decides here.
            let warning = announce::image_warning(experiment, train, &graph.input_shape().0);
            warning.into_iter().for_each(|warning| observer.warn(&warning));
        }
        let path = group.choose_path(&device, &resolved)?;
        let mut warn = |text: &str| observer.warn(text);
        let validation_images = datasets.validation.len();
        let fitted = fit(&resolved, &graph, &device, selection, group.workers(), &mut warn);
        let allocated = fitted.and_then(|FittedRun { resolved, mut planned, .. }| {
            let step_forecast = forecast_steps(&mut planned, &resolved, &device, validation_images)?;
            Ok((resolved, step_forecast, planned.allocate(device.backend.as_ref())?))
        });
        // The memory of one worker may not suffice.
        let (resolved, step_forecast, mut compiled) = group.agree(allocated)?;
        let path = group.connect(&mut compiled.session, &resolved, path, device.backend.as_ref())?;
        path.describe(&resolved).iter().for_each(|text| observer.info(&announce::line("exchange", text)));
        let whole = || {
            let whole = ProgramVariant { stage: None, ..ProgramVariant::new(&resolved) };
            variant_programs(whole, &graph, &device)
        };
        let stage = resolved.stage();
        let role = group.role(stage, &compiled.session, whole)?;
        let class_weights = match stage.is_none_or(Stage::is_last) {
            true => session_state::set_class_weights(&mut compiled.session, &resolved),
            false => Ok(()),
        };
        group.agree(class_weights.and_then(|()| session_state::set_teacher(&mut compiled, &resolved)))?;
        Ok(Self {
            resolved,
            datasets,
            data,
            graph,
            layer_file,
            pretrained,
            device,
            compiled,
            role,
            step_forecast,
            path,
            energy,
        })
    }

    /// Sets the initial weights, and reports their source.
    pub fn set_initial_weights(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let CompiledRun { session, ids, .. } = &mut self.compiled;
        initialise(session, &self.graph, &self.resolved, &self.datasets.train)?;
        if let Some(pretrained) = &self.pretrained {
            pretrained.write_to(session)?;
            observer.info(&announce::line("weights", &format!("of {}", pretrained.source().path)));
            let reinitialised = pretrained.reinitialised_layers();
            reinitialised.into_iter().for_each(|layers| observer.info(&announce::line("", layers)));
        }
        session_state::initialise_averages(session)?;
        session_state::refresh(session, ids.refresh)
    }

    /// The classes, labels or targets before the first validation: names without metrics.
    pub fn output_names_only(&self) -> OutputMetrics {
        let set = self.datasets.train.as_ref();
        let table = ScoreTable::new(set.classes());
        let name = |output: usize| set.class_name(output);
        let outputs = OutputMetrics::default();
        match self.resolved.task() {
            Task::Classification | Task::Segmentation => {}
            Task::MultiLabel => {
                let labels = LabelScores::new(&table, LabelScores::LOGIT_THRESHOLD, name).labels;
                return OutputMetrics { labels, ..outputs };
            }
            Task::Regression => {
                return OutputMetrics { targets: TargetErrors::new(&table, name).targets, ..outputs };
            }
        }
        let class = |class| ClassMetrics {
            class,
            name: set.class_name(class),
            samples: 0,
            accuracy: None,
            iou: None,
            bf: None,
        };
        OutputMetrics { classes: (0..set.classes()).map(class).collect(), ..outputs }
    }

    /// The external files that the run starts from.
    pub fn sources(&self) -> Sources {
        Sources {
            weights: self.pretrained.as_ref().map(|pretrained| pretrained.source().clone()),
            network: self
                .layer_file
                .as_ref()
                .map(|file| Source::from_bytes(&file.path, file.text.as_bytes())),
            teacher: self.resolved.teacher().map(|teacher| teacher.source().clone()),
        }
    }

    /// The state that every checkpoint of the run records, besides tensors and positions.
    pub fn state(&self) -> State {
        State {
            seed: self.resolved.settings().train.seed,
            threads: u32::try_from(self.device.backend.threads()).unwrap_or(u32::MAX),
            device: self.device.backend.name().to_owned(),
            libraries: self
                .device
                .libraries
                .iter()
                .map(|library| (library.name.clone(), library.version.clone()))
                .collect(),
            plan_hash: self.compiled.plans.hash(),
            ..State::default()
        }
    }

    /// Copies the external files into the run directory, so that they are not needed again: the layer file,
    /// and the weights as the checkpoint of iteration 0.
    pub fn copy_sources(&self, run: &RunDir) -> Result<(), TrainError> {
        let checkpoints = Checkpoints::new(run.checkpoints());
        // A start that was killed in this directory may have left checkpoints.
        checkpoints.remove_all()?;
        self.sources().write(&run.sources())?;
        if let Some(file) = &self.layer_file {
            stratus_run::atomic::write(&run.network(), file.text.as_bytes())?;
        }
        if self.pretrained.is_some() {
            let snapshot = Snapshot::new(&self.compiled, self.role.pipeline(), &self.graph, 0)?;
            let saved = checkpoints.save(&self.state(), &snapshot.tensors(), &Retention::default());
            self.role.finish_checkpoint()?;
            saved?;
        }
        Ok(())
    }

    /// Serves this stage's part of the pretrained weights to the first stage, which stores them.
    pub fn serve_source_weights(&self) -> Result<(), TrainError> {
        match self.pretrained {
            Some(_) => self.role.serve_checkpoint(&self.compiled.session),
            None => Ok(()),
        }
    }

    /// Logs the path of the exchange with other workers.
    pub fn log_exchange(&self, log: &mut Log) -> Result<(), TrainError> {
        let text = self.path.describe(&self.resolved);
        Ok(text.map_or(Ok(()), |text| log.write(&format!("exchange: {text}")))?)
    }

    /// Logs the external files.
    pub fn log_sources(&self, log: &mut Log) -> Result<(), TrainError> {
        let Sources { weights, network, teacher } = self.sources();
        for source in [network, weights].into_iter().flatten() {
            log.write(&format!("starting from {}, sha256 {}", source.path, source.sha256))?;
        }
        if let Some(source) = teacher {
            log.write(&format!("learning from the teacher {}, sha256 {}", source.path, source.sha256))?;
        }
        let layers = self.pretrained.as_ref().and_then(Pretrained::reinitialised_layers);
        Ok(layers.map_or(Ok(()), |layers| log.write(layers))?)
    }
}

/// Checks that every batch of an epoch can be divided into `train.parts` parts.
///
/// # Errors
/// If the last batch cannot.
pub fn check_parts(resolved: &ResolvedProcess) -> Result<(), TrainError> {
    let parts = resolved.parts();
    match resolved.tail_batch().filter(|tail| !tail.is_multiple_of(parts)) {
        None => Ok(()),
        Some(tail) => Err(TrainError::Configuration {
            problem: format!(
                "the last batch of an epoch has {tail} samples, which cannot be divided into {parts} equal \
                 parts"
            ),
            hint: "drop that batch with --set data.drop_last=true, or choose another batch size with \
                   --set train.batch_size="
                .to_owned(),
        }),
    }
}

/// How long training and validation steps are timed: with a deadline or budget, and without.
const PROBE_TIMES: [[Duration; 2]; 2] = [
    [Duration::from_secs(3), Duration::from_millis(750)],
    [Duration::from_millis(200), Duration::from_millis(50)],
];

/// Forecasts the step times by timing kernels. `None` if no setting needs a forecast, on a GPU, whose kernels
/// cannot be timed one by one, and on the reference backend.
fn forecast_steps(
    planned: &mut PlannedRun,
    resolved: &ResolvedProcess,
    device: &OpenDevice,
    validation_images: usize,
) -> Result<Option<StepForecast>, TrainError> {
    let settings = resolved.settings();
    let is_limited = settings.train.deadline.is_some() || settings.train.budget.is_some();
    // Several workers wait for each other, which timing single kernels does not show.
    let is_single = resolved.rank().world_size == 1 && resolved.stage().is_none();
    if !is_single
        || !is_limited && !settings.train.forecast
        || device.is_accelerator
        || device.libraries.is_empty()
    {
        return Ok(None);
    }
    let budgets = PROBE_TIMES[usize::from(!is_limited)];
    let probed = planned.probe_steps(device.backend.as_ref(), cold_bytes(), budgets)?;
    let batches = validation_images.div_ceil(resolved.validation_batch().max(1)) * resolved.views().len();
    Ok(Some(StepForecast {
        step: probed_interval(probed.train.seconds(), probed.train.spread),
        validation_s: probed.evaluate.seconds() * batches as f64,
    }))
}
