//! The CUDA driver: a GPU with its streams, memory, modules, events, and CUDA graphs that are captured once
//! and launched repeatedly.

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule,
    CUresult, CUstream,
};
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;

/// Turns a result into an error that starts with `what`.
pub(super) fn check(what: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver returns a text that lives as long as the driver, or leaves the pointer null.
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
    /// The stream for copies of inputs, which run concurrently with kernels.
    copy_stream: CUstream,
    /// Its name.
    pub name: String,
    /// `[major, minor]`.
    pub capability: [u32; 2],
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The highest clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// The memory in bytes.
    pub memory: usize,
}

// SAFETY: the driver's handles may be used from every thread; each call first makes the context current.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver locks as necessary.
unsafe impl Sync for Gpu {}

/// The oldest CUDA version of a driver that has every function called here.
const MIN_CUDA_VERSION: [u32; 2] = [12, 8];

/// The driver's version, as `major.minor` of the newest CUDA that it supports, and the number of GPUs.
///
/// # Errors
/// The driver's error message.
pub(crate) fn driver() -> Result<(String, u32), String> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: the first function to call, with its only valid argument; the pointers are to ints.
    unsafe {
        check("cannot start the CUDA driver", sys::cuInit(0))?;
        check("cannot read the driver's version", sys::cuDriverGetVersion(&raw mut version))?;
        check("cannot count the GPUs", sys::cuDeviceGetCount(&raw mut count))?;
    }
    Ok((format!("{}.{}", version / 1000, version % 1000 / 10), count.unsigned_abs()))
}

impl Gpu {
    /// Opens the GPU with this number, from 0.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn open(ordinal: u32) -> Result<Arc<Self>, String> {
        let (version, count) = driver()?;
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).collect();
        if numbers[..] < MIN_CUDA_VERSION[..] {
            let [major, minor] = MIN_CUDA_VERSION;
            return Err(format!("the driver supports CUDA {version}, need {major}.{minor} or newer"));
        }
        if ordinal >= count {
            return Err(format!("GPU {ordinal} not found: the driver reports {count} GPUs"));
        }
        let mut device = 0;
        let mut name = [0_u8; 128];
        let (mut context, mut stream, mut copy_stream) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut memory = 0;
        // SAFETY: the driver was started; every pointer is to a value of the type that the function writes;
        // `name` has `length` bytes.
        unsafe {
            check("cannot open the GPU", sys::cuDeviceGet(&raw mut device, ordinal.cast_signed()))?;
            let length = name.len() as i32;
            check(
                "cannot read the GPU's name",
                sys::cuDeviceGetName(name.as_mut_ptr().cast(), length, device),
            )?;
            check("cannot read the GPU's memory size", sys::cuDeviceTotalMem_v2(&raw mut memory, device))?;
            check(
                "cannot create a context on the GPU",
                sys::cuDevicePrimaryCtxRetain(&raw mut context, device),
            )?;
            check("cannot use the GPU's context", sys::cuCtxSetCurrent(context))?;
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            check("cannot create a stream", sys::cuStreamCreate(&raw mut stream, flags))?;
            check("cannot create a second stream", sys::cuStreamCreate(&raw mut copy_stream, flags))?;
        }
        let attribute = |which: CUdevice_attribute| -> Result<u32, String> {
            let mut value = 0;
            // SAFETY: the pointer is to an int.
            check("cannot read an attribute of the GPU", unsafe {
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
        let clock_khz = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?;
        let gpu = Self {
            device,
            context,
            stream,
            copy_stream,
            name,
            capability,
            multiprocessors,
            clock_khz,
            memory,
        };
        Ok(Arc::new(gpu))
    }

    /// Makes the GPU's context current in the calling thread.
    pub fn make_current(&self) -> Result<(), String> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cannot use the GPU's context", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// The stream of all work except copies of inputs.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Waits until the stream is empty.
    pub fn wait(&self) -> Result<(), String> {
        self.make_current()?;
        // SAFETY: the stream lives as long as `self`.
        check("the GPU failed", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    /// The PCI bus ID, as `0000:65:00.0`: its name in NVIDIA's other libraries.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn bus_id(&self) -> Result<CString, String> {
        let mut text = [0_u8; 32];
        let length = text.len() as i32;
        // SAFETY: `text` has `length` bytes.
        check("cannot read the GPU's PCI bus ID", unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), length, self.device)
        })?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|error| error.to_string())?;
        Ok(text.to_owned())
    }

    /// The free memory in bytes.
    pub fn free_bytes(&self) -> Result<usize, String> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are numbers.
        check("cannot read the free memory", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(free)
    }

    /// Allows a kernel this much dynamic shared memory per block, in bytes.
    pub fn allow_shared(&self, function: usize, bytes: u32) -> Result<(), String> {
        self.make_current()?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches.
        check("too much shared memory for a kernel", unsafe {
            sys::cuFuncSetAttribute(function as CUfunction, attribute, bytes.cast_signed())
        })
    }

    /// Launches a kernel in the stream of kernels. Each of `arguments` holds a parameter in its first bytes.
    pub fn launch(
        &self,
        function: usize,
        shape: crate::processor::Shape,
        arguments: &mut [u64],
    ) -> Result<(), String> {
        self.launch_in(self.stream, function, shape, arguments)
    }

    /// [`launch`](Self::launch) in another stream of this GPU.
    pub fn launch_in(
        &self,
        stream: CUstream,
        function: usize,
        shape: crate::processor::Shape,
        arguments: &mut [u64],
    ) -> Result<(), String> {
        const MAX_PARAMETERS: usize = 48;
        self.make_current()?;
        let mut pointers = [ptr::null_mut(); MAX_PARAMETERS];
        if arguments.len() > MAX_PARAMETERS {
            return Err(format!("too many kernel parameters: {}", arguments.len()));
        }
        for (pointer, argument) in pointers.iter_mut().zip(arguments.iter_mut()) {
            *pointer = ptr::from_mut(argument).cast();
        }
        let crate::processor::Shape { grid, block, shared } = shape;
        // SAFETY: the function belongs to a module that lives as long as the processor that launches. Every
        // parameter is in the first bytes of a word, which is as wide as the widest one; the driver copies
        // them before it returns.
        check("cannot launch a kernel", unsafe {
            sys::cuLaunchKernel(
                function as CUfunction,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: streams and context were created by `open` and are released once. Errors cannot be handled
        // here.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuStreamDestroy_v2(self.copy_stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// An allocation of GPU memory.
pub(crate) struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates memory filled with zeros.
    pub fn zeroed(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        Self::filled(gpu, bytes, 0)
    }

    /// Allocates memory filled with a byte. With 0 `bytes`, nothing is allocated and the address is 0.
    pub fn filled(gpu: &Arc<Gpu>, bytes: usize, byte: u8) -> Result<Self, String> {
        let mut memory = Self { gpu: Arc::clone(gpu), address: 0, bytes };
        if bytes > 0 {
            gpu.make_current()?;
            // SAFETY: the pointer is to an address; exactly the allocation is filled.
            unsafe {
                check("cannot allocate GPU memory", sys::cuMemAlloc_v2(&raw mut memory.address, bytes))?;
                check(
                    "cannot fill GPU memory",
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

    /// Checks that this memory contains a range.
    fn expect(&self, address: u64, bytes: usize) -> Result<(), String> {
        let inside = address >= self.address && address + bytes as u64 <= self.address + self.bytes as u64;
        if inside { Ok(()) } else { Err("copy out of bounds".to_owned()) }
    }

    /// Returns whether this memory contains an address.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.address && address < self.address + self.bytes as u64
    }

    /// Copies bytes to an address in this memory, after all work in the stream. `from` may be reused at once.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), String> {
        self.expect(address, from.len())?;
        self.gpu.make_current()?;
        // SAFETY: the range is in this memory. The driver returns after reading memory that is not
        // page-locked.
        check("cannot copy to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, from.as_ptr().cast(), from.len(), self.gpu.stream)
        })
    }

    /// Waits for the stream and copies bytes from an address in this memory.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), String> {
        self.expect(address, to.len())?;
        self.gpu.make_current()?;
        // SAFETY: the range is in this memory; `to` is borrowed until the stream is empty.
        check("cannot copy from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), self.gpu.stream)
        })?;
        self.gpu.wait()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.address != 0 && self.gpu.wait().is_ok() {
            // SAFETY: allocated and freed once, when no work in the stream uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked memory of the process, which the GPU can read directly.
pub(crate) struct PinnedBuffer {
    gpu: Arc<Gpu>,
    pointer: *mut u8,
    bytes: usize,
    /// Recorded after the last copy from it.
    copied: Event,
    copying: bool,
    /// The bytes last copied to it.
    received: usize,
}

// SAFETY: may be used from every thread.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, String> {
        let copied = Event::new(gpu)?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is to a pointer; at least one byte is allocated.
        check("cannot allocate page-locked memory", unsafe {
            sys::cuMemHostAlloc(&raw mut pointer, bytes.max(1), 0)
        })?;
        Ok(Self { gpu: Arc::clone(gpu), pointer: pointer.cast(), bytes, copied, copying: false, received: 0 })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes into this buffer, and starts copying them to an address in `to`, in the copy stream.
    pub fn send(&mut self, from: &[u8], to: &DeviceMemory, address: u64) -> Result<(), String> {
        to.expect(address, from.len())?;
        if from.len() > self.bytes {
            return Err("page-locked buffer too small".to_owned());
        }
        self.gpu.make_current()?;
        if self.copying {
            // The previous copy from this memory must be complete.
            self.copied.wait()?;
        }
        // SAFETY: the memory has `bytes` bytes, which nothing else uses: the previous copy from it is
        // complete.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, from.len()) }.copy_from_slice(from);
        // SAFETY: source and target have `from.len()` bytes; the source is changed and freed only after the
        // copy.
        check("cannot copy to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, self.pointer.cast(), from.len(), self.gpu.copy_stream)
        })?;
        // SAFETY: both live.
        check("cannot record an event", unsafe {
            sys::cuEventRecordWithFlags(self.copied.event, self.gpu.copy_stream, 0)
        })?;
        self.copying = true;
        Ok(())
    }

    /// Starts copying all of `from` to this buffer, after the work in the stream.
    pub fn receive(&mut self, from: &DeviceMemory) -> Result<(), String> {
        if from.bytes > self.bytes {
            return Err("page-locked buffer too small".to_owned());
        }
        self.gpu.make_current()?;
        // SAFETY: source and target have these bytes; the target is read and freed only when the stream is
        // empty.
        check("cannot copy from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(self.pointer.cast(), from.address, from.bytes, self.gpu.stream)
        })?;
        self.received = from.bytes;
        Ok(())
    }

    /// The last received data, as words; waits for the stream.
    pub fn received(&self) -> Result<&[u64], String> {
        self.gpu.wait()?;
        // SAFETY: the driver aligns memory to pages; this many bytes were written, and nothing writes to them
        // once the stream is empty: the next copy takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.pointer.cast(), self.received / size_of::<u64>()) })
    }

    /// Lets the stream wait for the last copy.
    pub fn await_copy(&self) -> Result<(), String> {
        if !self.copying {
            return Ok(());
        }
        self.gpu.make_current()?;
        // SAFETY: both live.
        check("cannot make the stream wait", unsafe {
            sys::cuStreamWaitEvent(self.gpu.stream, self.copied.event, 0)
        })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let is_read = !self.copying || self.copied.wait().is_ok();
        let is_written = self.received == 0 || self.gpu.wait().is_ok();
        if is_read && is_written {
            // SAFETY: allocated and freed once, when no copy from or to it is in progress.
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
        gpu.make_current()?;
        let mut module = ptr::null_mut();
        // SAFETY: `code` is a whole cubin, which contains its own length.
        check("cannot load compiled code", unsafe {
            sys::cuModuleLoadData(&raw mut module, code.as_ptr().cast())
        })?;
        Ok(Self { gpu: Arc::clone(gpu), module })
    }

    /// Looks up a kernel by name.
    pub fn function(&self, name: &str) -> Result<usize, String> {
        let text = CString::new(name).map_err(|_| "kernel name contains a zero byte".to_owned())?;
        let mut function = ptr::null_mut();
        self.gpu.make_current()?;
        // SAFETY: the module is loaded, the name ends with a zero byte.
        check(&format!("kernel `{name}` not found"), unsafe {
            sys::cuModuleGetFunction(&raw mut function, self.module, text.as_ptr())
        })?;
        Ok(function as usize)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: loaded and unloaded once, when no work in the stream uses it.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// An event in a stream, which records its time.
pub(crate) struct Event {
    gpu: Arc<Gpu>,
    event: CUevent,
}

// SAFETY: as for `Gpu`.
unsafe impl Send for Event {}

impl Event {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.make_current()?;
        let mut event = ptr::null_mut();
        // SAFETY: the pointer is to an event; 0 requests an event with a time.
        check("cannot create an event", unsafe { sys::cuEventCreate(&raw mut event, 0) })?;
        Ok(Self { gpu: Arc::clone(gpu), event })
    }

    /// Records it in the stream.
    pub fn record(&self) -> Result<(), String> {
        // SAFETY: event and stream live; 0 requests no flags.
        check("cannot record an event", unsafe {
            sys::cuEventRecordWithFlags(self.event, self.gpu.stream, 0)
        })
    }

    /// Waits until it is reached.
    pub fn wait(&self) -> Result<(), String> {
        self.gpu.make_current()?;
        // SAFETY: the event lives.
        check("the GPU failed", unsafe { sys::cuEventSynchronize(self.event) })
    }

    /// Nanoseconds from an earlier event to this one; both must have been reached.
    pub fn since(&self, earlier: &Self) -> Result<u64, String> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events live, the pointer is to a float.
        check("event not reached", unsafe {
            sys::cuEventElapsedTime_v2(&raw mut milliseconds, earlier.event, self.event)
        })?;
        Ok((f64::from(milliseconds) * 1e6).round() as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: created and destroyed once; the driver waits as necessary.
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
    /// Captures the work that `enqueue` enqueues, without running it.
    ///
    /// # Errors
    /// The error of `enqueue`, or the driver's error message.
    pub fn capture<E: From<String>>(
        gpu: &Arc<Gpu>,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        gpu.make_current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives and is not being captured: captures start only here, and end below.
        check("cannot capture the stream", unsafe { sys::cuStreamBeginCapture_v2(gpu.stream, mode) })?;
        let enqueued = enqueue();
        let mut captured = Self { gpu: Arc::clone(gpu), graph: ptr::null_mut(), executable: ptr::null_mut() };
        // SAFETY: the stream is being captured; the pointer is to a graph.
        let ended = unsafe { sys::cuStreamEndCapture(gpu.stream, &raw mut captured.graph) };
        enqueued?;
        check("stream capture failed", ended)?;
        // SAFETY: the graph was created by the capture.
        check("cannot instantiate the captured graph", unsafe {
            sys::cuGraphInstantiateWithFlags(&raw mut captured.executable, captured.graph, 0)
        })?;
        Ok(captured)
    }

    /// Enqueues the whole graph.
    pub fn launch(&self) -> Result<(), String> {
        self.gpu.make_current()?;
        // SAFETY: both live.
        check("cannot launch the captured graph", unsafe {
            sys::cuGraphLaunch(self.executable, self.gpu.stream)
        })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if self.gpu.wait().is_ok() {
            // SAFETY: everything created is destroyed once, when no work in the stream uses it.
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
