//! Batch statistics over several parts of a batch.

use super::batch_norm::{Maps, addresses};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{
    BatchNormStatisticsFromSums, BatchNormSums, ChannelOffsets, FusedActivation, KernelSpec,
};

impl GpuOp for BatchNormSums {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let parts = ChannelOffsets { x: self.offset, y: self.offset };
        let maps = Maps::new(self.norm.channels, parts, &operands[0], &operands[0])?;
        let (source, rows) = (maps.source("batch_norm_sums", FusedActivation::Identity), maps.pixels_of_x());
        let [count, width, stride, _] = maps.extents()?;
        let arguments = vec![maps.like_x(0), count, width, stride];
        let (launch, partial_sums) =
            maps.sums((&source, "batch_norm_statistics"), rows, arguments, builder)?;
        let mut arguments = partial_sums.arguments.to_vec();
        arguments.push(Argument::Operand(1));
        let reduce = builder.launch(&source, "batch_norm_add_sums", partial_sums.shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch, reduce], partial_sums.bytes))
    }
}

impl GpuOp for BatchNormStatisticsFromSums {
    fn build(&self, _operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let source = Source::new("batch_norm_from_sums", DType::F32, 1);
        let channels = self.norm.channels;
        let numbers = [self.norm.epsilon, self.norm.momentum].map(|n| Argument::Double(f64::from(n)));
        let mut arguments = vec![Argument::Int(channels as i32), Argument::Double(self.count as f64)];
        arguments.extend(numbers.into_iter().chain(addresses(0, 5)));
        let shape = Shape {
            grid: [channels.div_ceil(THREADS as usize) as u32, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
        };
        let launch = builder.launch(&source, "batch_norm_from_sums", shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
