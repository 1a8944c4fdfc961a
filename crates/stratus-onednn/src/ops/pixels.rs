//! Normalises images from bytes to floating-point numbers.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::pixels::ScaleShift;
use crate::prepare::LayoutNeeds;
use stratus_engine::Layout;
use stratus_engine::Step;
use stratus_engine::ops::{MAX_IMAGE_CHANNELS, NormalisePixels};

impl CpuOp for NormalisePixels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (lines, cpu) = (scale_shift(operands, self.scale_shift)?, cpu.clone());
        Ok(typed!(operands.one_type(&[1])?, E => {
            native_step(0, move |o| cpu.normalise_pixels::<E>(lines, o.take(0), o.elements(1)))
        }))
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.normalised_images(step.inputs[0], step.outputs[0]);
    }
}

/// The scale and shift of each pixel, for images that are channels last or in planes.
fn scale_shift(
    operands: &StepOperands,
    by_channel: [[f32; 2]; MAX_IMAGE_CHANNELS],
) -> Result<ScaleShift, String> {
    let (value, layout) = operands.values.first().zip(operands.layouts.first()).ok_or("it has no input")?;
    let &[_, channels, height, width] = &value.shape[..] else {
        return Err(format!("`{}` has shape {:?}, expected images", value.name, value.shape));
    };
    let run = if layout.is_row_major() {
        height * width
    } else if layout.same_bytes(&Layout::channels_last(&value.shape)) {
        1
    } else {
        return Err(format!("images must be in planes or channels last, got {}", layout.tag));
    };
    Ok(ScaleShift { by_channel, channels: channels.max(1), run: run.max(1) })
}
