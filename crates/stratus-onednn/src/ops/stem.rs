//! The stem: the first convolution with batch norm, ReLU and 2×2 max-pooling, in one pass over the images.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::native::stem::StemKernel;
use crate::prepare::{LayoutNeeds, PlanBuilder};
use stratus_engine::ops::{Stem, StemApply, StemGradients, StemInference, StemStatistics};
use stratus_engine::{Layout, Step, Value};

impl CpuOp for StemStatistics {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let stem = stem(operands, cpu, self.stem, None)?;
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(stem.statistics_scratch_bytes(), move |o| {
            let images = [&*o.elements::<E>(0), o.elements(1)];
            let running = [o.elements(2), o.elements(3)];
            let saved = [o.elements(4), o.elements(5)];
            stem.statistics(images, running, saved, o.elements(6), o.tile(), o.take(7));
        })))
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.channels_last(step.inputs[0]);
    }
}

impl CpuOp for StemApply {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let stem = stem(operands, cpu, self.stem, Some(6))?;
        Ok(typed!(operands.one_type(&[0, 1, 6])?, E => native_step(stem.apply_scratch_bytes(), move |o| {
            let images = [&*o.elements::<E>(0), o.elements(1)];
            let parameters = [o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
            stem.apply(images, parameters, o.elements(5), o.elements(6), o.take(7), o.elements(8));
        })))
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.channels_last(step.inputs[0]);
    }
}

impl CpuOp for StemInference {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let stem = stem(operands, cpu, self.stem, Some(6))?;
        Ok(typed!(operands.one_type(&[0, 1, 6])?, E => native_step(stem.apply_scratch_bytes(), move |o| {
            let images = [&*o.elements::<E>(0), o.elements(1)];
            let parameters = [o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
            stem.inference(images, parameters, o.elements(5), o.elements(6), o.elements(7));
        })))
    }

    /// The kernel reads row-major weights. If a convolution of the training program has decided on another
    /// layout, they are reordered.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let weight = step.inputs[1];
        let plain = Layout::plain(plan.shape(weight));
        let mut step = step.clone();
        if plan.layout(weight).is_some_and(|layout| !layout.same_bytes(&plain)) {
            step.inputs[1] = plan.reordered(&step, weight, plain, "forward")?;
        }
        let measure = plan.compares_map_layouts();
        plan.add_native(step, measure)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.channels_last(step.inputs[0]);
    }
}

impl CpuOp for StemGradients {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let stem = stem(operands, cpu, self.stem, Some(2))?;
        let scratch_bytes = stem.gradients_scratch_bytes();
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(scratch_bytes, move |o| {
            let maps = [&*o.elements::<E>(0), o.elements(1), o.elements(2)];
            let parameters = [o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
            let (correlation, index, tile) = (o.elements(6), o.take(7), o.tile());
            let (dweight, dnorm) = (o.elements(8), [o.elements(9), o.elements(10)]);
            let (sums, scratch) = (o.elements(11), o.take(12));
            stem.gradients(maps, parameters, correlation, index, dweight, dnorm, sums, tile, scratch);
        })))
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        needs.channels_last(step.inputs[0]);
        needs.weights([step.outputs[0]]);
    }
}

/// The kernels of a stem, whose first operands are images and weights; its pooled map is at `pooled`, if it
/// has one.
fn stem(
    operands: &StepOperands,
    cpu: &CpuContext,
    stem: Stem,
    pooled: Option<usize>,
) -> Result<StemKernel, String> {
    let [Value { shape: images, .. }, Value { shape: weight, .. }, ..] = &operands.values[..] else {
        return Err("it has no input images".to_owned());
    };
    let &[batch, _, height, width] = &images[..] else {
        return Err(format!("unsupported image shape {images:?}"));
    };
    let plain = Layout::plain(weight);
    for (layout, expected) in operands.layouts.iter().zip([&Layout::channels_last(images), &plain]) {
        if !layout.same_bytes(expected) {
            return Err(format!("no kernel for images or weights in layout {}", layout.tag));
        }
    }
    let size = stem.conv.output_size([height, width]).map_err(|error| error.to_string())?;
    let shape = Stem::POOL.output_shape([batch, stem.conv.out_channels, size[0], size[1]]);
    let geometry = match pooled {
        // The argmax indices have the layout of the pooled map.
        Some(position) => {
            let maps = (0..operands.values.len()).filter(|&at| operands.values[at].shape == shape);
            maps.map(|at| operands.expect_same_layout(&[position, at])).collect::<Result<Vec<_>, _>>()?;
            operands.geometry(position)?
        }
        None => {
            MapGeometry::from_layout(&shape, &Layout::channels_last(&shape)).ok_or("it has no pooled map")?
        }
    };
    StemKernel::new(stem, batch, [height, width], geometry, cpu)
        .ok_or_else(|| format!("no kernel for {stem:?} of images {images:?}"))
}
