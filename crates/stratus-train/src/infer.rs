//! What a trained network says of images that nobody labelled.
//!
//! Images take the way of validation: the same view of each, resized and normalised as the run recorded it,
//! through the same evaluation program. So the classes of pixels are those that `eval` counts.

use crate::compile::{EvaluationSession, compile_evaluation};
use crate::device;
use crate::input::{BatchFormat, InputPipeline};
use crate::resolve::Resolved;
use crate::weights::session_state::refresh;
use crate::weights::{CheckpointChoice, Pretrained, TrainedNetwork, WeightsUse, trained_network};
use crate::{Experiment, TrainError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use stratus_data::images::ImageFiles;
use stratus_data::{Dataset, Element, Layout, Loader};
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::{Clock, EngineError, Phase, Session};
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::Values;
use stratus_run::csv::Task;

/// A network with its weights, ready to be shown images.
pub struct Predictor {
    experiment: Experiment,
    graph: Graph,
    /// Name and values of each parameter and buffer; those of a file are written by it.
    weights: Weights,
    /// The names of the classes, as far as they are known.
    names: Vec<String>,
}

enum Weights {
    Checkpoint(Box<TrainedNetwork>),
    File(Box<Pretrained>),
}

/// What a network says of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The position of the image among the files.
    pub index: usize,
    /// The answer.
    pub answer: Answer,
    /// Seconds to read and decode it.
    pub decode_s: f64,
    /// Seconds of the network: the batch's, divided by its images.
    pub network_s: f64,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The classes with their probabilities, the most probable first.
    Classes(Vec<(usize, f64)>),
    /// The class of every pixel, row-major, and height and width.
    Mask(Vec<i32>, [usize; 2]),
}

impl Predictor {
    /// The network of a run with one of its checkpoints. The run's data are not needed.
    ///
    /// # Errors
    /// If the run, its configuration or its checkpoint cannot be read.
    pub fn of_run(
        path: &Path,
        choice: CheckpointChoice,
        overrides: &[(String, String)],
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let run = RunDir::open(path)?;
        let experiment = Experiment::load(&run.experiment())?.with_overrides(overrides)?;
        let trained = trained_network(path, choice, warn)?;
        let names = stratus_run::classes::read_names(&run.classes()).unwrap_or_default();
        let graph = trained.graph.clone();
        Ok(Self { experiment, graph, weights: Weights::Checkpoint(Box::new(trained)), names })
    }

    /// The network of an experiment with the weights of a file.
    ///
    /// # Errors
    /// If the weights cannot be read, or do not fit the network.
    pub fn of_weights(
        experiment: &Experiment,
        weights: &Path,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let graph = crate::network::Network::as_published(experiment)?.graph;
        let file = Pretrained::open(weights, &graph, WeightsUse::Measuring, warn)?;
        let experiment = experiment.clone();
        Ok(Self { experiment, graph, weights: Weights::File(Box::new(file)), names: Vec::new() })
    }

    /// What the network learned to say of an image.
    #[must_use]
    pub fn task(&self) -> Task {
        if self.graph.shape(self.graph.output).0.len() == 3 {
            Task::Segmentation
        } else {
            Task::Classification
        }
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.graph.shape(self.graph.output).0.first().copied().unwrap_or(0)
    }

    /// The name of a class: its number where none is known.
    #[must_use]
    pub fn class_name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Shows the network images in their order, and calls `each` with what it says of each.
    ///
    /// # Errors
    /// If an image cannot be read, a kernel fails, or what `each` returns.
    pub fn predict<E: From<TrainError>>(
        &self,
        files: Vec<PathBuf>,
        warn: &mut dyn FnMut(&str),
        mut each: impl FnMut(Prediction) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_masks = self.task() == Task::Segmentation;
        let images = ImageFiles::new(files, self.classes(), is_masks).map_err(TrainError::from)?;
        let images = Arc::new(images);
        let mut experiment = self.experiment.clone();
        let [channels, height, width] = self.graph.input_shape().0[..] else {
            return Err(
                TrainError::from(EngineError::Mismatch("the network takes no images".to_owned())).into()
            );
        };
        experiment.data.shape = Some(vec![channels, height, width]);
        let batch = experiment.validation_batch_size().min(images.len()).max(1);
        experiment.validation.batch_size = Some(batch);
        let device = device::open(&experiment.train)?;
        let resolved = Resolved::new(&experiment, images.as_ref(), &self.graph, &device)?;
        let EvaluationSession { mut session, evaluate, refresh: copies } =
            compile_evaluation(&resolved, &self.graph, &device, warn)?;
        self.write_weights(&mut session)?;
        refresh(&mut session, copies)?;
        let plan = session.plan(evaluate);
        let config = resolved.input().measuring(BatchFormat::of(plan), batch);
        let answers = Answers::of(plan)?;
        let mut clock = Clock::disabled(session.slots(evaluate));
        let mut loader =
            Loader::new(Arc::clone(&images) as Arc<dyn Dataset>, config).map_err(TrainError::from)?;
        for _ in 0..loader.batches_per_epoch() {
            let Some(mut batch) = loader.next().map_err(TrainError::from)? else { break };
            let begun = Instant::now();
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(evaluate, &mut batch.images, labels, &mut clock, 0).map_err(TrainError::from)?;
            let network_s = begun.elapsed().as_secs_f64() / batch.samples as f64;
            let said = answers.read(&session, evaluate, batch.samples).map_err(TrainError::from)?;
            for (&sample, answer) in batch.indices.iter().zip(said) {
                let index = sample as usize;
                each(Prediction { index, answer, decode_s: images.seconds(index), network_s })?;
            }
            loader.recycle(batch);
        }
        Ok(())
    }

    /// The images as the network sees them, in red, green and blue, row-major, with height and width.
    ///
    /// # Errors
    /// If an image cannot be read.
    pub fn views(&self, files: Vec<PathBuf>) -> Result<(Vec<Vec<u8>>, [usize; 2]), TrainError> {
        let images = Arc::new(ImageFiles::new(files, self.classes(), false)?);
        let mut experiment = self.experiment.clone();
        experiment.data.shape = Some(self.graph.input_shape().0.clone());
        let input = InputPipeline::new(&experiment, images.as_ref());
        let format = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
        let mut loader = Loader::new(Arc::clone(&images) as Arc<dyn Dataset>, input.measuring(format, 1))?;
        let [channels, height, width] = input.shape;
        let mut views = Vec::with_capacity(images.len());
        for _ in 0..loader.batches_per_epoch() {
            let Some(batch) = loader.next()? else { break };
            let pixels = batch.images.elements::<u8>();
            let colours = |pixel: &[u8]| [0, 1, 2].map(|channel: usize| pixel[channel.min(channels - 1)]);
            views
                .push(pixels[..channels * height * width].chunks_exact(channels).flat_map(colours).collect());
            loader.recycle(batch);
        }
        Ok((views, [height, width]))
    }

    fn write_weights(&self, session: &mut Session) -> Result<(), TrainError> {
        let trained = match &self.weights {
            Weights::File(file) => return file.write_to(session),
            Weights::Checkpoint(trained) => trained,
        };
        let wanted: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
        let problem = |problem: String| TrainError::Checkpoint {
            checkpoint: trained.checkpoint.path.display().to_string(),
            problem,
        };
        for name in wanted {
            let tensors = trained.checkpoint.measured();
            let tensor = tensors.iter().find(|tensor| tensor.name == name);
            let tensor = tensor.ok_or_else(|| problem(format!("it has no `{name}`")))?;
            let Values::F32(values) = &tensor.values else {
                return Err(problem(format!("its `{name}` is not f32")));
            };
            session.write(&name, values)?;
        }
        Ok(())
    }
}

/// Where an evaluation program's answers are.
enum Answers {
    Logits { value: usize, classes: usize },
    Masks { value: usize, size: [usize; 2] },
}

impl Answers {
    fn of(plan: &stratus_engine::Plan) -> Result<Self, TrainError> {
        let program = &plan.program;
        if let Some(id) = program.find(PREDICTIONS)
            && let [_, height, width] = program.value(id).shape[..]
        {
            return Ok(Self::Masks { value: id.0, size: [height, width] });
        }
        let loss = program.steps.iter().find(|step| step.phase == Phase::Loss);
        let logits = loss.and_then(|step| step.inputs.first());
        match logits.map(|&id| (id.0, &program.value(id).shape[..])) {
            Some((value, &[_, classes])) => Ok(Self::Logits { value, classes }),
            _ => Err(EngineError::Mismatch(format!("`{}` makes no predictions", program.network)).into()),
        }
    }

    fn read(&self, session: &Session, program: usize, samples: usize) -> Result<Vec<Answer>, EngineError> {
        match *self {
            Self::Logits { value, classes } => {
                let logits = session.read_value(program, value)?;
                Ok(logits.chunks_exact(classes).take(samples).map(ranked).collect())
            }
            Self::Masks { value, size } => {
                let mut all = Vec::new();
                session.read_labels(program, value, &mut all)?;
                let masks = all.chunks_exact(size[0] * size[1]).take(samples);
                Ok(masks.map(|mask| Answer::Mask(mask.to_vec(), size)).collect())
            }
        }
    }
}

/// The classes by their probability, of equal ones the first first.
fn ranked(logits: &[f64]) -> Answer {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let mut classes: Vec<(usize, f64)> =
        logits.iter().map(|logit| (logit - largest).exp() / sum).enumerate().collect();
    classes.sort_by(|one, other| other.1.total_cmp(&one.1));
    Answer::Classes(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ranked_by_probability() {
        let Answer::Classes(classes) = ranked(&[0.0, 2.0_f64.ln(), 0.0]) else { panic!("no classes") };
        let order: Vec<usize> = classes.iter().map(|(class, _)| *class).collect();
        assert_eq!(order, [1, 0, 2]);
        assert!((classes[0].1 - 0.5).abs() < 1e-12);
    }
}
