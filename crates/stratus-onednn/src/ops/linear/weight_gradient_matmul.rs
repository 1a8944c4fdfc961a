//! The gradients of a fully connected layer's weights and bias as a matrix product, for which oneDNN has
//! other implementations than for its inner product: with many weights, the inner product leaves most of the
//! memory bandwidth unused.

use super::LinearContext;
use crate::ffi::{Argument, DataType, Desc, Kernel, PrimitiveDesc, arg};
use crate::native::simd::Element;
use crate::native::threads::ThreadTeam;
use crate::ops::candidates::{NativeKernel, reorder_suffix};
use crate::ops::{Candidate, Implementation, KernelBuilder, is_fallback, typed};
use stratus_engine::{Layout, Operands, StepKernel};

/// A product of two matrices with an f32 result.
pub(in crate::ops) struct Product {
    pub desc: PrimitiveDesc,
    /// The two factors and the result.
    descs: [Desc; 3],
}

impl Product {
    /// Creates the product of `[rows, terms]`, stored column-major with stride `column_stride`, and `[terms,
    /// columns]`, stored row-major; `None` if oneDNN has only a reference kernel.
    pub fn new(
        builder: &KernelBuilder<'_>,
        [rows, terms, columns]: [usize; 3],
        column_stride: usize,
        dtype: DataType,
    ) -> Result<Option<Self>, String> {
        let matrix =
            |shape: [usize; 2], dtype, strides: [usize; 2]| builder.onednn.strided(&shape, dtype, &strides);
        let descs = [
            matrix([rows, terms], dtype, [1, column_stride])?,
            matrix([terms, columns], dtype, [columns, 1])?,
            matrix([rows, columns], DataType::F32, [columns, 1])?,
        ];
        let desc = builder.onednn.matmul(descs.each_ref(), &builder.plain).ok();
        Ok(desc.filter(|desc| !is_fallback(&desc.implementation())).map(|desc| Self { desc, descs }))
    }

    /// Builds the kernel, whose operands are the factors, the result and scratch.
    pub fn kernel(&self) -> Result<Kernel, String> {
        let [first, second, result] = &self.descs;
        let arguments = [(arg::SRC, first), (arg::WEIGHTS, second), (arg::DST, result)];
        Kernel::new(&self.desc, &arguments.map(|(arg, desc)| Argument { arg, desc }))
    }
}

/// The gradient as `[O, N] [N, I]`, or transposed as `[I, N] [N, O]`, and the sums over the batch.
struct WeightGradientMatmul {
    product: Product,
    transposed: bool,
    team: ThreadTeam,
    bias: bool,
    dtype: DataType,
}

struct WeightGradientMatmulKernel {
    product: Kernel,
    transposed: bool,
    team: ThreadTeam,
    bias: bool,
    dtype: DataType,
}

/// The column-major layout of a matrix, from its row-major layout, whose columns may be several dimensions.
pub(in crate::ops) fn columns_first(rows: &Layout) -> Layout {
    let mut columns = rows.clone();
    columns.strides.iter_mut().for_each(|stride| *stride *= rows.shape[0]);
    columns.strides[0] = 1;
    columns
}

/// Sums the rows of a matrix: the gradient of a bias.
pub(in crate::ops) fn sum_rows<E: Element>(matrix: &[u8], sums: &mut [f32]) {
    sums.fill(0.0);
    for row in bytemuck::cast_slice::<u8, E>(matrix).chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.load());
    }
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &LinearContext<'_>,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = context.matrices()? else { return Ok(None) };
    let wanted = context.weights.map(Desc::layout).transpose()?;
    let is_wanted = |layout: &Layout| wanted.as_ref().is_some_and(|wanted| wanted.same_bytes(layout));
    let by_rows = context.rows_first();
    let by_columns = columns_first(&by_rows);
    let transposed = is_wanted(&by_columns);
    let makes = if transposed { by_columns } else { by_rows };
    let [rows, columns] = if transposed { [inputs, outputs] } else { [outputs, inputs] };
    let product = Product::new(builder, [rows, batch, columns], rows, context.compute)?;
    let Some(product) = product else { return Ok(None) };
    let implementation = product.desc.implementation();
    let suffix = reorder_suffix(context.weights, &makes)?;
    let name = format!("product:{implementation}{suffix}");
    let bias = context.bias;
    let mut operands = vec![
        (arg::SRC, context.x.duplicate()?),
        (arg::DIFF_DST, context.y.duplicate()?),
        (arg::DIFF_WEIGHTS, builder.onednn.strided(&makes.shape, DataType::F32, &makes.strides)?),
    ];
    if bias {
        operands.push((arg::DIFF_BIAS, builder.onednn.strided(&[outputs], DataType::F32, &[1])?));
    }
    let team = builder.cpu.team.clone();
    let matmul = WeightGradientMatmul { product, transposed, team, bias, dtype: context.compute };
    Ok(Some(Candidate { name, implementation: Implementation::Native(Box::new(matmul)), operands }))
}

impl NativeKernel for WeightGradientMatmul {
    fn scratch_bytes(&self) -> usize {
        self.product.desc.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let product = self.product.kernel()?;
        let (transposed, team, bias, dtype) = (self.transposed, self.team.clone(), self.bias, self.dtype);
        Ok(Box::new(WeightGradientMatmulKernel { product, transposed, team, bias, dtype }))
    }
}

impl WeightGradientMatmulKernel {
    /// The step has `x, dy, dweight, dbias?, scratch?`, the product its factors, `dweight, scratch?`.
    fn run_as<E: Element>(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let (x, dy) = (o.take(0), o.take(1));
        if self.bias {
            sum_rows::<E>(dy, o.elements(3));
        }
        let [first, second] = if self.transposed { [x, dy] } else { [dy, x] };
        let mut slices = [first, second, o.take(2), o.take(if self.bias { 4 } else { 3 })];
        self.team.apply_thread_count();
        self.product.execute(|position| std::mem::take(&mut slices[position]))
    }
}

impl StepKernel for WeightGradientMatmulKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        typed!(self.dtype.into(), E => self.run_as::<E>(operands))
    }
}
