//! The input's gradient of a fully connected layer with few outputs, by a native kernel.

use super::{LinearContext, rows_first};
use crate::ffi::{DataType, arg};
use crate::native::few_outputs::FewOutputsProduct;
use crate::native::lanes::LaneElement;
use crate::ops::candidates::{NativeKernel, native_name};
use crate::ops::{Candidate, Implementation, KernelBuilder, typed};
use stratus_engine::{Operands, StepKernel};

#[derive(Clone)]
struct FewOutputsStep {
    product: FewOutputsProduct,
    dtype: DataType,
}

/// Returns a candidate for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &LinearContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = context.matrices()? else { return Ok(None) };
    let product = FewOutputsProduct::new(batch, outputs, inputs, builder.cpu);
    let Some(product) = product else { return Ok(None) };
    let takes = rows_first(&context.weight_shape);
    let name = native_name("", builder.cpu, context.weights, &takes)?;
    let operands = vec![
        (arg::DIFF_DST, context.y.duplicate()?),
        (arg::WEIGHTS, builder.onednn.strided(&takes.shape, context.compute, &takes.strides)?),
        (arg::DIFF_SRC, context.x.duplicate()?),
    ];
    let few_outputs = FewOutputsStep { product, dtype: context.compute };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(few_outputs)), operands }))
}

impl NativeKernel for FewOutputsStep {
    fn scratch_bytes(&self) -> usize {
        0
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl FewOutputsStep {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let (dy, weights) = (o.elements::<E>(0), o.elements::<E>(1));
        self.product.run(dy, weights, o.elements(2));
    }
}

impl StepKernel for FewOutputsStep {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        typed!(self.dtype.into(), E => self.run_as::<E>(operands));
        Ok(())
    }
}
