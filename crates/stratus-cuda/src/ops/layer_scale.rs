//! A trained factor per channel.

use super::layer_norm::{maps, sums};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation};
use stratus_engine::ops::{KernelSpec, LayerScale, LayerScaleGradient};

impl GpuOp for LayerScale {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = maps(&[&operands[0], &operands[2]])?;
        let groups = maps.extents[1] / maps.vector;
        let items = maps.extents[0] * groups;
        let arguments = (0..3).map(Argument::Operand).chain([long(items), int(groups)?]).collect();
        let launch = builder.grid_stride(&maps.source, "layer_scale", items, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for LayerScaleGradient {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = maps(&[&operands[0], &operands[1]])?;
        let (launches, bytes) = sums(&maps, Argument::Null, &[2], 0, builder)?;
        Ok(Implementation::native(self.name(), launches, bytes))
    }
}
