//! The gradients of a fully connected layer's weights and bias as a product of matrices, which the library runs on other kernels than its inner
//! product: where there are many weights, that one leaves most of the memory's bandwidth unused.

use super::linear::{Around, rows_first};
use super::{Candidate, Maker, Own, REORDERED, Run, is_fallback};
use crate::ffi::{Argument, DataType, Desc, Kernel, PrimitiveDesc, arg};
use crate::native::simd::{Bf16, Element};
use crate::native::threads::ThreadTeam;
use stratus_engine::{Layout, Operands, StepKernel};

/// A product of two matrices with a result in f32.
pub(super) struct Product {
    pub desc: PrimitiveDesc,
    /// Of the matrices: the two factors, the result.
    descs: [Desc; 3],
}

impl Product {
    /// The product of `[rows, terms]`, whose columns begin `apart` elements from each other, with `[terms, columns]` row by row; none where the library
    /// has no kernel that is worth its name.
    pub fn new(
        maker: &Maker<'_>,
        [rows, terms, columns]: [usize; 3],
        apart: usize,
        dtype: DataType,
    ) -> Result<Option<Self>, String> {
        let matrix =
            |shape: [usize; 2], dtype, strides: [usize; 2]| maker.context.strided(&shape, dtype, &strides);
        let descs = [
            matrix([rows, terms], dtype, [1, apart])?,
            matrix([terms, columns], dtype, [columns, 1])?,
            matrix([rows, columns], DataType::F32, [columns, 1])?,
        ];
        let desc = maker.context.matmul(descs.each_ref(), &maker.plain).ok();
        Ok(desc.filter(|desc| !is_fallback(&desc.implementation())).map(|desc| Self { desc, descs }))
    }

    /// The kernel, which takes the factors, the result and scratch.
    pub fn kernel(&self) -> Result<Kernel, String> {
        let [first, second, result] = &self.descs;
        let arguments = [(arg::SRC, first), (arg::WEIGHTS, second), (arg::DST, result)];
        Kernel::new(&self.desc, &arguments.map(|(arg, desc)| Argument { arg, desc }))
    }
}

/// The gradient as `[O, N] [N, I]`, or transposed as `[I, N] [N, O]`, and the sums over the batch.
struct Outer {
    product: Product,
    transposed: bool,
    team: ThreadTeam,
    bias: bool,
    dtype: DataType,
}

struct OuterKernel {
    product: Kernel,
    transposed: bool,
    team: ThreadTeam,
    bias: bool,
    dtype: DataType,
}

/// A matrix in row-major order, of which the columns may be several dimensions, with its columns outermost.
pub(super) fn by_columns(rows: &Layout) -> Layout {
    let mut columns = rows.clone();
    columns.strides.iter_mut().for_each(|stride| *stride *= rows.shape[0]);
    columns.strides[0] = 1;
    columns
}

/// The sum of a matrix's rows: the gradient of a bias.
pub(super) fn sum_rows<E: Element>(matrix: &[u8], sums: &mut [f32]) {
    sums.fill(0.0);
    for row in bytemuck::cast_slice::<u8, E>(matrix).chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.load());
    }
}

/// A way to make the gradients, where there is one; `weights` is how they are wanted, where that is decided.
pub(crate) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = around.matrices()? else { return Ok(None) };
    let lies = weights.map(Desc::layout).transpose()?;
    let lies_as = |layout: &Layout| lies.as_ref().is_some_and(|lies| lies.same_bytes(layout));
    let by_rows = rows_first(&around.weight_shape);
    let by_columns = by_columns(&by_rows);
    let transposed = lies_as(&by_columns);
    let takes = if transposed { by_columns } else { by_rows };
    let [rows, columns] = if transposed { [inputs, outputs] } else { [outputs, inputs] };
    let Some(product) = Product::new(maker, [rows, batch, columns], rows, around.compute)? else {
        return Ok(None);
    };
    let implementation = product.desc.implementation();
    let reorder = if lies.is_none() || lies_as(&takes) { "" } else { REORDERED };
    let name = format!("product:{implementation}{reorder}");
    let bias = around.bias;
    let mut operands = vec![
        (arg::SRC, around.x.duplicate()?),
        (arg::DIFF_DST, around.y.duplicate()?),
        (arg::DIFF_WEIGHTS, maker.context.strided(&takes.shape, DataType::F32, &takes.strides)?),
    ];
    if bias {
        operands.push((arg::DIFF_BIAS, maker.context.strided(&[outputs], DataType::F32, &[1])?));
    }
    let team = maker.cpu.team.clone();
    let outer = Outer { product, transposed, team, bias, dtype: around.compute };
    Ok(Some(Candidate { name, run: Run::Own(Box::new(outer)), operands }))
}

impl Own for Outer {
    fn scratch_bytes(&self) -> usize {
        self.product.desc.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let product = self.product.kernel()?;
        let (transposed, team, bias, dtype) = (self.transposed, self.team.clone(), self.bias, self.dtype);
        Ok(Box::new(OuterKernel { product, transposed, team, bias, dtype }))
    }
}

impl OuterKernel {
    /// The step has `x, dy, dweight, dbias?, scratch?`, the product its factors, `dweight, scratch?`.
    fn run_as<E: Element>(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let (x, dy) = (o.take(0), o.take(1));
        if self.bias {
            sum_rows::<E>(dy, o.elements(3));
        }
        let [first, second] = if self.transposed { [x, dy] } else { [dy, x] };
        let mut slices = [first, second, o.take(2), o.take(if self.bias { 4 } else { 3 })];
        self.team.adopt();
        self.product.execute(|position| std::mem::take(&mut slices[position]))
    }
}

impl StepKernel for OuterKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
        }
    }
}
