//! oneDNN's objects as Rust types: each releases its handle when dropped, and keeps alive what it needs.

use super::arg;
use super::raw::{Dims, ExecArg, Functions, Handle, LoadError, MAX_DIMENSIONS, Status, Version, status_text};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use stratus_engine::{DType, Layout};

/// Element types of the library (`dnnl_data_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DataType {
    /// bf16.
    Bf16 = 2,
    /// f32.
    F32 = 3,
}

impl DataType {
    /// The library's name of a type, where it has kernels for it.
    #[must_use]
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::Bf16 => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// `dnnl_prop_kind_t`, as far as it is an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Propagation {
    /// Forward, keeping what the backward pass needs.
    Training = 64,
    /// Forward alone.
    Inference = 96,
}

/// The memory descriptors of a primitive (`dnnl_query_*_md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Which {
    /// Source.
    Src = 129,
    /// Gradient of the source.
    DiffSrc = 130,
    /// Weights.
    Weights = 131,
    /// Gradient of the weights.
    DiffWeights = 132,
    /// Destination.
    Dst = 133,
    /// Gradient of the destination.
    DiffDst = 134,
    /// Scratchpad.
    Scratchpad = 136,
}

mod query {
    pub const IMPL_INFO: i32 = 8;
    pub const STRIDES: i32 = 14;
    pub const DIMENSIONS: i32 = 256;
    pub const DIMS: i32 = 257;
    pub const PADDED_DIMS: i32 = 260;
    pub const FORMAT_KIND: i32 = 262;
    pub const INNER_BLOCKS: i32 = 263;
    pub const INNER_BLOCK_SIZES: i32 = 264;
    pub const INNER_BLOCK_DIMS: i32 = 265;
}

const CPU: c_int = 1;
const TAG_ANY: c_int = 1;
const TAG_ABCD16B: c_int = 78;
const FORMAT_KIND_BLOCKED: c_int = 2;
const ALGORITHM_CONVOLUTION_DIRECT: c_int = 1;
const ALGORITHM_RELU: c_int = 0x20;
const SCRATCHPAD_USER: c_int = 1;
const IN_ORDER: u32 = 1;

struct Library {
    functions: Functions,
    engine: Handle,
    stream: Handle,
    version: Version,
    path: PathBuf,
}

// SAFETY: engine, stream and descriptors may be used from any thread; the library serialises what it shares. Executing on one stream from
// two threads at once is excluded because kernels are run through `&mut Kernel` by the session's one thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: both handles were created by this library, are destroyed once, and everything made from them keeps this alive.
        unsafe {
            (self.functions.dnnl_stream_destroy)(self.stream);
            (self.functions.dnnl_engine_destroy)(self.engine);
        }
    }
}

/// The loaded library with its CPU engine and stream.
#[derive(Clone)]
pub struct Context {
    library: Arc<Library>,
}

fn check(status: Status, what: &str) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what}: {}", status_text(status))) }
}

impl Context {
    /// Loads the library at `path` and starts its CPU engine.
    ///
    /// # Errors
    /// Where it is no oneDNN 3.x, or does not start.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let (functions, version) = Functions::load(path)?;
        let start = |reason: String| LoadError::Start { path: path.to_owned(), reason };
        let (mut engine, mut stream) = (null_mut(), null_mut());
        // SAFETY: the out-pointers are valid; index 0 is the only CPU engine.
        check(unsafe { (functions.dnnl_engine_create)(&raw mut engine, CPU, 0) }, "engine").map_err(start)?;
        // SAFETY: the engine was just created.
        let status = unsafe { (functions.dnnl_stream_create)(&raw mut stream, engine, IN_ORDER) };
        if let Err(reason) = check(status, "stream") {
            // SAFETY: created above, not used again.
            unsafe { (functions.dnnl_engine_destroy)(engine) };
            return Err(start(reason));
        }
        Ok(Self { library: Arc::new(Library { functions, engine, stream, version, path: path.to_owned() }) })
    }

    fn functions(&self) -> &Functions {
        &self.library.functions
    }

    /// The library's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.library.version
    }

    /// Where it was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.library.path
    }

    /// The instruction set its kernels use (`dnnl_cpu_isa_t`), by name.
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

    /// A symbol of the library or of what it is linked against: the OpenMP run time.
    ///
    /// # Safety
    /// `T` must be the function's type.
    pub(crate) unsafe fn symbol<T: Copy>(&self, name: &[u8]) -> Option<T> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.functions().library.get::<T>(name) }.ok().map(|symbol| *symbol)
    }

    /// A descriptor in which the library chooses the layout.
    ///
    /// # Errors
    /// What the library said.
    pub fn any(&self, shape: &[usize], dtype: DataType) -> Result<Desc, String> {
        self.tagged(shape, dtype, TAG_ANY)
    }

    /// Channels in blocks of 16: `nChw16c`.
    ///
    /// # Errors
    /// What the library said.
    pub fn blocked16(&self, shape: &[usize], dtype: DataType) -> Result<Desc, String> {
        self.tagged(shape, dtype, TAG_ABCD16B)
    }

    fn tagged(&self, shape: &[usize], dtype: DataType, tag: c_int) -> Result<Desc, String> {
        let dims = dims(shape)?;
        let mut handle = null_mut();
        // SAFETY: `dims` holds `shape.len()` extents, and the function copies them.
        let status = unsafe {
            (self.functions().dnnl_memory_desc_create_with_tag)(
                &raw mut handle,
                shape.len() as c_int,
                dims.as_ptr(),
                dtype as c_int,
                tag,
            )
        };
        check(status, "memory descriptor")?;
        Ok(Desc { context: self.clone(), handle })
    }

    /// A dense descriptor with the given strides (in elements).
    ///
    /// # Errors
    /// What the library said.
    pub fn strided(&self, shape: &[usize], dtype: DataType, strides: &[usize]) -> Result<Desc, String> {
        let [extents, strides] = [dims(shape)?, dims(strides)?];
        let mut handle = null_mut();
        // SAFETY: both arrays hold `shape.len()` numbers, and the function copies them.
        let status = unsafe {
            (self.functions().dnnl_memory_desc_create_with_strides)(
                &raw mut handle,
                shape.len() as c_int,
                extents.as_ptr(),
                dtype as c_int,
                strides.as_ptr(),
            )
        };
        check(status, "memory descriptor")?;
        Ok(Desc { context: self.clone(), handle })
    }

    /// Attributes with the scratchpad provided by the caller.
    ///
    /// # Errors
    /// What the library said.
    pub fn attributes(&self, relu: bool) -> Result<Attributes, String> {
        let f = self.functions();
        let mut handle = null_mut();
        // SAFETY: a valid out-pointer.
        check(unsafe { (f.dnnl_primitive_attr_create)(&raw mut handle) }, "attributes")?;
        let attributes = Attributes { context: self.clone(), handle };
        // SAFETY: the handle was just created.
        check(
            unsafe { (f.dnnl_primitive_attr_set_scratchpad_mode)(handle, SCRATCHPAD_USER) },
            "scratchpad mode",
        )?;
        if relu {
            let mut post_ops = null_mut();
            // SAFETY: a valid out-pointer; the list is copied into the attributes and destroyed once.
            unsafe {
                check((f.dnnl_post_ops_create)(&raw mut post_ops), "post-operations")?;
                let appended = (f.dnnl_post_ops_append_eltwise)(post_ops, ALGORITHM_RELU, 0.0, 0.0);
                let set = (f.dnnl_primitive_attr_set_post_ops)(handle, post_ops);
                (f.dnnl_post_ops_destroy)(post_ops);
                check(appended, "fused ReLU").and(check(set, "post-operations"))?;
            }
        }
        Ok(attributes)
    }

    fn wrap(&self, status: Status, handle: Handle, what: &str) -> Result<PrimitiveDesc, String> {
        check(status, what)?;
        Ok(PrimitiveDesc { context: self.clone(), handle })
    }

    /// Convolution forward.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn convolution_forward(
        &self,
        propagation: Propagation,
        [src, weights, dst]: [&Desc; 3],
        bias: Option<&Desc>,
        window: &Window,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: all handles are alive, the arrays hold two numbers each (the spatial dimensions), everything is copied.
        let status = unsafe {
            (self.functions().dnnl_convolution_forward_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                propagation as c_int,
                ALGORITHM_CONVOLUTION_DIRECT,
                src.handle,
                weights.handle,
                bias.map_or(null_mut(), |bias| bias.handle),
                dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                attributes.handle,
            )
        };
        self.wrap(status, handle, "convolution forward")
    }

    /// Convolution, gradient of the source.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn convolution_backward_data(
        &self,
        [diff_src, weights, diff_dst]: [&Desc; 3],
        window: &Window,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: as for the forward pass; the hint is a forward descriptor of the same convolution.
        let status = unsafe {
            (self.functions().dnnl_convolution_backward_data_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                ALGORITHM_CONVOLUTION_DIRECT,
                diff_src.handle,
                weights.handle,
                diff_dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                hint.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "convolution backward data")
    }

    /// Convolution, gradient of weights and bias.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn convolution_backward_weights(
        &self,
        [src, diff_weights, diff_dst]: [&Desc; 3],
        diff_bias: Option<&Desc>,
        window: &Window,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: as for the gradient of the source.
        let status = unsafe {
            (self.functions().dnnl_convolution_backward_weights_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                ALGORITHM_CONVOLUTION_DIRECT,
                src.handle,
                diff_weights.handle,
                diff_bias.map_or(null_mut(), |bias| bias.handle),
                diff_dst.handle,
                window.strides.as_ptr(),
                window.dilations.as_ptr(),
                window.before.as_ptr(),
                window.after.as_ptr(),
                hint.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "convolution backward weights")
    }

    /// Inner product forward.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn inner_product_forward(
        &self,
        propagation: Propagation,
        [src, weights, dst]: [&Desc; 3],
        bias: Option<&Desc>,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: all handles are alive, everything is copied.
        let status = unsafe {
            (self.functions().dnnl_inner_product_forward_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                propagation as c_int,
                src.handle,
                weights.handle,
                bias.map_or(null_mut(), |bias| bias.handle),
                dst.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "inner product forward")
    }

    /// Inner product, gradient of the source.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn inner_product_backward_data(
        &self,
        [diff_src, weights, diff_dst]: [&Desc; 3],
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: as above; the hint is a forward descriptor of the same product.
        let status = unsafe {
            (self.functions().dnnl_inner_product_backward_data_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                diff_src.handle,
                weights.handle,
                diff_dst.handle,
                hint.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "inner product backward data")
    }

    /// Inner product, gradient of weights and bias.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn inner_product_backward_weights(
        &self,
        [src, diff_weights, diff_dst]: [&Desc; 3],
        diff_bias: Option<&Desc>,
        hint: &PrimitiveDesc,
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: as above.
        let status = unsafe {
            (self.functions().dnnl_inner_product_backward_weights_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                src.handle,
                diff_weights.handle,
                diff_bias.map_or(null_mut(), |bias| bias.handle),
                diff_dst.handle,
                hint.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "inner product backward weights")
    }

    /// Matrix product `dst = src x weights`.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn matmul(
        &self,
        [src, weights, dst]: [&Desc; 3],
        attributes: &Attributes,
    ) -> Result<PrimitiveDesc, String> {
        let mut handle = null_mut();
        // SAFETY: all handles are alive, everything is copied.
        let status = unsafe {
            (self.functions().dnnl_matmul_primitive_desc_create)(
                &raw mut handle,
                self.library.engine,
                src.handle,
                weights.handle,
                null_mut(),
                dst.handle,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "matrix product")
    }

    /// A change of layout, or of type and layout.
    ///
    /// # Errors
    /// Where the library has no implementation.
    pub fn reorder(&self, from: &Desc, to: &Desc, attributes: &Attributes) -> Result<PrimitiveDesc, String> {
        let (mut handle, engine) = (null_mut(), self.library.engine);
        // SAFETY: all handles are alive, everything is copied.
        let status = unsafe {
            (self.functions().dnnl_reorder_primitive_desc_create)(
                &raw mut handle,
                from.handle,
                engine,
                to.handle,
                engine,
                attributes.handle,
            )
        };
        self.wrap(status, handle, "reorder")
    }
}

fn dims(shape: &[usize]) -> Result<Dims, String> {
    if shape.len() > MAX_DIMENSIONS {
        return Err(format!("{} dimensions are more than oneDNN has", shape.len()));
    }
    let mut dims = [0; MAX_DIMENSIONS];
    for (to, &from) in dims.iter_mut().zip(shape) {
        *to = i64::try_from(from).map_err(|_| format!("extent {from} is too large"))?;
    }
    Ok(dims)
}

/// The window of a convolution over two spatial dimensions. Dilations count from 0, as oneDNN has them.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Strides.
    pub strides: [i64; 2],
    /// Dilations.
    pub dilations: [i64; 2],
    /// Padding `[top, left]`.
    pub before: [i64; 2],
    /// Padding `[bottom, right]`.
    pub after: [i64; 2],
}

/// A memory descriptor.
pub struct Desc {
    context: Context,
    handle: Handle,
}

// SAFETY: descriptors are plain data behind the handle; nothing changes them after creation.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created or cloned by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_memory_desc_destroy)(self.handle) };
    }
}

impl Desc {
    /// A copy.
    ///
    /// # Errors
    /// What the library said.
    pub fn duplicate(&self) -> Result<Self, String> {
        let mut handle = null_mut();
        // SAFETY: the handle is alive.
        let status =
            unsafe { (self.context.functions().dnnl_memory_desc_clone)(&raw mut handle, self.handle) };
        check(status, "copy of a memory descriptor")?;
        Ok(Self { context: self.context.clone(), handle })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // SAFETY: the handle is alive.
        unsafe { (self.context.functions().dnnl_memory_desc_get_size)(self.handle) }
    }

    fn number(&self, what: i32) -> Result<c_int, String> {
        let mut value: c_int = 0;
        // SAFETY: these queries write one int.
        let status = unsafe {
            (self.context.functions().dnnl_memory_desc_query)(
                self.handle,
                what,
                (&raw mut value).cast::<c_void>(),
            )
        };
        check(status, "memory descriptor query")?;
        Ok(value)
    }

    fn list(&self, what: i32, length: usize) -> Result<Vec<usize>, String> {
        let mut values: *const i64 = null();
        // SAFETY: these queries write the address of an array of DNNL_MAX_NDIMS numbers that lives as long as the descriptor.
        let status = unsafe {
            (self.context.functions().dnnl_memory_desc_query)(
                self.handle,
                what,
                (&raw mut values).cast::<c_void>(),
            )
        };
        check(status, "memory descriptor query")?;
        if values.is_null() || length > MAX_DIMENSIONS {
            return Err("memory descriptor query: nothing there".to_owned());
        }
        // SAFETY: `length` is at most DNNL_MAX_NDIMS.
        let values = unsafe { std::slice::from_raw_parts(values, length) };
        values
            .iter()
            .map(|&v| usize::try_from(v).map_err(|_| format!("extent {v} in a descriptor")))
            .collect()
    }

    /// How elements lie, as plain data.
    ///
    /// # Errors
    /// Where the layout is opaque.
    pub fn layout(&self) -> Result<Layout, String> {
        if self.number(query::FORMAT_KIND)? != FORMAT_KIND_BLOCKED {
            return Err("the library chose an opaque layout".to_owned());
        }
        let count = self.number(query::DIMENSIONS)? as usize;
        let inner = self.number(query::INNER_BLOCKS)? as usize;
        let shape = self.list(query::DIMS, count)?;
        let padded = self.list(query::PADDED_DIMS, count)?;
        let strides = self.list(query::STRIDES, count)?;
        let sizes = self.list(query::INNER_BLOCK_SIZES, inner)?;
        let dimensions = self.list(query::INNER_BLOCK_DIMS, inner)?;
        let blocks: Vec<(usize, usize)> = dimensions.into_iter().zip(sizes).collect();
        let tag = tag(&strides, &blocks);
        Ok(Layout { tag, shape, padded, strides, blocks })
    }
}

/// oneDNN's letters: dimensions from outermost to innermost, capitals for blocked ones, then the blocks.
fn tag(strides: &[usize], blocks: &[(usize, usize)]) -> String {
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(strides[d]), d));
    let letter = |d: usize| char::from(b'a' + d as u8);
    let mut text: String = order
        .iter()
        .map(|&d| if blocks.iter().any(|b| b.0 == d) { letter(d).to_ascii_uppercase() } else { letter(d) })
        .collect();
    for &(dimension, size) in blocks {
        text += &format!("{size}{}", letter(dimension));
    }
    text
}

/// Attributes of a primitive.
pub struct Attributes {
    context: Context,
    handle: Handle,
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: created by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_primitive_attr_destroy)(self.handle) };
    }
}

/// A primitive descriptor: an operation with an implementation chosen.
pub struct PrimitiveDesc {
    context: Context,
    handle: Handle,
}

impl Drop for PrimitiveDesc {
    fn drop(&mut self) {
        // SAFETY: created by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_primitive_desc_destroy)(self.handle) };
    }
}

impl PrimitiveDesc {
    /// A copy.
    ///
    /// # Errors
    /// What the library said.
    pub fn duplicate(&self) -> Result<Self, String> {
        let mut handle = null_mut();
        // SAFETY: the handle is alive.
        let status =
            unsafe { (self.context.functions().dnnl_primitive_desc_clone)(&raw mut handle, self.handle) };
        self.context.wrap(status, handle, "copy of a primitive descriptor")
    }

    /// Moves on to the next implementation; `false` where there is none.
    pub fn advance(&mut self) -> bool {
        // SAFETY: the handle is alive and not shared.
        unsafe { (self.context.functions().dnnl_primitive_desc_next_impl)(self.handle) == 0 }
    }

    /// What the library calls the implementation.
    #[must_use]
    pub fn implementation(&self) -> String {
        let mut text: *const c_char = null();
        // SAFETY: this query writes the address of a C string that lives as long as the descriptor.
        let status = unsafe {
            (self.context.functions().dnnl_primitive_desc_query)(
                self.handle,
                query::IMPL_INFO,
                0,
                (&raw mut text).cast::<c_void>(),
            )
        };
        if status != 0 || text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: see above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The layout that the implementation takes for an operand.
    ///
    /// # Errors
    /// Where the primitive has no such operand.
    pub fn desc(&self, which: Which) -> Result<Desc, String> {
        // SAFETY: the result belongs to the primitive descriptor; it is cloned before this returns.
        let borrowed = unsafe {
            (self.context.functions().dnnl_primitive_desc_query_md)(self.handle, which as c_int, 0)
        };
        if borrowed.is_null() {
            return Err(format!("the primitive has no {which:?}"));
        }
        let mut handle = null_mut();
        // SAFETY: the handle is alive.
        let status = unsafe { (self.context.functions().dnnl_memory_desc_clone)(&raw mut handle, borrowed) };
        check(status, "copy of a memory descriptor")?;
        Ok(Desc { context: self.context.clone(), handle })
    }

    /// Bytes of scratch that it needs.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.desc(Which::Scratchpad).map_or(0, |desc| desc.bytes())
    }
}

/// An operand of a kernel: which argument it is, and its descriptor.
pub struct Argument<'a> {
    /// `DNNL_ARG_*`.
    pub arg: i32,
    /// Its layout.
    pub desc: &'a Desc,
}

struct Memory {
    handle: Handle,
    address: *mut c_void,
    bytes: usize,
}

/// A primitive with its memory objects: ready to execute on any addresses.
pub struct Kernel {
    context: Context,
    primitive: Handle,
    memories: Vec<Memory>,
    arguments: Vec<ExecArg>,
}

// SAFETY: the kernel owns its handles; it is used by one thread at a time through `&mut`. With the scratchpad in user mode the library
// keeps no per-thread state in a primitive.
unsafe impl Send for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let functions = self.context.functions();
        // SAFETY: created by this library, destroyed once.
        unsafe {
            for memory in &self.memories {
                (functions.dnnl_memory_destroy)(memory.handle);
            }
            (functions.dnnl_primitive_destroy)(self.primitive);
        }
    }
}

impl Kernel {
    /// Makes the primitive and memory objects for its operands, in the order they will be given to [`Kernel::execute`]; scratch comes last
    /// where [`PrimitiveDesc::scratch_bytes`] is not zero.
    ///
    /// # Errors
    /// What the library said.
    pub fn new(desc: &PrimitiveDesc, operands: &[Argument<'_>]) -> Result<Self, String> {
        let context = desc.context.clone();
        let mut primitive = null_mut();
        // SAFETY: the descriptor is alive.
        let status = unsafe { (context.functions().dnnl_primitive_create)(&raw mut primitive, desc.handle) };
        check(status, "primitive")?;
        let mut kernel = Self { context, primitive, memories: Vec::new(), arguments: Vec::new() };
        for operand in operands {
            kernel.add(operand.arg, operand.desc)?;
        }
        let scratch = desc.desc(Which::Scratchpad);
        if let Ok(scratch) =
            scratch.as_ref().map_err(|_| ()).and_then(|s| if s.bytes() > 0 { Ok(s) } else { Err(()) })
        {
            kernel.add(arg::SCRATCHPAD, scratch)?;
        }
        Ok(kernel)
    }

    fn add(&mut self, arg: i32, desc: &Desc) -> Result<(), String> {
        let mut handle = null_mut();
        // SAFETY: the descriptor is alive; a null address means that the address is set before use.
        let status = unsafe {
            (self.context.functions().dnnl_memory_create)(
                &raw mut handle,
                desc.handle,
                self.context.library.engine,
                null_mut(),
            )
        };
        check(status, "memory object")?;
        self.memories.push(Memory { handle, address: null_mut(), bytes: desc.bytes() });
        self.arguments.push(ExecArg { arg, memory: handle });
        Ok(())
    }

    /// Points operand `position` at `slice`. The slice must stay untouched by others until [`Kernel::execute`] returns.
    fn bind(&mut self, position: usize, slice: &mut [u8]) -> Result<(), String> {
        let Some(memory) = self.memories.get_mut(position) else {
            return Err(format!("operand {position} is not one of the kernel's"));
        };
        if slice.len() < memory.bytes {
            return Err(format!(
                "operand {position} has {} bytes, the kernel touches {}",
                slice.len(),
                memory.bytes
            ));
        }
        let address = slice.as_mut_ptr().cast::<c_void>();
        if address != memory.address {
            // SAFETY: the handle is alive; the address is only followed while executing, when the slice is borrowed by the caller.
            let status =
                unsafe { (self.context.functions().dnnl_memory_set_data_handle)(memory.handle, address) };
            check(status, "address of an operand")?;
            memory.address = address;
        }
        Ok(())
    }

    /// Runs the primitive on these operands, in the order given to [`Kernel::new`].
    ///
    /// # Errors
    /// Where a slice is too short, or what the library said.
    pub fn execute<'a>(&mut self, mut operand: impl FnMut(usize) -> &'a mut [u8]) -> Result<(), String> {
        // Every slice is held, mutably, until the primitive is done.
        let mut held: [&mut [u8]; 8] = std::array::from_fn(|_| Default::default());
        if self.memories.len() > held.len() {
            return Err("the kernel has more operands than can be held".to_owned());
        }
        for (position, slot) in held.iter_mut().enumerate().take(self.memories.len()) {
            *slot = operand(position);
            self.bind(position, slot)?;
        }
        // SAFETY: every memory object points at a live, exclusively borrowed slice of at least the bytes its descriptor needs (checked by
        // `bind`). The CPU stream executes before it returns.
        let status = unsafe {
            (self.context.functions().dnnl_primitive_execute)(
                self.primitive,
                self.context.library.stream,
                self.arguments.len() as c_int,
                self.arguments.as_ptr(),
            )
        };
        check(status, "execution")
    }
}
