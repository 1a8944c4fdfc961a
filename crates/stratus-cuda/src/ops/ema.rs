//! The exponential moving average of weights.

use super::convert::{check_types, common_element_count};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{EmaUpdate, KernelSpec};

impl GpuOp for EmaUpdate {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let values = [&operands[0], &operands[2]];
        check_types(values)?;
        let (count, dtype) = (common_element_count(values)?, values[0].dtype());
        if values[1].dtype() != dtype {
            return Err(format!("the average of {dtype} weights has type {}", values[1].dtype()));
        }
        let vector = vector(&[dtype], &[count]);
        let arguments =
            (0..3).map(Argument::Operand).chain([long(count), Argument::Double(self.decay)]).collect();
        let source = Source::new("ema", dtype, vector);
        let launch = builder.grid_stride(&source, "ema_update", count / vector, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
