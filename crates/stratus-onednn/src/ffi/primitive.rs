//! Primitives: an operation with a chosen implementation, and the kernel that runs it on any addresses.

use super::arg;
use super::context::Context;
use super::denormals;
use super::desc::Desc;
use super::raw::{ExecArg, Handle};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use stratus_threads::UsualTime;

/// The memory descriptors of a primitive (`dnnl_query_*_md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum MemoryDescQuery {
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

const QUERY_IMPLEMENTATION: i32 = 8;
const IN_ORDER: u32 = 1;

/// A primitive descriptor: an operation with a chosen implementation.
pub struct PrimitiveDesc {
    context: Context,
    pub(super) handle: Handle,
    /// True if threads do not wait for each other during execution.
    has_independent_parts: bool,
}

impl Drop for PrimitiveDesc {
    fn drop(&mut self) {
        // SAFETY: created by this library, destroyed once.
        unsafe { (self.context.functions().dnnl_primitive_desc_destroy)(self.handle) };
    }
}

impl PrimitiveDesc {
    /// Takes ownership of a handle created by oneDNN.
    pub(super) fn new(context: Context, handle: Handle) -> Self {
        Self { context, handle, has_independent_parts: false }
    }

    /// States that threads do not wait for each other during execution.
    pub(super) fn with_independent_parts(mut self) -> Self {
        self.has_independent_parts = true;
        self
    }

    /// Returns a copy.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn duplicate(&self) -> Result<Self, String> {
        let mut handle = null_mut();
        // SAFETY: the handle is alive.
        unsafe { call!(self.context.functions(), dnnl_primitive_desc_clone(&raw mut handle, self.handle)) }?;
        let has_independent_parts = self.has_independent_parts;
        Ok(Self { context: self.context.clone(), handle, has_independent_parts })
    }

    /// Advances to the next implementation; `false` if there is none.
    pub fn advance(&mut self) -> bool {
        // SAFETY: the handle is alive and not shared.
        unsafe { call!(self.context.functions(), dnnl_primitive_desc_next_impl(self.handle)) }.is_ok()
    }

    /// oneDNN's name of the implementation.
    #[must_use]
    pub fn implementation(&self) -> String {
        let mut text: *const c_char = null();
        let to = (&raw mut text).cast::<c_void>();
        let functions = self.context.functions();
        // SAFETY: this query writes the address of a C string that lives as long as the descriptor.
        let answered =
            unsafe { call!(functions, dnnl_primitive_desc_query(self.handle, QUERY_IMPLEMENTATION, 0, to)) };
        if answered.is_err() || text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: see above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The layout that the implementation requires of an operand.
    ///
    /// # Errors
    /// If the primitive has no such operand.
    pub fn desc(&self, which: MemoryDescQuery) -> Result<Desc, String> {
        // SAFETY: the handle is alive.
        let borrowed = unsafe {
            (self.context.functions().dnnl_primitive_desc_query_md)(self.handle, which as c_int, 0)
        };
        if borrowed.is_null() {
            return Err(format!("the primitive has no {which:?}"));
        }
        // SAFETY: the result belongs to this primitive descriptor, which is alive.
        unsafe { Desc::copied(&self.context, borrowed) }
    }

    /// The scratch space required, in bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.desc(MemoryDescQuery::Scratchpad).map_or(0, |desc| desc.bytes())
    }
}

/// An operand of a kernel: its argument number and its descriptor.
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

/// A primitive with its memory objects, ready to execute on any addresses.
pub struct Kernel {
    context: Context,
    primitive: Handle,
    /// One per kernel: two threads must not use a stream at once, but kernels of several sessions may run at
    /// once.
    stream: Handle,
    memories: Vec<Memory>,
    arguments: Vec<ExecArg>,
    has_independent_parts: bool,
    usual_time: UsualTime,
}

// SAFETY: the kernel owns its handles and nothing else refers to them; one thread at a time uses it through
// `&mut`. All primitives are created with the scratchpad in user mode, in which oneDNN keeps no per-thread
// state of a primitive.
unsafe impl Send for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        let functions = self.context.functions();
        // SAFETY: created by this library, destroyed once; a stream that could not be created is null and
        // skipped.
        unsafe {
            for memory in &self.memories {
                (functions.dnnl_memory_destroy)(memory.handle);
            }
            if !self.stream.is_null() {
                (functions.dnnl_stream_destroy)(self.stream);
            }
            (functions.dnnl_primitive_destroy)(self.primitive);
        }
    }
}

impl Kernel {
    /// Creates the primitive and memory objects for its operands, in the order in which [`Kernel::execute`]
    /// gets them; scratch is last, if [`PrimitiveDesc::scratch_bytes`] is not zero.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn new(desc: &PrimitiveDesc, operands: &[Argument<'_>]) -> Result<Self, String> {
        let context = desc.context.clone();
        let mut primitive = null_mut();
        // SAFETY: the descriptor is alive.
        unsafe { call!(context.functions(), dnnl_primitive_create(&raw mut primitive, desc.handle)) }?;
        // The kernel owns the handle from here on, because the following calls may fail.
        let mut kernel = Self {
            context,
            primitive,
            stream: null_mut(),
            memories: Vec::new(),
            arguments: Vec::new(),
            has_independent_parts: desc.has_independent_parts,
            usual_time: UsualTime::default(),
        };
        let (functions, engine) = (kernel.context.functions(), kernel.context.engine());
        // SAFETY: a valid out-pointer, and the engine is alive.
        unsafe { call!(functions, dnnl_stream_create(&raw mut kernel.stream, engine, IN_ORDER)) }?;
        for operand in operands {
            kernel.add(operand.arg, operand.desc)?;
        }
        if let Some(scratch) =
            desc.desc(MemoryDescQuery::Scratchpad).ok().filter(|scratch| scratch.bytes() > 0)
        {
            kernel.add(arg::SCRATCHPAD, &scratch)?;
        }
        Ok(kernel)
    }

    fn add(&mut self, arg: i32, desc: &Desc) -> Result<(), String> {
        let (functions, engine) = (self.context.functions(), self.context.engine());
        let mut handle = null_mut();
        // SAFETY: the descriptor is alive; a null address means that the address is set before use.
        unsafe { call!(functions, dnnl_memory_create(&raw mut handle, desc.handle, engine, null_mut())) }?;
        self.memories.push(Memory { handle, address: null_mut(), bytes: desc.bytes() });
        self.arguments.push(ExecArg { arg, memory: handle });
        Ok(())
    }

    /// Points operand `position` at `slice`. Nothing else may touch the slice until [`Kernel::execute`]
    /// returns.
    fn bind(&mut self, position: usize, slice: &mut [u8]) -> Result<(), String> {
        let Some(memory) = self.memories.get_mut(position) else {
            return Err(format!("the kernel has no operand {position}"));
        };
        if slice.len() < memory.bytes {
            return Err(format!(
                "operand {position} has {} bytes, the kernel needs {}",
                slice.len(),
                memory.bytes
            ));
        }
        let address = slice.as_mut_ptr().cast::<c_void>();
        if address != memory.address {
            let functions = self.context.functions();
            // SAFETY: the handle is alive; the address is dereferenced only during execution, while the slice
            // is borrowed by the caller.
            unsafe { call!(functions, dnnl_memory_set_data_handle(memory.handle, address)) }?;
            memory.address = address;
        }
        Ok(())
    }

    /// Runs the primitive on these operands, in the order given to [`Kernel::new`].
    ///
    /// # Errors
    /// If a slice is too short, or oneDNN's error message.
    pub fn execute<'a>(&mut self, mut operand: impl FnMut(usize) -> &'a mut [u8]) -> Result<(), String> {
        // Every slice stays mutably borrowed until the primitive has finished.
        let mut held: [&mut [u8]; 8] = std::array::from_fn(|_| Default::default());
        if self.memories.len() > held.len() {
            return Err("the kernel has more operands than supported".to_owned());
        }
        for (position, slot) in held.iter_mut().enumerate().take(self.memories.len()) {
            *slot = operand(position);
            self.bind(position, slot)?;
        }
        let functions = self.context.functions();
        let (count, arguments) = (self.arguments.len() as c_int, self.arguments.as_ptr());
        let execute = || {
            // SAFETY: every memory object points at a live, exclusively borrowed slice of at least the bytes
            // its descriptor needs (checked by `bind`), and was created from the descriptors of this
            // primitive. The CPU stream executes before it returns.
            denormals::with_flush_to_zero(|| unsafe {
                call!(functions, dnnl_primitive_execute(self.primitive, self.stream, count, arguments))
            })
        };
        let execute = || match self.has_independent_parts {
            true => stratus_threads::with_independent_parts(execute),
            false => execute(),
        };
        stratus_threads::run_repeated(&mut self.usual_time, execute)
    }
}
