//! Batch normalisation, unfused or fused with the following activation, or with ReLU and max-pooling.
//!
//! Memory-bound: each kernel reads its maps once. A sum over the batch takes two launches, see
//! `source/batch_norm_sums.cu`.

mod maps;

pub(super) use maps::{Maps, PartialSums};

use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use crate::processor::{Argument, Implementation, Launch, Source};
use stratus_engine::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, ChannelOffsets, FusedActivation, FusedPool, KernelSpec,
};
use stratus_graph::ops::BatchNorm2d;

/// The epsilon that marks inverse deviations in place of variances.
pub(super) const INVERSE_DEVIATION_GIVEN: Argument = Argument::Float(-1.0);

/// The addresses of `count` operands, starting with `first`.
pub(super) fn addresses(first: usize, count: usize) -> impl Iterator<Item = Argument> {
    (first..first + count).map(Argument::Operand)
}

/// Adds the partial sums of the parameters' gradients; `results` is the position of the first of these
/// gradients.
pub(super) fn reduce_gradients(
    source: &Source,
    partial_sums: &PartialSums,
    inverse_deviation: usize,
    results: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let mut arguments = partial_sums.arguments.to_vec();
    arguments.extend([Argument::Operand(inverse_deviation), Argument::IsFirstTile, Argument::IsLastTile]);
    arguments.extend(addresses(results, 3));
    builder.launch(source, "batch_norm_finish_gradients", partial_sums.shape, arguments)
}

/// Writes a normalised map: `(x, weight, bias, mean, variance or inverse deviation) -> y, index?`.
fn apply(
    (activation, pool, parts): (FusedActivation, Option<FusedPool>, ChannelOffsets),
    channels: usize,
    epsilon: Argument,
    operands: &[Operand],
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let maps = Maps::new(channels, parts, &operands[0], &operands[5])?;
    let mut arguments = vec![maps.like_x(0), maps.like_y(5)];
    let Some(pool) = pool else {
        arguments.extend(addresses(1, 4).chain([epsilon]).chain(maps.extents()?));
        let shape = maps.pass(maps.pixels_of_x(), builder);
        return builder.launch(&maps.source("batch_norm", activation), "batch_norm_apply", shape, arguments);
    };
    let rows = maps.pixels_of_y();
    arguments.push(if operands.len() > 6 { Argument::Operand(6) } else { Argument::Null });
    arguments.extend(addresses(1, 4).chain([epsilon]).chain(maps.extents_of_pool(rows)?));
    let source = maps.source_of_pool(pool, activation);
    builder.launch(&source, "batch_norm_pool_apply", maps.pass(rows, builder), arguments)
}

impl GpuOp for BatchNormStatistics {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let BatchNorm2d { channels, epsilon, momentum } = self.norm;
        let parts = ChannelOffsets { x: self.offset, y: self.offset };
        let maps = Maps::new(channels, parts, &operands[0], &operands[0])?;
        let (source, rows) = (maps.source("batch_norm_sums", FusedActivation::Identity), maps.pixels_of_x());
        let [count, width, stride, _] = maps.extents()?;
        let arguments = vec![maps.like_x(0), count, width, stride];
        let (launch, partial_sums) =
            maps.sums((&source, "batch_norm_statistics"), rows, arguments, builder)?;
        let numbers = [epsilon, momentum].map(|number| Argument::Double(f64::from(number)));
        let mut arguments = partial_sums.arguments.to_vec();
        arguments.extend([Argument::Double(rows as f64), Argument::IsFirstTile, Argument::IsLastTile]);
        arguments.extend(numbers.into_iter().chain(addresses(1, 5)));
        let reduce = builder.launch(&source, "batch_norm_finish", partial_sums.shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch, reduce], partial_sums.bytes))
    }
}

impl GpuOp for BatchNormApply {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let fused = (self.activation, self.pool, self.offsets);
        let launch = apply(fused, self.norm.channels, INVERSE_DEVIATION_GIVEN, operands, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for BatchNormInference {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let fused = (self.activation, self.pool, self.offsets);
        let epsilon = Argument::Float(self.norm.epsilon);
        let launch = apply(fused, self.norm.channels, epsilon, operands, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for BatchNormGradients {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = Maps::new(self.norm.channels, self.offsets, &operands[0], &operands[1])?;
        let source = maps.source("batch_norm_sums", self.activation);
        let mut arguments = vec![maps.like_x(0), maps.like_y(1)];
        let (launch, partial_sums) = if let Some(pool) = self.pool {
            let FusedPool { window, .. } = pool;
            let overlap = pool.pool().stride[0] < window[0] || pool.pool().stride[1] < window[1];
            let (rows, name) = match overlap {
                true => (maps.pixels_of_x(), "batch_norm_pool_gradients_gathered"),
                false => (maps.pixels_of_y(), "batch_norm_pool_gradients"),
            };
            arguments.extend([Argument::Operand(6), Argument::Operand(4)]);
            arguments.extend(maps.extents_of_pool(rows)?);
            let source = maps.source_of_pool(pool, self.activation);
            maps.sums((&source, name), rows, arguments, builder)?
        } else {
            arguments.extend(addresses(2, 4).chain(maps.extents()?));
            maps.sums((&source, "batch_norm_gradients"), maps.pixels_of_x(), arguments, builder)?
        };
        let reduce = reduce_gradients(&source, &partial_sums, 5, counts[0], builder)?;
        Ok(Implementation::native(self.name(), vec![launch, reduce], partial_sums.bytes))
    }
}

impl GpuOp for BatchNormBackwardData {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = Maps::new(self.norm.channels, self.offsets, &operands[0], &operands[1])?;
        let (rows, dx) = (maps.pixels_of_x(), counts[0]);
        let mut arguments = vec![maps.like_x(0), maps.like_y(1)];
        let (source, name, extents) = if let Some(pool) = self.pool {
            arguments.push(Argument::Operand(8));
            let source = maps.source_of_pool(pool, self.activation);
            (source, "batch_norm_pool_backward_data", maps.extents_of_pool(rows)?.to_vec())
        } else {
            let source = maps.source("batch_norm", self.activation);
            (source, "batch_norm_backward_data", maps.extents()?.to_vec())
        };
        arguments.push(gradient_at(&maps, dx, operands)?);
        arguments.extend(addresses(2, 6).chain([Argument::Tiles]).chain(extents));
        let launch = builder.launch(&source, name, maps.pass(rows, builder), arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for BatchNormInferenceBackward {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = Maps::new(self.norm.channels, self.offsets, &operands[0], &operands[1])?;
        let (rows, dx) = (maps.pixels_of_x(), gradient_at(&maps, counts[0], operands)?);
        let channels = addresses(2, 4).chain([Argument::Float(self.norm.epsilon)]);
        let shape = maps.pass(rows, builder);
        let launch = if let Some(pool) = self.pool {
            let mut arguments = vec![maps.like_y(1), Argument::Operand(6), dx];
            arguments.extend(channels.chain(maps.extents_of_pool(rows)?));
            let source = maps.source_of_pool(pool, self.activation);
            builder.launch(&source, "batch_norm_pool_inference_backward", shape, arguments)?
        } else {
            let mut arguments = vec![maps.like_x(0), maps.like_y(1), dx];
            arguments.extend(channels.chain(maps.extents()?));
            let source = maps.source("batch_norm", self.activation);
            builder.launch(&source, "batch_norm_inference_backward", shape, arguments)?
        };
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

/// The gradient of `x`, with the layout of `x` and the type of the output's gradient.
fn gradient_at(maps: &Maps, position: usize, operands: &[Operand]) -> Result<Argument, String> {
    let (dx, dy) = (&operands[position], &operands[1]);
    if dx.dtype() != dy.dtype() {
        return Err(format!(
            "`{}` is {:?}, `{}` is {:?}",
            dx.value.name,
            dx.dtype(),
            dy.value.name,
            dy.dtype()
        ));
    }
    Ok(maps.gradient_of_x(position))
}
