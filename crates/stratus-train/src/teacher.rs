//! The teacher of a run: a trained network whose outputs the run's network learns to reproduce.
//!
//! ```text
//! train.teacher ──finished run──▶ folded network, weights ──with_teacher──▶ training program
//! ```

use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use crate::weights::{CheckpointChoice, finished_epochs, load_trained_network, model_from_tensors};
use std::sync::Arc;
use stratus_base::text::shell_path;
use stratus_data::Dataset;
use stratus_engine::Program;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::teacher::{Distillation, with_teacher};
use stratus_engine::program::Mode;
use stratus_experiment::{Experiment, LossFunction};
use stratus_graph::Graph;
use stratus_optimise::{Model, fold};
use stratus_run::RunDir;
use stratus_run::sources::Source;
use stratus_weights::NetworkMetadata;

/// A trained network that teaches another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Teacher {
    /// Its network in inference form, with batch norms folded.
    model: Model,
    /// The file of its weights.
    source: Source,
    /// The run, as `train.teacher` names it.
    run: String,
    metadata: NetworkMetadata,
}

impl Teacher {
    /// Opens the teacher of an experiment; `None` without one, or if its loss has weight 0.
    ///
    /// # Errors
    /// If there is no finished run with a good newest checkpoint.
    pub fn open(experiment: &Experiment) -> Result<Option<Arc<Self>>, TrainError> {
        let Some(path) = experiment.teacher() else { return Ok(None) };
        let shown = shell_path(path);
        if !RunDir::is_run(path) {
            return Err(configuration_error(
                &format!("{shown} is not a run directory"),
                "set it to the directory of a finished run, which `stratus runs` lists",
            ));
        }
        finished_epochs(&RunDir::open(path)?).map_err(|error| match error {
            TrainError::Configuration { problem, hint } => configuration_error(&problem, &hint),
            other => other,
        })?;
        let mut damage = Vec::new();
        let trained =
            load_trained_network(path, CheckpointChoice::Newest, &mut |text| damage.push(text.to_owned()))?;
        if let Some(problem) = damage.into_iter().next() {
            // Another checkpoint would be another teacher.
            return Err(configuration_error(&problem, "restore it from a copy, or choose another run"));
        }
        let source = Source::from_file(&trained.checkpoint.evaluation_weights_file())?;
        let tensors = trained.checkpoint.evaluation_weights().to_vec();
        let model = fold(model_from_tensors(&trained.graph, tensors)?)?.model;
        let run = path.display().to_string();
        Ok(Some(Arc::new(Self { model, source, run, metadata: trained.metadata })))
    }

    /// The file of its weights.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its network with the values of its parameters.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// The run and its network, for messages.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.run, self.model.graph.name)
    }

    /// Checks that it can teach a network.
    ///
    /// # Errors
    /// If it has images of another size, or other outputs.
    pub(crate) fn check_network(&self, graph: &Graph) -> Result<(), TrainError> {
        let teacher = &self.model.graph;
        let shapes = |graph: &Graph| [graph.input_shape().clone(), graph.shape(graph.output).clone()];
        let [[images, outputs], [own_images, own_outputs]] = [teacher, graph].map(shapes);
        let differs = |what: &str, theirs: &[usize], own: &[usize]| {
            let problem = format!(
                "{} has {what} {}, but {} has {}",
                self.describe(),
                extents(theirs),
                graph.name,
                extents(own)
            );
            Err(configuration_error(&problem, "choose a run on the same images and classes"))
        };
        if images != own_images {
            return differs("images of", &images.0, &own_images.0);
        }
        if outputs != own_outputs {
            return differs("outputs of", &outputs.0, &own_outputs.0);
        }
        Ok(())
    }

    /// Checks that it was trained on images that were normalised in the same way, with the same classes.
    ///
    /// # Errors
    /// If it was not.
    pub(crate) fn check_data(&self, settled: &Experiment, dataset: &dyn Dataset) -> Result<(), TrainError> {
        let NetworkMetadata { mean, std, class_names, loss, outputs, .. } = &self.metadata;
        let own_loss = settled.train.loss.unwrap_or(LossFunction::CrossEntropy);
        let loss = loss.as_deref().and_then(LossFunction::from_name).unwrap_or(LossFunction::CrossEntropy);
        if loss.task_of_images() != own_loss.task_of_images() {
            return Err(configuration_error(
                &format!("{} was trained with train.loss = {loss}, not {own_loss}", self.describe()),
                "choose a run that predicts the same",
            ));
        }
        let data = &settled.data;
        let normalisations = [
            ("data.mean", mean, &data.mean),
            ("data.std", std, &data.std),
            ("data.target_mean", &outputs.target_mean, &data.target_mean),
            ("data.target_std", &outputs.target_std, &data.target_std),
        ];
        for (key, theirs, own) in normalisations {
            let own = own.as_deref().unwrap_or_default();
            if theirs != own {
                return Err(configuration_error(
                    &format!("{} was trained with {key} = {theirs:?}, not {own:?}", self.describe()),
                    &format!("set {key} to the value of that run, or choose another one"),
                ));
            }
        }
        let names = (0..dataset.classes()).map(|class| dataset.class_name(class));
        let other = class_names.iter().zip(names).enumerate().find(|(_, (theirs, own))| *theirs != own);
        match other {
            None => Ok(()),
            Some((class, (theirs, own))) => Err(configuration_error(
                &format!("class {class} of {} is {theirs:?}, but that of the data set is {own:?}", self.run),
                "choose a run on the same classes, in the same order",
            )),
        }
    }

    /// The forward program `student`, which also runs the teacher and learns from it.
    ///
    /// # Errors
    /// If the teacher cannot be lowered, or does not fit.
    pub(crate) fn teach(
        &self,
        student: &Program,
        resolved: &ResolvedProcess,
        device: &OpenDevice,
    ) -> Result<Program, TrainError> {
        let settings = &resolved.settings().train;
        let distillation = Distillation {
            weight: settings.teacher_weight as f32,
            temperature: settings.teacher_temperature as f32,
        };
        let teacher = lower(&self.model.graph, Mode::Evaluate, resolved.precision(), student.batch)?;
        let teacher = fuse_with(&teacher, device.backend.fusions())?;
        Ok(with_teacher(student, &teacher, distillation)?)
    }
}

/// An error of `train.teacher`.
fn configuration_error(problem: &str, hint: &str) -> TrainError {
    TrainError::Configuration { problem: format!("train.teacher: {problem}"), hint: hint.to_owned() }
}

fn extents(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("×")
}
