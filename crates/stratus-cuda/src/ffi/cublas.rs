//! cuBLAS: matrix products.

use super::driver::{DeviceMemory, Gpu};
use cudarc::cublas::sys::{
    self, cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasMath_t, cublasOperation_t,
    cublasStatus_t, cudaDataType_t,
};
use std::ptr;
use std::sync::Arc;
use stratus_engine::DType;

/// With its own workspace, cuBLAS allocates nothing during a stream capture, and results are deterministic.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A cuBLAS handle on a GPU's stream.
pub(crate) struct Cublas {
    gpu: Arc<Gpu>,
    handle: cublasHandle_t,
    _workspace: DeviceMemory,
}

// SAFETY: the handle is used by one thread at a time: a session's, or the planner's before there is a
// session.
unsafe impl Send for Cublas {}
// SAFETY: as above.
unsafe impl Sync for Cublas {}

/// A row-major product `C [rows, columns] = A [rows, depth] · B [depth, columns]`; each factor may be
/// transposed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    /// True if A is stored as `[depth, rows]`.
    pub a_transposed: bool,
    /// True if B is stored as `[columns, depth]`.
    pub b_transposed: bool,
    /// The types of A and B, and of C.
    pub types: [DType; 2],
    /// True if f32 factors may be rounded to TF32.
    pub tf32: bool,
}

impl Cublas {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.make_current()?;
        let workspace = DeviceMemory::zeroed(gpu, WORKSPACE_BYTES)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is to a handle; stream and workspace live as long as the handle.
        unsafe {
            check(sys::cublasCreate_v2(&raw mut handle))?;
            check(sys::cublasSetStream_v2(handle, gpu.stream().cast()))?;
            check(sys::cublasSetWorkspace_v2(handle, workspace.address() as *mut _, WORKSPACE_BYTES))?;
        }
        Ok(Self { gpu: Arc::clone(gpu), handle, _workspace: workspace })
    }

    /// `major.minor.patch`.
    pub fn version(&self) -> Result<String, String> {
        let mut version = 0;
        // SAFETY: the handle lives, the pointer is to an int.
        check(unsafe { sys::cublasGetVersion_v2(self.handle, &raw mut version) })?;
        Ok(format!("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100))
    }

    /// Enqueues a product of the matrices at these addresses.
    ///
    /// # Errors
    /// For unsupported types or extents above 2^31, or cuBLAS's error message.
    pub fn multiply(&self, product: &Product, a: u64, b: u64, c: u64) -> Result<(), String> {
        self.gpu.make_current()?;
        let Product { rows, columns, depth, a_transposed, b_transposed, types, tf32 } = *product;
        let int =
            |extent: usize| i32::try_from(extent).map_err(|_| format!("matrix extent {extent} is too large"));
        let operation = |transposed| {
            if transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
        };
        let data_type = |dtype| match dtype {
            DType::F32 => Ok(cudaDataType_t::CUDA_R_32F),
            DType::Bf16 => Ok(cudaDataType_t::CUDA_R_16BF),
            DType::F16 => Ok(cudaDataType_t::CUDA_R_16F),
            other => Err(format!("matrix products of {other} are not supported")),
        };
        let compute = match types[0] {
            DType::F32 if !tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
            DType::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        // Partial sums stored in f16 may overflow where the whole sum does not.
        let math = match types[1] {
            DType::F16 => cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION,
            _ => cublasMath_t::CUBLAS_DEFAULT_MATH,
        };
        // SAFETY: the handle lives.
        check(unsafe { sys::cublasSetMathMode(self.handle, math) })?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        // cuBLAS is column-major: it sees a row-major matrix as its transpose, and therefore computes Cᵀ = Bᵀ
        // Aᵀ.
        let lda = int(if a_transposed { rows } else { depth })?;
        let ldb = int(if b_transposed { depth } else { columns })?;
        // SAFETY: the operands of a step are on this GPU and have the size of their shapes; the scalars are
        // read before the call returns.
        check(unsafe {
            sys::cublasGemmEx(
                self.handle,
                operation(b_transposed),
                operation(a_transposed),
                int(columns)?,
                int(rows)?,
                int(depth)?,
                (&raw const one).cast(),
                b as *const _,
                data_type(types[0])?,
                ldb,
                a as *const _,
                data_type(types[0])?,
                lda,
                (&raw const zero).cast(),
                c as *mut _,
                data_type(types[1])?,
                int(columns)?,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
            )
        })
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: created and destroyed once, when no work in the stream uses it.
            let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
        }
    }
}

fn check(status: cublasStatus_t) -> Result<(), String> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(format!("cuBLAS error {status:?}"))
    }
}
