//! The outputs of a network for images, and what they mean.

use super::{ImageFailure, Output};
use crate::TrainError;
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::{EngineError, Phase, Plan, Session};
use stratus_experiment::Experiment;
use stratus_run::csv::Task;

/// Reads the outputs of an evaluation program.
pub(super) struct OutputReader {
    /// The value with the logits.
    pub(super) logits: usize,
    classes: usize,
    /// The value with the classes of pixels, and their height and width; `None` for whole images.
    masks: Option<(usize, [usize; 2])>,
    /// The meaning of the outputs for an image.
    meaning: OutputMeaning,
    /// Memory for the logits of a batch.
    memory: Vec<f32>,
}

impl OutputReader {
    pub(super) fn from_plan(plan: &Plan, meaning: OutputMeaning) -> Result<Self, TrainError> {
        let program = &plan.program;
        let masks = program.find(PREDICTIONS).and_then(|id| match program.value(id).shape[..] {
            [_, height, width] => Some((id.0, [height, width])),
            _ => None,
        });
        let loss = program.steps.iter().find(|step| step.phase == Phase::Loss);
        let logits = loss.and_then(|step| step.inputs.first());
        match logits.map(|&id| (id.0, &program.value(id).shape[..])) {
            Some((logits, &[_, classes, ..])) => {
                Ok(Self { logits, classes, masks, meaning, memory: Vec::new() })
            }
            _ => Err(EngineError::InvalidRequest(format!("`{}` has no predictions", program.network)).into()),
        }
    }

    pub(super) fn read(
        &mut self,
        session: &Session,
        program: usize,
        samples: usize,
    ) -> Result<Vec<Result<Output, ImageFailure>>, EngineError> {
        let Some((value, size)) = self.masks else {
            session.read_f32(program, self.logits, &mut self.memory)?;
            let logits = self.memory.chunks_exact(self.classes).take(samples);
            let output = |logits| check_finite(logits).map(|()| self.meaning.output(logits));
            return Ok(logits.map(output).collect());
        };
        let mut all = Vec::new();
        session.read_labels(program, value, &mut all)?;
        let pixels = size[0] * size[1];
        let masks = all.chunks_exact(pixels).take(samples).map(|mask| Output::Mask(mask.to_vec(), size));
        if session.metrics().loss.is_finite() {
            return Ok(masks.map(Ok).collect());
        }
        // Only then are the logits read, which are as large as all classes of all pixels.
        session.read_f32(program, self.logits, &mut self.memory)?;
        let logits = self.memory.chunks_exact(self.memory.len() / (all.len() / pixels).max(1));
        Ok(masks.zip(logits).map(|(mask, logits)| check_finite(logits).map(|()| mask)).collect())
    }
}

/// Checks that the network's output for an image has neither NaN nor infinities.
pub(super) fn check_finite(logits: &[f32]) -> Result<(), ImageFailure> {
    if logits.iter().all(|logit| logit.is_finite()) { Ok(()) } else { Err(ImageFailure::not_finite()) }
}

/// The meaning of a network's outputs for an image.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutputMeaning {
    /// Logits of classes, one of which is right.
    Classes,
    /// A logit for each label.
    Labels,
    /// Standardised targets, with the mean and standard deviation of each; without them, as they are.
    Numbers(Vec<[f64; 2]>),
}

impl OutputMeaning {
    pub(super) fn new(settings: &Experiment, task: Task) -> Self {
        let numbers = |key: &Option<Vec<f64>>| key.clone().unwrap_or_default();
        match task {
            Task::Classification | Task::Segmentation => Self::Classes,
            Task::MultiLabel => Self::Labels,
            Task::Regression => {
                let [mean, std] = [&settings.data.target_mean, &settings.data.target_std].map(numbers);
                Self::Numbers(mean.into_iter().zip(std).map(|(mean, std)| [mean, std]).collect())
            }
        }
    }

    fn output(&self, outputs: &[f32]) -> Output {
        match self {
            Self::Classes => ranked(outputs),
            Self::Labels => Output::Labels(outputs.iter().map(|&logit| sigmoid(f64::from(logit))).collect()),
            Self::Numbers(scales) => {
                let scale = |target: usize| scales.get(target).copied().unwrap_or([0.0, 1.0]);
                let number = |(target, &output): (usize, &f32)| {
                    let [mean, std] = scale(target);
                    f64::from(output) * std + mean
                };
                Output::Numbers(outputs.iter().enumerate().map(number).collect())
            }
        }
    }
}

/// The probability of a label with this logit.
pub(crate) fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// Ranks the classes by probability; equal ones by index.
fn ranked(logits: &[f32]) -> Output {
    let logits = || logits.iter().copied().map(f64::from);
    let largest = logits().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits().map(|logit| (logit - largest).exp()).sum();
    let mut classes: Vec<(usize, f64)> =
        logits().map(|logit| (logit - largest).exp() / sum).enumerate().collect();
    classes.sort_by(|one, other| other.1.total_cmp(&one.1));
    Output::Classes(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_classes_by_probability() {
        let Output::Classes(classes) = ranked(&[0.0, 2.0_f32.ln(), 0.0]) else { panic!("no classes") };
        let order: Vec<usize> = classes.iter().map(|(class, _)| *class).collect();
        assert_eq!(order, [1, 0, 2]);
        assert!((classes[0].1 - 0.5).abs() < 1e-7);
    }
}
