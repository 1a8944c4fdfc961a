//! What a run needs before its first iteration: data, network, device, session, pretrained weights.

use super::Options;
use super::announce;
use super::outlook::Foreseen;
use super::pipeline::StagedState;
use super::process_group::ProcessGroup;
use super::same_data::Begun;
use super::trainer::Loaders;
use crate::bench::probe::cold_bytes;
use crate::compile::{CompiledRun, FittedRun, KernelSelection, PlannedRun, expect_statistics, fit, programs};
use crate::device::{self, OpenDevice};
use crate::input::{Datasets, data_record, open_datasets, with_class_weights};
use crate::network::{LayerFile, Network, expect_layer_file};
use crate::resolve::{Place, Resolved};
use crate::weights::initialise::initialise;
use crate::weights::session_state::{self, Snapshot};
use crate::weights::{Pretrained, WeightsUse};
use crate::{Experiment, Observer, TrainError};
use std::path::Path;
use std::time::Duration;
use stratus_data::Position;
use stratus_engine::{Precision, Stage};
use stratus_forecast::forecast::measured_interval;
use stratus_graph::Graph;
use stratus_measures::ClassMeasures;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoints, Retention, State};
use stratus_run::csv::Task;
use stratus_run::data::DataRecord;
use stratus_run::log::Log;
use stratus_run::sources::{Source, Sources};

/// Everything that is needed before the first iteration.
pub(super) struct RunSetup {
    pub resolved: Resolved,
    pub datasets: Datasets,
    pub data: DataRecord,
    pub graph: Graph,
    pub layer_file: Option<LayerFile>,
    /// The weights of `model.weights`, if the run is new.
    pub pretrained: Option<Pretrained>,
    pub device: OpenDevice,
    pub compiled: CompiledRun,
    /// Of a stage of a pipeline: which stage has which value.
    pub staged: Option<StagedState>,
    /// What its steps take, where that could be timed.
    pub foreseen: Option<Foreseen>,
}

/// Whether a run has no checkpoint yet, so that its first weights are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStart {
    New,
    Continued,
}

impl RunStart {
    /// A run with its initial weights, and its data being read from the first batch on.
    pub fn set_up(
        self,
        experiment: &Experiment,
        begun: Option<Begun<'_>>,
        options: &Options,
        observer: &mut dyn Observer,
    ) -> Result<(RunSetup, Loaders), TrainError> {
        let selection = if options.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
        let mut setup = RunSetup::new(experiment, self, begun, &selection, &options.group, observer)?;
        setup.first_weights(observer)?;
        let loaders = Loaders::new(&setup, Position::default())?;
        Ok((setup, loaders))
    }
}

impl RunSetup {
    pub fn new(
        experiment: &Experiment,
        start: RunStart,
        begun: Option<Begun<'_>>,
        selection: &KernelSelection<'_>,
        group: &ProcessGroup,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        expect_layer_file(experiment)?;
        let datasets = open_datasets(experiment)?;
        let data = data_record(experiment, &datasets);
        group.expect_same_data(&data)?;
        begun.map_or(Ok(()), |begun| begun.expect_same_data(&data, observer))?;
        let train = datasets.train.as_ref();
        let Network { graph, layer_file } = Network::of(experiment, train)?;
        let mut warn = |text: &str| observer.warn(text);
        let weights = experiment.model.weights.as_deref().filter(|_| start == RunStart::New);
        let pretrained = weights
            .map(|path| {
                let purpose = match experiment.first_stage.network {
                    Some(_) => WeightsUse::SecondStage,
                    None => WeightsUse::Training,
                };
                let mut pretrained = Pretrained::open(Path::new(path), &graph, purpose, &mut warn)?;
                if purpose == WeightsUse::Training {
                    pretrained.expect_classes(&graph, train, &mut warn);
                }
                Ok::<_, TrainError>(pretrained)
            })
            .transpose()?;
        let device = device::open(&experiment.train)?;
        device.warnings.iter().for_each(|warning| warn(warning));
        let experiment = with_class_weights(experiment, train)?;
        let stage = group.stage(&experiment);
        let place = if stage.is_some() { Place::ALONE } else { group.place() };
        let resolved =
            Resolved::new(&experiment, train, &graph, &device)?.with_place(place).with_stage(stage);
        expect_parts(&resolved)?;
        expect_stages(&resolved)?;
        match (expect_statistics(&resolved, &graph), start) {
            (Err(error), RunStart::New) => return Err(error),
            // A run that an older program began goes on as it began.
            (Err(error), RunStart::Continued) => warn(&error.to_string()),
            (Ok(()), _) => {}
        }
        if resolved.precision() == Precision::Bf16 && !device.fast_bf16 {
            warn(
                "train.precision is bf16, and this processor has no instructions for it: f32 is faster here",
            );
        }
        let damaged = train.damaged().len() + datasets.validation.damaged().len();
        if damaged > 0 {
            warn(&format!("damaged images are left out ({damaged}); the summary lists them"));
        }
        if start == RunStart::New {
            announce::intention(&resolved, &datasets, &graph).iter().for_each(|line| observer.say(line));
            let word = announce::changed(&experiment, train, &graph.input_shape().0);
            word.into_iter().for_each(|word| observer.warn(&word));
        }
        let mut warn = |text: &str| observer.warn(text);
        let FittedRun { resolved, mut planned, .. } =
            fit(resolved, &graph, &device, selection, group.workers(), &mut warn)?;
        let foreseen = foresee(&mut planned, &resolved, &device, datasets.validation.len())?;
        let mut compiled = planned.allocate(device.backend.as_ref())?;
        group.connect(&mut compiled.session, resolved.share().first);
        let staged = match (stage, group.workers()) {
            (Some(stage), Some(workers)) => {
                let whole = programs(&resolved.with_stage(None), &graph, &device)?;
                Some(StagedState::of(&whole, &compiled.session, stage, workers)?)
            }
            _ => None,
        };
        if stage.is_none_or(Stage::is_last) {
            session_state::set_class_weights(&mut compiled.session, &resolved)?;
        }
        Ok(Self {
            resolved,
            datasets,
            data,
            graph,
            layer_file,
            pretrained,
            device,
            compiled,
            staged,
            foreseen,
        })
    }

    /// Sets the initial weights, and reports where they come from.
    pub fn first_weights(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let CompiledRun { session, ids, .. } = &mut self.compiled;
        initialise(session, &self.graph, &self.resolved, &self.datasets.train)?;
        if let Some(pretrained) = &self.pretrained {
            pretrained.write_to(session)?;
            observer.say(&format!("weights of {}", pretrained.source().path));
            pretrained.begins_anew().into_iter().for_each(|layers| observer.say(layers));
        }
        session_state::begin_averages(session)?;
        session_state::refresh(session, ids.refresh)
    }

    /// The classes before anything was measured: their names alone.
    pub fn unmeasured_classes(&self) -> Vec<ClassMeasures> {
        let set = self.datasets.train.as_ref();
        let class = |class| ClassMeasures {
            class,
            name: set.class_name(class),
            samples: 0,
            accuracy: None,
            iou: None,
            bf: None,
        };
        (0..set.classes()).map(class).collect()
    }

    /// The files from outside that the run starts from.
    pub fn sources(&self) -> Sources {
        Sources {
            weights: self.pretrained.as_ref().map(|pretrained| pretrained.source().clone()),
            network: self.layer_file.as_ref().map(|file| Source::of_bytes(&file.path, file.text.as_bytes())),
        }
    }

    /// What every checkpoint of the run records beside tensors and positions.
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

    /// Copies the files from outside into the run directory, so that they are not needed again: the layer
    /// file, and the weights as the checkpoint of iteration 0.
    pub fn keep_sources(&self, run: &RunDir, group: &ProcessGroup) -> Result<(), TrainError> {
        let checkpoints = Checkpoints::new(run.checkpoints());
        // A start that was killed in this directory may have left some.
        checkpoints.remove_all()?;
        self.sources().write(&run.sources())?;
        if let Some(file) = &self.layer_file {
            stratus_run::atomic::write(&run.network(), file.text.as_bytes())?;
        }
        if self.pretrained.is_some() {
            let staged = self.staged.as_ref().zip(group.workers());
            let snapshot = Snapshot::new(&self.compiled, staged, &self.graph, 0)?;
            let saved = checkpoints.save(&self.state(), &snapshot.tensors(), &Retention::default());
            staged.map_or(Ok(()), |(staged, workers)| staged.end(workers))?;
            saved?;
        }
        Ok(())
    }

    /// Where another stage keeps the weights from outside, gives it this one's.
    pub fn give_sources(&self, group: &ProcessGroup) -> Result<(), TrainError> {
        match (&self.staged, group.workers(), &self.pretrained) {
            (Some(staged), Some(workers), Some(_)) => staged.serve(workers, &self.compiled.session),
            _ => Ok(()),
        }
    }

    /// Logs the files from outside.
    pub fn say_sources(&self, log: &mut Log) -> Result<(), TrainError> {
        let Sources { weights, network } = self.sources();
        for source in [network, weights].into_iter().flatten() {
            log.say(&format!("begins with {}, sha256 {}", source.path, source.sha256))?;
        }
        let anew = self.pretrained.as_ref().and_then(Pretrained::begins_anew);
        Ok(anew.map_or(Ok(()), |layers| log.say(layers))?)
    }
}

/// Checks that every batch of an epoch can be cut into its parts.
///
/// # Errors
/// Where the last one cannot.
pub fn expect_parts(resolved: &Resolved) -> Result<(), TrainError> {
    let parts = resolved.parts();
    match resolved.tail_batch().filter(|tail| !tail.is_multiple_of(parts)) {
        None => Ok(()),
        Some(tail) => Err(TrainError::Configuration {
            problem: format!(
                "the last batch of an epoch has {tail} samples, which cannot be cut into {parts} equal parts"
            ),
            hint: "leave that batch out with --set data.drop_last=true, or choose another with \
                   --set train.batch_size="
                .to_owned(),
        }),
    }
}

/// Checks that a network in stages is one whose stages are computed.
fn expect_stages(resolved: &Resolved) -> Result<(), TrainError> {
    match (resolved.stage(), resolved.task()) {
        (Some(_), Task::Segmentation) => Err(TrainError::Configuration {
            problem: "a network that gives a class for every pixel cannot be trained in stages".to_owned(),
            hint: "leave train.stages out".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// How long the steps of training and of validation are timed before a run that has a deadline or a budget,
/// and before one that is only to be compared with its forecast.
const TIMED: [[Duration; 2]; 2] = [
    [Duration::from_secs(3), Duration::from_millis(750)],
    [Duration::from_millis(200), Duration::from_millis(50)],
];

/// What steps will take; `None` where nothing was asked for that needs it, on a GPU, whose kernels cannot be
/// timed one by one, and on the reference backend.
fn foresee(
    planned: &mut PlannedRun,
    resolved: &Resolved,
    device: &OpenDevice,
    validation_images: usize,
) -> Result<Option<Foreseen>, TrainError> {
    let settings = resolved.settings();
    let limited = settings.train.deadline.is_some() || settings.train.budget.is_some();
    // Several workers wait for each other, which no kernel alone tells.
    let alone = resolved.place().workers == 1 && resolved.stage().is_none();
    if !alone || !limited && !settings.train.forecast || device.beside_cores || device.libraries.is_empty() {
        return Ok(None);
    }
    let budgets = TIMED[usize::from(!limited)];
    let probed = planned.timed(device.backend.as_ref(), cold_bytes(), budgets)?;
    let batches = validation_images.div_ceil(resolved.validation_batch().max(1)) * resolved.views().len();
    Ok(Some(Foreseen {
        step: measured_interval(probed.train.seconds(), probed.train.spread),
        validation_s: probed.evaluate.seconds() * batches as f64,
    }))
}
