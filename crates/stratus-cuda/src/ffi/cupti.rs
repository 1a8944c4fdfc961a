//! CUPTI: the start and end of each kernel as NVIDIA's own tools see them. Training does not need it; `bench
//! trace` compares our times with it.
//!
//! The library asks for buffers and returns them with records, on a thread of its own.

use super::driver::Gpu;
use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::device::{KernelSpan, Tracer};

type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut std::ffi::c_void, u32, *mut u8, usize, usize);
type Register = unsafe extern "C" fn(Request, Complete) -> i32;
type Switch = unsafe extern "C" fn(u32) -> i32;
type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> i32;

/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`.
const KERNELS: u32 = 10;
/// Offsets of start and end, in nanoseconds, in the record of a kernel: the same in every version since CUDA
/// 8.
const START: usize = 16;
const END: usize = 24;
const BUFFER: usize = 8 << 20;
const ALIGNMENT: usize = 8;

/// The records. Static, as the library's callbacks take no context.
static SPANS: Mutex<Vec<KernelSpan>> = Mutex::new(Vec::new());
/// The function that iterates over the records of a buffer.
static NEXT: Mutex<Option<Next>> = Mutex::new(None);

fn buffer_layout() -> Option<Layout> {
    Layout::from_size_align(BUFFER, ALIGNMENT).ok()
}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    // SAFETY: the library gives pointers to write to; the layout has a size.
    unsafe {
        let memory = buffer_layout().map_or(std::ptr::null_mut(), |layout| alloc(layout));
        *buffer = memory;
        *size = if memory.is_null() { 0 } else { BUFFER };
        *records = 0;
    }
}

unsafe extern "C" fn complete(_: *mut std::ffi::c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let next = *NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut spans = SPANS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut record = std::ptr::null_mut();
    // SAFETY: the buffer is one of ours with `valid` bytes of records, over which the library iterates. Each
    // begins with its kind; that of a kernel has its times at the offsets above.
    unsafe {
        while let Some(next) = next
            && next(buffer, valid, &raw mut record) == 0
        {
            if record.cast::<u32>().read_unaligned() == KERNELS {
                let number = |offset: usize| record.add(offset).cast::<u64>().read_unaligned();
                spans.push(KernelSpan { start: number(START), end: number(END) });
            }
        }
        if let (false, Some(layout)) = (buffer.is_null(), buffer_layout()) {
            dealloc(buffer, layout);
        }
    }
}

/// The library, while it records.
pub(crate) struct Cupti {
    gpu: Arc<Gpu>,
    library: Library,
}

impl Cupti {
    /// Begins to record.
    pub fn start(gpu: &Arc<Gpu>) -> Result<Self, String> {
        let library = super::libraries::open(&["libcupti.so.13", "libcupti.so.12", "libcupti.so"])
            .ok_or("CUPTI cannot be loaded")?;
        let cupti = Self { gpu: Arc::clone(gpu), library };
        gpu.adopt()?;
        // SAFETY: the functions have these types in every version of the library; the callbacks are functions
        // of the program.
        unsafe {
            let next: Next = *cupti.find(b"cuptiActivityGetNextRecord\0")?;
            *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
            let register: Register = *cupti.find(b"cuptiActivityRegisterCallbacks\0")?;
            let enable: Switch = *cupti.find(b"cuptiActivityEnable\0")?;
            check(register(request, complete))?;
            check(enable(KERNELS))?;
        }
        Ok(cupti)
    }

    /// # Safety
    /// The symbol must have the type that is asked for.
    unsafe fn find<T>(&self, name: &[u8]) -> Result<libloading::Symbol<'_, T>, String> {
        // SAFETY: the caller's.
        unsafe { self.library.get(name) }.map_err(|error| error.to_string())
    }
}

impl Tracer for Cupti {
    fn take(&mut self) -> Result<Vec<KernelSpan>, String> {
        self.gpu.wait()?;
        // SAFETY: the function has this type; 1 asks for buffers that are not full, too.
        unsafe {
            let flush: Switch = *self.find(b"cuptiActivityFlushAll\0")?;
            check(flush(1))?;
        }
        let mut spans = std::mem::take(&mut *SPANS.lock().unwrap_or_else(PoisonError::into_inner));
        spans.sort_unstable_by_key(|span| span.start);
        Ok(spans)
    }
}

impl Drop for Cupti {
    fn drop(&mut self) {
        // SAFETY: the function has this type. Nothing can be done where it fails.
        unsafe {
            if let Ok(disable) = self.find::<Switch>(b"cuptiActivityDisable\0") {
                let _ = disable(KERNELS);
            }
        }
    }
}

fn check(code: i32) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("CUPTI said {code}")) }
}
