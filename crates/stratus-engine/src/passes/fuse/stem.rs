//! Fusion of the stem: the convolution of the images with all readers of its output, which are statistics and
//! application of a batch norm with ReLU and pooling.

use crate::ops::{Stem, StemApply, StemInference, StemStatistics};
use crate::program::Mode;
use crate::{DType, Kernel, Program, Role, Step, ValueId};

/// Fuses the stem of a program, if its images need no gradient.
pub(super) fn fuse(program: &mut Program) {
    while let Some(found) = (0..program.steps.len()).find_map(|position| find(program, position)) {
        let conv = &program.steps[found.conv];
        let sources = conv.inputs.clone();
        let norm = program.layer_name(&program.steps[found.kernels[0].0]);
        let layers = [&conv.layers[..], &program.steps[found.apply].layers].concat();
        for (position, kernel) in found.kernels {
            let step = &mut program.steps[position];
            step.kernel = kernel;
            step.inputs.splice(0..1, sources.iter().copied());
            step.layers.clone_from(&layers);
        }
        if let Some(moments) = found.moments {
            // The correlation, from which moments and gradients are computed, replaces the moments, which
            // have no other reader.
            let taps = found.stem.taps();
            let name = format!("{norm}:correlation");
            let correlation = program.add_value(name, &[taps + 1, taps], DType::F64, Role::Transient);
            for output in program.steps.iter_mut().flat_map(|step| &mut step.outputs) {
                if *output == moments {
                    *output = correlation;
                }
            }
        }
        program.steps.remove(found.conv);
    }
}

/// A matching convolution and its readers.
struct StemMatch {
    stem: Stem,
    conv: usize,
    apply: usize,
    moments: Option<ValueId>,
    /// The fused kernels of the readers.
    kernels: Vec<(usize, Kernel)>,
}

fn find(program: &Program, conv: usize) -> Option<StemMatch> {
    let Step { kernel: Kernel::Conv2dForward(forward), inputs, outputs, .. } = &program.steps[conv] else {
        return None;
    };
    if forward.relu || program.value(inputs[0]).role != Role::Images {
        return None;
    }
    let readers: Vec<usize> = program.readers(outputs[0]).collect();
    match readers[..] {
        [statistics, applies] if program.is_trained(inputs[1]) => {
            let Kernel::BatchNormStatistics(_) = program.steps[statistics].kernel else { return None };
            let Kernel::BatchNormApply(apply) = program.steps[applies].kernel else { return None };
            let stem = Stem::new(forward.conv, apply.norm, apply.activation.as_plain_relu()?, apply.pool?)?;
            let moments = Some(program.steps[statistics].outputs[2]);
            let kernels =
                vec![(statistics, StemStatistics { stem }.into()), (applies, StemApply { stem }.into())];
            Some(StemMatch { stem, conv, apply: applies, moments, kernels })
        }
        [applies] if program.mode == Mode::Evaluate => {
            let Kernel::BatchNormInference(apply) = program.steps[applies].kernel else { return None };
            let stem = Stem::new(forward.conv, apply.norm, apply.activation.as_plain_relu()?, apply.pool?)?;
            let kernels = vec![(applies, StemInference { stem }.into())];
            Some(StemMatch { stem, conv, apply: applies, moments: None, kernels })
        }
        _ => None,
    }
}
