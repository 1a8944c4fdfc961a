//! Compiles native kernels for a GPU and launches them there.

use super::code::Compiler;
use crate::ffi::driver::{Gpu, Module};
use crate::processor::{Function, Processor, Shape, Source};
use crate::timestamps::TimestampSlots;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU as a processor, with the modules loaded so far.
pub(crate) struct GpuProcessor {
    gpu: Arc<Gpu>,
    compiler: Compiler,
    modules: Mutex<HashMap<Source, Module>>,
    timestamps: TimestampSlots,
}

impl GpuProcessor {
    /// Creates a processor for a GPU; compiled kernels are cached in the folder `cache`.
    ///
    /// # Errors
    /// NVRTC's error message.
    pub fn new(gpu: &Arc<Gpu>, cache: Option<PathBuf>) -> Result<Self, String> {
        let [major, minor] = gpu.capability;
        let compiler = Compiler::new(10 * major + minor, cache)?;
        Ok(Self {
            gpu: Arc::clone(gpu),
            compiler,
            modules: Mutex::default(),
            timestamps: TimestampSlots::default(),
        })
    }

    /// Loads the module of a source. A cached one that does not load is recompiled.
    fn load(&self, source: &Source) -> Result<Module, String> {
        let (code, cached) = self.compiler.code(source)?;
        match Module::load(&self.gpu, &code) {
            Err(_) if cached => Module::load(&self.gpu, &self.compiler.compile(source)?),
            loaded => loaded,
        }
    }
}

impl Processor for GpuProcessor {
    fn precompile(&self, mut sources: Vec<Source>) {
        let modules = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| !modules().contains_key(source));
        crate::sources::compile_in_parallel(sources, |source| {
            if let Ok(module) = self.load(source) {
                modules().insert(source.clone(), module);
            }
        });
    }

    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if !modules.contains_key(source) {
            let module = self.load(source)?;
            modules.insert(source.clone(), module);
        }
        let module = modules.get(source).ok_or("a loaded module is missing")?;
        module.function(name).map(Function)
    }

    fn allow_shared(&self, function: Function, bytes: u32) -> Result<(), String> {
        self.gpu.allow_shared(function.0, bytes)
    }

    fn launch(&self, function: Function, shape: Shape, arguments: &mut [u64]) -> Result<(), String> {
        self.gpu.launch(function.0, shape, arguments)
    }

    fn timestamps(&self) -> &TimestampSlots {
        &self.timestamps
    }

    fn capability(&self) -> u32 {
        self.compiler.capability()
    }

    fn multiprocessors(&self) -> u32 {
        self.gpu.multiprocessors
    }
}
