//! The gradients of the weights and the bias of a 1×1 convolution, as a matrix product over the pixels of the
//! batch, which oneDNN implements differently from its convolution.

use super::context::{ConvContext, Pass, is_pointwise};
use crate::ffi::{DataType, Desc, Kernel};
use crate::native::bias::bias_gradient;
use crate::native::by_channel::sums_scratch_bytes;
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::ops::candidates::{NativeKernel, reorder_suffix};
use crate::ops::linear::weight_gradient_matmul::{Product, columns_first};
use crate::ops::{Candidate, Implementation, KernelBuilder, typed};
use stratus_engine::{Layout, Operands, StepKernel};

/// The gradient as `[O, P] [P, I]`, or transposed as `[I, P] [P, O]`, over P pixels.
struct PointwiseGradient {
    product: Product,
    transposed: bool,
    sums: Option<BiasSums>,
    cpu: CpuContext,
}

/// The sums of a bias's gradient over the pixels.
#[derive(Clone)]
struct BiasSums {
    geometry: MapGeometry,
    dtype: DataType,
}

struct PointwiseGradientKernel {
    product: Kernel,
    transposed: bool,
    sums: Option<BiasSums>,
    cpu: CpuContext,
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some((batch, input)) = context.channels_last()? else { return Ok(None) };
    let conv = context.conv;
    if !is_pointwise(conv) {
        return Ok(None);
    }
    let pixels = batch * input[0] * input[1];
    let wanted = context.weights.map(Desc::layout).transpose()?;
    let is_wanted = |layout: &Layout| wanted.as_ref().is_some_and(|wanted| wanted.same_bytes(layout));
    let by_rows = Layout::plain(&conv.weight_shape());
    let by_columns = columns_first(&by_rows);
    let transposed = is_wanted(&by_columns);
    let makes = if transposed { by_columns } else { by_rows };
    let (inputs, outputs) = (conv.in_channels, conv.out_channels);
    let [rows, columns] = if transposed { [inputs, outputs] } else { [outputs, inputs] };
    let product = Product::new(builder, [rows, pixels, columns], rows, context.compute)?;
    let Some(product) = product else { return Ok(None) };
    let y = context.y.layout()?;
    let geometry = MapGeometry::from_layout(&y.shape, &y).filter(|_| conv.bias);
    let sums = geometry.map(|geometry| BiasSums { geometry, dtype: context.compute });
    let suffix = reorder_suffix(context.weights, &makes)?;
    let name = format!("product:{}{suffix}", product.desc.implementation());
    let gradient = builder.onednn.strided(&makes.shape, DataType::F32, &makes.strides)?;
    let operands = context.operands(builder, Pass::BackwardWeights, gradient)?;
    let gradient = PointwiseGradient { product, transposed, sums, cpu: builder.cpu.clone() };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(gradient)), operands }))
}

impl NativeKernel for PointwiseGradient {
    fn scratch_bytes(&self) -> usize {
        // The product and the sums run one after the other and share the scratch.
        let sums = self.sums.as_ref().map_or(0, |sums| sums_scratch_bytes(&self.cpu, &sums.geometry));
        self.product.desc.scratch_bytes().max(sums)
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let (product, transposed) = (self.product.kernel()?, self.transposed);
        let (sums, cpu) = (self.sums.clone(), self.cpu.clone());
        Ok(Box::new(PointwiseGradientKernel { product, transposed, sums, cpu }))
    }
}

impl StepKernel for PointwiseGradientKernel {
    /// The step has `x, dy, dweight, dbias?, scratch?`, the product its factors, `dweight, scratch?`.
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (x, dy) = (operands.take(0), operands.take(1));
        let dweight = operands.take(2);
        let scratch = operands.take(if self.sums.is_some() { 4 } else { 3 });
        if let Some(BiasSums { geometry, dtype }) = &self.sums {
            let (cpu, dbias) = (&self.cpu, operands.elements(3));
            typed!((*dtype).into(), E => {
                bias_gradient::<E>(cpu, geometry, bytemuck::cast_slice(dy), dbias, scratch);
            });
        }
        let [first, second] = if self.transposed { [x, dy] } else { [dy, x] };
        let mut slices = [first, second, dweight, scratch];
        self.cpu.team.apply_thread_count();
        self.product.execute(|position| std::mem::take(&mut slices[position]))
    }
}
