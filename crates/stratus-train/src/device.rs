//! Opens the device that computes: a GPU, the CPU through oneDNN, or the reference backend.

use crate::TrainError;
use crate::cache::cache_folder;
use crate::experiment::{Device, Train};
use std::error::Error;
use stratus_cuda::Cuda;
use stratus_engine::Backend;
use stratus_engine::reference::ReferenceBackend;
use stratus_onednn::OneDnn;
use stratus_run::machine::{Machine, caches, usable_memory_bytes};

/// A backend that is ready to compute, and what a run has to know of it.
pub struct OpenDevice {
    /// The backend.
    pub backend: Box<dyn Backend>,
    /// Its libraries.
    pub libraries: Vec<LoadedLibrary>,
    /// Whether it has instructions for bf16.
    pub fast_bf16: bool,
    /// The KiB that a tile of the batch should fit: the second-level caches of all threads. 0 if the backend
    /// gains nothing from tiles.
    pub tile_kib: usize,
    /// Whether a device of its own computes, beside which the process's cores have nothing else to do.
    pub beside_cores: bool,
    /// Bytes of memory that it has free for a run: a GPU's own, or the process's. `None` where that is not
    /// known.
    pub memory_bytes: Option<u64>,
    /// What the user must be told.
    pub warnings: Vec<String>,
}

/// A library that a backend has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// Its name in files.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Where it was loaded from; empty if that is unknown.
    pub path: String,
}

/// Opens the device of an experiment.
///
/// # Errors
/// If `train.device` names one that cannot be used here.
pub fn open(settings: &Train) -> Result<OpenDevice, TrainError> {
    match settings.device {
        Device::Reference => Ok(reference(Vec::new())),
        Device::Gpu | Device::Cuda => cuda(settings).map_err(|error| missing("cuda", &error)),
        Device::Onednn => onednn(settings.threads).map_err(|error| missing("onednn", &error)),
        Device::Auto => cuda(settings).or_else(|_| cpu(settings)),
        Device::Cpu => cpu(settings),
    }
}

/// oneDNN, or the reference backend with a warning.
fn cpu(settings: &Train) -> Result<OpenDevice, TrainError> {
    onednn(settings.threads).or_else(|error| {
        Ok(reference(vec![format!(
            "{error}.\n  Training runs on the reference backend, in plain Rust: correct, and about a hundred \
             times slower. `make deps` installs oneDNN into this checkout (x86-64 Linux, no root needed); \
             elsewhere install libdnnl 3.x (Debian and Ubuntu: libdnnl-dev, Homebrew and conda: onednn)."
        )]))
    })
}

fn missing(device: &'static str, error: &dyn Error) -> TrainError {
    TrainError::Device { device, reason: error.to_string() }
}

fn onednn(threads: usize) -> Result<OpenDevice, stratus_onednn::NotFound> {
    let onednn = OneDnn::load(threads)?;
    let version = onednn.version();
    let library = LoadedLibrary {
        name: "onednn".to_owned(),
        version: version.clone(),
        path: onednn.path().display().to_string(),
    };
    let (fast_bf16, note) = (onednn.has_fast_bf16(), onednn.note());
    Ok(OpenDevice {
        libraries: vec![library],
        fast_bf16,
        warnings: note.into_iter().map(|note| format!("oneDNN {version}: {note}")).collect(),
        ..OpenDevice::new(Box::new(onednn))
    })
}

fn cuda(settings: &Train) -> Result<OpenDevice, stratus_cuda::NotFound> {
    let cache = cache_folder().map(|folder| folder.join("kernels"));
    let cuda = Cuda::open(&stratus_cuda::Settings { ordinal: 0, tf32: settings.tf32, cache })?;
    let libraries = cuda.libraries().into_iter().map(|(name, version)| LoadedLibrary {
        name: name.to_owned(),
        version,
        path: String::new(),
    });
    let (libraries, fast_bf16, memory_bytes) = (libraries.collect(), cuda.has_bf16(), cuda.free_bytes());
    let device = OpenDevice::new(Box::new(cuda));
    Ok(OpenDevice { libraries, fast_bf16, memory_bytes, beside_cores: true, ..device })
}

fn reference(warnings: Vec<String>) -> OpenDevice {
    OpenDevice { warnings, ..OpenDevice::new(Box::new(ReferenceBackend)) }
}

impl OpenDevice {
    /// A backend without libraries or fast bf16, in the process's memory.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let tile_kib = tile_kib(backend.as_ref());
        Self {
            backend,
            libraries: Vec::new(),
            fast_bf16: false,
            tile_kib,
            beside_cores: false,
            memory_bytes: usable_memory_bytes(),
            warnings: Vec::new(),
        }
    }
}

/// KiB of the second-level caches of all threads of `backend`; 0 if it gains nothing from tiles.
fn tile_kib(backend: &dyn Backend) -> usize {
    // If the system does not say: the least of today's processors.
    const SECOND_LEVEL: u64 = 1 << 20;
    if !backend.gains_from_tiles() {
        return 0;
    }
    let cache = caches::second_level(&Machine::probe().cpu.caches).unwrap_or(SECOND_LEVEL);
    backend.threads() * (cache >> 10) as usize
}
