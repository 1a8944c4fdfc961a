//! Measuring weights on a data set.

mod images;
mod scorer;
mod views;
mod windows;

use crate::compile::{EvaluationSession, Plans, compile_evaluation};
use crate::device;
use crate::input::{BatchFormat, image_shape};
use crate::network::Network;
use crate::resolve::{Place, Resolved, validation_views};
use crate::run::pipeline::hand_on_labels;
use crate::weights::session_state::{Restored, refresh, restore};
use crate::weights::{CheckpointChoice, Pretrained, Recorded, WeightsUse, load_checkpoint};
use crate::{Experiment, TrainError};
use std::path::Path;
use std::sync::Arc;
use stratus_base::AlignedBytes;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::{Dataset, Loader, LoaderConfig, Turn, View};
use stratus_engine::{Clock, Program, Session, Stage};
use stratus_exchange::{ExchangeError, Workers};
use stratus_run::RunDir;
use stratus_run::sources::Source;
use views::ViewAverage;

pub use images::{ImageChoice, MeasuredImages, Part};
use images::{OpenImages, expect_known};
pub use scorer::{Measures, Scores};
use scorer::{Scorer, Tally};
pub use windows::{of_run_in_windows, of_weights_in_windows};

/// Measures a session's weights on one data set, as often as is wanted. The loader reads ahead.
pub struct Evaluator {
    program: usize,
    loader: Loader,
    clock: Clock,
    scorer: Scorer,
    multi_view: Option<MultiView>,
    /// Which stage of a pipeline measures.
    stage: Option<Stage>,
}

/// Measures several views of each image together.
struct MultiView {
    shape: [usize; 3],
    format: BatchFormat,
    /// The first is the image as it is.
    views: Vec<View>,
    average: ViewAverage,
    /// A batch's images in one of the views.
    images: AlignedBytes,
}

impl MultiView {
    /// `None` if each image is measured as it is.
    fn new(resolved: &Resolved, program: &Program, format: BatchFormat) -> Result<Option<Self>, TrainError> {
        let [mirror, shift] = VIEW_KEYS;
        let views = resolved.views();
        let configuration =
            |problem: String, hint: &str| TrainError::Configuration { problem, hint: hint.to_owned() };
        if views.len() == 1 {
            return Ok(None);
        }
        let shape @ [channels, height, width] = resolved.input().shape;
        let shifted = resolved.settings().validation.shift;
        if shifted >= height.min(width) {
            let problem = format!("{shift} is {shifted}, but an image has {height}×{width}");
            return Err(configuration(problem, "shift by less than the images' height and width"));
        }
        let average = ViewAverage::of(program).ok_or_else(|| {
            let problem = format!("{mirror}, {shift}: the network makes no probabilities to be averaged");
            configuration(problem, "leave them out")
        })?;
        let bytes = program.batch * channels * height * width * format.element.bytes();
        let images = AlignedBytes::zeroed(bytes, "a view of a batch").map_err(|_| {
            configuration(
                format!("there is no memory for {bytes} bytes of images"),
                "set a smaller validation.batch_size",
            )
        })?;
        Ok(Some(Self { shape, format, views, average, images }))
    }
}

/// The keys that ask for several views.
const VIEW_KEYS: [&str; 2] = ["validation.mirror", "validation.shift"];

/// How many views of each image an experiment measures on.
#[must_use]
pub fn view_count(experiment: &Experiment) -> usize {
    validation_views(experiment).len()
}

impl Evaluator {
    /// Starts reading `dataset` in order, for the program of `session` that measures.
    ///
    /// # Errors
    /// If the loader cannot be started.
    pub fn new(
        resolved: &Resolved,
        session: &Session,
        program: usize,
        dataset: Arc<dyn Dataset>,
    ) -> Result<Self, TrainError> {
        let plan = session.plan(program);
        let format = BatchFormat::of(plan);
        let workers = resolved.most_workers();
        let Place { rank, workers: measuring } = resolved.place();
        let turn = Turn { first: rank as u64, of: measuring as u64 };
        let stage = resolved.stage();
        let elsewhere = stage.is_some_and(|stage| stage.number > 0);
        let config = LoaderConfig {
            workers,
            turn,
            elsewhere,
            ..resolved.input().measuring(format, plan.program.batch)
        };
        let batches = dataset.len().div_ceil(config.batch_size) as u64;
        if batches < turn.of {
            return Err(TrainError::Configuration {
                problem: format!("there are {batches} batches to validate on, and {measuring} workers"),
                hint: "set a smaller validation.batch_size, or start fewer workers".to_owned(),
            });
        }
        let clock = Clock::disabled(session.slots(program));
        let multi_view = MultiView::new(resolved, &plan.program, format)?;
        let classes = resolved.settings().model.classes.unwrap_or(0);
        let scorer = match stage {
            Some(stage) if !stage.is_last() => Scorer::of_another(classes),
            _ => Scorer::new(&plan.program, resolved.task(), resolved.settings().train.threads)?,
        };
        let loader = Loader::new(dataset, config)?;
        loader.set_workers(resolved.settings().data.workers.unwrap_or(1));
        Ok(Self { program, loader, clock, scorer, multi_view, stage })
    }

    /// Bytes of the loader's batches.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.loader.bytes() + self.multi_view.as_ref().map_or(0, |multi_view| multi_view.images.len() as u64)
    }

    /// Lets so many loader threads work.
    pub(crate) fn set_workers(&self, workers: usize) {
        self.loader.set_workers(workers);
    }

    /// The reader of the validation data.
    pub(crate) fn loader(&self) -> &Loader {
        &self.loader
    }

    /// The number of images that could not be decoded and were left out.
    pub(crate) fn left_out(&self) -> usize {
        self.loader.skipped().len()
    }

    /// Runs the whole data set through the network.
    ///
    /// # Errors
    /// If data cannot be read or a kernel fails.
    pub fn run(&mut self, session: &mut Session) -> Result<Scores, TrainError> {
        self.measure(session, None)?;
        self.scorer.scores(self.loader.dataset())
    }

    /// Runs the batches that are this worker's turn through the network, and puts together what all have
    /// counted: as if one had measured all, bit by bit.
    ///
    /// # Errors
    /// As [`Self::run`], or if a worker is gone.
    pub(crate) fn run_shared(
        &mut self,
        session: &mut Session,
        workers: Option<&Workers>,
    ) -> Result<Scores, TrainError> {
        let Some(workers) = workers else { return self.run(session) };
        self.measure(session, Some(workers))?;
        let own = serde_json::to_vec(&self.scorer.tally()?).unwrap_or_default();
        let read = |text: &Vec<u8>| {
            serde_json::from_slice(text).map_err(|error| {
                ExchangeError::Ended(format!("what a worker measured cannot be read: {error}"))
            })
        };
        let all: Vec<Tally> = workers.all_gather_any(own)?.iter().map(read).collect::<Result<_, _>>()?;
        self.scorer.put_together(&all)?;
        self.scorer.scores(self.loader.dataset())
    }

    fn measure(&mut self, session: &mut Session, workers: Option<&Workers>) -> Result<(), TrainError> {
        self.scorer.clear();
        for _ in 0..self.loader.batches_per_epoch() {
            let Some(mut batch) = self.loader.next()? else { break };
            let label_len = self.loader.label_len();
            debug_assert!(batch.labels[batch.samples * label_len..].iter().all(|&l| l == IGNORED_LABEL));
            if let Some((stage, workers)) = self.stage.zip(workers) {
                hand_on_labels(workers, stage, &mut batch.labels)?;
                if !stage.is_last() {
                    session.run(self.program, &mut batch.images, &mut [], &mut self.clock, 0)?;
                    self.loader.recycle(batch);
                    continue;
                }
            }
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(self.program, &mut batch.images, labels, &mut self.clock, 0)?;
            let metrics = match &mut self.multi_view {
                None => session.metrics(),
                Some(MultiView { shape, format, views, average, images }) => {
                    average.clear();
                    average.add(session, self.program)?;
                    for view in &views[1..] {
                        batch.write_view(*view, *shape, format.layout, format.element, images);
                        let labels = bytemuck::cast_slice_mut(&mut batch.labels);
                        session.run(self.program, images, labels, &mut self.clock, 0)?;
                        average.add(session, self.program)?;
                    }
                    average.metrics(&batch.labels)
                }
            };
            let average = self.multi_view.as_ref().map(|multi_view| &multi_view.average);
            self.scorer.add(session, self.program, batch.samples, &batch.labels, metrics, average)?;
            self.loader.recycle(batch);
        }
        Ok(())
    }
}

/// The results of a run's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEvaluation {
    /// Iterations of training.
    pub iteration: u64,
    /// Their checksum.
    pub weights_sha256: String,
    /// Whether the moving average of the weights was measured.
    pub averaged: bool,
    /// Views of each image that were averaged.
    pub views: usize,
    /// What was measured on.
    pub measured: MeasuredImages,
    /// The results.
    pub scores: Scores,
}

/// Measures a run's weights: those of one of its checkpoints. On images of its own data set, with its own
/// kernels if they are to be had here, which gives the bits that training saw.
///
/// # Errors
/// If the run, its checkpoint or its data cannot be read.
pub fn of_run(
    path: &Path,
    choice: CheckpointChoice,
    overrides: &[(String, String)],
    images: &ImageChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<RunEvaluation, TrainError> {
    let run = RunDir::open(path)?;
    let mut experiment = Experiment::load(&run.experiment())?.with_overrides(overrides)?;
    let checkpoint = load_checkpoint(&run, choice, warn)?;
    let names = stratus_run::classes::read_names(&run.classes()).unwrap_or_default();
    let OpenImages { set, mut measured } = images.open(&experiment, &names)?;
    if images.path.is_some() {
        cut_batch(&mut experiment, set.len());
    }
    let graph = Network::of(&experiment, set.as_ref())?.graph;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = Resolved::new(&experiment, set.as_ref(), &graph, &device)?;
    let recorded: Option<Plans> = stratus_run::atomic::read_json(&run.plan()).ok();
    let EvaluationSession { mut session, evaluate, refresh: copies } =
        compile_evaluation(&resolved, &graph, &device, recorded.as_ref(), warn)?;
    restore(&mut session, copies, &checkpoint, Restored::Measuring)?;
    let mut evaluator = Evaluator::new(&resolved, &session, evaluate, set)?;
    let scores = evaluator.run(&mut session)?;
    measured.left_out = evaluator.left_out();
    measured.expect_some()?;
    let averaged = checkpoint.averaged.is_some();
    let (iteration, weights_sha256) = (checkpoint.state.iteration, checkpoint.state.weights_sha256);
    let views = resolved.views().len();
    Ok(RunEvaluation { iteration, weights_sha256, averaged, views, measured, scores })
}

/// Measuring has a batch of its own, no larger than what there is to measure.
fn cut_batch(experiment: &mut Experiment, images: usize) {
    experiment.validation.batch_size = Some(experiment.validation_batch_size().min(images).max(1));
}

/// The results of a file's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightsEvaluation {
    /// The file.
    pub weights: Source,
    /// What was measured on.
    pub measured: MeasuredImages,
    /// The results.
    pub scores: Scores,
}

/// Measures weights on images of an experiment: a file's, or those of a run directory's newest good
/// checkpoint. What they record of images and classes is taken, see [`Recorded`]; classes are matched by
/// their names, so that there may be fewer than the network has.
///
/// # Errors
/// If the weights or the data cannot be read, or do not fit the experiment's network; if the data have
/// classes that the weights do not know.
pub fn of_weights(
    experiment: &Experiment,
    weights: &Path,
    images: &ImageChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<WeightsEvaluation, TrainError> {
    let recorded = Recorded::read(weights, warn)?;
    let OpenImages { set, mut measured } = images.open(experiment, recorded.class_names())?;
    let mut experiment = experiment.clone();
    cut_batch(&mut experiment, set.len());
    let shape = image_shape(&experiment, set.as_ref());
    recorded.prepare(&mut experiment, &shape, warn);
    let experiment = &experiment;
    let graph = Network::of(experiment, set.as_ref())?.graph;
    if recorded.class_names().is_empty() {
        let classes = graph.shape(graph.output).0.first().copied().unwrap_or(0);
        expect_known(set.as_ref(), classes, &measured.path)?;
    }
    let weights = Pretrained::open(weights, &graph, WeightsUse::Measuring, warn)?;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = Resolved::new(experiment, set.as_ref(), &graph, &device)?;
    let EvaluationSession { mut session, evaluate, refresh: copies } =
        compile_evaluation(&resolved, &graph, &device, None, warn)?;
    weights.write_to(&mut session)?;
    refresh(&mut session, copies)?;
    let mut evaluator = Evaluator::new(&resolved, &session, evaluate, set)?;
    let scores = evaluator.run(&mut session)?;
    measured.left_out = evaluator.left_out();
    measured.expect_some()?;
    Ok(WeightsEvaluation { weights: weights.source().clone(), measured, scores })
}
