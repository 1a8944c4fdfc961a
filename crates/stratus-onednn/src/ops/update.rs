//! The gradient of a large fully connected layer's weights, used by the optimiser where it is made: a block of rows at a time, which stays in the
//! second cache. Products are the library's, updates ours.

use super::linear::{Around, rows_first};
use super::outer::{Product, by_columns, sum_rows};
use super::{Candidate, Maker, Own, Run};
use crate::ffi::{DataType, Kernel, arg};
use crate::native::elementwise::{CpuContext, Rates};
use crate::native::simd::{Bf16, Element};
use stratus_engine::ops::SgdUpdate;
use stratus_engine::{Layout, Operands, StepKernel};

/// The bytes of gradient that are made at once: so few stay in the caches until they are used, and with fewer rows the library takes no AMX (73
/// instead of 43 ms for AlexNet's classifier.1, docs/benchmarks/kernels.md).
const BLOCK: usize = 1 << 22;

/// The gradient as `[O, N] [N, I]`, or transposed as `[I, N] [N, O]`, and what it is used for.
struct Update {
    /// For a block of rows, and for those that are left.
    products: Vec<Product>,
    how: How,
}

struct UpdateKernel {
    products: Vec<Kernel>,
    how: How,
}

#[derive(Clone)]
struct How {
    /// Rows of the gradient, its columns, rows of a block, samples.
    sizes: [usize; 4],
    transposed: bool,
    bias: bool,
    copied: bool,
    sgd: SgdUpdate,
    cpu: CpuContext,
    dtype: DataType,
}

/// The way to make and use the gradient; `None` where the weights, which lie as `lies` says, do not lie as a matrix, by rows or by columns.
pub(crate) fn linear(
    maker: &Maker<'_>,
    around: &Around<'_>,
    sgd: SgdUpdate,
    lies: &Layout,
    copied: bool,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = around.matrices()? else { return Ok(None) };
    let by_rows = rows_first(&around.weight_shape);
    let transposed = !lies.same_bytes(&by_rows);
    if transposed && !lies.same_bytes(&by_columns(&by_rows)) {
        return Ok(None);
    }
    let [rows, columns] = if transposed { [inputs, outputs] } else { [outputs, inputs] };
    let of_block = (BLOCK / (columns * size_of::<f32>())).clamp(1, rows);
    let left = rows % of_block;
    let counts = [of_block, left].into_iter().filter(|&count| count > 0);
    let products = counts.map(|count| Product::new(maker, [count, batch, columns], count, around.compute));
    let Some(products) = products.collect::<Result<Option<Vec<_>>, _>>()? else { return Ok(None) };
    let Some(implementation) = products.first().map(|product| product.desc.implementation()) else {
        return Ok(None);
    };
    let vector = |elements: usize, dtype| maker.context.strided(&[elements], dtype, &[1]);
    let weights = |dtype| maker.context.strided(&lies.shape, dtype, &lies.strides);
    // Numbers of the optimiser are four of double precision, which the library knows no type for.
    let hyper = vector(4 * size_of::<f64>() / size_of::<f32>(), DataType::F32)?;
    let mut operands = vec![
        (arg::SRC, around.x.duplicate()?),
        (arg::DIFF_DST, around.y.duplicate()?),
        (0, hyper),
        (arg::WEIGHTS, weights(DataType::F32)?),
        (0, weights(DataType::F32)?),
    ];
    if copied {
        operands.push((0, weights(DataType::Bf16)?));
    }
    if around.bias {
        operands.push((arg::DIFF_BIAS, vector(outputs, DataType::F32)?));
    }
    let how = How {
        sizes: [rows, columns, of_block, batch],
        transposed,
        bias: around.bias,
        copied,
        sgd,
        cpu: maker.cpu.clone(),
        dtype: around.compute,
    };
    let update = Update { products, how };
    let name = format!("update:{implementation}");
    Ok(Some(Candidate { name, run: Run::Own(Box::new(update)), operands }))
}

/// Bytes of a block of the gradient, and of what is read for it of the factor that has its rows.
fn block_bytes([_, columns, of_block, batch]: [usize; 4]) -> [usize; 2] {
    [columns, batch].map(|by| (of_block * by * size_of::<f32>()).next_multiple_of(64))
}

impl Own for Update {
    fn scratch_bytes(&self) -> usize {
        let products = self.products.iter().map(|product| product.desc.scratch_bytes()).max();
        block_bytes(self.how.sizes).iter().sum::<usize>() + products.unwrap_or(0)
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let products = self.products.iter().map(Product::kernel).collect::<Result<_, _>>()?;
        Ok(Box::new(UpdateKernel { products, how: self.how.clone() }))
    }
}

impl UpdateKernel {
    /// The step has `x, dy, hyper, parameter, velocity, copy?, dbias?, scratch`, a product its factors, the rows and `scratch?`.
    fn run_as<E: Element>(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let (x, dy) = (o.take(0), o.take(1));
        let rates = Rates::of(self.how.sgd, o.elements(2));
        let (parameter, velocity) = (o.elements::<f32>(3), o.elements::<f32>(4));
        let copy: &mut [Bf16] = if self.how.copied { o.elements(5) } else { &mut [] };
        let mut next = 5 + usize::from(self.how.copied);
        if self.how.bias {
            sum_rows::<E>(dy, o.elements(next));
            next += 1;
        }
        let scratch = o.take(next);
        let [rows, columns, of_block, _] = self.how.sizes;
        let [block, read] = block_bytes(self.how.sizes);
        let (block, scratch) = scratch.split_at_mut(block);
        let (read, scratch) = scratch.split_at_mut(read);
        let [first, second] = if self.how.transposed { [x, dy] } else { [dy, x] };
        for start in (0..rows).step_by(of_block) {
            let count = of_block.min(rows - start);
            let made = &mut block[..count * columns * size_of::<f32>()];
            // The first product makes a block, the last one what is left.
            let Some(product) =
                (if count == of_block { self.products.first_mut() } else { self.products.last_mut() })
            else {
                return Err("there is no product for its rows".to_owned());
            };
            self.how.cpu.team.adopt();
            // Its columns, without what lies between them.
            let range = start * size_of::<E>()..(start + count) * size_of::<E>();
            let columns_of_block =
                read.chunks_exact_mut(range.len()).zip(first.chunks_exact(rows * size_of::<E>()));
            columns_of_block.for_each(|(to, from)| to.copy_from_slice(&from[range.clone()]));
            let mut slices = [&mut *read, &mut *second, &mut *made, &mut *scratch];
            product.execute(|position| std::mem::take(&mut slices[position]))?;
            let range = start * columns..(start + count) * columns;
            let copy = if self.how.copied { &mut copy[range.clone()] } else { &mut [] };
            let gradient = bytemuck::cast_slice(made);
            self.how.cpu.sgd(rates, gradient, &mut parameter[range.clone()], &mut velocity[range], copy);
        }
        Ok(())
    }
}

impl StepKernel for UpdateKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.how.dtype {
            DataType::F32 => self.run_as::<f32>(operands),
            DataType::Bf16 => self.run_as::<Bf16>(operands),
        }
    }
}
