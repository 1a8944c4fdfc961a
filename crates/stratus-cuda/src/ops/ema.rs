//! The exponential moving average of weights.

use super::convert::{check_types, common_element_count};
use super::{KernelBuilder, OnGpu, Operand, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{EmaUpdate, KernelSpec};

impl OnGpu for EmaUpdate {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let of = [&operands[0], &operands[2]];
        check_types(of)?;
        let (count, dtype) = (common_element_count(of)?, of[0].dtype());
        if of[1].dtype() != dtype {
            return Err(format!("the average of {dtype} is {}", of[1].dtype()));
        }
        let vector = vector(&[dtype], &[count]);
        let arguments =
            (0..3).map(Argument::Operand).chain([long(count), Argument::Double(self.decay)]).collect();
        let source = Source::of("ema", dtype, vector);
        let launch = builder.grid_stride(&source, "ema_update", count / vector, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
