//! The emulation of a GPU, for tests: our kernels compiled by the system's C++ compiler, their threads one after the other on the processor.
//!
//! It finds what is wrong with a kernel's arithmetic, addresses and barriers; how fast a kernel is, and what only concurrency shows, it does not.

mod compiling;
mod device;
mod library;

pub(crate) use compiling::Compiling;
pub(crate) use device::EmulatedDevice;

use crate::Cuda;
use crate::processor::{Function, HOPPER, Processor, Shape, Source};
use library::Kernel;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// The most threads of a block, and the most bytes of shared memory that a block of an H100 has.
const MOST_THREADS: u64 = 1024;
const MOST_SHARED: u32 = 227 << 10;

/// What was launched in this process: files and kernels.
static LAUNCHED: Mutex<BTreeSet<(&str, String)>> = Mutex::new(BTreeSet::new());

/// Kernels that were compiled and loaded.
pub(crate) struct Emulation {
    multiprocessors: u32,
    backwards: bool,
    kernels: Mutex<Kernels>,
}

#[derive(Default)]
struct Kernels {
    known: HashMap<(Source, String), Function>,
    loaded: Vec<Kernel>,
}

impl Emulation {
    /// An emulation with some multiprocessors, whose blocks and threads run in order or backwards.
    pub fn with(multiprocessors: u32, backwards: bool) -> Result<Self, String> {
        library::check_compiler()?;
        Ok(Self { multiprocessors, backwards, kernels: Mutex::default() })
    }
}

impl Processor for Emulation {
    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.clone(), name.to_owned());
        if let Some(&function) = kernels.known.get(&key) {
            return Ok(function);
        }
        let kernel = Kernel::load(source, name)?;
        let function = Function(kernels.loaded.len());
        kernels.loaded.push(kernel);
        kernels.known.insert(key, function);
        Ok(function)
    }

    fn launch(&self, function: Function, shape: Shape, arguments: &mut [u64]) -> Result<(), String> {
        let threads: u64 = shape.block.iter().map(|&threads| u64::from(threads)).product();
        if shape.grid.contains(&0) || shape.grid[1..].iter().any(|&blocks| blocks > 0xffff) {
            return Err(format!("a grid of {:?} blocks", shape.grid));
        }
        if threads == 0 || threads > MOST_THREADS || shape.shared > MOST_SHARED {
            return Err(format!("a block of {:?} threads with {} bytes", shape.block, shape.shared));
        }
        let kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = kernels.loaded.get(function.0).ok_or("a kernel that was not compiled")?;
        let launched = (kernel.file, kernel.name.clone());
        LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(launched);
        kernel.run(shape, arguments, self.backwards).map_err(|error| format!("`{}`: {error}", kernel.name))
    }

    /// That of the GPU whose functions it has.
    fn capability(&self) -> u32 {
        HOPPER
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}

impl Cuda {
    /// Which kernels this process has launched in emulations: the files of `source/` without ending, and names.
    #[must_use]
    pub fn launched_in_emulation() -> BTreeSet<(&'static str, String)> {
        LAUNCHED.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
