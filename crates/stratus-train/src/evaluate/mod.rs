//! Evaluates weights on a data set.

pub(crate) mod collector;
mod images;
pub(crate) mod mistakes;
mod scorer;
mod scores;
pub(crate) mod targets;
mod views;
mod windows;

use crate::TrainError;
use crate::compile::{EvaluationSession, InferenceForm, Plans, compile_evaluation, inference_session};
use crate::device;
use crate::infer::{check_weights, load_for_inference};
use crate::input::{BatchFormat, gathered_bytes, image_shape};
use crate::network::Network;
use crate::resolve::{Rank, ResolvedProcess, validation_views};
use crate::run::pipeline::forward_labels;
use crate::weights::session_state::{RestoreMode, refresh, restore};
use crate::weights::{
    CheckpointChoice, Pretrained, RecordedMetadata, WeightsPurpose, load_checkpoint, logit_thresholds,
    model_from_tensors,
};
use collector::{CollectedPredictions, CollectorRequest, PredictionCollector};
use std::path::Path;
use std::sync::Arc;
use stratus_base::AlignedBytes;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::{BatchStride, Dataset, Loader, LoaderConfig, TtaView};
use stratus_engine::{Clock, Program, Session, Stage};
use stratus_exchange::{ExchangeError, WorkerGroup};
use stratus_experiment::Experiment;
use stratus_optimise::fold;
use stratus_run::RunDir;
use stratus_run::quantisation::Quantisation;
use stratus_run::sources::Source;
use views::ViewAverage;

pub use images::{DataPart, EvaluatedImages, ImageSelection};
use images::{OpenedImages, check_known};
use mistakes::MistakeCollector;
pub use mistakes::{Gallery, MAX_GALLERY_IMAGES, Mistake, MistakeKind, MistakeRequest, Mistakes};
use scorer::{PartialScores, Scorer};
pub use scores::{Scores, TaskMetrics};
use targets::{LogitThresholds, TargetScaling};
pub use windows::{evaluate_run_in_windows, evaluate_weights_in_windows};

/// Evaluates a session's weights on one data set, any number of times. The loader reads ahead.
pub struct Evaluator {
    program: usize,
    loader: Loader,
    clock: Clock,
    scorer: Scorer,
    multi_view: Option<MultiView>,
    /// Collects mistakes, if they are requested.
    mistakes: Option<MistakeCollector>,
    /// The predictions that validations keep, if any.
    collects: Option<CollectorRequest>,
    collector: Option<PredictionCollector>,
    /// True if scores have the drawings of reports.
    draws: bool,
    /// Bytes of the outputs that are gathered.
    gathered_bytes: u64,
    /// The pipeline stage of this process; `None` without stages.
    stage: Option<Stage>,
}

/// Evaluates several views of each image together.
struct MultiView {
    shape: [usize; 3],
    format: BatchFormat,
    /// The views; the first is the image itself.
    views: Vec<TtaView>,
    average: ViewAverage,
    /// Memory for one view of a batch's images.
    images: AlignedBytes,
}

impl MultiView {
    /// `None` if only the images themselves are evaluated.
    fn new(
        resolved: &ResolvedProcess,
        program: &Program,
        format: BatchFormat,
    ) -> Result<Option<Self>, TrainError> {
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
            let problem = format!("{shift} = {shifted} exceeds images of {height}×{width}");
            return Err(configuration(problem, "choose a shift below the images' height and width"));
        }
        let average = ViewAverage::for_program(program).ok_or_else(|| {
            let problem = format!("{mirror}, {shift}: the network has no class probabilities to average");
            configuration(problem, "remove them")
        })?;
        let bytes = program.batch * channels * height * width * format.element.bytes();
        let images = AlignedBytes::zeroed(bytes, "a view of a batch").map_err(|_| {
            configuration(
                format!("out of memory: {bytes} bytes of images"),
                "set a smaller validation.batch_size",
            )
        })?;
        Ok(Some(Self { shape, format, views, average, images }))
    }
}

/// The keys that enable several views.
const VIEW_KEYS: [&str; 2] = ["validation.mirror", "validation.shift"];

/// The number of views of each image that an experiment evaluates.
#[must_use]
pub fn view_count(experiment: &Experiment) -> usize {
    validation_views(experiment).len()
}

impl Evaluator {
    /// Starts reading `dataset` in order, for `program` of `session`. Thresholds of labels are chosen on its
    /// samples.
    ///
    /// # Errors
    /// If the loader cannot be started.
    pub fn new(
        resolved: &ResolvedProcess,
        session: &Session,
        program: usize,
        dataset: Arc<dyn Dataset>,
    ) -> Result<Self, TrainError> {
        Self::with_thresholds(resolved, session, program, dataset, LogitThresholds::new())
    }

    /// As [`Self::new`], with the thresholds of labels that were chosen before. With an empty list,
    /// thresholds are chosen on these samples.
    ///
    /// # Errors
    /// As there.
    fn with_thresholds(
        resolved: &ResolvedProcess,
        session: &Session,
        program: usize,
        dataset: Arc<dyn Dataset>,
        thresholds: LogitThresholds,
    ) -> Result<Self, TrainError> {
        let plan = session.plan(program);
        let format = BatchFormat::from_plan(plan);
        let workers = resolved.max_loader_threads();
        let Rank { rank, world_size } = resolved.rank();
        let turn = BatchStride { first: rank as u64, step: world_size as u64 };
        let stage = resolved.stage();
        let positions_only = stage.is_some_and(|stage| stage.index > 0);
        let config = LoaderConfig {
            workers,
            stride: turn,
            positions_only,
            ..resolved.input().evaluation(format, plan.program.batch)
        };
        let batches = dataset.len().div_ceil(config.batch_size) as u64;
        if batches < turn.step {
            return Err(TrainError::Configuration {
                problem: format!("{world_size} workers exceed the {batches} validation batches"),
                hint: "set a smaller validation.batch_size, or start fewer workers".to_owned(),
            });
        }
        let clock = Clock::disabled(session.slots(program));
        let multi_view = MultiView::new(resolved, &plan.program, format)?;
        let classes = resolved.settings().model.classes.unwrap_or(0);
        let (task, threads) = (resolved.task(), resolved.settings().train.threads);
        let scaling = TargetScaling::new(resolved).with_thresholds(thresholds);
        let scorer = match stage {
            Some(stage) if !stage.is_last() => Scorer::placeholder(task, classes, scaling),
            _ => Scorer::new(&plan.program, task, threads, scaling)?,
        };
        let gathered_bytes = gathered_bytes(resolved, dataset.as_ref());
        let loader = Loader::new(dataset, config)?;
        loader.set_active_workers(resolved.settings().data.workers.unwrap_or(1));
        Ok(Self {
            program,
            loader,
            clock,
            scorer,
            multi_view,
            mistakes: None,
            collects: None,
            collector: None,
            draws: false,
            gathered_bytes,
            stage,
        })
    }

    /// Keeps the predictions of up to `images` images in every run from now on, and drawings for reports; 0
    /// keeps nothing. Pipeline stages keep no predictions: the first, which has the images, has none.
    pub(crate) fn collect_predictions(&mut self, resolved: &ResolvedProcess, images: usize) {
        let dataset = self.loader.dataset();
        let [_, height, width] = resolved.input().shape;
        self.draws = images > 0 && resolved.rank().rank == 0;
        self.collects = (images > 0 && self.stage.is_none()).then(|| CollectorRequest {
            task: resolved.task(),
            images,
            classes: self.scorer.classes(),
            samples: dataset.len(),
            batch: resolved.validation_batch(),
            input_size: [height, width],
            rank: resolved.rank(),
        });
    }

    /// The predictions of the last run that were kept.
    pub(crate) fn take_predictions(&mut self) -> Option<CollectedPredictions> {
        self.collector.take().map(PredictionCollector::finish)
    }

    /// Bytes of the loader's batches, and of the outputs that are gathered.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.loader.memory_bytes()
            + self.multi_view.as_ref().map_or(0, |multi_view| multi_view.images.len() as u64)
            + self.gathered_bytes
    }

    /// Sets the number of loader threads.
    pub(crate) fn set_loader_threads(&self, threads: usize) {
        self.loader.set_active_workers(threads);
    }

    /// The loader of the validation data.
    pub(crate) fn loader(&self) -> &Loader {
        &self.loader
    }

    /// The number of images that could not be decoded and were skipped.
    pub(crate) fn skipped_images(&self) -> usize {
        self.loader.skipped().len()
    }

    /// Runs the whole data set through the network.
    ///
    /// # Errors
    /// If data cannot be read or a kernel fails.
    pub fn run(&mut self, session: &mut Session) -> Result<Scores, TrainError> {
        self.run_batches(session, None)?;
        self.scores()
    }

    /// The scores of the last run.
    fn scores(&self) -> Result<Scores, TrainError> {
        let scores = self.scorer.scores(self.loader.dataset())?;
        Ok(if self.draws { self.scorer.with_plots(scores) } else { scores })
    }

    /// Runs the whole data set through the network, and collects the requested mistakes.
    fn run_collecting(
        &mut self,
        session: &mut Session,
        request: Option<MistakeRequest>,
        resolved: &ResolvedProcess,
        dataset: &Arc<dyn Dataset>,
    ) -> Result<(Scores, Option<Mistakes>), TrainError> {
        self.mistakes = request.map(MistakeCollector::new);
        let scores = self.run(session)?;
        let mistakes = self.mistakes.take().map(|mistakes| mistakes.finish(resolved.input(), dataset));
        Ok((scores, mistakes.transpose()?))
    }

    /// Runs this worker's share of the batches through the network, and merges the counts of all workers. The
    /// result is bit-identical to that of a single worker.
    ///
    /// # Errors
    /// As [`Self::run`], and if a worker has disconnected.
    pub(crate) fn run_shared(
        &mut self,
        session: &mut Session,
        workers: Option<&WorkerGroup>,
    ) -> Result<Scores, TrainError> {
        let Some(workers) = workers else { return self.run(session) };
        self.run_batches(session, Some(workers))?;
        let scores = self.scorer.take_partial_scores()?.into_bytes();
        // The bytes of each worker are dropped once they are parsed.
        let read = |bytes: Vec<u8>| {
            PartialScores::from_bytes(&bytes).map_err(|problem| {
                ExchangeError::Disconnected(format!("invalid scores from a worker: {problem}"))
            })
        };
        let all: Vec<PartialScores> =
            workers.all_gatherv(scores)?.into_iter().map(read).collect::<Result<_, _>>()?;
        self.scorer.merge_all(all)?;
        self.scores()
    }

    fn run_batches(
        &mut self,
        session: &mut Session,
        workers: Option<&WorkerGroup>,
    ) -> Result<(), TrainError> {
        self.scorer.clear();
        self.collector = self.collects.map(PredictionCollector::new);
        for _ in 0..self.loader.batches_per_epoch() {
            let Some(mut batch) = self.loader.next()? else { break };
            let label_len = self.loader.label_len();
            debug_assert!(batch.labels[batch.samples * label_len..].iter().all(|&l| l == IGNORED_LABEL));
            if let Some((stage, workers)) = self.stage.zip(workers) {
                forward_labels(workers, stage, &mut batch.labels)?;
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
            let dataset = self.loader.dataset();
            self.scorer.add(session, self.program, (&batch, dataset), metrics, average)?;
            if let Some(mistakes) = &mut self.mistakes {
                mistakes.add(&self.scorer, average, &batch)?;
            }
            if let Some(collector) = &mut self.collector {
                collector.add(&self.scorer, average, &batch)?;
            }
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
    /// True if the moving average of the weights was evaluated.
    pub averaged: bool,
    /// Number of views of each image that were averaged.
    pub views: usize,
    /// The images.
    pub images: EvaluatedImages,
    /// The results.
    pub scores: Scores,
    /// The mistakes, if they were requested.
    pub mistakes: Option<Mistakes>,
}

/// Evaluates the weights of one of a run's checkpoints. Uses the kernels of the run's plan if they are
/// available, so that results on its own data set are bit-identical to those of training.
///
/// # Errors
/// If the run, its checkpoint or its data cannot be read.
pub fn evaluate_run(
    path: &Path,
    choice: CheckpointChoice,
    overrides: &[(String, String)],
    images: &ImageSelection,
    mistakes: Option<MistakeRequest>,
    warn: &mut dyn FnMut(&str),
) -> Result<RunEvaluation, TrainError> {
    evaluate_run_as(path, choice, overrides, images, mistakes, EvaluatedForm::Stored, warn)
}

/// The form of a network that is evaluated.
#[derive(Clone, Copy)]
pub(crate) enum EvaluatedForm<'a> {
    /// As the run says: in int8, if `stratus optimise` has quantised it, else as in its validations.
    Stored,
    /// With these layers in int8, or none, and without the fake quantisation of a fine-tuning.
    Chosen(Option<&'a Quantisation>),
}

/// [`evaluate_run`] of a network in a given form.
///
/// # Errors
/// As there.
pub(crate) fn evaluate_run_as(
    path: &Path,
    choice: CheckpointChoice,
    overrides: &[(String, String)],
    images: &ImageSelection,
    mistakes: Option<MistakeRequest>,
    form: EvaluatedForm<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<RunEvaluation, TrainError> {
    let run = RunDir::open(path)?;
    let stored;
    let quantisation = match form {
        EvaluatedForm::Chosen(quantisation) => quantisation,
        EvaluatedForm::Stored => {
            stored = Quantisation::read(&run.optimise_quantisation())?;
            stored.as_ref()
        }
    };
    let mut experiment = match (form, quantisation) {
        // As the run was validated, with the fake quantisation of its training.
        (EvaluatedForm::Stored, None) => Experiment::load(&run.experiment())?.with_overrides(overrides)?,
        _ => load_for_inference(&run, quantisation, overrides)?,
    };
    let checkpoint = load_checkpoint(&run, choice, warn)?;
    check_weights(path, quantisation, &checkpoint)?;
    let names = stratus_run::classes::read_names(&run.classes()).unwrap_or_default();
    let OpenedImages { set, images: mut evaluated } = images.open(&experiment, &names, warn)?;
    if images.path.is_some() {
        clamp_batch_size(&mut experiment, set.len());
    }
    let graph = Network::for_dataset(&experiment, set.as_ref())?.graph;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = ResolvedProcess::new(&experiment, set.as_ref(), &graph, &device)?;
    let EvaluationSession { mut session, evaluate, .. } = match quantisation {
        Some(_) => {
            let model = model_from_tensors(&graph, checkpoint.evaluation_weights().to_vec())?;
            let form = InferenceForm { quantisation, ..InferenceForm::default() };
            inference_session(&resolved, &fold(model)?.model, &device, form, warn)?
        }
        None => {
            let recorded: Option<Plans> = stratus_run::atomic::read_json(&run.plan()).ok();
            let mut evaluation = compile_evaluation(&resolved, &graph, &device, recorded.as_ref(), warn)?;
            let copies = evaluation.refresh;
            restore(&mut evaluation.session, copies, &checkpoint, RestoreMode::Evaluation)?;
            evaluation
        }
    };
    let thresholds = logit_thresholds(&checkpoint.state);
    let mut evaluator =
        Evaluator::with_thresholds(&resolved, &session, evaluate, Arc::clone(&set), thresholds)?;
    let (scores, mistakes) = evaluator.run_collecting(&mut session, mistakes, &resolved, &set)?;
    evaluated.skipped = evaluator.skipped_images();
    evaluated.check_any_decoded()?;
    let scores = scores.check_finite()?;
    let averaged = checkpoint.averaged.is_some();
    let (iteration, weights_sha256) = (checkpoint.state.iteration, checkpoint.state.weights_sha256);
    let views = resolved.views().len();
    Ok(RunEvaluation { iteration, weights_sha256, averaged, views, images: evaluated, scores, mistakes })
}

/// Limits the evaluation batch size to the number of images.
fn clamp_batch_size(experiment: &mut Experiment, images: usize) {
    experiment.validation.batch_size = Some(experiment.validation_batch_size().min(images).max(1));
}

/// The results of a file's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightsEvaluation {
    /// The file.
    pub weights: Source,
    /// The images.
    pub images: EvaluatedImages,
    /// The results.
    pub scores: Scores,
    /// The mistakes, if they were requested.
    pub mistakes: Option<Mistakes>,
}

/// Evaluates the weights of a file, or of a run directory's newest good checkpoint, on images of an
/// experiment. Uses the metadata of images and classes that the weights record, see [`RecordedMetadata`].
/// Classes are matched by name, so the data set may have fewer than the network.
///
/// # Errors
/// If the weights or the data cannot be read, or do not fit the experiment's network, or the data set has
/// classes that the network lacks.
pub fn evaluate_weights(
    experiment: &Experiment,
    weights: &Path,
    images: &ImageSelection,
    mistakes: Option<MistakeRequest>,
    warn: &mut dyn FnMut(&str),
) -> Result<WeightsEvaluation, TrainError> {
    let recorded = RecordedMetadata::read(weights, warn)?;
    let mut experiment = experiment.clone();
    recorded.prepare_loss(&mut experiment, warn);
    let OpenedImages { set, images: mut evaluated } =
        images.open(&experiment, recorded.class_names(), warn)?;
    clamp_batch_size(&mut experiment, set.len());
    let shape = image_shape(&experiment, set.as_ref());
    recorded.prepare(&mut experiment, &shape, warn);
    let experiment = &experiment;
    let graph = Network::for_dataset(experiment, set.as_ref())?.graph;
    if recorded.class_names().is_empty() {
        let classes = graph.shape(graph.output).0.first().copied().unwrap_or(0);
        check_known(set.as_ref(), classes, &evaluated.path)?;
    }
    let weights = Pretrained::open(weights, &graph, WeightsPurpose::Evaluation, warn)?;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| warn(warning));
    let resolved = ResolvedProcess::new(experiment, set.as_ref(), &graph, &device)?;
    let EvaluationSession { mut session, evaluate, refresh: copies } =
        compile_evaluation(&resolved, &graph, &device, None, warn)?;
    weights.write_to(&mut session)?;
    refresh(&mut session, copies)?;
    let thresholds = recorded.logit_thresholds();
    let mut evaluator =
        Evaluator::with_thresholds(&resolved, &session, evaluate, Arc::clone(&set), thresholds)?;
    let (scores, mistakes) = evaluator.run_collecting(&mut session, mistakes, &resolved, &set)?;
    evaluated.skipped = evaluator.skipped_images();
    evaluated.check_any_decoded()?;
    let scores = scores.check_finite()?;
    Ok(WeightsEvaluation { weights: weights.source().clone(), images: evaluated, scores, mistakes })
}
