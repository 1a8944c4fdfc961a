//! The fully connected layer: matrix products by cuBLAS, or in the emulation by a plain native kernel.

use super::conv2d::{add_bias, blocks};
use super::{GpuOp, KernelBuilder, Operand, THREADS, check_type, int, long, vector};
use crate::ffi::cublas::Product;
use crate::gpu_libraries::MatmulCall;
use crate::processor::{Argument, Call, Implementation, Launch, Shape, Source, type_name};
use stratus_engine::DType;
use stratus_engine::ops::{LinearBackwardData, LinearBackwardWeights, LinearForward};

/// The call of a matrix product; `operands` are A, B and the result.
pub(super) fn multiply(
    product: Product,
    operands: [Argument; 3],
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    product.types.into_iter().try_for_each(check_type)?;
    if let Some(library) = builder.libraries {
        let product = Product { tf32: library.tf32, ..product };
        let call = MatmulCall { cublas: library.cublas.clone(), product, operands };
        let calls: Vec<Box<dyn Call>> = vec![Box::new(call)];
        return Ok(Implementation { name: "cublas".to_owned(), calls, scratch_bytes: 0 });
    }
    let Product { rows, columns, depth, a_transposed, b_transposed, types, .. } = product;
    let source = Source::new("linear", types[0], 1)
        .with("RESULT", type_name(types[1]))
        .with("A_TRANSPOSED", u8::from(a_transposed))
        .with("B_TRANSPOSED", u8::from(b_transposed));
    let arguments = operands.into_iter().chain([rows, columns, depth].map(long)).collect();
    let launch = builder.grid_stride(&source, "multiply", rows * columns, arguments)?;
    Ok(Implementation { name: "stratus:plain".to_owned(), calls: vec![Box::new(launch)], scratch_bytes: 0 })
}

/// The launches that sum the rows of a matrix `[N, C]`, or a map `[N, C, H, W]` over `N, H, W`: of operand
/// `from`, to the f32 operand `to` of shape `[C]`. The first `scratch` bytes of the scratch are not used.
pub(super) fn sum_rows(
    x: &Operand,
    [from, to]: [usize; 2],
    scratch: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    const WIDTH: usize = 32;
    const HEIGHT: usize = 8;
    let [n, columns, h, w] = x.image()?;
    let rows = n * h * w;
    let vector = vector(&[x.dtype()], &[columns]);
    let source = Source::new("conv", x.dtype(), vector).with("RELU", 0);
    let across = columns.div_ceil(WIDTH * vector);
    // A few blocks per multiprocessor, none with fewer rows than its threads load at once.
    let target_blocks = (4 * builder.processor.multiprocessors() as usize).div_ceil(across);
    let parts = rows.div_ceil(4 * HEIGHT).clamp(1, target_blocks);
    let offset = scratch.next_multiple_of(256);
    let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} blocks exceed the grid"));
    let shape = Shape {
        grid: [extent(across)?, extent(parts)?, 1],
        block: [WIDTH as u32, HEIGHT as u32, 1],
        shared: 0,
    };
    let arguments = vec![Argument::Operand(from), Argument::Scratch(offset), long(rows), int(columns)?];
    let partial_sums = builder.launch(&source, "sum_rows", shape, arguments)?;
    let sums = sum_parts(&source, offset, to, [parts, columns], builder)?;
    Ok(Implementation {
        name: "stratus:sums".to_owned(),
        calls: vec![Box::new(partial_sums), Box::new(sums)],
        scratch_bytes: offset + parts * columns * size_of::<f64>(),
    })
}

/// The launch that adds partial sums `[parts, columns]`, f64 from `offset` in the scratch, to the f32 operand
/// `to`. `source` is a variant of the file `conv`.
pub(super) fn sum_parts(
    source: &Source,
    offset: usize,
    to: usize,
    [parts, columns]: [usize; 2],
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let shape = Shape { grid: [blocks(columns), 1, 1], block: [THREADS, 1, 1], shared: 0 };
    let arguments = vec![Argument::Scratch(offset), Argument::Operand(to), int(parts)?, int(columns)?];
    builder.launch(source, "sum_parts", shape, arguments)
}

impl GpuOp for LinearForward {
    fn build(
        &self,
        operands: &[Operand],
        counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let y = counts[0];
        let product = Product {
            rows: operands[y].value.shape[0],
            columns: self.linear.out_features,
            depth: self.linear.in_features,
            a_transposed: false,
            b_transposed: true,
            types: [operands[0].dtype(), operands[y].dtype()],
            tf32: false,
        };
        let mut implementation = multiply(product, [0, 1, y].map(Argument::Operand), builder)?;
        if self.linear.bias {
            let y_operand = (Argument::Operand(y), &operands[y]);
            implementation.calls.push(Box::new(add_bias(Argument::Operand(2), y_operand, false, builder)?));
        }
        Ok(implementation)
    }
}

impl GpuOp for LinearBackwardData {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let product = Product {
            rows: operands[0].value.shape[0],
            columns: self.linear.in_features,
            depth: self.linear.out_features,
            a_transposed: false,
            b_transposed: false,
            types: [operands[0].dtype(), operands[2].dtype()],
            tf32: false,
        };
        multiply(product, [0, 1, 2].map(Argument::Operand), builder)
    }
}

/// The weight gradient `dw [K, C] = dyᵀ [K, N] · x [N, C]` as a matrix product.
pub(super) fn gradient(linear: &stratus_graph::ops::Linear, x: &Operand, weight_dtype: DType) -> Product {
    Product {
        rows: linear.out_features,
        columns: linear.in_features,
        depth: x.value.shape.first().copied().unwrap_or(0),
        a_transposed: true,
        b_transposed: false,
        types: [x.dtype(), weight_dtype],
        tf32: false,
    }
}

impl GpuOp for LinearBackwardWeights {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let product = gradient(&self.linear, &operands[0], operands[2].dtype());
        let mut implementation = multiply(product, [1, 0, 2].map(Argument::Operand), builder)?;
        if self.linear.bias {
            let sums = sum_rows(&operands[1], [1, 3], implementation.scratch_bytes, builder)?;
            implementation.scratch_bytes = sums.scratch_bytes;
            implementation.calls.extend(sums.calls);
        }
        Ok(implementation)
    }
}
