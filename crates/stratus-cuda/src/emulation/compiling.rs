//! What compiles kernels for a GPU that is not there: to see that NVRTC takes them, and to have their machine code ready.

use crate::gpu::Compiler;
use crate::processor::{Function, Processor, Shape, Source};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Compiles each source once and runs nothing.
pub(crate) struct Compiling {
    compiler: Compiler,
    multiprocessors: u32,
    done: Mutex<HashSet<Source>>,
}

impl Compiling {
    pub fn new(compiler: Compiler, multiprocessors: u32) -> Self {
        Self { compiler, multiprocessors, done: Mutex::default() }
    }
}

impl Processor for Compiling {
    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !done.contains(source) {
            self.compiler.code(source)?;
            done.insert(source.clone());
        }
        if !source.text().contains(&format!("EXPORT({name})")) {
            return Err(format!("there is no kernel `{name}`"));
        }
        Ok(Function(0))
    }

    fn launch(&self, _function: Function, _shape: Shape, _arguments: &mut [u64]) -> Result<(), String> {
        Err("there is no GPU to run it on".to_owned())
    }

    fn capability(&self) -> u32 {
        self.compiler.capability()
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}
