//! The loaded library with its CPU engine, and primitive attributes.

use super::desc::Desc;
use super::raw::{Functions, Handle, LoadError, Version};
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;

const CPU: c_int = 1;
const ALGORITHM_RELU: c_int = 0x20;
const ALGORITHM_LINEAR: c_int = 0x26;
const ALGORITHM_SWISH: c_int = 0x2c;
const ALGORITHM_GELU: c_int = 0x31;
const ALGORITHM_MISH: c_int = 0x33;
const ALGORITHM_HARD_SWISH: c_int = 0x34;
const ALGORITHM_ADD: c_int = 0x1fff0;
/// With a slope of 0, oneDNN takes the maximum with 0, which turns a NaN into 0 and hides a diverged run.
/// With any other slope it multiplies, and a NaN stays. Negative numbers then become tiny negative ones,
/// which vanish in sums with well-scaled numbers and fail every test for a positive number.
const NEGATIVE_SLOPE: f32 = 1e-30;
const SCRATCHPAD_USER: c_int = 1;

struct Library {
    functions: Functions,
    engine: Handle,
    version: Version,
    path: PathBuf,
    on_stratus_threads: bool,
}

// SAFETY: the engine is never changed after its creation, and oneDNN documents that any number of threads may
// use one engine. The functions are plain addresses; the path and version are owned data.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the engine was created by this library and is destroyed once; everything created from it
        // keeps this alive.
        unsafe { (self.functions.dnnl_engine_destroy)(self.engine) };
    }
}

/// The loaded library with its CPU engine.
#[derive(Clone)]
pub struct Context {
    library: Arc<Library>,
}

impl Context {
    /// Loads the library at `path` and creates its CPU engine.
    ///
    /// # Errors
    /// If it is not oneDNN 3.x, or does not start.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let (functions, version, on_stratus_threads) = Functions::load(path)?;
        let start = |reason: String| LoadError::Start { path: path.to_owned(), reason };
        let mut engine = null_mut();
        // SAFETY: the out-pointer is valid; index 0 is the only CPU engine.
        unsafe { call!(functions, dnnl_engine_create(&raw mut engine, CPU, 0)) }.map_err(start)?;
        let path = path.to_owned();
        Ok(Self { library: Arc::new(Library { functions, engine, version, path, on_stratus_threads }) })
    }

    /// The functions of the library.
    pub(super) fn functions(&self) -> &Functions {
        &self.library.functions
    }

    /// The CPU engine, alive as long as the context.
    pub(super) fn engine(&self) -> Handle {
        self.library.engine
    }

    /// oneDNN's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.library.version
    }

    /// The path of the loaded library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.library.path
    }

    /// Returns whether the library runs on the threads of `stratus-threads`.
    #[must_use]
    pub fn is_on_stratus_threads(&self) -> bool {
        self.library.on_stratus_threads
    }

    /// Returns whether oneDNN's kernels may use AMX.
    #[must_use]
    pub fn has_amx(&self) -> bool {
        self.instruction_set() == "AMX"
    }

    /// Returns whether oneDNN's kernels may multiply bf16 without converting it to f32 first.
    #[must_use]
    pub fn has_bf16(&self) -> bool {
        matches!(self.instruction_set(), "AVX-512 BF16" | "AVX-512 FP16" | "AMX")
    }

    /// Returns whether oneDNN's kernels may use AVX-512 VNNI (integer dot products).
    #[must_use]
    pub fn has_vnni(&self) -> bool {
        self.instruction_set() == "AVX-512 VNNI" || self.has_bf16()
    }

    /// Returns whether oneDNN's kernels may add products of bytes in 32 bits.
    #[must_use]
    pub fn has_int8_products(&self) -> bool {
        self.has_vnni() || self.instruction_set() == "AVX2-VNNI"
    }

    /// The name of the instruction set of oneDNN's kernels (`dnnl_cpu_isa_t`).
    #[must_use]
    pub fn instruction_set(&self) -> &'static str {
        // SAFETY: a query without arguments.
        match unsafe { (self.functions().dnnl_get_effective_cpu_isa)() } {
            0x1 => "SSE4.1",
            0x3 => "AVX",
            0x7 => "AVX2",
            0xf | 0x1f => "AVX2-VNNI",
            0x27 => "AVX-512",
            0x67 => "AVX-512 VNNI",
            0xe7 => "AVX-512 BF16",
            0x1ef => "AVX-512 FP16",
            isa if isa & 0xfef == 0xfef => "AMX",
            _ => "unknown",
        }
    }

    /// Returns whether AVX2 and AVX-512 may be used (`ONEDNN_MAX_CPU_ISA` restricts them). Native kernels
    /// follow it.
    #[must_use]
    pub fn allows(&self) -> [bool; 2] {
        // SAFETY: a query without arguments.
        let isa = unsafe { (self.functions().dnnl_get_effective_cpu_isa)() };
        [isa & 0x4 != 0, isa & 0x20 != 0]
    }

    /// A symbol of the library or of its dependencies, such as the OpenMP runtime.
    ///
    /// # Safety
    /// `T` must be the function's type.
    pub(crate) unsafe fn symbol<T: Copy>(&self, name: &[u8]) -> Option<T> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.functions().library.get::<T>(name) }.ok().map(|symbol| *symbol)
    }

    /// Creates attributes with a scratchpad provided by the caller, and ReLU after the operation if `relu`.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn attributes(&self, relu: bool) -> Result<Attributes, String> {
        self.attributes_with(None, if relu { &[PostOp::Relu] } else { &[] })
    }

    /// Creates attributes with a scratchpad provided by the caller, and post-ops in their order. The weights
    /// have a scale for each index of the dimensions in `weight_scales`, a bit per dimension.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn attributes_with(
        &self,
        weight_scales: Option<c_int>,
        post_ops: &[PostOp<'_>],
    ) -> Result<Attributes, String> {
        let f = self.functions();
        let mut handle = null_mut();
        // SAFETY: a valid out-pointer.
        unsafe { call!(f, dnnl_primitive_attr_create(&raw mut handle)) }?;
        let attributes = Attributes { context: self.clone(), handle };
        // SAFETY: the handle was just created.
        unsafe { call!(f, dnnl_primitive_attr_set_scratchpad_mode(handle, SCRATCHPAD_USER)) }?;
        if let Some(mask) = weight_scales {
            // SAFETY: as above.
            unsafe { call!(f, dnnl_primitive_attr_set_scales_mask(handle, super::arg::WEIGHTS, mask)) }?;
        }
        if !post_ops.is_empty() {
            let mut list = null_mut();
            // SAFETY: a valid out-pointer; descriptors are alive and copied; the list is copied into the
            // attributes and destroyed once.
            unsafe {
                call!(f, dnnl_post_ops_create(&raw mut list))?;
                let appended = post_ops.iter().try_for_each(|post_op| {
                    let (algorithm, alpha, beta) = match post_op {
                        PostOp::Relu => (ALGORITHM_RELU, NEGATIVE_SLOPE, 0.0),
                        PostOp::Linear { scale, shift } => (ALGORITHM_LINEAR, *scale, *shift),
                        PostOp::LeakyRelu(slope) => (ALGORITHM_RELU, *slope, 0.0),
                        PostOp::Silu => (ALGORITHM_SWISH, 1.0, 0.0),
                        PostOp::Gelu => (ALGORITHM_GELU, 0.0, 0.0),
                        PostOp::Mish => (ALGORITHM_MISH, 0.0, 0.0),
                        PostOp::HardSwish => (ALGORITHM_HARD_SWISH, 1.0 / 6.0, 0.5),
                        PostOp::Add(desc) => {
                            return call!(f, dnnl_post_ops_append_binary(list, ALGORITHM_ADD, desc.handle));
                        }
                    };
                    call!(f, dnnl_post_ops_append_eltwise(list, algorithm, alpha, beta))
                });
                let set = call!(f, dnnl_primitive_attr_set_post_ops(handle, list));
                (f.dnnl_post_ops_destroy)(list);
                appended.and(set)?;
            }
        }
        Ok(attributes)
    }
}

/// An operation on the result of a primitive, before it is stored.
pub enum PostOp<'a> {
    /// `max(x, 0)`; NaN is propagated.
    Relu,
    /// `scale * x + shift`.
    Linear {
        /// The factor.
        scale: f32,
        /// The summand.
        shift: f32,
    },
    /// `x` above 0, else `x` times this slope, which is not 0; NaN is propagated.
    LeakyRelu(f32),
    /// `x σ(x)`.
    Silu,
    /// `x Φ(x)`, with the normal distribution.
    Gelu,
    /// `x tanh(ln(1 + exp(x)))`.
    Mish,
    /// `x min(max(x / 6 + 1/2, 0), 1)`.
    HardSwish,
    /// The sum with an operand of this layout, without its scale.
    Add(&'a Desc),
}

/// Attributes of a primitive.
pub struct Attributes {
    context: Context,
    pub(super) handle: Handle,
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: created by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_primitive_attr_destroy)(self.handle) };
    }
}
