//! Spatial dropout, whose mask is a function of seed, iteration, layer, sample and channel; stochastic depth,
//! whose mask does not depend on the channel.

use super::native::{native_step, typed};
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::dropout::DropoutMask;
use crate::native::dropout2d::{dropout2d, scratch_bytes};
use crate::native::elementwise::CpuContext;
use stratus_engine::Operands;
use stratus_engine::ops::Dropout2d;

impl CpuOp for Dropout2d {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (kernel, cpu, geometry) = (*self, cpu.clone(), operands.common_geometry(0)?);
        let images = geometry.planes / geometry.groups;
        let numbers = if self.whole_samples { images } else { images * geometry.channels };
        let scale = self.scale() as f32;
        let drop = move |o: &mut Operands<'_>| {
            let (mask, first) = (kernel.mask(o.elements(1)), (o.tile().global_position() * numbers) as u64);
            DropoutMask { mask, scale, first }
        };
        Ok(typed!(operands.one_type(&[0, 2])?, E => {
            native_step(scratch_bytes(&cpu, &geometry), move |o| {
                let drop = drop(o);
                let (x, y) = (o.elements(0), o.elements(2));
                dropout2d::<E>(&cpu, (&drop, kernel.whole_samples), &geometry, x, y, o.elements(3));
            })
        }))
    }
}
