//! The weight gradient of a large fully connected layer, consumed by the optimiser as it is computed: a block
//! of rows at a time, which stays in the L2 cache. Products are oneDNN's, updates native.

use super::candidates::NativeKernel;
use super::linear::weight_gradient_matmul::{Product, columns_first, sum_rows};
use super::linear::{LinearContext, weight_shape};
use super::{Candidate, CpuOp, Implementation, KernelBuilder, OneDnnUse, typed};
use crate::ffi::{DataType, Kernel, arg};
use crate::native::elementwise::{CpuContext, SgdConstants};
use crate::native::simd::{Bf16, Element};
use crate::prepare::{LayoutNeeds, PlanBuilder, reshape_layout};
use stratus_engine::ops::{LinearBackwardWeights, LinearUpdate, SgdUpdate};
use stratus_engine::{Layout, Operands, Phase, Step, StepKernel};

/// Bytes of gradient computed at once: few enough to stay in the caches until they are used. With fewer rows
/// oneDNN does not use AMX (73 instead of 43 ms for AlexNet's classifier.1, docs/benchmarks/kernels.md).
const BLOCK_BYTES: usize = 1 << 22;

impl CpuOp for LinearUpdate {
    /// Adds one step if the weights are stored as a matrix, else two with the gradient between them.
    fn prepare(&self, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
        let (parameter, velocity) = (step.updates[0], step.updates[1]);
        let copy = (copies(self, step) > 0).then(|| step.outputs[0]);
        plan.adopt_layout(parameter, copy);
        let (x, y) = (plan.map_desc(step.inputs[0])?, plan.map_desc(step.inputs[1])?);
        let weight_shape = weight_shape(&self.linear, plan.shape(step.inputs[0]));
        let (bias, compute) = (self.linear.bias, plan.data_type(step.inputs[0])?);
        let context = LinearContext { weight_shape, bias, x: &x, y: &y, weights: None, compute };
        let layout = plan.layout_or(parameter, &context.rows_first());
        let separate = plan.separate_copy(copy, &layout);
        let copied = copy.is_some() && separate.is_none();
        let candidate = match reshape_layout(&layout, &context.weight_shape) {
            Ok(seen) => candidate(plan.kernel_builder(), &context, self.sgd, &seen, copied)?,
            Err(_) => None,
        };
        let Some(candidate) = candidate else { return add_separately(self, step, plan) };
        plan.layout_or(velocity, &layout);
        let chosen = plan.choose(step, vec![candidate], None)?;
        let mut joined = step.clone();
        if separate.is_some() {
            joined.outputs.remove(0);
        }
        plan.push(joined, chosen.kernel);
        plan.convert_copy(step, parameter, separate)
    }

    fn layouts(&self, step: &Step, needs: &mut LayoutNeeds) {
        let copies = &step.outputs[..copies(self, step)];
        needs.weights(step.updates.iter().chain(copies).copied());
    }

    fn onednn_use(&self) -> Option<OneDnnUse> {
        Some(OneDnnUse { is_convolution: false, fills_amx_tiles: false })
    }
}

/// The number of outputs that are copies of the weights; the gradient of a bias follows them.
fn copies(kernel: &LinearUpdate, step: &Step) -> usize {
    step.outputs.len() - usize::from(kernel.linear.bias)
}

/// Adds the two separate steps.
fn add_separately(update: &LinearUpdate, step: &Step, plan: &mut PlanBuilder<'_>) -> Result<(), String> {
    let parameter = step.updates[0];
    let gradient = plan.add_gradient(parameter);
    let (copies, bias) = step.outputs.split_at(copies(update, step));
    let make = Step {
        kernel: LinearBackwardWeights { linear: update.linear }.into(),
        phase: Phase::BackwardWeights,
        layers: step.layers.clone(),
        inputs: step.inputs[..2].to_vec(),
        updates: vec![],
        outputs: std::iter::once(gradient).chain(bias.iter().copied()).collect(),
    };
    plan.add(&make)?;
    let use_it = Step {
        kernel: update.sgd.into(),
        inputs: vec![gradient, step.inputs[2]],
        outputs: copies.to_vec(),
        ..step.clone()
    };
    plan.add(&use_it)
}

/// The gradient as `[O, N] [N, I]`, or transposed as `[I, N] [N, O]`, and the update.
struct UpdateStep {
    /// The products for a block of rows, and for the remaining rows.
    products: Vec<Product>,
    blocks: Blocks,
}

struct UpdateKernel {
    products: Vec<Kernel>,
    blocks: Blocks,
}

#[derive(Clone)]
struct Blocks {
    /// The rows and columns of the gradient, the rows of a block, and the samples.
    sizes: [usize; 4],
    transposed: bool,
    bias: bool,
    copied: bool,
    sgd: SgdUpdate,
    cpu: CpuContext,
    dtype: DataType,
}

/// The candidate; `None` if `layout`, that of the weights, is neither a row-major nor a column-major matrix.
fn candidate(
    builder: &KernelBuilder<'_>,
    context: &LinearContext<'_>,
    sgd: SgdUpdate,
    layout: &Layout,
    copied: bool,
) -> Result<Option<Candidate>, String> {
    let Some([batch, outputs, inputs]) = context.matrices()? else { return Ok(None) };
    let by_rows = context.rows_first();
    let transposed = !layout.same_bytes(&by_rows);
    if transposed && !layout.same_bytes(&columns_first(&by_rows)) {
        return Ok(None);
    }
    let [rows, columns] = if transposed { [inputs, outputs] } else { [outputs, inputs] };
    let of_block = (BLOCK_BYTES / (columns * size_of::<f32>())).clamp(1, rows);
    let left = rows % of_block;
    let counts = [of_block, left].into_iter().filter(|&count| count > 0);
    let products = counts.map(|count| Product::new(builder, [count, batch, columns], count, context.compute));
    let Some(products) = products.collect::<Result<Option<Vec<_>>, _>>()? else { return Ok(None) };
    let Some(implementation) = products.first().map(|product| product.desc.implementation()) else {
        return Ok(None);
    };
    let vector = |elements: usize, dtype| builder.onednn.strided(&[elements], dtype, &[1]);
    let weights = |dtype| builder.onednn.strided(&layout.shape, dtype, &layout.strides);
    // The optimiser's hyperparameters are four f64, a type that oneDNN does not have.
    let scalars = vector(4 * size_of::<f64>() / size_of::<f32>(), DataType::F32)?;
    let mut operands = vec![
        (arg::SRC, context.x.duplicate()?),
        (arg::DIFF_DST, context.y.duplicate()?),
        (0, scalars),
        (arg::WEIGHTS, weights(DataType::F32)?),
        (0, weights(DataType::F32)?),
    ];
    if copied {
        operands.push((0, weights(DataType::Bf16)?));
    }
    if context.bias {
        operands.push((arg::DIFF_BIAS, vector(outputs, DataType::F32)?));
    }
    let blocks = Blocks {
        sizes: [rows, columns, of_block, batch],
        transposed,
        bias: context.bias,
        copied,
        sgd,
        cpu: builder.cpu.clone(),
        dtype: context.compute,
    };
    let name = format!("update:{implementation}");
    let implementation = Implementation::Native(Box::new(UpdateStep { products, blocks }));
    Ok(Some(Candidate { name, implementation, operands }))
}

/// The bytes of a block of the gradient, and of the corresponding columns of the first factor.
fn block_bytes([_, columns, of_block, batch]: [usize; 4]) -> [usize; 2] {
    [columns, batch].map(|by| (of_block * by * size_of::<f32>()).next_multiple_of(64))
}

impl NativeKernel for UpdateStep {
    fn scratch_bytes(&self) -> usize {
        let products = self.products.iter().map(|product| product.desc.scratch_bytes()).max();
        block_bytes(self.blocks.sizes).iter().sum::<usize>() + products.unwrap_or(0)
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let products = self.products.iter().map(Product::kernel).collect::<Result<_, _>>()?;
        Ok(Box::new(UpdateKernel { products, blocks: self.blocks.clone() }))
    }
}

impl UpdateKernel {
    /// The step has `x, dy, scalars, parameter, velocity, copy?, dbias?, scratch`, a product its factors, the
    /// rows and `scratch?`.
    fn run_as<E: Element>(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let blocks = &self.blocks;
        let (x, dy) = (o.take(0), o.take(1));
        let rates = SgdConstants::from_scalars(blocks.sgd, o.elements(2));
        let (parameter, velocity) = (o.elements::<f32>(3), o.elements::<f32>(4));
        let copy: &mut [Bf16] = if blocks.copied { o.elements(5) } else { &mut [] };
        let mut next = 5 + usize::from(blocks.copied);
        if blocks.bias {
            sum_rows::<E>(dy, o.elements(next));
            next += 1;
        }
        let scratch = o.take(next);
        let [rows, columns, of_block, _] = blocks.sizes;
        let [block, packed] = block_bytes(blocks.sizes);
        let (block, scratch) = scratch.split_at_mut(block);
        let (packed, scratch) = scratch.split_at_mut(packed);
        let [first, second] = if blocks.transposed { [x, dy] } else { [dy, x] };
        for start in (0..rows).step_by(of_block) {
            let count = of_block.min(rows - start);
            let gradient_block = &mut block[..count * columns * size_of::<f32>()];
            // The first product computes full blocks, the last one the remainder.
            let Some(product) =
                (if count == of_block { self.products.first_mut() } else { self.products.last_mut() })
            else {
                return Err("no product for the block's rows".to_owned());
            };
            blocks.cpu.team.apply_thread_count();
            // The block's columns of the first factor, packed contiguously.
            let range = start * size_of::<E>()..(start + count) * size_of::<E>();
            let columns_of_block =
                packed.chunks_exact_mut(range.len()).zip(first.chunks_exact(rows * size_of::<E>()));
            columns_of_block.for_each(|(to, from)| to.copy_from_slice(&from[range.clone()]));
            let mut slices = [&mut *packed, &mut *second, &mut *gradient_block, &mut *scratch];
            product.execute(|position| std::mem::take(&mut slices[position]))?;
            let range = start * columns..(start + count) * columns;
            let copy = if blocks.copied { &mut copy[range.clone()] } else { &mut [] };
            let gradient = bytemuck::cast_slice(gradient_block);
            blocks.cpu.sgd(rates, gradient, &mut parameter[range.clone()], &mut velocity[range], copy);
        }
        Ok(())
    }
}

impl StepKernel for UpdateKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        typed!(self.blocks.dtype.into(), E => self.run_as::<E>(operands))
    }
}
