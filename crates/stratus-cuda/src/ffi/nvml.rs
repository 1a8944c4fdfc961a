//! NVML, a part of NVIDIA's driver: the utilisation, memory use, power and energy of a GPU, as shown by
//! `nvidia-smi`. Training does not need it.
//!
//! Source: NVML API Reference Guide. The functions and structures are the same since driver 331, except for
//! the counter of energy, which came later and is for Volta or newer; NVML may be called from several
//! threads.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use stratus_engine::device::{DeviceMeter, DeviceUsage};

type Handle = *mut c_void;
type InitFn = unsafe extern "C" fn() -> i32;
type GetHandleByBusIdFn = unsafe extern "C" fn(*const c_char, *mut Handle) -> i32;
type GetUtilizationFn = unsafe extern "C" fn(Handle, *mut Utilization) -> i32;
type GetMemoryInfoFn = unsafe extern "C" fn(Handle, *mut MemoryInfo) -> i32;
type GetPowerUsageFn = unsafe extern "C" fn(Handle, *mut u32) -> i32;
type GetTotalEnergyFn = unsafe extern "C" fn(Handle, *mut u64) -> i32;

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

/// A GPU, as seen by NVML.
pub(crate) struct Nvml {
    device: Handle,
    rates: GetUtilizationFn,
    memory: GetMemoryInfoFn,
    power: GetPowerUsageFn,
    /// `None` if the driver is too old.
    energy: Option<GetTotalEnergyFn>,
    shutdown: InitFn,
    /// Keeps the functions' library loaded.
    _library: Library,
}

// SAFETY: the handle's library may be called from any thread.
unsafe impl Send for Nvml {}

impl Nvml {
    /// Finds the GPU with a PCI bus ID; `None` if the library is missing or does not know it.
    pub fn find(bus_id: &CStr) -> Option<Self> {
        Self::within(super::libraries::open(&["libnvidia-ml.so.1"])?, bus_id)
    }

    fn within(library: Library, bus_id: &CStr) -> Option<Self> {
        // SAFETY: the functions have these types in every version of the library. NVML is initialised before
        // any other call; `device` receives a handle.
        unsafe {
            let start = *library.get::<InitFn>(b"nvmlInit_v2\0").ok()?;
            let shutdown = *library.get::<InitFn>(b"nvmlShutdown\0").ok()?;
            let find = *library.get::<GetHandleByBusIdFn>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
            let rates = *library.get::<GetUtilizationFn>(b"nvmlDeviceGetUtilizationRates\0").ok()?;
            let memory = *library.get::<GetMemoryInfoFn>(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            let power = *library.get::<GetPowerUsageFn>(b"nvmlDeviceGetPowerUsage\0").ok()?;
            let energy = library.get::<GetTotalEnergyFn>(b"nvmlDeviceGetTotalEnergyConsumption\0").ok();
            let energy = energy.map(|energy| *energy);
            if start() != 0 {
                return None;
            }
            let mut device = std::ptr::null_mut();
            if find(bus_id.as_ptr(), &raw mut device) != 0 {
                shutdown();
                return None;
            }
            Some(Self { device, rates, memory, power, energy, shutdown, _library: library })
        }
    }
}

impl DeviceMeter for Nvml {
    fn usage(&mut self) -> DeviceUsage {
        let (mut rates, mut memory, mut milliwatts) = (Utilization::default(), MemoryInfo::default(), 0);
        // SAFETY: the handle belongs to the library, which is open as long as `self` is; each pointer is to a
        // value of the type that the function writes.
        let found = unsafe {
            [
                (self.rates)(self.device, &raw mut rates),
                (self.memory)(self.device, &raw mut memory),
                (self.power)(self.device, &raw mut milliwatts),
            ]
        };
        // Some GPUs do not report their power, and parts of a GPU not their utilisation.
        let [has_rates, has_memory, has_power] = found.map(|result| result == 0);
        DeviceUsage {
            busy_percent: has_rates.then_some(f64::from(rates.gpu)),
            memory_bytes: has_memory.then_some(memory.used),
            watts: has_power.then_some(f64::from(milliwatts) / 1e3),
        }
    }

    fn joules(&mut self) -> Option<f64> {
        let mut millijoules = 0;
        // SAFETY: as for the other functions; the counter is an `unsigned long long`.
        let result = unsafe { self.energy?(self.device, &raw mut millijoules) };
        (result == 0).then_some(millijoules as f64 / 1e3)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: NVML was initialised once for `self`, and counts initialisations.
        unsafe { (self.shutdown)() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library with NVML's functions, by its header: it knows one GPU, but not its power. Each reading of
    /// its energy counts 1.5 J more; older libraries have no such function.
    const FAKE_NVML: &str = r#"
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
#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    static unsigned long long counter = 5000000000;
    *millijoules = counter += 1500;
    return device == &started ? 0 : 2;
}
#endif
"#;

    #[test]
    fn finds_a_gpu_by_bus_id_and_reads_its_usage() {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvidia-ml.so.1"));
        std::fs::write(&source, FAKE_NVML).unwrap();
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no C compiler for a stand-in for NVML");
            return;
        }
        // SAFETY: the library has no initialisers.
        let open = || unsafe { Library::new(&library) }.unwrap();
        assert!(Nvml::within(open(), c"0000:66:00.0").is_none(), "no such GPU");
        let mut gpu = Nvml::within(open(), c"0000:65:00.0").unwrap();
        let expected = DeviceUsage { busy_percent: Some(87.0), memory_bytes: Some(50_000), watts: None };
        assert_eq!(gpu.usage(), expected);
        let joules = gpu.joules().unwrap();
        assert_eq!((joules, gpu.joules()), (5_000_001.5, Some(joules + 1.5)));
        // A driver without the counter.
        let old = folder.path().join("old.so");
        let compiled =
            Command::new("cc").args(["-DOLD", "-shared", "-fPIC", "-o"]).arg(&old).arg(&source).status();
        assert!(compiled.unwrap().success());
        // SAFETY: as above.
        let mut gpu = Nvml::within(unsafe { Library::new(&old) }.unwrap(), c"0000:65:00.0").unwrap();
        assert_eq!((gpu.joules(), gpu.usage()), (None, expected));
        // A library without NVML's functions is rejected.
        std::fs::write(&source, "int other(void) { return 0; }").unwrap();
        let other = folder.path().join("other.so");
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&other).arg(&source).status();
        assert!(compiled.unwrap().success());
        // SAFETY: as above.
        assert!(Nvml::within(unsafe { Library::new(&other) }.unwrap(), c"0000:65:00.0").is_none());
    }
}
