//! NVML, which comes with NVIDIA's driver: how busy a GPU is, its memory in use and its power, as
//! `nvidia-smi` shows them. Training does not need it.
//!
//! Source: NVML API Reference Guide. The functions and structures have been these since driver 331; NVML is
//! safe to call from several threads.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use stratus_engine::device::{DeviceMeter, DeviceUsage};

type Handle = *mut c_void;
type Plain = unsafe extern "C" fn() -> i32;
type ByBusId = unsafe extern "C" fn(*const c_char, *mut Handle) -> i32;
type Rates = unsafe extern "C" fn(Handle, *mut Utilization) -> i32;
type MemoryOf = unsafe extern "C" fn(Handle, *mut MemoryInfo) -> i32;
type Milliwatts = unsafe extern "C" fn(Handle, *mut u32) -> i32;

/// `nvmlUtilization_t`: percent of the last sample period in which a kernel ran, and in which memory was read
/// or written.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// A GPU as NVML sees it.
pub(crate) struct Nvml {
    device: Handle,
    rates: Rates,
    memory: MemoryOf,
    power: Milliwatts,
    shutdown: Plain,
    /// What the functions are of.
    _library: Library,
}

// SAFETY: the handle is one of a library that may be called from any thread.
unsafe impl Send for Nvml {}

impl Nvml {
    /// The GPU at a place of the PCI bus; none where the library is missing or does not know it.
    pub fn of(bus_id: &CStr) -> Option<Self> {
        Self::within(super::libraries::open(&["libnvidia-ml.so.1"])?, bus_id)
    }

    fn within(library: Library, bus_id: &CStr) -> Option<Self> {
        // SAFETY: the functions have these types in every version of the library. NVML is started before
        // any other is called; `device` is a place for a handle.
        unsafe {
            let start = *library.get::<Plain>(b"nvmlInit_v2\0").ok()?;
            let shutdown = *library.get::<Plain>(b"nvmlShutdown\0").ok()?;
            let find = *library.get::<ByBusId>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
            let rates = *library.get::<Rates>(b"nvmlDeviceGetUtilizationRates\0").ok()?;
            let memory = *library.get::<MemoryOf>(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            let power = *library.get::<Milliwatts>(b"nvmlDeviceGetPowerUsage\0").ok()?;
            if start() != 0 {
                return None;
            }
            let mut device = std::ptr::null_mut();
            if find(bus_id.as_ptr(), &raw mut device) != 0 {
                shutdown();
                return None;
            }
            Some(Self { device, rates, memory, power, shutdown, _library: library })
        }
    }
}

impl DeviceMeter for Nvml {
    fn usage(&mut self) -> DeviceUsage {
        let (mut rates, mut memory, mut milliwatts) = (Utilization::default(), MemoryInfo::default(), 0);
        // SAFETY: the handle is the library's, which is open as long as `self` is; each pointer is to a value
        // of the type that the function writes.
        let found = unsafe {
            [
                (self.rates)(self.device, &raw mut rates),
                (self.memory)(self.device, &raw mut memory),
                (self.power)(self.device, &raw mut milliwatts),
            ]
        };
        // Some GPUs do not know their power, parts of a GPU not how busy they are.
        let [rates_known, memory_known, power_known] = found.map(|result| result == 0);
        DeviceUsage {
            busy_percent: rates_known.then_some(f64::from(rates.gpu)),
            memory_bytes: memory_known.then_some(memory.used),
            watts: power_known.then_some(f64::from(milliwatts) / 1e3),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: NVML was started once for `self`, and is counted.
        unsafe { (self.shutdown)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library with NVML's functions, by its header: it knows one GPU, whose power it does not know.
    const STAND_IN: &str = r#"
#include <string.h>
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static int started;
int nvmlInit_v2(void) { started++; return 0; }
int nvmlShutdown(void) { started--; return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
    if (strcmp(id, "0000:65:00.0")) return 6;
    *device = &started;
    return started ? 0 : 1;
}
int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *rates) {
    rates->gpu = 87; rates->memory = 40;
    return device == &started ? 0 : 2;
}
int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
    memory->total = 80000; memory->free = 30000; memory->used = 50000;
    return device == &started ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    *milliwatts = 300500;
    return 3;
}
"#;

    #[test]
    fn a_gpu_is_found_by_its_place_and_asked() {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvidia-ml.so.1"));
        std::fs::write(&source, STAND_IN).unwrap();
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: there is no C compiler to make a stand-in for NVML");
            return;
        }
        // SAFETY: the library has no initialisers.
        let open = || unsafe { Library::new(&library) }.unwrap();
        assert!(Nvml::within(open(), c"0000:66:00.0").is_none(), "there is no such GPU");
        let mut gpu = Nvml::within(open(), c"0000:65:00.0").unwrap();
        let expected = DeviceUsage { busy_percent: Some(87.0), memory_bytes: Some(50_000), watts: None };
        assert_eq!(gpu.usage(), expected);
        // What is no NVML has not its functions.
        std::fs::write(&source, "int other(void) { return 0; }").unwrap();
        let other = folder.path().join("other.so");
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source).status();
        assert!(made.unwrap().success());
        // SAFETY: as above.
        assert!(Nvml::within(unsafe { Library::new(&other) }.unwrap(), c"0000:65:00.0").is_none());
    }
}
