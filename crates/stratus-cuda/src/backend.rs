//! The backend: what compiles and runs kernels, and the device that a session's memory lies on.

use crate::ffi::cupti::Cupti;
use crate::ffi::driver::{self, Gpu};
use crate::ffi::libraries::{self, Library};
use crate::ffi::{cudnn, nvrtc};
use crate::gpu::{GpuDevice, GpuProcessor};
use crate::library::Library as Libraries;
use crate::prepare;
use crate::processor::Processor;
use std::path::PathBuf;
use std::sync::Arc;
use stratus_engine::device::Tracer;
use stratus_engine::fuse::Fusions;
use stratus_engine::{Backend, Device, EngineError, Precision, PrepareRequest, Prepared, Program};

/// A GPU, or in tests the emulation of one.
pub struct Cuda {
    pub(crate) processor: Arc<dyn Processor>,
    pub(crate) library: Option<Libraries>,
    machine: Machine,
    /// Bytes of its memory that were free when it had been opened.
    free_at_first: usize,
}

/// What is behind the processor.
enum Machine {
    Gpu(Arc<Gpu>),
    #[cfg(feature = "emulation")]
    Emulated,
    #[cfg(feature = "emulation")]
    Compiling,
}

/// How a GPU is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Its number, from 0.
    pub ordinal: u32,
    /// Whether f32 may be rounded to TF32 where it is multiplied: eleven bits of the fraction instead of 24, and many times as fast.
    pub tf32: bool,
    /// Where compiled kernels are kept from process to process.
    pub cache: Option<PathBuf>,
}

/// Why there is no GPU to be had.
#[derive(Debug, thiserror::Error)]
#[error("no NVIDIA GPU can be used: {reason}")]
pub struct NotFound {
    /// What is lacking, or what the driver said.
    pub reason: String,
}

/// A library that a GPU is used through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What people call it.
    pub name: &'static str,
    /// Its version, where it is there.
    pub version: Option<String>,
}

/// What was found of all that a GPU is used through, and the GPUs.
#[must_use]
pub fn survey() -> (Vec<Found>, Vec<String>) {
    let version = |library: Library| -> Option<String> {
        if !library.is_there() {
            return None;
        }
        match library {
            Library::Driver => driver::driver().ok().map(|(version, _)| format!("for CUDA {version}")),
            Library::Nvrtc => nvrtc::version().ok(),
            // Its version is asked of a handle, which takes a GPU.
            Library::Cublas => Some(String::new()),
            Library::Cudnn => Some(cudnn::version()),
        }
    };
    let found =
        Library::ALL.map(|library| Found { name: library.name(), version: version(library) }).to_vec();
    let count = if Library::Driver.is_there() { driver::driver().map_or(0, |(_, count)| count) } else { 0 };
    let gpus = (0..count).filter_map(|ordinal| Gpu::open(ordinal).ok()).map(|gpu| describe(&gpu)).collect();
    (found, gpus)
}

fn describe(gpu: &Gpu) -> String {
    let [major, minor] = gpu.capability;
    format!("{}, compute capability {major}.{minor}, {} MiB", gpu.name, gpu.memory >> 20)
}

impl Cuda {
    /// Opens a GPU.
    ///
    /// # Errors
    /// Where a library is lacking, or there is no such GPU.
    pub fn open(settings: &Settings) -> Result<Self, NotFound> {
        let not_found = |reason: String| NotFound { reason };
        let lacking: Vec<&str> =
            Library::ALL.iter().filter(|library| !library.is_there()).map(|library| library.name()).collect();
        if !lacking.is_empty() {
            return Err(not_found(format!(
                "{} cannot be loaded; {} names folders that hold libraries",
                lacking.join(", "),
                libraries::ENVIRONMENT
            )));
        }
        let gpu = Gpu::open(settings.ordinal).map_err(not_found)?;
        let processor = GpuProcessor::new(&gpu, settings.cache.clone()).map_err(not_found)?;
        let library = Libraries::new(&gpu, settings.tf32).map_err(not_found)?;
        let free_at_first = gpu.free_bytes().map_err(not_found)?;
        Ok(Self {
            processor: Arc::new(processor),
            library: Some(library),
            machine: Machine::Gpu(gpu),
            free_at_first,
        })
    }

    /// The names of the libraries and their versions.
    #[must_use]
    pub fn libraries(&self) -> Vec<(&'static str, String)> {
        let Some(library) = &self.library else { return Vec::new() };
        let of = |version: Result<String, String>| version.unwrap_or_else(|_| "unknown".to_owned());
        vec![
            ("cuda", of(driver::driver().map(|(version, _)| version))),
            ("nvrtc", of(nvrtc::version())),
            ("cublas", of(library.cublas.version())),
            ("cudnn", of(Ok(cudnn::version()))),
        ]
    }

    /// Whether it multiplies bf16 as such: from compute capability 8.0 on.
    #[must_use]
    pub fn has_bf16(&self) -> bool {
        match &self.machine {
            Machine::Gpu(gpu) => gpu.capability[0] >= 8,
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::Compiling => true,
        }
    }

    /// Compiles what plans need for a compute capability (90 for 9.0), and keeps it in a folder; there is nothing to run it on.
    ///
    /// # Errors
    /// Where there is no NVRTC.
    #[cfg(feature = "emulation")]
    pub fn compiling(capability: u32, multiprocessors: u32, cache: PathBuf) -> Result<Self, String> {
        if !Library::Nvrtc.is_there() {
            return Err("NVRTC cannot be loaded".to_owned());
        }
        let compiler = crate::gpu::Compiler::new(capability, Some(cache))?;
        let processor = crate::emulation::Compiling::new(compiler, multiprocessors);
        Ok(Self {
            processor: Arc::new(processor),
            library: None,
            machine: Machine::Compiling,
            free_at_first: 0,
        })
    }

    /// Our kernels on this machine's processor, compiled by its C++ compiler.
    ///
    /// # Errors
    /// Where there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated() -> Result<Self, String> {
        // Few: loops over a grid take more than one turn.
        Self::emulated_with(4, false)
    }

    /// The same with some number of multiprocessors, its threads and blocks in order or backwards.
    ///
    /// # Errors
    /// Where there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated_with(multiprocessors: u32, backwards: bool) -> Result<Self, String> {
        let emulation = crate::emulation::Emulation::with(multiprocessors, backwards)?;
        Ok(Self {
            processor: Arc::new(emulation),
            library: None,
            machine: Machine::Emulated,
            free_at_first: 0,
        })
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        match &self.machine {
            Machine::Gpu(gpu) => {
                let tf32 =
                    if self.library.as_ref().is_some_and(|library| library.tf32) { ", TF32" } else { "" };
                let [major, minor] = gpu.capability;
                let libraries = self.libraries();
                let libraries = libraries.iter().map(|(name, version)| format!("{name} {version}"));
                let libraries = libraries.collect::<Vec<_>>().join(", ");
                format!("{} (compute capability {major}.{minor}), {libraries}{tf32}", gpu.name)
            }
            #[cfg(feature = "emulation")]
            Machine::Emulated => "emulated".to_owned(),
            #[cfg(feature = "emulation")]
            Machine::Compiling => "compiling".to_owned(),
        }
    }

    fn revision(&self) -> &'static str {
        env!("STRATUS_KERNELS")
    }

    fn threads(&self) -> usize {
        1
    }

    fn device(&self) -> Result<Option<Box<dyn Device>>, EngineError> {
        match &self.machine {
            Machine::Gpu(gpu) => match GpuDevice::new(gpu) {
                Ok(device) => Ok(Some(Box::new(device))),
                Err(reason) => Err(EngineError::Device { device: gpu.name.clone(), reason }),
            },
            #[cfg(feature = "emulation")]
            Machine::Emulated => Ok(Some(Box::new(crate::emulation::EmulatedDevice::default()))),
            #[cfg(feature = "emulation")]
            Machine::Compiling => Err(EngineError::Device {
                device: "a compiler".to_owned(),
                reason: "it runs nothing".to_owned(),
            }),
        }
    }

    fn trace(&self) -> Result<Box<dyn Tracer>, String> {
        match &self.machine {
            Machine::Gpu(gpu) => Ok(Box::new(Cupti::start(gpu)?)),
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::Compiling => Err("there is no GPU that could be traced".to_owned()),
        }
    }

    fn device_bytes(&self) -> Option<u64> {
        match &self.machine {
            Machine::Gpu(gpu) => {
                gpu.free_bytes().ok().map(|free| self.free_at_first.saturating_sub(free) as u64)
            }
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::Compiling => None,
        }
    }

    fn precisions(&self) -> Vec<Precision> {
        vec![Precision::F32, Precision::Bf16, Precision::F16]
    }

    /// Batches are copied to it, beside what runs: that takes longer the more bytes they have.
    fn gains_from_bytes(&self) -> bool {
        true
    }

    /// A first convolution is cheap to store where memory is fast.
    fn fusions(&self) -> Fusions {
        Fusions { stems: false, ..Fusions::default() }
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
        prepare::prepare(self, program, request)
    }
}
