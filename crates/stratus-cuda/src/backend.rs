//! The CUDA backend: a GPU with its libraries, or in tests an emulated GPU.

use crate::ffi::cupti::Cupti;
use crate::ffi::driver::{self, Gpu};
use crate::ffi::libraries::Library;
use crate::ffi::nvml::Nvml;
use crate::ffi::{cudnn, nccl, nvrtc};
use crate::gpu::{GpuDevice, GpuProcessor};
use crate::gpu_libraries::GpuLibraries;
use crate::prepare::{KernelTarget, prepare};
use crate::processor::Processor;
use crate::step_clock::StepClock;
use std::path::PathBuf;
use std::sync::Arc;
use stratus_engine::device::{DeviceMeter, Tracer};
use stratus_engine::fusions::Fusions;
use stratus_engine::{
    Backend, Device, EngineError, Precision, PrepareRequest, PreparedProgram, Program, StartupMonitor,
    StartupTimes,
};

/// The CUDA backend: one GPU, or in tests an emulated one.
pub struct Cuda {
    processor: Arc<dyn Processor>,
    libraries: Option<GpuLibraries>,
    clock: Arc<StepClock>,
    phases: Arc<StartupTimes>,
    machine: ExecutionTarget,
    /// Free GPU memory in bytes when it was opened.
    initially_free: usize,
}

/// The processor that runs kernels.
enum ExecutionTarget {
    Gpu(Arc<Gpu>),
    #[cfg(feature = "emulation")]
    Emulated {
        /// The number of the GPU, from 0.
        ordinal: u32,
        /// True if blocks and threads run in reverse, and the queues beside the kernels as late as possible.
        reverse_order: bool,
    },
    #[cfg(feature = "emulation")]
    CompileOnly,
    #[cfg(feature = "emulation")]
    Counting,
}

/// The choice of the GPU, and the options of its use.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The GPU's number, from 0.
    pub ordinal: u32,
    /// True if f32 factors may be rounded to TF32, which has 11 bits of precision instead of 24 and is many
    /// times faster.
    pub tf32: bool,
    /// The cache folder for compiled kernels and the fastest implementations; without one, every process
    /// compiles and measures its own.
    pub cache: Option<PathBuf>,
    /// Receives the phases of opening it and of preparing programs.
    pub monitor: StartupMonitor,
}

/// The error if no GPU can be used.
#[derive(Debug, thiserror::Error)]
#[error("no usable NVIDIA GPU: {reason}")]
pub struct GpuUnavailable {
    /// The missing library, or the driver's message.
    pub reason: String,
}

/// A library that the backend loads at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryVersion {
    /// Its common name, such as `cuDNN`.
    pub name: &'static str,
    /// Its version; `None` if the library was not found, empty if it can be read only from an open GPU.
    pub version: Option<String>,
}

/// The libraries found, and a line per GPU: name, compute capability, memory in MiB, and by NVML its power
/// limit and its highest clock.
#[must_use]
pub fn detect() -> (Vec<LibraryVersion>, Vec<String>) {
    let version = |library: Library| -> Option<String> {
        if !library.is_loadable() {
            return None;
        }
        match library {
            Library::Driver => driver::driver().ok().map(|(version, _)| format!("for CUDA {version}")),
            Library::Nvrtc => nvrtc::version().ok(),
            // Only a handle knows the version, and creating one requires a GPU.
            Library::Cublas => Some(String::new()),
            Library::Cudnn => Some(cudnn::version()),
        }
    };
    let found = Library::ALL
        .map(|library| LibraryVersion { name: library.name(), version: version(library) })
        .to_vec();
    let gpus =
        (0..gpu_count()).filter_map(|ordinal| Gpu::open(ordinal).ok()).map(|gpu| describe(&gpu)).collect();
    (found, gpus)
}

fn describe(gpu: &Gpu) -> String {
    let [major, minor] = gpu.capability;
    let nvml = gpu.bus_id().ok().and_then(|bus_id| Nvml::find(&bus_id));
    let limits = nvml.map(|nvml| nvml.limits()).unwrap_or_default().describe();
    format!("{}, compute capability {major}.{minor}, {} MiB{limits}", gpu.name, gpu.memory >> 20)
}

/// The number of GPUs of this machine that CUDA shows to this process. With the feature `emulation`, the
/// variable `STRATUS_EMULATED_GPUS` may replace them by emulated ones.
#[must_use]
pub fn gpu_count() -> u32 {
    #[cfg(feature = "emulation")]
    if let Some(gpus) = emulated_gpus() {
        return u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    }
    if Library::Driver.is_loadable() { driver::driver().map_or(0, |(_, count)| count) } else { 0 }
}

/// The number of multiprocessors of an emulated GPU, unless it is given. With few, grid-stride loops run
/// several times.
#[cfg(feature = "emulation")]
const EMULATED_MULTIPROCESSORS: u32 = 4;

/// The multiprocessors of each emulated GPU that `STRATUS_EMULATED_GPUS` asks for: a number of GPUs, or a
/// list such as `4,8` of the multiprocessors of each.
#[cfg(feature = "emulation")]
fn emulated_gpus() -> Option<Vec<u32>> {
    let asked = std::env::var("STRATUS_EMULATED_GPUS").ok()?;
    let gpus: Vec<u32> = match asked.contains(',') {
        true => asked.split(',').map(str::parse).collect::<Result<_, _>>().ok()?,
        false => vec![EMULATED_MULTIPROCESSORS; asked.parse().ok()?],
    };
    (!gpus.is_empty() && !gpus.contains(&0)).then_some(gpus)
}

impl Cuda {
    /// Opens a GPU.
    ///
    /// # Errors
    /// If a library is missing or too old, or there is no such GPU.
    pub fn open(settings: &Settings) -> Result<Self, GpuUnavailable> {
        let not_found = |reason: String| GpuUnavailable { reason };
        #[cfg(feature = "emulation")]
        if let Some(gpus) = emulated_gpus() {
            return match gpus.get(settings.ordinal as usize) {
                Some(multiprocessors) => {
                    Self::emulation(settings.ordinal, *multiprocessors, false).map_err(not_found)
                }
                None => {
                    Err(not_found(format!("GPU {} not found: {} are emulated", settings.ordinal, gpus.len())))
                }
            };
        }
        let phases = Arc::new(StartupTimes::new(settings.monitor.clone()));
        let is_missing = |library: &&Library| !library.is_loadable();
        let missing: Vec<&str> = phases.time("loading libraries", || {
            Library::ALL.iter().filter(is_missing).map(|library| library.name()).collect()
        });
        if !missing.is_empty() {
            return Err(not_found(format!("cannot load {}", missing.join(", "))));
        }
        let gpu = phases.time("opening the GPU", || Gpu::open(settings.ordinal)).map_err(not_found)?;
        let processor = GpuProcessor::new(&gpu, settings.cache.clone()).map_err(not_found)?;
        let libraries = phases
            .time("opening cuDNN and cuBLAS", || {
                GpuLibraries::new(&gpu, settings.tf32, settings.cache.as_deref(), &phases)
            })
            .map_err(not_found)?;
        let initially_free = gpu.free_bytes().map_err(not_found)?;
        Ok(Self::with_target(Arc::new(processor), Some(libraries), ExecutionTarget::Gpu(gpu), initially_free))
    }

    fn with_target(
        processor: Arc<dyn Processor>,
        libraries: Option<GpuLibraries>,
        machine: ExecutionTarget,
        initially_free: usize,
    ) -> Self {
        let clock = Arc::new(StepClock::new(&processor));
        let phases = libraries.as_ref().map(|libraries| Arc::clone(&libraries.phases)).unwrap_or_default();
        Self { processor, libraries, clock, phases, machine, initially_free }
    }

    /// Free GPU memory in bytes when it was opened; `None` for the emulation.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.machine {
            ExecutionTarget::Gpu(_) => Some(self.initially_free as u64),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                None
            }
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

    /// Returns whether it has native bf16 arithmetic: from compute capability 8.0.
    #[must_use]
    pub fn has_bf16(&self) -> bool {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => gpu.capability[0] >= 8,
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                true
            }
        }
    }

    /// A backend that compiles the kernels of plans to the folder `cache`, and runs nothing. `capability` is
    /// the compute capability, as 90 for 9.0.
    ///
    /// # Errors
    /// If NVRTC cannot be loaded.
    #[cfg(feature = "emulation")]
    pub fn compile_only(capability: u32, multiprocessors: u32, cache: PathBuf) -> Result<Self, String> {
        if !Library::Nvrtc.is_loadable() {
            return Err("NVRTC cannot be loaded".to_owned());
        }
        let compiler = crate::gpu::Compiler::new(capability, Some(cache))?;
        let processor = crate::emulation::CompileOnly::new(compiler, multiprocessors);
        Ok(Self::with_target(Arc::new(processor), None, ExecutionTarget::CompileOnly, 0))
    }

    /// A backend that plans as for an H100, with library calls in place of plain kernels, and runs nothing:
    /// [`Self::count_markers`].
    #[cfg(feature = "emulation")]
    #[must_use]
    pub fn counting() -> Self {
        Self::with_target(Arc::new(crate::emulation::Counting::default()), None, ExecutionTarget::Counting, 0)
    }

    /// An emulated GPU: native kernels on this machine's CPU, compiled by its C++ compiler.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated() -> Result<Self, String> {
        Self::emulated_with(EMULATED_MULTIPROCESSORS, false)
    }

    /// [`Self::emulated`] with a number of multiprocessors, whose blocks and threads run in order or in
    /// `reverse_order`.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    #[cfg(feature = "emulation")]
    pub fn emulated_with(multiprocessors: u32, reverse_order: bool) -> Result<Self, String> {
        Self::emulation(0, multiprocessors, reverse_order)
    }

    #[cfg(feature = "emulation")]
    fn emulation(ordinal: u32, multiprocessors: u32, reverse_order: bool) -> Result<Self, String> {
        let emulation = crate::emulation::Emulation::with(multiprocessors, reverse_order)?;
        let target = ExecutionTarget::Emulated { ordinal, reverse_order };
        Ok(Self::with_target(Arc::new(emulation), None, target, 0))
    }

    /// The kernels that this emulation has launched.
    #[cfg(feature = "emulation")]
    #[must_use]
    pub fn launched(&self) -> crate::processor::Launched {
        self.processor.launched()
    }

    /// The numbers of step ends and of marker kernels for timing the steps of a recording, if this is the
    /// backend of [`Cuda::counting`].
    ///
    /// # Errors
    /// If a step cannot be enqueued.
    #[cfg(feature = "emulation")]
    pub fn count_markers(&self, prepared: &mut PreparedProgram) -> Result<[usize; 2], String> {
        let steps = prepared.steps.len();
        let mut ends = Vec::new();
        let mut count = [0; 2];
        // As on a GPU, the second run is recorded.
        for _ in 0..2 {
            self.clock.begin(crate::timestamps::words(steps) as u64, steps, ends);
            for (slot, step) in prepared.steps.iter_mut().enumerate() {
                step.kernel.run(&mut stratus_engine::backend::Operands::new(stratus_engine::Tile::WHOLE))?;
                self.clock.end_step(slot);
            }
            let enqueued = self.clock.end()?;
            count = [enqueued.steps(), enqueued.markers];
            ends = enqueued.ends;
        }
        Ok(count)
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn describe(&self) -> String {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => {
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
            ExecutionTarget::Emulated { .. } => match self.processor.multiprocessors() {
                EMULATED_MULTIPROCESSORS => "emulated".to_owned(),
                count => format!("emulated with {count} multiprocessors"),
            },
            #[cfg(feature = "emulation")]
            ExecutionTarget::CompileOnly => "compiling".to_owned(),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Counting => "counting".to_owned(),
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
            ExecutionTarget::Gpu(gpu) => match GpuDevice::new(gpu, &self.clock, &self.processor) {
                Ok(device) => Ok(Some(Box::new(device))),
                Err(reason) => Err(EngineError::Device { device: gpu.name.clone(), reason }),
            },
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { reverse_order, .. } => {
                let device =
                    crate::emulation::EmulatedDevice::new(&self.clock, &self.processor, *reverse_order);
                Ok(Some(Box::new(device)))
            }
            #[cfg(feature = "emulation")]
            ExecutionTarget::CompileOnly | ExecutionTarget::Counting => Err(EngineError::Device {
                device: "no GPU".to_owned(),
                reason: "this backend only compiles".to_owned(),
            }),
        }
    }

    fn device_address(&self) -> Option<String> {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => Some(gpu.bus_id().ok()?.to_string_lossy().into_owned()),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { ordinal, .. } => Some(format!("emulated {ordinal}")),
            #[cfg(feature = "emulation")]
            ExecutionTarget::CompileOnly | ExecutionTarget::Counting => None,
        }
    }

    fn device_generation(&self) -> [u64; 2] {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => {
                let [major, minor] = gpu.capability;
                let cycles = u64::from(gpu.multiprocessors) * u64::from(gpu.clock_khz);
                [u64::from(100 * major + minor), cycles]
            }
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                [0, u64::from(self.processor.multiprocessors())]
            }
        }
    }

    fn direct_exchange(&self) -> Result<String, String> {
        let version = match &self.machine {
            ExecutionTarget::Gpu(_) => nccl::version()?,
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } => crate::emulation::group::version()?,
            #[cfg(feature = "emulation")]
            ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                return Err("this backend only compiles".to_owned());
            }
        };
        nccl::check_version(&version)?;
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => {
                nccl::check_gpu(gpu).map_err(|reason| format!("NCCL {version} cannot be used: {reason}"))?;
            }
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {}
        }
        Ok(format!("NCCL {version}"))
    }

    fn direct_sum_bytes(&self, bucket_bytes: usize) -> usize {
        match bucket_bytes {
            0 => 0,
            _ => crate::direct_sum_bytes(bucket_bytes),
        }
    }

    fn new_group_id(&self) -> Result<Vec<u8>, String> {
        match &self.machine {
            ExecutionTarget::Gpu(_) => nccl::new_id(),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } => crate::emulation::group::new_id(),
            #[cfg(feature = "emulation")]
            ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                Err("this backend only compiles".to_owned())
            }
        }
    }

    fn trace(&self) -> Result<Box<dyn Tracer>, String> {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => Ok(Box::new(Cupti::start(gpu)?)),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                Err("no GPU to trace".to_owned())
            }
        }
    }

    fn meter(&self) -> Option<Box<dyn DeviceMeter>> {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => Some(Box::new(Nvml::find(&gpu.bus_id().ok()?)?)),
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                None
            }
        }
    }

    fn device_bytes(&self) -> Option<u64> {
        match &self.machine {
            ExecutionTarget::Gpu(gpu) => {
                gpu.free_bytes().ok().map(|free| self.initially_free.saturating_sub(free) as u64)
            }
            #[cfg(feature = "emulation")]
            ExecutionTarget::Emulated { .. } | ExecutionTarget::CompileOnly | ExecutionTarget::Counting => {
                None
            }
        }
    }

    fn precisions(&self) -> Vec<Precision> {
        vec![Precision::F32, Precision::Bf16, Precision::F16]
    }

    /// The time of copying a batch to the GPU is proportional to its bytes.
    fn prefers_byte_images(&self) -> bool {
        true
    }

    /// GPU memory is fast enough to store the output of a first convolution, so stems are not fused. Nor are
    /// convolutions in inference: there are no kernels for that.
    fn fusions(&self) -> Fusions {
        Fusions { stem: false, inference: false, ..Fusions::default() }
    }

    fn clear_timings(&self) {
        if let Some(libraries) = &self.libraries {
            libraries.clear_timings();
        }
    }

    /// The names of cuDNN's configurations and native tiles do not depend on the batch size.
    fn reuses_choices_across_batch_sizes(&self) -> bool {
        true
    }

    fn startup_times(&self) -> Vec<(&'static str, f64)> {
        self.phases.seconds()
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        let target = KernelTarget {
            processor: &self.processor,
            libraries: self.libraries.as_ref(),
            clock: &self.clock,
            phases: &self.phases,
        };
        prepare(target, program, request)
    }
}
