//! Images as bytes: a pass that has a program take the pixels of a batch as they are stored, and make of them itself what its network reads.
//!
//! On the way to a device a pixel is then one byte instead of two or four, and the process that decodes images does not normalise them. The first
//! step does it, in a layer of its own, so that its time is told. It makes the bits that were handed in before, so that nothing else changes.

use crate::ops::{KernelSpec, MOST_CHANNELS, NormalisePixels};
use crate::program::{Layer, Origin};
use crate::{DType, EngineError, Phase, Program, Role, Step};

/// The same program for batches of images of bytes, whose pixels become numbers by the `lines` of their channels: see [`NormalisePixels`].
///
/// It is applied to a forward program, before or behind fusion; a program that was differentiated or cut into tiles may have it too, and then
/// converts the whole batch at once.
///
/// # Errors
/// Where the program takes no images, or images of bytes, or of more channels than [`MOST_CHANNELS`].
pub fn images_as_bytes(
    mut program: Program,
    lines: [[f32; 2]; MOST_CHANNELS],
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
    let kernel = NormalisePixels { lines };
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
