//! The fully connected layer: matrix products by cuBLAS, or in the emulation by a plain native kernel.

use super::bias::{add_bias, sum_rows};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, check_type, long};
use crate::ffi::cublas::Product;
use crate::gpu_libraries::MatmulCall;
use crate::processor::{Argument, Call, Implementation, Source, type_name};
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

impl GpuOp for LinearForward {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
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
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
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
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
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
