//! NVML, a part of NVIDIA's driver: the utilisation, memory use, power, energy, clock and temperature of a
//! GPU, and the reasons for its throttling, as shown by `nvidia-smi`. Training does not need it.
//!
//! Source: NVML API Reference Guide. The functions and structures are the same since driver 331, except for
//! the counter of energy, which came later and is for Volta or newer. Functions that some drivers or GPUs
//! lack are optional ([`OptionalFunctions`]). NVML may be called from several threads.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use stratus_base::Throttling;
use stratus_engine::device::{DeviceMeter, DeviceUsage};

type Handle = *mut c_void;
type InitFn = unsafe extern "C" fn() -> i32;
type GetHandleByBusIdFn = unsafe extern "C" fn(*const c_char, *mut Handle) -> i32;
/// A function that writes a value of a GPU. Power is in milliwatts, energy in millijoules.
type GetFn<T> = unsafe extern "C" fn(Handle, *mut T) -> i32;
/// `nvmlDeviceGetClockInfo`, `nvmlDeviceGetMaxClockInfo`: MHz of an `nvmlClockType_t`.
/// `nvmlDeviceGetTemperature`: degrees Celsius of an `nvmlTemperatureSensors_t`.
type GetOfKindFn = unsafe extern "C" fn(Handle, u32, *mut u32) -> i32;
/// `nvmlDeviceGetPowerManagementLimitConstraints`: the lowest and the highest limit that can be set.
type GetRangeFn = unsafe extern "C" fn(Handle, *mut u32, *mut u32) -> i32;

/// `NVML_CLOCK_SM`: the clock of the multiprocessors.
const SM_CLOCK: u32 = 1;
/// `NVML_TEMPERATURE_GPU`: the sensor on the chip.
const CHIP_SENSOR: u32 = 0;

/// The bits of `nvmlClocksThrottleReason…`, in newer drivers `nvmlClocksEventReason…`. The others, such as an
/// idle GPU (0x1), a clock that was set (0x2), and another GPU of a group with the same clock (0x10), are
/// neither heat nor a limit of power.
mod reasons {
    /// The power limit of the board, kept by the driver.
    pub const SW_POWER_CAP: u64 = 0x4;
    /// The hardware halved the clock, or more: too hot, or too much power. Newer drivers add which.
    pub const HW_SLOWDOWN: u64 = 0x8;
    /// Too hot, by the driver.
    pub const SW_THERMAL_SLOWDOWN: u64 = 0x20;
    /// Too hot, by the hardware.
    pub const HW_THERMAL_SLOWDOWN: u64 = 0x40;
    /// The power supply asked for a lower clock.
    pub const HW_POWER_BRAKE_SLOWDOWN: u64 = 0x80;
}

/// The reasons for throttling in a mask. A slowdown by the hardware without its cause counts as both.
fn throttling(mask: u64) -> Throttling {
    use reasons::{
        HW_POWER_BRAKE_SLOWDOWN, HW_SLOWDOWN, HW_THERMAL_SLOWDOWN, SW_POWER_CAP, SW_THERMAL_SLOWDOWN,
    };
    let has = |bits: u64| mask & bits != 0;
    let heat = has(SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN);
    let power = has(SW_POWER_CAP | HW_POWER_BRAKE_SLOWDOWN);
    let is_unexplained = has(HW_SLOWDOWN) && !heat && !power;
    Throttling { heat: heat || is_unexplained, power: power || is_unexplained }
}

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

/// Functions that some drivers lack; `None` for those.
#[derive(Clone, Copy)]
struct OptionalFunctions {
    energy: Option<GetFn<u64>>,
    clock: Option<GetOfKindFn>,
    max_clock: Option<GetOfKindFn>,
    temperature: Option<GetOfKindFn>,
    power_limit: Option<GetFn<u32>>,
    power_range: Option<GetRangeFn>,
    reasons: Option<GetFn<u64>>,
}

impl OptionalFunctions {
    fn load(library: &Library) -> Self {
        // SAFETY: each function has the type of its field in every version of the library that has it.
        unsafe {
            let find = |name: &[u8]| library.get::<GetOfKindFn>(name).ok().map(|found| *found);
            let find_long = |name: &[u8]| library.get::<GetFn<u64>>(name).ok().map(|found| *found);
            let power_limit = library.get::<GetFn<u32>>(b"nvmlDeviceGetEnforcedPowerLimit\0").ok();
            Self {
                energy: find_long(b"nvmlDeviceGetTotalEnergyConsumption\0"),
                clock: find(b"nvmlDeviceGetClockInfo\0"),
                max_clock: find(b"nvmlDeviceGetMaxClockInfo\0"),
                temperature: find(b"nvmlDeviceGetTemperature\0"),
                power_limit: power_limit.map(|found| *found),
                power_range: library
                    .get::<GetRangeFn>(b"nvmlDeviceGetPowerManagementLimitConstraints\0")
                    .ok()
                    .map(|found| *found),
                // The newer name of the same function is first.
                reasons: find_long(b"nvmlDeviceGetCurrentClocksEventReasons\0")
                    .or_else(|| find_long(b"nvmlDeviceGetCurrentClocksThrottleReasons\0")),
            }
        }
    }
}

/// The limits of a GPU. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GpuLimits {
    /// The power limit in force.
    pub watts: Option<f64>,
    /// The highest clock of the multiprocessors.
    pub mhz: Option<u32>,
}

impl GpuLimits {
    /// The known limits for people, each after a comma.
    pub fn describe(self) -> String {
        let watts = self.watts.map_or(String::new(), |watts| format!(", power limit {watts:.0} W"));
        let mhz = self.mhz.map_or(String::new(), |mhz| format!(", highest clock {mhz} MHz"));
        watts + &mhz
    }
}

/// A GPU, as seen by NVML.
pub(crate) struct Nvml {
    device: Handle,
    rates: GetFn<Utilization>,
    memory: GetFn<MemoryInfo>,
    power: GetFn<u32>,
    optional: OptionalFunctions,
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
            let rates = *library.get::<GetFn<Utilization>>(b"nvmlDeviceGetUtilizationRates\0").ok()?;
            let memory = *library.get::<GetFn<MemoryInfo>>(b"nvmlDeviceGetMemoryInfo\0").ok()?;
            let power = *library.get::<GetFn<u32>>(b"nvmlDeviceGetPowerUsage\0").ok()?;
            let optional = OptionalFunctions::load(&library);
            if start() != 0 {
                return None;
            }
            let mut device = std::ptr::null_mut();
            if find(bus_id.as_ptr(), &raw mut device) != 0 {
                shutdown();
                return None;
            }
            Some(Self { device, rates, memory, power, optional, shutdown, _library: library })
        }
    }

    /// The value that a function writes for this GPU; `None` if it fails, as for a GPU that lacks the value.
    fn get<T: Default>(&self, function: GetFn<T>) -> Option<T> {
        let mut value = T::default();
        // SAFETY: the handle belongs to the library, which is open as long as `self` is; the pointer is to a
        // value of the type that the function writes.
        let result = unsafe { function(self.device, &raw mut value) };
        (result == 0).then_some(value)
    }

    /// As [`Nvml::get`], of the clock or sensor `kind`.
    fn get_of_kind(&self, function: GetOfKindFn, kind: u32) -> Option<u32> {
        let mut value = 0;
        // SAFETY: as for `get`; an unknown kind is an error of the function.
        let result = unsafe { function(self.device, kind, &raw mut value) };
        (result == 0).then_some(value)
    }

    fn watts(&self, function: GetFn<u32>) -> Option<f64> {
        Some(f64::from(self.get(function)?) / 1e3)
    }

    /// Returns whether the power limit in force is the highest that can be set; false if that is unknown.
    fn has_highest_power_limit(&self) -> bool {
        let OptionalFunctions { power_limit: Some(limit), power_range: Some(range), .. } = self.optional
        else {
            return false;
        };
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: as for `get`; the function writes two values.
        let result = unsafe { range(self.device, &raw mut lowest, &raw mut highest) };
        result == 0 && highest > 0 && self.get(limit).is_some_and(|limit| limit >= highest)
    }

    /// The limits of the GPU.
    pub fn limits(&self) -> GpuLimits {
        let OptionalFunctions { power_limit, max_clock, .. } = self.optional;
        GpuLimits {
            watts: power_limit.and_then(|function| self.watts(function)),
            mhz: max_clock.and_then(|function| self.get_of_kind(function, SM_CLOCK)),
        }
    }
}

impl DeviceMeter for Nvml {
    fn usage(&mut self) -> DeviceUsage {
        let OptionalFunctions { clock, temperature, reasons, .. } = self.optional;
        let reasons = reasons.and_then(|function| self.get(function));
        let throttling = reasons.map(|mask| match mask & reasons::SW_POWER_CAP {
            // The most that the GPU was made for is no limit that holds it back.
            1.. if self.has_highest_power_limit() => throttling(mask & !reasons::SW_POWER_CAP),
            _ => throttling(mask),
        });
        // Some GPUs do not report their power, and parts of a GPU not their utilisation.
        DeviceUsage {
            busy_percent: self.get(self.rates).map(|rates| f64::from(rates.gpu)),
            memory_bytes: self.get(self.memory).map(|memory| memory.used),
            watts: self.watts(self.power),
            mhz: clock.and_then(|function| self.get_of_kind(function, SM_CLOCK)),
            celsius: temperature.and_then(|function| self.get_of_kind(function, CHIP_SENSOR)),
            throttling,
        }
    }

    fn joules(&mut self) -> Option<f64> {
        Some(self.get(self.optional.energy?)? as f64 / 1e3)
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
    use std::path::Path;
    use std::process::Command;

    /// A library with NVML's functions, by its header: it knows one GPU, but not its power. Each reading of
    /// its energy counts 1.5 J more. `MASK` are its reasons for throttling, and `ERROR` is the result of the
    /// functions that a driver may lack. `OLD` has none of these, and `THROTTLE_NAME` only the older name of
    /// the reasons. `HIGHEST` is the highest power limit, in milliwatts; it is 800 W without.
    const FAKE_NVML: &str = r#"
#include <string.h>
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef enum { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 } nvmlClockType_t;
typedef enum { NVML_TEMPERATURE_GPU = 0 } nvmlTemperatureSensors_t;
static int started;
#ifndef ERROR
#define ERROR 0
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef HIGHEST
#define HIGHEST 800000
#endif
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
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetClockInfo(void *device, nvmlClockType_t type, unsigned int *clock) {
    *clock = type == NVML_CLOCK_SM ? 1410 : 9999;
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetMaxClockInfo(void *device, nvmlClockType_t type, unsigned int *clock) {
    *clock = type == NVML_CLOCK_SM ? 1980 : 9999;
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetTemperature(void *device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    *celsius = sensor == NVML_TEMPERATURE_GPU ? 84 : 9999;
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) {
    *milliwatts = 699600;
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned int *min, unsigned int *max) {
    *min = 100000; *max = HIGHEST;
    return device == &started ? ERROR : 2;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *mask) {
    *mask = MASK;
    return device == &started ? ERROR : 2;
}
#ifndef THROTTLE_NAME
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) {
    *mask = (unsigned long long)MASK | 0x8000000000000000;
    return device == &started ? ERROR : 2;
}
#endif
#endif
"#;

    /// Compiles the stand-in for NVML with `options`; `None`, with a message, without a C compiler.
    fn compile(folder: &Path, source: &str, options: &[&str]) -> Option<Library> {
        let file = folder.join("nvml.c");
        std::fs::write(&file, source).unwrap();
        // Each library has a name of its own: the loader returns one that is open again.
        let number = std::fs::read_dir(folder).unwrap().count();
        let library = folder.join(format!("libnvidia-ml.{number}.so"));
        let mut command = Command::new("cc");
        let compiled =
            command.args(options).args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status();
        let Ok(status) = compiled else {
            eprintln!("SKIPPED: no C compiler for a stand-in for NVML");
            return None;
        };
        assert!(status.success(), "{options:?}");
        // SAFETY: the library has no initialisers.
        Some(unsafe { Library::new(&library) }.unwrap())
    }

    /// The GPU of the stand-in that is compiled with `options`.
    fn gpu(folder: &Path, options: &[&str]) -> Option<Nvml> {
        Some(Nvml::within(compile(folder, FAKE_NVML, options)?, c"0000:65:00.0").unwrap())
    }

    #[test]
    fn finds_a_gpu_by_bus_id_and_reads_its_usage() {
        let folder = tempfile::tempdir().unwrap();
        let Some(library) = compile(folder.path(), FAKE_NVML, &[]) else { return };
        assert!(Nvml::within(library, c"0000:66:00.0").is_none(), "no such GPU");
        let mut gpu = gpu(folder.path(), &["-DMASK=0x20"]).unwrap();
        let expected = DeviceUsage {
            busy_percent: Some(87.0),
            memory_bytes: Some(50_000),
            watts: None,
            mhz: Some(1410),
            celsius: Some(84),
            throttling: Some(Throttling { heat: true, power: false }),
        };
        assert_eq!(gpu.usage(), expected);
        assert_eq!(gpu.limits(), GpuLimits { watts: Some(699.6), mhz: Some(1980) });
        assert_eq!(gpu.limits().describe(), ", power limit 700 W, highest clock 1980 MHz");
        let joules = gpu.joules().unwrap();
        assert_eq!((joules, gpu.joules()), (5_000_001.5, Some(joules + 1.5)));
        // A library without NVML's functions is rejected.
        let other = compile(folder.path(), "int other(void) { return 0; }", &[]).unwrap();
        assert!(Nvml::within(other, c"0000:65:00.0").is_none());
    }

    #[test]
    fn values_of_functions_that_a_driver_lacks_or_that_fail_are_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let known =
            DeviceUsage { busy_percent: Some(87.0), memory_bytes: Some(50_000), ..DeviceUsage::default() };
        // An old driver; then NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST and UNKNOWN.
        for option in ["-DOLD", "-DERROR=3", "-DERROR=4", "-DERROR=15", "-DERROR=999"] {
            let Some(mut gpu) = gpu(folder.path(), &[option]) else { return };
            assert_eq!((gpu.usage(), gpu.joules()), (known, None), "{option}");
            assert_eq!(gpu.limits(), GpuLimits::default(), "{option}");
            assert_eq!(gpu.limits().describe(), "");
        }
        // The reasons by their older name.
        let throttling = |options: &[&str]| Some(gpu(folder.path(), options)?.usage().throttling);
        let power = Throttling { heat: false, power: true };
        assert_eq!(throttling(&["-DTHROTTLE_NAME", "-DMASK=0x4"]), Some(Some(power)));
        assert_eq!(throttling(&["-DMASK=0x80"]), Some(Some(power)));
        // A limit that cannot be raised does not throttle; a weak power supply does, and heat.
        let highest = |mask: &str| throttling(&["-DHIGHEST=699600", mask]);
        assert_eq!(highest("-DMASK=0x4"), Some(Some(Throttling::default())));
        assert_eq!(highest("-DMASK=0x84"), Some(Some(power)));
        assert_eq!(highest("-DMASK=0x24"), Some(Some(Throttling { heat: true, power: false })));
    }

    #[test]
    fn reasons_for_throttling_are_heat_and_power() {
        for (mask, expected) in [
            (0, "no"),
            // Idle, a clock that was set, another GPU of the group, the clock of a display.
            (0x1 | 0x2 | 0x10 | 0x100, "no"),
            (0x4, "power"),
            (0x80, "power"),
            (0x20, "heat"),
            (0x40, "heat"),
            (0x8 | 0x40, "heat"),
            (0x8 | 0x80, "power"),
            (0x4 | 0x20, "heat+power"),
            // An old driver does not report the cause.
            (0x8, "heat+power"),
            (u64::MAX, "heat+power"),
            (1 << 63, "no"),
        ] {
            assert_eq!(throttling(mask).to_string(), expected, "{mask:#x}");
        }
    }
}
