//! The CUDA driver: a GPU with one queue, memory, compiled code, marks in the queue, and queues that are recorded once and launched again.

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule,
    CUresult, CUstream,
};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;

/// What a result says, where it is not success.
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

/// A GPU and its queue.
pub(crate) struct Gpu {
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    /// A second queue, for copies beside the first.
    beside: CUstream,
    /// Its name.
    pub name: String,
    /// `[major, minor]`.
    pub capability: [u32; 2],
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory: usize,
}

// SAFETY: the driver's handles may be used from every thread; each call first makes the context that of the thread.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Gpu {}

/// The oldest CUDA that a driver may be for: it brings the newest of the functions that are called here.
const LEAST: [u32; 2] = [12, 8];

/// The driver's version as `major.minor` of the newest CUDA that it runs, and how many GPUs there are.
///
/// # Errors
/// What the driver said.
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
    /// What the driver said.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        let (version, count) = driver()?;
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
        if numbers[..] < LEAST[..] {
            let [major, minor] = LEAST;
            return Err(format!(
                "the driver is for CUDA {version}, the least that is used is {major}.{minor}"
            ));
        }
        if ordinal >= count {
            return Err(format!("there are {count} GPUs, none has the number {ordinal}"));
        }
        let mut device = 0;
        let mut name = [0_u8; 128];
        let (mut context, mut stream, mut beside) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut memory = 0;
        // SAFETY: the driver was started; every pointer is to a value of the type that the function writes, `name` has as many bytes as are said.
        unsafe {
            check("a GPU cannot be had", sys::cuDeviceGet(&raw mut device, ordinal.cast_signed()))?;
            let length = name.len() as i32;
            check("a GPU has no name", sys::cuDeviceGetName(name.as_mut_ptr().cast(), length, device))?;
            check("a GPU has no memory", sys::cuDeviceTotalMem_v2(&raw mut memory, device))?;
            check("a GPU has no context", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
            check("a context cannot be used", sys::cuCtxSetCurrent(context))?;
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            check("a GPU has no queue", sys::cuStreamCreate(&raw mut stream, flags))?;
            check("a GPU has no second queue", sys::cuStreamCreate(&raw mut beside, flags))?;
        }
        let attribute = |which: CUdevice_attribute| -> Result<u32, String> {
            let mut value = 0;
            // SAFETY: the pointer is to an int.
            check("a GPU lacks an attribute", unsafe {
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
        Ok(Arc::new(Self { device, context, stream, beside, name, capability, multiprocessors, memory }))
    }

    /// Makes the GPU that of the calling thread.
    pub fn adopt(&self) -> Result<(), String> {
        // SAFETY: the context is retained as long as `self` lives.
        check("a context cannot be used", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// The queue, for the libraries.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Waits until the queue is empty.
    pub fn wait(&self) -> Result<(), String> {
        self.adopt()?;
        // SAFETY: the stream lives as long as `self`.
        check("the GPU stopped", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// Bytes of memory that are free.
    pub fn free_bytes(&self) -> Result<usize, String> {
        self.adopt()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are numbers.
        check("a GPU has no memory", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free)
    }

    /// Lets a kernel be launched with so many bytes of shared memory.
    pub fn allow_shared(&self, function: usize, bytes: u32) -> Result<(), String> {
        self.adopt()?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches.
        check("a kernel cannot have so much shared memory", unsafe {
            sys::cuFuncSetAttribute(function as CUfunction, attribute, bytes.cast_signed())
        })
    }

    /// Launches a kernel; `arguments` point to its parameters.
    pub fn launch(
        &self,
        function: usize,
        shape: crate::processor::Shape,
        arguments: &mut [u64],
    ) -> Result<(), String> {
        const MOST: usize = 40;
        self.adopt()?;
        let mut pointers = [ptr::null_mut(); MOST];
        if arguments.len() > MOST {
            return Err(format!("a kernel has {} parameters", arguments.len()));
        }
        for (pointer, argument) in pointers.iter_mut().zip(arguments.iter_mut()) {
            *pointer = ptr::from_mut(argument).cast();
        }
        let crate::processor::Shape { grid, block, shared } = shape;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches; every parameter is in the first bytes of a word
        // of eight, as wide as the widest parameter of our kernels; the driver copies them before it returns.
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
        // SAFETY: stream and context were made by `open` and are given back once. Nothing can be done where that fails.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.beside);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Memory of a GPU.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Zeros.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        Self::filled(gpu, bytes, 0)
    }

    /// Bytes that are all the same. Of none nothing is allocated.
    pub fn filled(gpu: &Arc<Gpu>, bytes: usize, byte: u8) -> Result<Self, String> {
        let mut memory = Self { gpu: Arc::clone(gpu), address: 0, bytes };
        if bytes > 0 {
            gpu.adopt()?;
            // SAFETY: the pointer is to an address; what is then filled is what was allocated.
            unsafe {
                check("there is no memory", sys::cuMemAlloc_v2(&raw mut memory.address, bytes))?;
                check(
                    "memory cannot be filled",
                    sys::cuMemsetD8Async(memory.address, byte, bytes, gpu.stream),
                )?;
            }
            // The second queue may write to it next.
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

    /// Checks that a range lies in it.
    fn expect(&self, address: u64, bytes: usize) -> Result<(), String> {
        let inside = address >= self.address && address + bytes as u64 <= self.address + self.bytes as u64;
        if inside { Ok(()) } else { Err("a copy would go beyond its memory".to_owned()) }
    }

    /// Whether an address lies in it.
    pub fn holds(&self, address: u64) -> bool {
        address >= self.address && address < self.address + self.bytes as u64
    }

    /// Copies bytes to an address in it, behind what is in the queue; they may be changed at once.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), String> {
        self.expect(address, from.len())?;
        self.gpu.adopt()?;
        // SAFETY: the range lies in this memory. From memory that is not page-locked the driver has copied all bytes when it returns.
        check("bytes cannot be copied to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.gpu.stream)
        })
    }

    /// Waits for the queue and copies bytes of an address in it.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), String> {
        self.expect(address, to.len())?;
        self.gpu.adopt()?;
        // SAFETY: the range lies in this memory; `to` is not given back before the queue is empty.
        check("bytes cannot be copied from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), self.gpu.stream)
        })?;
        self.gpu.wait()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 && self.gpu.wait().is_ok() {
            // SAFETY: it was allocated and is freed once, when nothing in the queue uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Memory of the process that the GPU reads by itself: page-locked.
pub(crate) struct Pinned {
    gpu: Arc<Gpu>,
    pointer: *mut u8,
    bytes: usize,
    /// When the last copy from it had been made.
    copied: Event,
    copying: bool,
}

// SAFETY: it belongs to no thread.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        let copied = Event::new(gpu)?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is to a pointer; at least a byte is asked for.
        check("no memory can be page-locked", unsafe {
            sys::cuMemHostAlloc(&raw mut pointer, bytes.max(1), 0)
        })?;
        Ok(Self { gpu: Arc::clone(gpu), pointer: pointer.cast(), bytes, copied, copying: false })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes bytes over and begins to copy them to an address in `to`, in the second queue.
    pub fn send(&mut self, from: &[u8], to: &Memory, address: u64) -> Result<(), String> {
        to.expect(address, from.len())?;
        if from.len() > self.bytes {
            return Err("page-locked memory is too small".to_owned());
        }
        self.gpu.adopt()?;
        if self.copying {
            // What was taken over before must be gone.
            self.copied.wait()?;
        }
        // SAFETY: the memory has `bytes` bytes, which nothing else uses: the last copy from it has been made.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, from.len()) }.copy_from_slice(from);
        // SAFETY: source and target are as large as that; the source is changed and freed only when the copy has been made.
        check("bytes cannot be copied to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, self.pointer.cast(), from.len(), self.gpu.beside)
        })?;
        // SAFETY: both live.
        check("a mark cannot be set", unsafe {
            sys::cuEventRecordWithFlags(self.copied.event, self.gpu.beside, 0)
        })?;
        self.copying = true;
        Ok(())
    }

    /// Has the first queue wait for the last copy.
    pub fn await_copy(&self) -> Result<(), String> {
        if !self.copying {
            return Ok(());
        }
        self.gpu.adopt()?;
        // SAFETY: both live.
        check("a queue cannot wait", unsafe { sys::cuStreamWaitEvent(self.gpu.stream, self.copied.event, 0) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.copying || self.copied.wait().is_ok() {
            // SAFETY: it was allocated and is freed once, when no copy from it is under way.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// Compiled code.
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
        // SAFETY: `code` is a whole cubin, which says its own length.
        check("compiled code cannot be loaded", unsafe {
            sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast())
        })?;
        Ok(Self { gpu: Arc::clone(gpu), module })
    }

    /// A kernel of it.
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
            // SAFETY: it was loaded and is unloaded once, when nothing in the queue uses it.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// A mark in the queue: when it was reached.
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
        // SAFETY: the pointer is to an event; 0 asks for one that looks at the time.
        check("a mark cannot be made", unsafe { sys::cuEventCreate(&raw mut event, 0) })?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Puts it into the queue. In a queue that is being recorded it becomes a part of the recording.
    pub fn record(&self, recording: bool) -> Result<(), String> {
        use sys::CUevent_record_flags_enum::{CU_EVENT_RECORD_DEFAULT, CU_EVENT_RECORD_EXTERNAL};
        let flags = if recording { CU_EVENT_RECORD_EXTERNAL } else { CU_EVENT_RECORD_DEFAULT };
        // SAFETY: event and stream live; the flag is one of the two.
        check("a mark cannot be set", unsafe {
            sys::cuEventRecordWithFlags(self.event, self.gpu.stream, flags as u32)
        })
    }

    /// Waits until it is reached.
    pub fn wait(&self) -> Result<(), String> {
        self.gpu.adopt()?;
        // SAFETY: the event lives.
        check("the GPU stopped", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Nanoseconds from an earlier one to this one; both were reached.
    pub fn since(&self, earlier: &Self) -> Result<u64, String> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events live, the pointer is to a float.
        check("a mark was not reached", unsafe {
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

/// A part of the queue that was recorded.
pub(crate) struct Recording {
    gpu: Arc<Gpu>,
    graph: CUgraph,
    executable: CUgraphExec,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Recording {}

impl Recording {
    /// Records what `enqueue` puts into the queue; nothing of it is run.
    pub fn of<E: From<String>>(gpu: &Arc<Gpu>, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        gpu.adopt()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives and is not being recorded: recordings are made here alone, and end below.
        check("a queue cannot be recorded", unsafe { sys::cuStreamBeginCapture_v2(gpu.stream, mode) })?;
        let enqueued = enqueue();
        let mut recording =
            Self { gpu: Arc::clone(gpu), graph: ptr::null_mut(), executable: ptr::null_mut() };
        // SAFETY: the stream is being recorded; the pointer is to a graph.
        let ended = unsafe { sys::cuStreamEndCapture(gpu.stream, &raw mut recording.graph) };
        enqueued?;
        check("a queue was not recorded", ended)?;
        // SAFETY: the graph was made by the capture.
        check("a recorded queue cannot be launched", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut recording.executable, recording.graph, 0)
        })?;
        Ok(recording)
    }

    /// Puts it into the queue.
    pub fn launch(&self) -> Result<(), String> {
        self.gpu.adopt()?;
        // SAFETY: both live.
        check("a recorded queue was not launched", unsafe {
            sys::cuGraphLaunch(self.executable, self.gpu.stream)
        })
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: what was made is destroyed once, when nothing in the queue uses it.
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
