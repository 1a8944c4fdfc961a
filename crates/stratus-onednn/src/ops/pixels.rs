//! Images as bytes, normalised into numbers.

use super::native::{native_step, typed};
use super::{NativeStep, OnCpu, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::pixels::ScaleShift;
use crate::prepare::LayoutNeeds;
use stratus_engine::Layout;
use stratus_engine::Step;
use stratus_engine::ops::{MOST_CHANNELS, NormalisePixels};

impl OnCpu for NormalisePixels {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        operands.expect_same_layout(&[0, 1])?;
        let (lines, cpu) = (lines(operands, self.scale_shift)?, cpu.clone());
        Ok(typed!(operands.one_type(&[1])?, E => {
            native_step(0, move |o| cpu.normalise_pixels::<E>(lines, o.take(0), o.elements(1)))
        }))
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.normalised_images(step.inputs[0], step.outputs[0]);
    }
}

/// Which scale and shift each pixel takes, of images that are channels last or in planes.
fn lines(operands: &StepOperands, of: [[f32; 2]; MOST_CHANNELS]) -> Result<ScaleShift, String> {
    let (value, layout) = operands.values.first().zip(operands.layouts.first()).ok_or("it reads nothing")?;
    let &[_, channels, height, width] = &value.shape[..] else {
        return Err(format!("`{}` is {:?}, no images", value.name, value.shape));
    };
    let run = if layout.is_row_major() {
        height * width
    } else if layout.same_bytes(&Layout::channels_last(&value.shape)) {
        1
    } else {
        return Err(format!("it takes images in planes or channels last, not as {}", layout.tag));
    };
    Ok(ScaleShift { of, channels: channels.max(1), run: run.max(1) })
}
