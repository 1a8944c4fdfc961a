//! Images as bytes: the program takes the pixels of a batch as they are stored and normalises them itself.
//!
//! A copy to a device then moves one byte per pixel instead of two or four, and the process that decodes
//! images does not normalise them. The first step does, in a layer of its own, which reports therefore time
//! by itself. Its results have the bits of images that the loader normalised.

use crate::ops::{KernelSpec, MOST_CHANNELS, NormalisePixels};
use crate::program::{Layer, Origin};
use crate::{DType, EngineError, Phase, Program, Role, Step};

/// The same program for batches of images of bytes, normalised by the `scale_shift` of their channels: see
/// [`NormalisePixels`].
///
/// It is applied to a forward program, before or after fusion. A program that is already differentiated or
/// tiled may have it too; the whole batch is then normalised at once.
///
/// # Errors
/// Where the program takes no images, or images of bytes, or of more channels than [`MOST_CHANNELS`].
pub fn images_as_bytes(
    mut program: Program,
    scale_shift: [[f32; 2]; MOST_CHANNELS],
) -> Result<Program, EngineError> {
    let Some(images) = program.find_role(Role::Images) else {
        return Err(EngineError::Mismatch(format!(
            "a program of `{}` that takes no images cannot take them as bytes",
            program.network
        )));
    };
    let value = program.value(images).clone();
    if value.dtype == DType::U8 {
        return Err(EngineError::Mismatch(format!(
            "a program of `{}` takes its images as bytes already",
            program.network
        )));
    }
    let normalised = program.add_derived(Origin::Normalised(images), value.dtype, Role::Transient);
    for input in program.steps.iter_mut().flat_map(|step| &mut step.inputs) {
        if *input == images {
            *input = normalised;
        }
    }
    program.values[images.0].dtype = DType::U8;
    let kernel = NormalisePixels { scale_shift };
    let layers = vec![program.layers.len()];
    program.layers.push(Layer { name: value.name, kind: kernel.name().to_owned() });
    let (inputs, outputs) = (vec![images], vec![normalised]);
    let first =
        Step { kernel: kernel.into(), phase: Phase::Forward, layers, inputs, updates: vec![], outputs };
    program.steps.insert(0, first);
    program.sections.iter_mut().for_each(|section| section.first += 1);
    program.verify("images_as_bytes")?;
    Ok(program)
}
