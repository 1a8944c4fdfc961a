//! The backend: the loaded library, the CPU with its threads, and what was learned about both so far.

use crate::ffi::{Argument, Which};
use crate::ffi::{Context, DataType, Desc, Kernel as Primitive, Runtime, arg};
use crate::library::{self, NotFound};
use crate::native::elementwise::CpuContext;
use crate::native::simd::Level;
use crate::native::threads::ThreadTeam;
use crate::prepare;
use crate::prepare::measure::TimingCache;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;
use stratus_engine::{
    AlignedBytes, Backend, DType, EngineError, Layout, Precision, PrepareRequest, Prepared, Program,
};

/// oneDNN, and native kernels on its threads.
pub struct OneDnn {
    pub(crate) context: Context,
    pub(crate) cpu: CpuContext,
    /// The library's descriptors of layouts, by type. A blocked one cannot be made from plain data.
    descs: Mutex<HashMap<(Layout, i32), Desc>>,
    /// The times of kernels that were measured while planning.
    pub(crate) timings: TimingCache,
}

impl OneDnn {
    /// Loads the library; `threads` 0 takes as many as its run time offers.
    ///
    /// # Errors
    /// Where none was found; the message says where it was looked for.
    pub fn load(threads: usize) -> Result<Self, NotFound> {
        Ok(Self::with(library::find()?, threads))
    }

    fn with(context: Context, threads: usize) -> Self {
        let team = ThreadTeam::of(&context, threads);
        team.adopt();
        let level = Level::detect(context.allows());
        Self {
            context,
            cpu: CpuContext { team, level },
            descs: Mutex::default(),
            timings: TimingCache::default(),
        }
    }

    /// `major.minor.patch`.
    #[must_use]
    pub fn version(&self) -> String {
        let version = self.context.version();
        format!("{}.{}.{}", version.major, version.minor, version.patch)
    }

    /// Where the library was loaded from.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.context.path()
    }

    /// What is worth knowing about how it runs, where anything is.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        match self.context.version().runtime {
            Runtime::OpenMp if self.cpu.team.is_ours() => None,
            Runtime::OpenMp if self.cpu.team.is_shared() => Some(
                "runs on an OpenMP run time of its own, which may wait without giving way to other programs; \
                 `make deps` installs a build that runs on the threads of Stratus"
                    .to_owned(),
            ),
            Runtime::Sequential => Some("this build runs on one thread; install one with OpenMP".to_owned()),
            _ => Some(
                "this build brings no OpenMP: batch norm, loss and optimiser run on one thread; \
                 install one with OpenMP"
                    .to_owned(),
            ),
        }
    }

    /// Whether convolutions and fully connected layers can be computed in a precision at all.
    #[must_use]
    pub fn supports(&self, precision: Precision) -> bool {
        let [_, avx512] = self.context.allows();
        match precision {
            Precision::F32 => true,
            Precision::Bf16 => avx512 || !cfg!(target_arch = "x86_64"),
            Precision::F16 | Precision::F64 => false,
        }
    }

    /// Whether the processor has instructions for bf16; without them it is slower than f32.
    #[must_use]
    pub fn has_fast_bf16(&self) -> bool {
        self.context.has_bf16()
    }

    /// The highest rate of multiply-adds of a square matrix product, in GFLOP/s: what no kernel exceeds by
    /// much.
    #[must_use]
    pub fn peak_gflops(&self, dtype: DType) -> Option<f64> {
        const SIZE: usize = 1536;
        let dtype = DataType::of(dtype)?;
        let run = || -> Result<f64, String> {
            self.cpu.team.adopt();
            let shape = [SIZE, SIZE];
            let plain = self.context.strided(&shape, dtype, &[SIZE, 1])?;
            let any = self.context.any(&shape, dtype)?;
            let attributes = self.context.attributes(false)?;
            let desc = self.context.matmul([&plain, &any, &plain], &attributes)?;
            let weights = desc.desc(Which::Weights)?;
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

    /// Remembers the library's descriptor of a layout and returns the layout.
    pub(crate) fn learn(&self, desc: &Desc, dtype: DataType) -> Result<Layout, String> {
        let layout = desc.layout()?;
        let mut descs = self.descs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let std::collections::hash_map::Entry::Vacant(entry) = descs.entry((layout.clone(), dtype as i32))
        {
            entry.insert(desc.duplicate()?);
        }
        Ok(layout)
    }

    /// A descriptor of a layout.
    pub(crate) fn desc(&self, layout: &Layout, dtype: DataType) -> Result<Desc, String> {
        if layout.blocks.is_empty() {
            return self.context.strided(&layout.shape, dtype, &layout.strides);
        }
        let descs = self.descs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match descs.get(&(layout.clone(), dtype as i32)) {
            Some(desc) => desc.duplicate(),
            None => Err(format!("layout {} was not met before", layout.tag)),
        }
    }
}

impl Backend for OneDnn {
    fn name(&self) -> &'static str {
        "onednn"
    }

    fn describe(&self) -> String {
        format!("oneDNN {} {}, {} threads", self.version(), self.context.instruction_set(), self.threads())
    }

    fn revision(&self) -> &'static str {
        env!("STRATUS_KERNELS")
    }

    fn threads(&self) -> usize {
        self.cpu.team.threads()
    }

    fn precisions(&self) -> Vec<Precision> {
        [Precision::F32, Precision::Bf16].into_iter().filter(|&precision| self.supports(precision)).collect()
    }

    fn gains_from_tiles(&self) -> bool {
        true
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
        self.cpu.team.adopt();
        prepare::prepare(self, program, request)
    }
}
