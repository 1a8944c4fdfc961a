//! The gradient of a fully connected layer's input on our own kernel for few outputs, as a further way to run a step that oneDNN also runs.

use super::linear::{Around, rows_first};
use super::{Candidate, Maker, Own, Run, own_name};
use crate::ffi::{DataType, Desc, arg};
use crate::native::few_outputs::FewOutputsProduct;
use crate::native::lanes::LaneElement;
use crate::native::simd::Bf16;
use stratus_engine::{Operands, StepKernel};

#[derive(Clone)]
struct Narrow {
    product: FewOutputsProduct,
    dtype: DataType,
}

/// A way to make the input's gradient, where there is one; `weights` is how they lie, where that is decided.
pub(crate) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = around.matrices()? else { return Ok(None) };
    let Some(product) = FewOutputsProduct::new(batch, outputs, inputs, maker.cpu) else {
        return Ok(None);
    };
    let takes = rows_first(&around.weight_shape);
    let name = own_name("", maker.cpu, weights, &takes)?;
    let weights = maker.context.strided(&takes.shape, around.compute, &takes.strides)?;
    let operands = vec![
        (arg::DIFF_DST, around.y.duplicate()?),
        (arg::WEIGHTS, weights),
        (arg::DIFF_SRC, around.x.duplicate()?),
    ];
    let narrow = Narrow { product, dtype: around.compute };
    Ok(Some(Candidate { name, run: Run::Own(Box::new(narrow)), operands }))
}

impl Own for Narrow {
    fn scratch_bytes(&self) -> usize {
        0
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Narrow {
    fn run_as<E: LaneElement>(&self, o: &mut Operands<'_>) {
        let (dy, weights) = (o.elements::<E>(0), o.elements::<E>(1));
        self.product.run(dy, weights, o.elements(2));
    }
}

impl StepKernel for Narrow {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
        }
        Ok(())
    }
}
