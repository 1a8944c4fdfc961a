//! Opens the device that computes: a GPU, the CPU with oneDNN, or the reference backend.

use crate::TrainError;
use crate::cache::cache_folder;
use crate::input::usable_cores;
use stratus_base::installation::libraries_command;
use stratus_cuda::Cuda;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, StartupMonitor};
use stratus_experiment::{Device, DeviceFacts, Train};
use stratus_onednn::OneDnn;
use stratus_run::machine::{Machine, caches, usable_memory_bytes};

/// A backend that is ready to compute, and its properties.
pub struct OpenDevice {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// Its libraries.
    pub libraries: Vec<LoadedLibrary>,
    /// True if the device has bf16 instructions.
    pub has_native_bf16: bool,
    /// KiB that a tile of the batch should fit: the L2 caches of all threads. 0 if the backend does not
    /// benefit from tiles.
    pub tile_kib: usize,
    /// True if the device is an accelerator, which leaves the process's cores free.
    pub is_accelerator: bool,
    /// Bytes of memory that are free for a run: the GPU's, or the process's. `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// A library that a backend has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// Its name in files.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The path that it was loaded from; empty if unknown.
    pub path: String,
}

/// Opens the device of an experiment.
///
/// # Errors
/// If the device of `train.device` cannot be used here, or a variable names a library for it that cannot be
/// used.
pub fn open(settings: &Train) -> Result<OpenDevice, TrainError> {
    open_monitored(settings, 0, &StartupMonitor::default())
}

/// Opens the device of an experiment for the worker with this rank among those of its machine, whose GPUs the
/// workers use in turn. `monitor` follows how it is opened and how programs are prepared, and may stop that.
///
/// # Errors
/// As [`open`].
pub fn open_monitored(
    settings: &Train,
    local_rank: usize,
    monitor: &StartupMonitor,
) -> Result<OpenDevice, TrainError> {
    let device = settings.device;
    let unavailable = |reason: String| TrainError::Device { device, reason };
    if matches!(device, Device::Auto | Device::Gpu | Device::Cuda) {
        stratus_cuda::check_named_folders()?;
    }
    match device {
        Device::Reference => Ok(reference(Vec::new())),
        Device::Gpu | Device::Cuda => {
            cuda(settings, local_rank, monitor).map_err(|error| unavailable(error.to_string()))
        }
        Device::Onednn => onednn(settings, monitor).map_err(|error| match error {
            error if error.is_named() => error.into(),
            error => unavailable(error.to_string()),
        }),
        Device::Auto => cuda(settings, local_rank, monitor).or_else(|_| cpu(settings, monitor)),
        Device::Cpu => cpu(settings, monitor),
    }
}

/// Opens the CPU with oneDNN, or else the reference backend with a warning. The library that the user named
/// is not replaced by slow kernels.
fn cpu(settings: &Train, monitor: &StartupMonitor) -> Result<OpenDevice, TrainError> {
    onednn(settings, monitor).or_else(|error| match error {
        error if error.is_named() => Err(error.into()),
        error => Ok(reference(vec![format!(
            "{error}.\n  Training runs on the reference backend, which needs no library: its results are \
             correct, but it is about 30 times slower. `{}` installs oneDNN (x86-64 Linux, no root needed); \
             elsewhere install libdnnl 3.x (Debian and Ubuntu: libdnnl-dev, Homebrew and conda: onednn).",
            libraries_command()
        )])),
    })
}

fn onednn(settings: &Train, monitor: &StartupMonitor) -> Result<OpenDevice, stratus_onednn::LibraryNotFound> {
    let onednn = OneDnn::load(settings.threads)?.with_monitor(monitor.clone());
    let version = onednn.version();
    let library = LoadedLibrary {
        name: "onednn".to_owned(),
        version: version.clone(),
        path: onednn.path().display().to_string(),
    };
    let (has_native_bf16, note) = (onednn.has_fast_bf16(), onednn.runtime_warning());
    Ok(OpenDevice {
        libraries: vec![library],
        has_native_bf16,
        warnings: note.into_iter().map(|note| format!("oneDNN {version}: {note}")).collect(),
        ..OpenDevice::new(Box::new(onednn))
    })
}

fn cuda(
    settings: &Train,
    local_rank: usize,
    monitor: &StartupMonitor,
) -> Result<OpenDevice, stratus_cuda::GpuUnavailable> {
    let cache = cache_folder().map(|folder| folder.join("kernels"));
    let gpus = stratus_cuda::gpu_count().max(1) as usize;
    let settings = stratus_cuda::Settings {
        ordinal: u32::try_from(local_rank % gpus).unwrap_or(0),
        tf32: settings.tf32,
        cache,
        monitor: monitor.clone(),
    };
    let cuda = Cuda::open(&settings)?;
    let libraries = cuda.libraries().into_iter().map(|(name, version)| LoadedLibrary {
        name: name.to_owned(),
        version,
        path: String::new(),
    });
    let (libraries, has_native_bf16, memory_bytes) =
        (libraries.collect(), cuda.has_bf16(), cuda.free_bytes());
    let device = OpenDevice::new(Box::new(cuda));
    Ok(OpenDevice { libraries, has_native_bf16, memory_bytes, is_accelerator: true, ..device })
}

fn reference(warnings: Vec<String>) -> OpenDevice {
    OpenDevice { warnings, ..OpenDevice::new(Box::new(ReferenceBackend)) }
}

impl OpenDevice {
    /// A backend without libraries or bf16 instructions, in the process's memory.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let tile_kib = tile_kib(backend.as_ref());
        Self {
            backend,
            libraries: Vec::new(),
            has_native_bf16: false,
            tile_kib,
            is_accelerator: false,
            memory_bytes: usable_memory_bytes(),
            warnings: Vec::new(),
        }
    }

    /// Divides its memory among the workers that share it. Returns a warning for the user.
    pub(crate) fn divide_among(&mut self, workers: usize) -> String {
        self.memory_bytes = self.memory_bytes.map(|bytes| bytes / workers.max(1) as u64);
        let warning =
            format!("{workers} workers share one GPU: they take turns, and each needs memory of its own");
        self.warnings.push(warning.clone());
        warning
    }

    /// The facts that settle keys of an experiment. With an accelerator, all usable cores load data except
    /// one, which feeds the device; on a CPU, the number of loader threads is found in the first iterations.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts<'_> {
        let loader_threads = || usable_cores().saturating_sub(1).max(1);
        DeviceFacts {
            name: self.backend.name(),
            number_formats: self.backend.precisions().iter().map(ToString::to_string).collect(),
            has_native_bf16: self.has_native_bf16,
            threads: self.backend.threads(),
            tile_kib: self.tile_kib,
            loader_threads: self.is_accelerator.then(loader_threads),
        }
    }
}

/// KiB of the L2 caches of all threads of `backend`; 0 if it does not benefit from tiles.
fn tile_kib(backend: &dyn Backend) -> usize {
    // The smallest L2 cache of current CPUs, if the system does not report its own.
    const DEFAULT_L2_BYTES: u64 = 1 << 20;
    if !backend.prefers_tiling() {
        return 0;
    }
    let cache = caches::l2_bytes_per_core(&Machine::probe().cpu.caches).unwrap_or(DEFAULT_L2_BYTES);
    backend.threads() * (cache >> 10) as usize
}
