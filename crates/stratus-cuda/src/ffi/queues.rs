//! The streams of a GPU beside that of its kernels, with events, pinned host memory and host functions.

use super::driver::{Gpu, check};
use super::nccl::NcclGroup;
use crate::exchange::{DeviceRange, HostFunction, Queue, Queues, Staging};
use crate::processor::{Function, Shape};
use cudarc::driver::sys::{self, CUevent, CUstream};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::DType;

/// The queues of a GPU.
pub(crate) struct GpuQueues {
    gpu: Arc<Gpu>,
    /// Outgoing, incoming and sums.
    streams: [CUstream; 3],
    in_use: [AtomicBool; 3],
    /// The host functions and memory that work in a queue may refer to; CUDA graphs keep only their
    /// addresses.
    referenced: Mutex<Referenced>,
}

#[derive(Default)]
struct Referenced {
    calls: Vec<Arc<HostFunction>>,
    memory: Vec<Arc<PinnedMemory>>,
}

// SAFETY: the driver's handles may be used from every thread; each call first makes the context current.
unsafe impl Send for GpuQueues {}
// SAFETY: as above; the driver locks as necessary.
unsafe impl Sync for GpuQueues {}

impl GpuQueues {
    /// Creates the queues.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        gpu.make_current()?;
        let mut made = Self {
            gpu: Arc::clone(gpu),
            streams: [ptr::null_mut(); 3],
            in_use: Default::default(),
            referenced: Mutex::default(),
        };
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        for stream in &mut made.streams {
            // SAFETY: the pointer is to a stream.
            check("cannot create a stream", unsafe { sys::cuStreamCreate(ptr::from_mut(stream), flags) })?;
        }
        Ok(made)
    }

    fn stream(&self, queue: Queue) -> CUstream {
        match queue {
            Queue::Kernels => self.gpu.stream(),
            Queue::Outgoing => self.streams[0],
            Queue::Incoming => self.streams[1],
            Queue::Sums => self.streams[2],
        }
    }

    /// The address of a range for a copy, whose memory is kept from now on.
    fn host_address(&self, memory: &Arc<PinnedMemory>, range: &Range<usize>) -> Result<*mut u8, String> {
        if range.end > memory.bytes || range.is_empty() {
            return Err("copy out of bounds".to_owned());
        }
        self.gpu.make_current()?;
        self.keep(memory);
        // SAFETY: the range is in the allocation.
        Ok(unsafe { memory.pointer.add(range.start) })
    }

    fn keep(&self, memory: &Arc<PinnedMemory>) {
        let mut referenced = self.referenced.lock().unwrap_or_else(PoisonError::into_inner);
        if !referenced.memory.iter().any(|kept| Arc::ptr_eq(kept, memory)) {
            referenced.memory.push(Arc::clone(memory));
        }
    }
}

impl Drop for GpuQueues {
    fn drop(&mut self) {
        if self.synchronise().is_err() {
            // Calls may still be queued: their memory must stay.
            std::mem::forget(std::mem::take(
                self.referenced.get_mut().unwrap_or_else(PoisonError::into_inner),
            ));
        }
        for stream in self.streams {
            if !stream.is_null() {
                // SAFETY: created and destroyed once. Errors cannot be handled here.
                let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
            }
        }
    }
}

/// An event without a time.
pub(crate) struct QueueEvent {
    gpu: Arc<Gpu>,
    event: CUevent,
}

// SAFETY: as for `GpuQueues`.
unsafe impl Send for QueueEvent {}
// SAFETY: as for `GpuQueues`.
unsafe impl Sync for QueueEvent {}

impl Drop for QueueEvent {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: created and destroyed once; the driver waits as necessary.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

/// Pinned host memory.
pub(crate) struct PinnedMemory {
    gpu: Arc<Gpu>,
    pointer: *mut u8,
    bytes: usize,
    /// Held while the process uses the bytes.
    used: Mutex<()>,
}

// SAFETY: the memory may be used from every thread; `used` excludes two uses by the process.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl Staging for PinnedMemory {
    fn with_bytes(&self, function: &mut dyn FnMut(&mut [u8])) {
        let _used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the memory has these bytes, all of them zero at first, and lives as long as `self`. The
        // process uses it only in calls of a queue, which run before or after the copies, and under the lock.
        function(unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) });
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.gpu.make_current().is_ok() {
            // SAFETY: allocated and freed once; the queues keep memory that a copy may use.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// Runs a host function for the driver.
unsafe extern "C" fn run_host_function(call: *mut c_void) {
    // SAFETY: the pointer is to a `HostFunction` that `GpuQueues::call` keeps.
    unsafe { &*call.cast_const().cast::<HostFunction>() }.run();
}

impl Queues for GpuQueues {
    type Event = QueueEvent;
    type Staging = PinnedMemory;
    type Group = NcclGroup;

    fn event(&self) -> Result<QueueEvent, String> {
        self.gpu.make_current()?;
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the pointer is to an event.
        check("cannot create an event", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
        Ok(QueueEvent { gpu: Arc::clone(&self.gpu), event })
    }

    fn staging(&self, bytes: usize) -> Result<PinnedMemory, String> {
        self.gpu.make_current()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is to a pointer; at least one byte is allocated.
        check("cannot allocate page-locked memory", unsafe {
            sys::cuMemHostAlloc(&raw mut pointer, bytes.max(1), 0)
        })?;
        // SAFETY: exactly the allocation is filled.
        unsafe { ptr::write_bytes(pointer.cast::<u8>(), 0, bytes.max(1)) };
        Ok(PinnedMemory {
            gpu: Arc::clone(&self.gpu),
            pointer: pointer.cast(),
            bytes,
            used: Mutex::default(),
        })
    }

    fn record(&self, event: &QueueEvent, queue: Queue) -> Result<(), String> {
        self.gpu.make_current()?;
        // SAFETY: both live; 0 requests no flags.
        check("cannot record an event", unsafe {
            sys::cuEventRecordWithFlags(event.event, self.stream(queue), 0)
        })
    }

    fn wait(&self, queue: Queue, event: &QueueEvent) -> Result<(), String> {
        self.gpu.make_current()?;
        match queue {
            Queue::Kernels => {}
            Queue::Outgoing => self.in_use[0].store(true, Ordering::Relaxed),
            Queue::Incoming => self.in_use[1].store(true, Ordering::Relaxed),
            Queue::Sums => self.in_use[2].store(true, Ordering::Relaxed),
        }
        // SAFETY: both live; 0 requests no flags.
        check("cannot make a queue wait", unsafe {
            sys::cuStreamWaitEvent(self.stream(queue), event.event, 0)
        })
    }

    fn copy_out(
        &self,
        queue: Queue,
        address: u64,
        to: &Arc<PinnedMemory>,
        range: Range<usize>,
    ) -> Result<(), String> {
        let host = self.host_address(to, &range)?;
        // SAFETY: the target has these bytes and is kept until the queues are dropped; the source is an
        // operand of the session's arena with as many.
        check("cannot copy from the GPU", unsafe {
            sys::cuMemcpyDtoHAsync_v2(host.cast(), address, range.len(), self.stream(queue))
        })
    }

    fn copy_in(
        &self,
        queue: Queue,
        from: &Arc<PinnedMemory>,
        range: Range<usize>,
        address: u64,
    ) -> Result<(), String> {
        let host = self.host_address(from, &range)?;
        // SAFETY: as for `copy_out`, in the other direction.
        check("cannot copy to the GPU", unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, host.cast(), range.len(), self.stream(queue))
        })
    }

    fn copy_within(&self, queue: Queue, from: u64, to: u64, bytes: usize) -> Result<(), String> {
        self.gpu.make_current()?;
        // SAFETY: both ranges are memory of the session's device, which is freed when the queues are empty.
        check("cannot copy on the GPU", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream(queue))
        })
    }

    fn launch(
        &self,
        queue: Queue,
        function: Function,
        shape: Shape,
        mut arguments: Vec<u64>,
    ) -> Result<(), String> {
        self.gpu.launch_in(self.stream(queue), function.0, shape, &mut arguments)
    }

    fn send_receive(
        &self,
        queue: Queue,
        group: &Arc<NcclGroup>,
        peer: usize,
        send: DeviceRange,
        receive: DeviceRange,
    ) -> Result<(), String> {
        group.send_receive(self.stream(queue), peer, send, receive)
    }

    fn all_reduce(
        &self,
        queue: Queue,
        group: &Arc<NcclGroup>,
        values: DeviceRange,
        dtype: DType,
    ) -> Result<(), String> {
        group.all_reduce(self.stream(queue), values, dtype)
    }

    fn call(&self, queue: Queue, call: &Arc<HostFunction>) -> Result<(), String> {
        self.gpu.make_current()?;
        {
            let mut referenced = self.referenced.lock().unwrap_or_else(PoisonError::into_inner);
            if !referenced.calls.iter().any(|kept| Arc::ptr_eq(kept, call)) {
                referenced.calls.push(Arc::clone(call));
            }
        }
        let data = Arc::as_ptr(call).cast_mut().cast::<c_void>();
        // SAFETY: `run_host_function` takes a pointer to a call, which is kept until the queues are dropped,
        // once no work is left in them. The call uses no function of CUDA.
        check("cannot enqueue a call", unsafe {
            sys::cuLaunchHostFunc(self.stream(queue), Some(run_host_function), data)
        })
    }

    fn is_in_use(&self, queue: Queue) -> bool {
        match queue {
            Queue::Kernels => true,
            Queue::Outgoing => self.in_use[0].load(Ordering::Relaxed),
            Queue::Incoming => self.in_use[1].load(Ordering::Relaxed),
            Queue::Sums => self.in_use[2].load(Ordering::Relaxed),
        }
    }

    fn synchronise(&self) -> Result<(), String> {
        self.gpu.wait()?;
        self.streams.into_iter().filter(|stream| !stream.is_null()).try_for_each(|stream| {
            // SAFETY: the stream lives.
            check("the GPU failed", unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    fn begin(&self) {
        self.in_use.iter().for_each(|in_use| in_use.store(false, Ordering::Relaxed));
    }
}
