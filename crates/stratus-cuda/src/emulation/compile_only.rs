//! A processor without a GPU that only compiles, to check that NVRTC accepts every kernel, and to prepare
//! machine code for another machine.

use crate::gpu::Compiler;
use crate::processor::{Function, Processor, Shape, Source};
use crate::timestamps::TimestampSlots;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Compiles each source once and runs nothing.
pub(crate) struct CompileOnly {
    compiler: Compiler,
    multiprocessors: u32,
    compiled: Mutex<HashSet<Source>>,
    timestamps: TimestampSlots,
}

impl CompileOnly {
    /// A processor that plans as for a GPU with this many multiprocessors.
    pub fn new(compiler: Compiler, multiprocessors: u32) -> Self {
        Self { compiler, multiprocessors, compiled: Mutex::default(), timestamps: TimestampSlots::default() }
    }
}

impl Processor for CompileOnly {
    fn precompile(&self, mut sources: Vec<Source>) {
        let compiled = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| !compiled().contains(source));
        crate::sources::compile_in_parallel(sources, |source| {
            if self.compiler.code(source).is_ok() {
                compiled().insert(source.clone());
            }
        });
    }

    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if !compiled.contains(source) {
            self.compiler.code(source)?;
            compiled.insert(source.clone());
        }
        if !source.text().contains(&format!("EXPORT({name})")) {
            return Err(format!("kernel `{name}` not found"));
        }
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Err("no GPU to run kernels on".to_owned())
    }

    fn timestamps(&self) -> &TimestampSlots {
        &self.timestamps
    }

    fn capability(&self) -> u32 {
        self.compiler.capability()
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}
