//! The divisor of a loss over a batch that is split into micro-batches or parts.
//!
//! The loss of a batch is the mean over its labels, weighted by class weights. Labels are not spread evenly
//! over a batch: masks have pixels without a class, targets are missing, classes have different weights.
//! Therefore the losses of parts are divided by the labels of the whole batch, which are counted first.

use crate::ops::CountLabels;
use crate::{DType, EngineError, Kernel, Phase, Program, Role, Step};

/// The program with partial losses: its first step counts the labels, and its losses are divided by these
/// counts.
///
/// # Errors
/// If verification fails.
pub(super) fn count_labels(program: &Program) -> Result<Program, EngineError> {
    let mut counted = program.clone();
    let is_loss = |step: &&Step| {
        matches!(
            step.kernel,
            Kernel::SoftmaxCrossEntropy(_) | Kernel::PixelCrossEntropy(_) | Kernel::TargetLoss(_)
        )
    };
    let Some(loss) = program.steps.iter().find(is_loss) else { return Ok(counted) };
    let &[logits, labels, ..] = &loss.inputs[..] else {
        return Err(EngineError::InvalidRequest(format!("the loss of `{}` has no labels", program.network)));
    };
    let channels = program.value(logits).shape[1];
    let classes = match loss.kernel {
        Kernel::PixelCrossEntropy(loss) => loss.classes(channels),
        _ => channels,
    };
    let mixed = matches!(loss.kernel, Kernel::SoftmaxCrossEntropy(loss) if loss.mixed_labels);
    let counts = counted.add_value("loss.label_counts", &[classes], DType::F64, Role::Transient);
    for step in &mut counted.steps {
        let position = match &mut step.kernel {
            Kernel::SoftmaxCrossEntropy(loss) => {
                loss.partial = true;
                loss.positions()[2]
            }
            Kernel::PixelCrossEntropy(loss) => {
                loss.partial = true;
                loss.positions()[2]
            }
            Kernel::TargetLoss(loss) => {
                loss.partial = true;
                loss.positions()[2]
            }
            Kernel::DistillationLoss(loss) => {
                loss.partial = true;
                loss.positions()[1]
            }
            _ => continue,
        };
        step.inputs.insert(position, counts);
    }
    counted.steps.insert(
        0,
        Step {
            kernel: CountLabels { mixed_labels: mixed }.into(),
            phase: Phase::Loss,
            layers: loss.layers.clone(),
            inputs: vec![labels],
            updates: vec![],
            outputs: vec![counts],
        },
    );
    counted.verify("count_labels")?;
    Ok(counted)
}
