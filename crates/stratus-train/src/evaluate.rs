//! Measuring weights on a data set.

use crate::compile::{
    Compiled, Evaluation, Planning, Plans, compile_evaluation, network, open_dataset, open_datasets, plan,
    programs,
};
use crate::device;
use crate::feed::{self, Form};
use crate::state::{refresh, restore};
use crate::trained::checkpoint;
use crate::views::Views;
use crate::weights::{Pretrained, Use};
use crate::{Experiment, TrainError};
use std::path::Path;
use std::sync::Arc;
use stratus_base::AlignedBytes;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::{Dataset, Loader, Split, View};
use stratus_engine::{Clock, Program, Session};
use stratus_run::RunDir;
use stratus_run::sources::Source;

/// Means over a data set. Accuracies are fractions, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Scores {
    /// Samples.
    pub samples: u64,
    /// Mean loss.
    pub loss: f64,
    /// Share whose best class is right.
    pub top1: f64,
    /// Share whose class is among the best five.
    pub top5: f64,
}

/// Measures on one data set, again and again; the first batches are ready when it is asked.
pub struct Evaluator {
    program: usize,
    loader: Loader,
    clock: Clock,
    several: Option<Several>,
}

/// How several views of each image are measured together.
struct Several {
    shape: [usize; 3],
    form: Form,
    /// The first one is the image as it is.
    views: Vec<View>,
    said: Views,
    /// A batch's images in one of the views.
    images: AlignedBytes,
}

impl Several {
    /// `None` where images are measured as they are.
    fn new(
        experiment: &Experiment,
        program: &Program,
        shape: [usize; 3],
        form: Form,
    ) -> Result<Option<Self>, TrainError> {
        let [mirror, shift] = VIEWS;
        let views = views(experiment);
        let configuration =
            |problem: String, hint: &str| TrainError::Configuration { problem, hint: hint.to_owned() };
        if views.len() == 1 {
            return Ok(None);
        }
        let [channels, height, width] = shape;
        if experiment.validation.shift >= height.min(width) {
            let problem =
                format!("{shift} is {}, but an image has {height}×{width}", experiment.validation.shift);
            return Err(configuration(problem, "shift by less than the images' height and width"));
        }
        let said = Views::of(program).ok_or_else(|| {
            let problem = format!("{mirror}, {shift}: the network makes no probabilities to be averaged");
            configuration(problem, "leave them out")
        })?;
        let bytes = program.batch * channels * height * width * form.element.bytes();
        let images = AlignedBytes::zeroed(bytes, "a view of a batch").map_err(|_| {
            configuration(
                format!("there is no memory for {bytes} bytes of images"),
                "set a smaller validation.batch_size",
            )
        })?;
        Ok(Some(Self { shape, form, views, said, images }))
    }
}

/// The keys that ask for several views.
const VIEWS: [&str; 2] = ["validation.mirror", "validation.shift"];

/// The views of each image that an experiment measures on.
fn views(experiment: &Experiment) -> Vec<View> {
    View::all(experiment.validation.mirror, experiment.validation.shift)
}

/// How many views of each image an experiment measures on.
#[must_use]
pub fn view_count(experiment: &Experiment) -> usize {
    views(experiment).len()
}

impl Evaluator {
    /// Starts reading `dataset` in order, as images of `shape`, for the program of `session` that measures.
    ///
    /// # Errors
    /// Where the loader cannot be started.
    pub fn new(
        experiment: &Experiment,
        session: &Session,
        program: usize,
        dataset: Arc<dyn Dataset>,
        shape: [usize; 3],
    ) -> Result<Self, TrainError> {
        let plan = session.plan(program);
        let form = Form::of(plan);
        let config = feed::measuring(experiment, shape, form, plan.program.batch);
        let clock = Clock::disabled(session.slots(program));
        let several = Several::new(experiment, &plan.program, shape, form)?;
        Ok(Self { program, loader: Loader::new(dataset, config)?, clock, several })
    }

    /// Bytes of the loader's batches.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.loader.bytes() + self.several.as_ref().map_or(0, |several| several.images.len() as u64)
    }

    /// The reader of the validation data.
    pub(crate) fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Runs the whole data set through the network as it is.
    ///
    /// # Errors
    /// Where data cannot be read or a kernel fails.
    pub fn run(&mut self, session: &mut Session) -> Result<Scores, TrainError> {
        let mut scores = Scores::default();
        let mut counted = 0.0;
        for _ in 0..self.loader.batches_per_epoch() {
            let Some(mut batch) = self.loader.next()? else { break };
            debug_assert!(batch.labels[batch.samples..].iter().all(|&label| label == IGNORED_LABEL));
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(self.program, &mut batch.images, labels, &mut self.clock, 0)?;
            let metrics = match &mut self.several {
                None => session.metrics(),
                Some(Several { shape, form, views, said, images }) => {
                    said.clear();
                    said.add(session, self.program)?;
                    for view in &views[1..] {
                        batch.write_view(*view, *shape, form.layout, form.element, images);
                        let labels = bytemuck::cast_slice_mut(&mut batch.labels);
                        session.run(self.program, images, labels, &mut self.clock, 0)?;
                        said.add(session, self.program)?;
                    }
                    said.metrics(&batch.labels)
                }
            };
            scores.loss += metrics.loss * metrics.samples;
            scores.top1 += metrics.top1;
            scores.top5 += metrics.top5;
            counted += metrics.samples;
            self.loader.recycle(batch);
        }
        let counted: f64 = counted.max(1.0);
        Ok(Scores {
            samples: counted as u64,
            loss: scores.loss / counted,
            top1: scores.top1 / counted,
            top5: scores.top5 / counted,
        })
    }
}

/// A run's weights, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Iterations that the weights were trained for.
    pub iteration: u64,
    /// Their checksum.
    pub weights_sha256: String,
    /// Views of each image that were measured together.
    pub views: usize,
    /// What came out.
    pub scores: Scores,
}

/// Measures a run's weights on its validation images: the newest good checkpoint's, or those after `iteration` iterations.
///
/// # Errors
/// Where the run, its checkpoint or its data cannot be read.
pub fn of_run(
    path: &Path,
    iteration: Option<u64>,
    overrides: &[(String, String)],
    warn: &mut dyn FnMut(&str),
) -> Result<Evaluated, TrainError> {
    let run = RunDir::open(path)?;
    let experiment = Experiment::load(&run.experiment())?.with_overrides(overrides)?;
    let checkpoint = checkpoint(&run, iteration, warn)?;
    let datasets = open_datasets(&experiment)?;
    let graph = network(&experiment, datasets.train.as_ref(), datasets.shape)?;
    let opened = device::open(&experiment.train)?;
    opened.warnings.iter().for_each(|warning| warn(warning));
    let programs = programs(&experiment, &graph, &opened, datasets.train.as_ref())?;
    // The run's own kernels give the bits that training saw; where they cannot be had here, others do.
    let recorded = stratus_run::atomic::read_json(&run.plan()).ok().map(|plans: Plans| plans.chosen());
    let repeated = recorded
        .as_ref()
        .and_then(|chosen| plan(&programs, &opened, &Planning::Repeat(chosen), &mut *warn).ok());
    let planned = match repeated {
        Some(planned) => planned,
        None => plan(&programs, &opened, &Planning::Cached, warn)?,
    };
    let mut compiled = planned.allocate(opened.backend.as_ref())?;
    restore(&mut compiled, &checkpoint, false)?;
    let Compiled { session, ids, .. } = &mut compiled;
    let scores = Evaluator::new(&experiment, session, ids.evaluate, datasets.validation, datasets.shape)?
        .run(session)?;
    let (iteration, weights_sha256) = (checkpoint.state.iteration, checkpoint.state.weights_sha256);
    Ok(Evaluated { iteration, weights_sha256, views: view_count(&experiment), scores })
}

/// Weights of a file, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedFile {
    /// The file.
    pub weights: Source,
    /// What came out.
    pub scores: Scores,
}

/// Measures weights on the validation images of an experiment: those of a file, or of a run directory's newest good checkpoint.
///
/// # Errors
/// Where the weights or the data cannot be read, or do not fit the experiment's network.
pub fn of_weights(
    experiment: &Experiment,
    weights: &Path,
    warn: &mut dyn FnMut(&str),
) -> Result<EvaluatedFile, TrainError> {
    let (dataset, shape) = open_dataset(experiment, Split::Validation)?;
    let graph = network(experiment, dataset.as_ref(), shape)?;
    let weights = Pretrained::open(weights, &graph, Use::Measuring, warn)?;
    let opened = device::open(&experiment.train)?;
    opened.warnings.iter().for_each(|warning| warn(warning));
    let Evaluation { mut session, evaluate, refresh: copies } =
        compile_evaluation(experiment, &graph, &opened, dataset.as_ref(), warn)?;
    weights.write_to(&mut session)?;
    refresh(&mut session, copies)?;
    let scores = Evaluator::new(experiment, &session, evaluate, dataset, shape)?.run(&mut session)?;
    Ok(EvaluatedFile { weights: weights.source().clone(), scores })
}
