//! The CUDA driver: a GPU with its streams, memory, modules, events, and CUDA graphs that are captured once
//! and launched again.

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule,
    CUresult, CUstream,
};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;

/// Turns a result into an error that begins with `what`.
fn check(what: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver gives a text that lives as long as it does, or leaves the pointer null.
    let known = unsafe { sys::cuGetErrorString(result, &raw mut text) } == CUresult::CUDA_SUCCESS;
    let text = if known && !text.is_null() {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    } else {
        format!("{result:?}")
    };
    Err(format!("{what}: {text}"))
}

/// A GPU and its streams.
pub(crate) struct Gpu {
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    /// The stream of the copies of inputs, which run at the same time as kernels.
    copy_stream: CUstream,
    /// Its name.
    pub name: String,
    /// `[major, minor]`.
    pub capability: [u32; 2],
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: usize,
}

// SAFETY: the driver's handles may be used from every thread; each call first makes the context current.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Gpu {}

/// The oldest CUDA version of a driver that has every function called here.
const LEAST: [u32; 2] = [12, 8];

/// The driver's version as `major.minor` of the newest CUDA that it runs, and how many GPUs there are.
///
/// # Errors
/// The driver's message.
pub(crate) fn driver() -> Result<(String, u32), String> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: the first function that is called, with the one value that it takes; the pointers are to ints.
    unsafe {
        check("the driver does not start", sys::cuInit(0))?;
        check("the driver has no version", sys::cuDriverGetVersion(&raw mut version))?;
        check("the driver counts no GPUs", sys::cuDeviceGetCount(&raw mut count))?;
    }
    Ok((format!("{}.{}", version / 1000, version % 1000 / 10), count.unsigned_abs()))
}

impl Gpu {
    /// The GPU of a number, from 0.
    ///
    /// # Errors
    /// The driver's message.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        let (version, count) = driver()?;
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
        if numbers[..] < LEAST[..] {
            let [major, minor] = LEAST;
            return Err(format!("the driver is for CUDA {version}; {major}.{minor} or newer is needed"));
        }
        if ordinal >= count {
            return Err(format!("there are {count} GPUs, and none has the number {ordinal}"));
        }
        let mut device = 0;
        let mut name = [0_u8; 128];
        let (mut context, mut stream, mut copy_stream) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut memory = 0;
        // SAFETY: the driver was started; every pointer is to a value of the type that the function writes;
        // `name` has `length` bytes.
        unsafe {
            check("the GPU cannot be opened", sys::cuDeviceGet(&raw mut device, ordinal.cast_signed()))?;
            let length = name.len() as i32;
            check(
                "the GPU's name cannot be read",
                sys::cuDeviceGetName(name.as_mut_ptr().cast(), length, device),
            )?;
            check("the GPU's memory cannot be read", sys::cuDeviceTotalMem_v2(&raw mut memory, device))?;
            check("the GPU has no context", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            check("the context cannot be used", sys::cuCtxSetCurrent(context))?;
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            check("no stream can be created", sys::cuStreamCreate(&raw mut stream, flags))?;
            check("no second stream can be created", sys::cuStreamCreate(&raw mut copy_stream, flags))?;
        }
        let attribute = |which: CUdevice_attribute| -> Result<u32, String> {
            let mut value = 0;
            // SAFETY: the pointer is to an int.
            check("an attribute of the GPU cannot be read", unsafe {
                sys::cuDeviceGetAttribute(&raw mut value, which, device)
            })?;
            Ok(value.unsigned_abs())
        };
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        let capability = [
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ];
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(Arc::new(Self { device, context, stream, copy_stream, name, capability, multiprocessors, memory }))
    }

    /// Makes the GPU's context current in the calling thread.
    pub fn adopt(&self) -> Result<(), String> {
        // SAFETY: the context is retained as long as `self` lives.
        check("the context cannot be used", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// The stream, for the libraries.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Waits until the stream is empty.
    pub fn wait(&self) -> Result<(), String> {
        self.adopt()?;
        // SAFETY: the stream lives as long as `self`.
        check("the GPU stopped", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Where it is on the PCI bus, as `0000:65:00.0`: its name in NVIDIA's other libraries.
    ///
    /// # Errors
    /// The driver's message.
    pub fn bus_id(&self) -> Result<CString, String> {
        let mut text = [0_u8; 32];
        let length = text.len() as i32;
        // SAFETY: `text` has `length` bytes.
        check("the GPU's place cannot be read", unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), length, self.device)
        })?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|error| error.to_string())?;
        Ok(text.to_owned())
    }

    /// Bytes of free memory.
    pub fn free_bytes(&self) -> Result<usize, String> {
        self.adopt()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are numbers.
        check("the free memory cannot be read", unsafe {
            sys::cuMemGetInfo_v2(&raw mut free, &raw mut total)
        })?;
        Ok(free)
    }

    /// Allows a kernel this many bytes of dynamic shared memory per block.
    pub fn allow_shared(&self, function: usize, bytes: u32) -> Result<(), String> {
        self.adopt()?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches.
        check("a kernel cannot have this much shared memory", unsafe {
            sys::cuFuncSetAttribute(function as CUfunction, attribute, bytes.cast_signed())
        })
    }

    /// Launches a kernel. Each of `arguments` holds a parameter in its first bytes.
    pub fn launch(
        &self,
        function: usize,
        shape: crate::processor::Shape,
        arguments: &mut [u64],
    ) -> Result<(), String> {
        const MOST: usize = 48;
        self.adopt()?;
        let mut pointers = [ptr::null_mut(); MOST];
        if arguments.len() > MOST {
            return Err(format!("a kernel has {} parameters", arguments.len()));
        }
        for (pointer, argument) in pointers.iter_mut().zip(arguments.iter_mut()) {
            *pointer = ptr::from_mut(argument).cast();
        }
        let crate::processor::Shape { grid, block, shared } = shape;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches. Every
        // parameter is in the first bytes of a word, which is as wide as the widest one; the driver copies
        // them before it returns.
        check("a kernel cannot be launched", unsafe {
            sys::cuLaunchKernel(
                function as CUfunction,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                self.stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: streams and context were made by `open` and are released once. Nothing can be done where
        // that fails.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.copy_stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// An allocation of GPU memory.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Memory filled with zeros.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        Self::filled(gpu, bytes, 0)
    }

    /// Memory filled with a byte. With 0 `bytes`, nothing is allocated and the address is 0.
    pub fn filled(gpu: &Arc<Gpu>, bytes: usize, byte: u8) -> Result<Self, String> {
        let mut memory = Self { gpu: Arc::clone(gpu), address: 0, bytes };
        if bytes > 0 {
            gpu.adopt()?;
            // SAFETY: the pointer is to an address; exactly the allocation is filled.
            unsafe {
                check("no memory can be allocated", sys::cuMemAlloc_v2(&raw mut memory.address, bytes))?;
                check(
                    "memory cannot be filled",
                    sys::cuMemsetD8Async(memory.address, byte, bytes, gpu.stream),
                )?;
            }
            // The copy stream may write to it next.
            gpu.wait()?;
        }
        Ok(memory)
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Checks that a range is in it.
    fn expect(&self, address: u64, bytes: usize) -> Result<(), String> {
        let inside = address >= self.address && address + bytes as u64 <= self.address + self.bytes as u64;
        if inside { Ok(()) } else { Err("a copy would exceed its memory".to_owned()) }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.address && address < self.address + self.bytes as u64
    }

    /// Copies bytes to an address in it, after all work of the stream. `from` may be reused at once.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), String> {
        self.expect(address, from.len())?;
        self.gpu.adopt()?;
        // SAFETY: the range is in this memory. The driver returns after it has read memory that is not
        // page-locked.
        check("bytes cannot be copied to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.gpu.stream)
        })
    }

    /// Waits for the stream and copies bytes from an address in it.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), String> {
        self.expect(address, to.len())?;
        self.gpu.adopt()?;
        // SAFETY: the range is in this memory; `to` is borrowed until the stream is empty.
        check("bytes cannot be copied from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), self.gpu.stream)
        })?;
        self.gpu.wait()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 && self.gpu.wait().is_ok() {
            // SAFETY: it was allocated and is freed once, when no work of the stream uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked memory of the process, which the GPU can read directly.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    pointer: *mut u8,
    bytes: usize,
    /// Reached when the last copy from it is complete.
    copied: Event,
    copying: bool,
    /// The bytes that were last copied to it.
    received: usize,
}

// SAFETY: it may be used from every thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        let copied = Event::new(gpu)?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is to a pointer; at least one byte is allocated.
        check("no memory can be page-locked", unsafe {
            sys::cuMemHostAlloc(&raw mut pointer, bytes.max(1), 0)
        })?;
        Ok(Self { gpu: Arc::clone(gpu), pointer: pointer.cast(), bytes, copied, copying: false, received: 0 })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes into this memory and begins to copy them to an address in `to`, in the copy stream.
    pub fn send(&mut self, from: &[u8], to: &Memory, address: u64) -> Result<(), String> {
        to.expect(address, from.len())?;
        if from.len() > self.bytes {
            return Err("page-locked memory is too small".to_owned());
        }
        self.gpu.adopt()?;
        if self.copying {
            // The previous copy from this memory must be complete.
            self.copied.wait()?;
        }
        // SAFETY: the memory has `bytes` bytes, which nothing else uses: the previous copy from it is
        // complete.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, from.len()) }.copy_from_slice(from);
        // SAFETY: source and target have `from.len()` bytes; the source is changed and freed only after the
        // copy.
        check("bytes cannot be copied to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, self.pointer.cast(), from.len(), self.gpu.copy_stream)
        })?;
        // SAFETY: both live.
        check("an event cannot be recorded", unsafe {
            sys::cuEventRecordWithFlags(self.copied.event, self.gpu.copy_stream, 0)
        })?;
        self.copying = true;
        Ok(())
    }

    /// Begins to copy all of `from` to this memory, behind the work of the stream.
    pub fn receive(&mut self, from: &Memory) -> Result<(), String> {
        if from.bytes > self.bytes {
            return Err("page-locked memory is too small".to_owned());
        }
        self.gpu.adopt()?;
        // SAFETY: source and target have these bytes; the target is read and freed only when the stream is
        // empty.
        check("bytes cannot be copied from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(self.pointer.cast(), from.address, from.bytes, self.gpu.stream)
        })?;
        self.received = from.bytes;
        Ok(())
    }

    /// What was received last, as words: waits for the stream.
    pub fn received(&self) -> Result<&[u64], String> {
        self.gpu.wait()?;
        // SAFETY: the driver aligns memory to pages; as many bytes were written, and nothing writes to them
        // now that the stream is empty: the next copy takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.received / size_of::<u64>()) })
    }

    /// Lets the stream wait for the last copy.
    pub fn await_copy(&self) -> Result<(), String> {
        if !self.copying {
            return Ok(());
        }
        self.gpu.adopt()?;
        // SAFETY: both live.
        check("the stream cannot wait", unsafe {
            sys::cuStreamWaitEvent(self.gpu.stream, self.copied.event, 0)
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let is_read = !self.copying || self.copied.wait().is_ok();
        let is_written = self.received == 0 || self.gpu.wait().is_ok();
        if is_read && is_written {
            // SAFETY: it was allocated and is freed once, when no copy from it or to it is under way.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// A loaded module of machine code.
pub(crate) struct Module {
    gpu: Arc<Gpu>,
    module: CUmodule,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Module {}
// SAFETY: as for `Gpu`.
unsafe impl Sync for Module {}

impl Module {
    pub fn load(gpu: &Arc<Gpu>, code: &[u8]) -> Result<Self, String> {
        gpu.adopt()?;
        let mut module = ptr::null_mut();
        // SAFETY: `code` is a whole cubin, which contains its own length.
        check("compiled code cannot be loaded", unsafe {
            sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast())
        })?;
        Ok(Self { gpu: Arc::clone(gpu), module })
    }

    /// A kernel, by its name.
    pub fn function(&self, name: &str) -> Result<usize, String> {
        let text = CString::new(name).map_err(|_| "a kernel's name holds a zero byte".to_owned())?;
        let mut function = ptr::null_mut();
        self.gpu.adopt()?;
        // SAFETY: the module is loaded, the name ends with a zero byte.
        check(&format!("there is no kernel `{name}`"), unsafe {
            sys::cuModuleGetFunction(&raw mut function, self.module, text.as_ptr())
        })?;
        Ok(function as usize)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: it was loaded and is unloaded once, when no work of the stream uses it.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// An event of a stream, which notes when it was reached.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: CUevent,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Event {}

impl Event {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.adopt()?;
        let mut event = ptr::null_mut();
        // SAFETY: the pointer is to an event; 0 asks for an event with a time.
        check("an event cannot be created", unsafe { sys::cuEventCreate(&raw mut event, 0) })?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Records it in the stream.
    pub fn record(&self) -> Result<(), String> {
        // SAFETY: event and stream live; 0 asks for nothing special.
        check("an event cannot be recorded", unsafe {
            sys::cuEventRecordWithFlags(self.event, self.gpu.stream, 0)
        })
    }

    /// Waits until it is reached.
    pub fn wait(&self) -> Result<(), String> {
        self.gpu.adopt()?;
        // SAFETY: the event lives.
        check("the GPU stopped", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Nanoseconds from an earlier event to this one; both must have been reached.
    pub fn since(&self, earlier: &Self) -> Result<u64, String> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events live, the pointer is to a float.
        check("an event was not reached", unsafe {
            sys::cuEventElapsedTime_v2(&raw mut milliseconds, earlier.event, self.event)
        })?;
        Ok((f64::from(milliseconds) * 1e6).round() as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.adopt().is_ok() {
            // SAFETY: it was created and is destroyed once; the driver waits where it must.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

/// A captured CUDA graph.
pub(crate) struct CapturedGraph {
    gpu: Arc<Gpu>,
    graph: CUgraph,
    executable: CUgraphExec,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// Captures what `enqueue` enqueues; nothing of it runs.
    ///
    /// # Errors
    /// That of `enqueue`, or the driver's message.
    pub fn of<E: From<String>>(gpu: &Arc<Gpu>, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        gpu.adopt()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives and is not being captured: captures begin only here, and end below.
        check("the stream cannot be captured", unsafe { sys::cuStreamBeginCapture_v2(gpu.stream, mode) })?;
        let enqueued = enqueue();
        let mut captured = Self { gpu: Arc::clone(gpu), graph: ptr::null_mut(), executable: ptr::null_mut() };
        // SAFETY: the stream is being captured; the pointer is to a graph.
        let ended = unsafe { sys::cuStreamEndCapture(gpu.stream, &raw mut captured.graph) };
        enqueued?;
        check("the stream was not captured", ended)?;
        // SAFETY: the graph was made by the capture.
        check("the captured graph cannot be instantiated", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut captured.executable, captured.graph, 0)
        })?;
        Ok(captured)
    }

    /// Enqueues the whole graph.
    pub fn launch(&self) -> Result<(), String> {
        self.gpu.adopt()?;
        // SAFETY: both live.
        check("the captured graph cannot be launched", unsafe {
            sys::cuGraphLaunch(self.executable, self.gpu.stream)
        })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: what was created is destroyed once, when no work of the stream uses it.
            unsafe {
                if !self.executable.is_null() {
                    let _ = sys::cuGraphExecDestroy(self.executable);
                }
                if !self.graph.is_null() {
                    let _ = sys::cuGraphDestroy(self.graph);
                }
            }
        }
    }
}
