//! The backend: a GPU with its libraries, or in tests the emulation of one.

use crate::ffi::cupti::Cupti;
use crate::ffi::driver::{self, Gpu};
use crate::ffi::libraries::{self, Library};
use crate::ffi::nvml::Nvml;
use crate::ffi::{cudnn, nvrtc};
use crate::gpu::{GpuDevice, GpuProcessor};
use crate::gpu_libraries::GpuLibraries;
use crate::prepare;
use crate::processor::{Implementation, Processor};
use crate::step_clock::StepClock;
use std::path::PathBuf;
use std::sync::Arc;
use stratus_engine::device::{DeviceMeter, Tracer};
use stratus_engine::passes::fuse::Fusions;
use stratus_engine::{Backend, Device, EngineError, Phases, Precision, PrepareRequest, Prepared, Program};

/// The CUDA backend: one GPU, or in tests the emulation of one.
pub struct Cuda {
    pub(crate) processor: Arc<dyn Processor>,
    pub(crate) libraries: Option<GpuLibraries>,
    pub(crate) clock: Arc<StepClock>,
    pub(crate) phases: Arc<Phases>,
    machine: Machine,
    /// Bytes of its memory that were free when it was opened.
    initially_free: usize,
}

/// Where the processor runs kernels.
enum Machine {
    Gpu(Arc<Gpu>),
    #[cfg(feature = "emulation")]
    Emulated,
    #[cfg(feature = "emulation")]
    CompileOnly,
    #[cfg(feature = "emulation")]
    Counting,
}

/// Which GPU is used, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The GPU's number, from 0.
    pub ordinal: u32,
    /// Whether factors in f32 may be rounded to TF32, which has 11 bits of precision instead of 24 and is
    /// many times as fast.
    pub tf32: bool,
    /// The folder that caches compiled kernels and which ones are the fastest; without one, every process
    /// compiles and measures its own.
    pub cache: Option<PathBuf>,
}

/// No GPU can be used.
#[derive(Debug, thiserror::Error)]
#[error("no NVIDIA GPU can be used: {reason}")]
pub struct NotFound {
    /// The missing library, or the driver's message.
    pub reason: String,
}

/// A library that the backend loads at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryVersion {
    /// Its common name, such as `cuDNN`.
    pub name: &'static str,
    /// Its version; `None` where the library was not found, empty where only a GPU could tell.
    pub version: Option<String>,
}

/// The libraries that were found, and a line for each GPU: name, compute capability, memory in MiB.
#[must_use]
pub fn survey() -> (Vec<LibraryVersion>, Vec<String>) {
    let version = |library: Library| -> Option<String> {
        if !library.is_there() {
            return None;
        }
        match library {
            Library::Driver => driver::driver().ok().map(|(version, _)| format!("for CUDA {version}")),
            Library::Nvrtc => nvrtc::version().ok(),
            // Only a handle knows the version, and a handle takes a GPU.
            Library::Cublas => Some(String::new()),
            Library::Cudnn => Some(cudnn::version()),
        }
    };
    let found = Library::ALL
        .map(|library| LibraryVersion { name: library.name(), version: version(library) })
        .to_vec();
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
    /// Where a library is missing or too old, or there is no such GPU.
    pub fn open(settings: &Settings) -> Result<Self, NotFound> {
        let not_found = |reason: String| NotFound { reason };
        let phases = Arc::new(Phases::default());
        let is_missing = |library: &&Library| !library.is_there();
        let missing: Vec<&str> = phases.during("loading libraries", || {
            Library::ALL.iter().filter(is_missing).map(|library| library.name()).collect()
        });
        if !missing.is_empty() {
            return Err(not_found(format!(
                "{} cannot be loaded; {} names folders that hold libraries",
                missing.join(", "),
                libraries::ENVIRONMENT
            )));
        }
        let gpu = phases.during("opening the GPU", || Gpu::open(settings.ordinal)).map_err(not_found)?;
        let processor = GpuProcessor::new(&gpu, settings.cache.clone()).map_err(not_found)?;
        let libraries = phases
            .during("opening cuDNN and cuBLAS", || {
                GpuLibraries::new(&gpu, settings.tf32, settings.cache.as_deref(), &phases)
            })
            .map_err(not_found)?;
        let initially_free = gpu.free_bytes().map_err(not_found)?;
        Ok(Self::of(Arc::new(processor), Some(libraries), Machine::Gpu(gpu), initially_free))
    }

    fn of(
        processor: Arc<dyn Processor>,
        libraries: Option<GpuLibraries>,
        machine: Machine,
        initially_free: usize,
    ) -> Self {
        let clock = Arc::new(StepClock::new(&processor));
        let phases = libraries.as_ref().map(|libraries| Arc::clone(&libraries.phases)).unwrap_or_default();
        Self { processor, libraries, clock, phases, machine, initially_free }
    }

    /// Bytes of its memory that were free when it was opened; `None` of the emulation, which has none.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.machine {
            Machine::Gpu(_) => Some(self.initially_free as u64),
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::CompileOnly | Machine::Counting => None,
        }
    }

    /// The libraries by name, with their versions. The emulation has none.
    #[must_use]
    pub fn libraries(&self) -> Vec<(&'static str, String)> {
        let Some(libraries) = &self.libraries else { return Vec::new() };
        let or_unknown = |version: Result<String, String>| version.unwrap_or_else(|_| "unknown".to_owned());
        vec![
            ("cuda", or_unknown(driver::driver().map(|(version, _)| version))),
            ("nvrtc", or_unknown(nvrtc::version())),
            ("cublas", or_unknown(libraries.cublas.version())),
            ("cudnn", or_unknown(Ok(cudnn::version()))),
        ]
    }

    /// Whether it multiplies bf16 natively: from compute capability 8.0 on.
    #[must_use]
    pub fn has_bf16(&self) -> bool {
        match &self.machine {
            Machine::Gpu(gpu) => gpu.capability[0] >= 8,
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::CompileOnly | Machine::Counting => true,
        }
    }

    /// A backend that compiles the kernels of plans into the folder `cache`, and runs nothing. `capability`
    /// is the compute capability, as 90 for 9.0.
    ///
    /// # Errors
    /// Where NVRTC cannot be loaded.
    #[cfg(feature = "emulation")]
    pub fn compile_only(capability: u32, multiprocessors: u32, cache: PathBuf) -> Result<Self, String> {
        if !Library::Nvrtc.is_there() {
            return Err("NVRTC cannot be loaded".to_owned());
        }
        let compiler = crate::gpu::Compiler::new(capability, Some(cache))?;
        let processor = crate::emulation::CompileOnly::new(compiler, multiprocessors);
        Ok(Self::of(Arc::new(processor), None, Machine::CompileOnly, 0))
    }

    /// A backend that plans as for an H100, with the libraries where it has plain kernels, and runs nothing:
    /// [`Self::count_marks`].
    #[cfg(feature = "emulation")]
    #[must_use]
    pub fn counting() -> Self {
        Self::of(Arc::new(crate::emulation::Counting::default()), None, Machine::Counting, 0)
    }

    /// An implementation as this backend runs it.
    pub(crate) fn adapted(&self, implementation: Implementation) -> Implementation {
        match self.machine {
            #[cfg(feature = "emulation")]
            Machine::Counting => crate::emulation::by_libraries(implementation),
            _ => implementation,
        }
    }

    /// The emulation of a GPU: native kernels on this machine's CPU, compiled by its C++ compiler.
    ///
    /// # Errors
    /// Where there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated() -> Result<Self, String> {
        // So few that grid-stride loops take more than one turn.
        Self::emulated_with(4, false)
    }

    /// The same with a number of multiprocessors, whose blocks and threads run in order or `backwards`.
    ///
    /// # Errors
    /// Where there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated_with(multiprocessors: u32, backwards: bool) -> Result<Self, String> {
        let emulation = crate::emulation::Emulation::with(multiprocessors, backwards)?;
        Ok(Self::of(Arc::new(emulation), None, Machine::Emulated, 0))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        match &self.machine {
            Machine::Gpu(gpu) => {
                let tf32 = if self.libraries.as_ref().is_some_and(|libraries| libraries.tf32) {
                    ", TF32"
                } else {
                    ""
                };
                let [major, minor] = gpu.capability;
                let libraries = self.libraries();
                let libraries = libraries.iter().map(|(name, version)| format!("{name} {version}"));
                let libraries = libraries.collect::<Vec<_>>().join(", ");
                format!("{} (compute capability {major}.{minor}), {libraries}{tf32}", gpu.name)
            }
            #[cfg(feature = "emulation")]
            Machine::Emulated => "emulated".to_owned(),
            #[cfg(feature = "emulation")]
            Machine::CompileOnly => "compiling".to_owned(),
            #[cfg(feature = "emulation")]
            Machine::Counting => "counting".to_owned(),
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
            Machine::Gpu(gpu) => match GpuDevice::new(gpu, &self.clock) {
                Ok(device) => Ok(Some(Box::new(device))),
                Err(reason) => Err(EngineError::Device { device: gpu.name.clone(), reason }),
            },
            #[cfg(feature = "emulation")]
            Machine::Emulated => Ok(Some(Box::new(crate::emulation::EmulatedDevice::new(&self.clock)))),
            #[cfg(feature = "emulation")]
            Machine::CompileOnly | Machine::Counting => Err(EngineError::Device {
                device: "a GPU that is not there".to_owned(),
                reason: "it runs nothing".to_owned(),
            }),
        }
    }

    fn trace(&self) -> Result<Box<dyn Tracer>, String> {
        match &self.machine {
            Machine::Gpu(gpu) => Ok(Box::new(Cupti::start(gpu)?)),
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::CompileOnly | Machine::Counting => {
                Err("there is no GPU that could be traced".to_owned())
            }
        }
    }

    fn meter(&self) -> Option<Box<dyn DeviceMeter>> {
        match &self.machine {
            Machine::Gpu(gpu) => Some(Box::new(Nvml::of(&gpu.bus_id().ok()?)?)),
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::CompileOnly | Machine::Counting => None,
        }
    }

    fn device_bytes(&self) -> Option<u64> {
        match &self.machine {
            Machine::Gpu(gpu) => {
                gpu.free_bytes().ok().map(|free| self.initially_free.saturating_sub(free) as u64)
            }
            #[cfg(feature = "emulation")]
            Machine::Emulated | Machine::CompileOnly | Machine::Counting => None,
        }
    }

    fn precisions(&self) -> Vec<Precision> {
        vec![Precision::F32, Precision::Bf16, Precision::F16]
    }

    /// Copying a batch to the GPU takes as long as it has bytes.
    fn gains_from_bytes(&self) -> bool {
        true
    }

    /// GPU memory is fast enough to store the output of a first convolution, so stems are not fused.
    fn fusions(&self) -> Fusions {
        Fusions { stems: false, ..Fusions::default() }
    }

    fn forget_measured(&self) {
        if let Some(libraries) = &self.libraries {
            libraries.forget_measured();
        }
    }

    /// cuDNN's configurations and native tiles are named without the batch size.
    fn repeats_choices_for_other_batches(&self) -> bool {
        true
    }

    fn phases(&self) -> Vec<(&'static str, f64)> {
        self.phases.seconds()
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
        prepare::prepare(self, program, request)
    }
}
