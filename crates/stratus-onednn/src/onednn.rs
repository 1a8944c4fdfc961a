//! The loaded oneDNN library, the CPU with its threads, and the measurements so far.

use crate::ffi::{Argument, MemoryDescQuery};
use crate::ffi::{Context, DataType, Desc, Kernel as Primitive, Runtime, arg};
use crate::library::{self, LibraryNotFound};
use crate::native::elementwise::CpuContext;
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;
use crate::prepare::measure::TimingCache;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;
use stratus_engine::{AlignedBytes, DType, Layout, Precision, StartupMonitor};

/// The CPU backend: oneDNN, and native kernels on its threads.
pub struct OneDnn {
    pub(crate) context: Context,
    pub(crate) cpu: CpuContext,
    /// oneDNN's descriptors of layouts, by type: blocked ones cannot be created from shape and strides.
    descs: Mutex<HashMap<(Layout, i32), Desc>>,
    /// The kernel times measured while planning.
    pub(crate) timings: TimingCache,
    /// Receives the steps whose kernels are measured, and may stop that.
    pub(crate) monitor: StartupMonitor,
}

impl OneDnn {
    /// Loads oneDNN; `threads` 0 uses the default of its runtime.
    ///
    /// # Errors
    /// If no library is found; the message lists the paths tried.
    pub fn load(threads: usize) -> Result<Self, LibraryNotFound> {
        Ok(Self::with(library::find()?, threads))
    }

    /// The same backend, which reports to `monitor` while it measures kernels.
    #[must_use]
    pub fn with_monitor(self, monitor: StartupMonitor) -> Self {
        Self { monitor, ..self }
    }

    fn with(context: Context, threads: usize) -> Self {
        let team = ThreadTeam::for_library(&context, threads);
        team.apply_thread_count();
        let level = IsaLevel::detect(context.allows());
        Self {
            context,
            cpu: CpuContext { team, level },
            descs: Mutex::default(),
            timings: TimingCache::default(),
            monitor: StartupMonitor::default(),
        }
    }

    /// oneDNN's version, as `major.minor.patch`.
    #[must_use]
    pub fn version(&self) -> String {
        let version = self.context.version();
        format!("{}.{}.{}", version.major, version.minor, version.patch)
    }

    /// The path of the loaded library.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.context.path()
    }

    /// A warning about oneDNN's threading, if any.
    #[must_use]
    pub fn runtime_warning(&self) -> Option<String> {
        match self.context.version().runtime {
            Runtime::OpenMp if self.cpu.team.uses_stratus_threads() => None,
            Runtime::OpenMp if self.cpu.team.uses_openmp() => Some(
                "uses its own OpenMP runtime, which may busy-wait; \
                 hint: `make deps` installs a build that uses Stratus's threads"
                    .to_owned(),
            ),
            Runtime::Sequential => {
                Some("this oneDNN build is single-threaded; hint: install one with OpenMP".to_owned())
            }
            _ => Some(
                "this oneDNN build has no OpenMP: batch norm, loss and optimiser run on one thread; \
                 hint: install one with OpenMP"
                    .to_owned(),
            ),
        }
    }

    /// Returns whether convolutions and fully connected layers can be computed in `precision` at all.
    #[must_use]
    pub fn supports(&self, precision: Precision) -> bool {
        let [_, avx512] = self.context.allows();
        match precision {
            Precision::F32 => true,
            Precision::Bf16 => avx512 || !cfg!(target_arch = "x86_64"),
            Precision::F16 | Precision::F64 => false,
        }
    }

    /// Returns whether the CPU has bf16 instructions; without them bf16 is slower than f32.
    #[must_use]
    pub fn has_fast_bf16(&self) -> bool {
        self.context.has_bf16()
    }

    /// The arithmetic rate of a large square matrix product, in GFLOP/s: hardly any kernel exceeds it.
    #[must_use]
    pub fn peak_gflops(&self, dtype: DType) -> Option<f64> {
        const SIZE: usize = 1536;
        let dtype = DataType::from_dtype(dtype)?;
        let run = || -> Result<f64, String> {
            self.cpu.team.apply_thread_count();
            let shape = [SIZE, SIZE];
            let plain = self.context.strided(&shape, dtype, &[SIZE, 1])?;
            let any = self.context.any(&shape, dtype)?;
            let attributes = self.context.attributes(false)?;
            let desc = self.context.matmul([&plain, &any, &plain], &attributes)?;
            let weights = desc.desc(MemoryDescQuery::Weights)?;
            let operands = [(arg::SRC, &plain), (arg::WEIGHTS, &weights), (arg::DST, &plain)];
            let mut kernel = Primitive::new(&desc, &operands.map(|(arg, desc)| Argument { arg, desc }))?;
            let bytes = |n| AlignedBytes::zeroed(n, "a matrix product").map_err(|error| error.to_string());
            let mut memory = [
                bytes(plain.bytes())?,
                bytes(weights.bytes())?,
                bytes(plain.bytes())?,
                bytes(desc.scratch_bytes())?,
            ];
            let mut best = f64::INFINITY;
            for _ in 0..12 {
                let mut slices = memory.iter_mut();
                let start = Instant::now();
                kernel.execute(|_| slices.next().map(AlignedBytes::as_mut_slice).unwrap_or_default())?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            Ok(2.0 * (SIZE as f64).powi(3) / best / 1e9)
        };
        run().ok()
    }

    /// Remembers oneDNN's descriptor of a layout, and returns the layout.
    pub(crate) fn remember_desc(&self, desc: &Desc, dtype: DataType) -> Result<Layout, String> {
        let layout = desc.layout()?;
        let mut descs = self.descs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let std::collections::hash_map::Entry::Vacant(entry) = descs.entry((layout.clone(), dtype as i32))
        {
            entry.insert(desc.duplicate()?);
        }
        Ok(layout)
    }

    /// Returns a descriptor of a layout.
    pub(crate) fn desc(&self, layout: &Layout, dtype: DataType) -> Result<Desc, String> {
        if layout.blocks.is_empty() {
            return self.context.strided(&layout.shape, dtype, &layout.strides);
        }
        let descs = self.descs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match descs.get(&(layout.clone(), dtype as i32)) {
            Some(desc) => desc.duplicate(),
            None => Err(format!("layout {} has no known descriptor", layout.tag)),
        }
    }
}
