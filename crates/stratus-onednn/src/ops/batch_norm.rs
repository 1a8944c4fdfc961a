//! Batch norm, with a fused activation and pooling.

use super::native::native_step;
use super::{CpuOp, NativeStep, StepOperands};
use crate::native::elementwise::CpuContext;
use crate::native::norm::batch::pooled::disjoint::DisjointPool;
use crate::native::norm::batch::{BatchNorm, Pooling};
use crate::native::pool::max::MaxPool;
use crate::native::rows::{ChannelSlice, MapGeometry};
use stratus_engine::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, ChannelOffsets, FusedActivation, FusedPool,
};
use stratus_engine::{DType, Operands};
use stratus_graph::ops::BatchNorm2d;

impl CpuOp for BatchNormStatistics {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let dtypes = operands.norm_types(&[])?;
        let parts = ChannelOffsets { x: self.offset, y: self.offset };
        let maps = operands.norm_maps(0, &self.norm, parts)?;
        let norm = batch_norm(cpu, maps, &self.norm, FusedActivation::Identity, None, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let x = o.take(0);
            let running = [o.elements(1), o.elements(2)];
            let saved = [o.elements(3), o.elements(4)];
            norm.statistics(x, running, saved, o.elements(5), o.tile(), o.take(6));
        }))
    }
}

impl CpuOp for BatchNormApply {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let dtypes = operands.norm_types(&[5])?;
        let (norm, fused) = ((&self.norm, self.activation), (self.pool, self.offsets));
        let norm = operands.norm_before(cpu, 5, norm, fused, dtypes)?;
        let pooled = self.pool.is_some();
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let x = o.take(0);
            let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
            let y = o.take(5);
            let (index, scratch) = if pooled { (o.take(6), o.take(7)) } else { (o.take(7), o.take(6)) };
            norm.apply([x, &[]], parameters, y, index, scratch);
        }))
    }
}

impl CpuOp for BatchNormInference {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let dtypes = operands.norm_types(&[5])?;
        let [_, _, outputs] = operands.counts;
        let indexed = outputs > 1;
        let (norm, fused) = ((&self.norm, self.activation), (self.pool, self.offsets));
        let norm = operands.norm_before(cpu, 5, norm, fused, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let x = o.take(0);
            let parameters = [o.elements(1), o.elements(2), o.elements(3), o.elements(4)].map(|s| &*s);
            let y = o.take(5);
            let (index, scratch) = if indexed { (o.take(6), o.take(7)) } else { (o.take(7), o.take(6)) };
            norm.inference(x, parameters, y, index, scratch);
        }))
    }
}

impl CpuOp for BatchNormInferenceBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let pool = self.pool;
        let result = if pool.is_some() { 7 } else { 6 };
        let dtypes = operands.norm_types(&[1, result])?;
        let (norm, fused) = ((&self.norm, self.activation), (pool, self.offsets));
        let norm = operands.norm_before(cpu, 1, norm, fused, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let (x, dy) = (o.take(0), o.take(1));
            let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
            let index = index_at(6, pool, o);
            norm.inference_backward(x, dy, parameters, index, o.take(result), o.take(result + 1));
        }))
    }
}

impl CpuOp for BatchNormGradients {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let pool = self.pool;
        let first = if pool.is_some() { 7 } else { 6 };
        let dtypes = operands.norm_types(&[1])?;
        let (norm, fused) = ((&self.norm, self.activation), (pool, self.offsets));
        let norm = operands.norm_before(cpu, 1, norm, fused, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let (x, dy) = (o.take(0), o.take(1));
            let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
            let index = index_at(6, pool, o);
            let (gradients, sums) = ([o.elements(first), o.elements(first + 1)], o.elements(first + 2));
            norm.gradients(x, dy, parameters, index, gradients, sums, o.tile(), o.take(first + 3));
        }))
    }
}

impl CpuOp for BatchNormBackwardData {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let pool = self.pool;
        let result = if pool.is_some() { 9 } else { 8 };
        let dtypes = operands.norm_types(&[1, result])?;
        let (norm, fused) = ((&self.norm, self.activation), (pool, self.offsets));
        let norm = operands.norm_before(cpu, 1, norm, fused, dtypes)?;
        Ok(native_step(norm.scratch_bytes(), move |o| {
            let (x, dy) = (o.take(0), o.take(1));
            let parameters = [o.elements(2), o.elements(3), o.elements(4), o.elements(5)].map(|s| &*s);
            let gradients = [o.elements(6), o.elements(7)].map(|s| &*s);
            let index = index_at(8, pool, o);
            let (dx, tile) = (o.take(result), o.tile());
            norm.backward_data(x, dy, parameters, gradients, index, dx, tile, o.take(result + 1));
        }))
    }
}

/// The operand with the argmax indices of pooling; empty without pooling.
fn index_at<'a>(position: usize, pool: Option<FusedPool>, operands: &mut Operands<'a>) -> &'a mut [u8] {
    if pool.is_some() { operands.take(position) } else { <&mut [u8]>::default() }
}

impl StepOperands {
    /// The types of a batch norm: of the first operand, and of its output and gradients, at `results`.
    pub(super) fn norm_types(&self, results: &[usize]) -> Result<[DType; 2], String> {
        let x = self.one_type(&[0])?;
        let y = if results.is_empty() { x } else { self.one_type(results)? };
        match (x, y) {
            // Outputs of linear layers have the master precision.
            (DType::F32, DType::F32 | DType::Bf16) | (DType::Bf16, DType::Bf16) => Ok([x, y]),
            _ => Err(format!("no kernel for {x} and {y}")),
        }
    }

    /// The maps of a batch norm: its input, and its output at `position`. Either may be a channel slice of a
    /// larger map.
    pub(super) fn norm_maps(
        &self,
        position: usize,
        norm: &BatchNorm2d,
        parts: ChannelOffsets,
    ) -> Result<[ChannelSlice; 2], String> {
        if parts == ChannelOffsets::default() {
            return Ok([ChannelSlice::all_of(self.common_geometry(0)?); 2]);
        }
        let is_like_input = |&at: &usize| at != position && self.values[at].shape.len() == 4;
        self.expect_same_layout(&(0..self.values.len()).filter(is_like_input).collect::<Vec<_>>())?;
        let normalised = self.geometry(0)?.with_channels(norm.channels);
        let part = |at: usize, first: Option<usize>| {
            let first = first.unwrap_or(0);
            ChannelSlice::new(self.geometry(at)?, first, normalised).ok_or_else(|| {
                let tag = self.tag(at);
                format!("no kernel for a channel slice from {first} of a map in layout {tag}")
            })
        };
        Ok([part(0, parts.x)?, part(position, parts.y)?])
    }

    /// The batch norm whose output (or its gradient) is at `position`: with an activation, pooled, or a
    /// channel slice of a larger map.
    pub(super) fn norm_before(
        &self,
        cpu: &CpuContext,
        position: usize,
        (norm, activation): (&BatchNorm2d, FusedActivation),
        (pool, parts): (Option<FusedPool>, ChannelOffsets),
        dtypes: [DType; 2],
    ) -> Result<BatchNorm, String> {
        let pool = pool.map(|pool| Ok::<_, String>((pool, self.common_geometry(position)?))).transpose()?;
        batch_norm(cpu, self.norm_maps(position, norm, parts)?, norm, activation, pool, dtypes)
    }
}

/// The batch norm between two maps of these types. `pool` includes the geometry of the pooled map.
pub(super) fn batch_norm(
    cpu: &CpuContext,
    [input, output]: [ChannelSlice; 2],
    norm: &BatchNorm2d,
    activation: FusedActivation,
    pool: Option<(FusedPool, MapGeometry)>,
    [dtype, output_dtype]: [DType; 2],
) -> Result<BatchNorm, String> {
    let pool = pool.map(|(FusedPool { window, overlapping }, pooled)| match overlapping {
        Some(pool) => Pooling::Overlapping(Box::new(MaxPool::new(&pool, input.slice(), pooled, cpu))),
        None => Pooling::Disjoint(DisjointPool { window }),
    });
    if pool.is_some() && dtype != output_dtype {
        return Err(format!("no kernel for pooling from {dtype} to {output_dtype}"));
    }
    Ok(BatchNorm {
        geometry: input.slice(),
        input,
        output,
        epsilon: norm.epsilon,
        momentum: norm.momentum,
        activation,
        pool,
        dtype,
        output_dtype,
        level: cpu.level,
        team: cpu.team.clone(),
    })
}
