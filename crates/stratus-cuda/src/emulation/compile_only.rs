//! A processor without a GPU that only compiles: to see that NVRTC accepts every kernel, and to have machine
//! code ready for another machine.

use crate::gpu::Compiler;
use crate::processor::{Function, Processor, Shape, Source};
use crate::step_clock::Stamps;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Compiles each source once and runs nothing.
pub(crate) struct CompileOnly {
    compiler: Compiler,
    multiprocessors: u32,
    compiled: Mutex<HashSet<Source>>,
    stamps: Stamps,
}

impl CompileOnly {
    /// A processor that plans as for a GPU with this many multiprocessors.
    pub fn new(compiler: Compiler, multiprocessors: u32) -> Self {
        Self { compiler, multiprocessors, compiled: Mutex::default(), stamps: Stamps::default() }
    }
}

impl Processor for CompileOnly {
    fn compile_ahead(&self, mut sources: Vec<Source>) {
        let compiled = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| !compiled().contains(source));
        crate::sources::compile_side_by_side(sources, |source| {
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
            return Err(format!("there is no kernel `{name}`"));
        }
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Err("there is no GPU to run it on".to_owned())
    }

    fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    fn capability(&self) -> u32 {
        self.compiler.capability()
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}
