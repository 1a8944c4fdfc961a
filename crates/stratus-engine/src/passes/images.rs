//! Images as bytes: the program takes pixels as they are stored and normalises them itself.
//!
//! A copy to a device then moves one byte per pixel instead of two or four, and the loader does not normalise
//! images. The first step does, in a separate layer, so that reports show its time. Its results are bitwise
//! equal to images normalised by the loader.

use crate::ops::{KernelSpec, MAX_IMAGE_CHANNELS, NormalisePixels};
use crate::program::{Layer, Origin};
use crate::{DType, EngineError, Phase, Program, Role, Step};

/// The program for images as bytes, normalised by the `scale_shift` of their channels: see
/// [`NormalisePixels`].
///
/// It is applied to a forward program, before or after fusion. It also works after differentiation or tiling;
/// the whole batch is then normalised at once.
///
/// # Errors
/// If the program takes no images, already takes bytes, or has more channels than [`MAX_IMAGE_CHANNELS`].
pub fn with_byte_images(
    mut program: Program,
    scale_shift: [[f32; 2]; MAX_IMAGE_CHANNELS],
) -> Result<Program, EngineError> {
    let Some(images) = program.find_role(Role::Images) else {
        return Err(EngineError::InvalidRequest(format!(
            "the program of `{}` takes no images",
            program.network
        )));
    };
    let value = program.value(images).clone();
    if value.dtype == DType::U8 {
        return Err(EngineError::InvalidRequest(format!(
            "the program of `{}` already takes images as bytes",
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
    program.verify("with_byte_images")?;
    Ok(program)
}
