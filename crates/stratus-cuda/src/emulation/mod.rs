//! The emulation of a GPU, for tests: native kernels are compiled by the system's C++ compiler, and their
//! threads run in sequence on the CPU, as fibers that switch at barriers and warp instructions
//! (`source/emulate.h`).
//!
//! It detects errors of arithmetic, addresses and barriers, but neither races nor slow kernels.

mod compile_only;
mod counting;
mod device;
pub(crate) mod group;
mod kernel;
mod memory;
mod queues;

pub(crate) use compile_only::CompileOnly;
pub(crate) use counting::Counting;
pub(crate) use device::EmulatedDevice;

use crate::processor::{Function, HOPPER, Launched, Processor, Shape, Source};
use crate::timestamps::TimestampSlots;
use kernel::Kernel;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The maximum number of threads of a block, as on an H100.
const MAX_BLOCK_THREADS: u64 = 1024;
/// The maximum shared memory of a block, as on an H100.
const MAX_SHARED_BYTES: u32 = 227 << 10;

/// The emulated GPU, with the kernels loaded so far.
pub(crate) struct Emulation {
    multiprocessors: u32,
    reverse_order: bool,
    kernels: Mutex<Kernels>,
    launched: Mutex<Launched>,
    timestamps: TimestampSlots,
}

#[derive(Default)]
struct Kernels {
    functions: HashMap<(Source, String), Function>,
    loaded: Vec<Kernel>,
    /// The number of times that kernels have read the device's clock, which is its time.
    clock: u64,
}

impl Emulation {
    /// An emulated GPU with a number of multiprocessors, whose blocks and threads run in order or in
    /// `reverse_order`.
    ///
    /// # Errors
    /// If there is no C++ compiler.
    pub fn with(multiprocessors: u32, reverse_order: bool) -> Result<Self, String> {
        kernel::check_compiler()?;
        let (kernels, launched) = (Mutex::default(), Mutex::default());
        Ok(Self { multiprocessors, reverse_order, kernels, launched, timestamps: TimestampSlots::default() })
    }
}

impl Processor for Emulation {
    fn function(&self, source: &Source, name: &str) -> Result<Function, String> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.clone(), name.to_owned());
        if let Some(&function) = kernels.functions.get(&key) {
            return Ok(function);
        }
        let kernel = Kernel::load(source, name)?;
        let function = Function(kernels.loaded.len());
        kernels.loaded.push(kernel);
        kernels.functions.insert(key, function);
        Ok(function)
    }

    fn launch(&self, function: Function, shape: Shape, arguments: &mut [u64]) -> Result<(), String> {
        let threads: u64 = shape.block.iter().map(|&threads| u64::from(threads)).product();
        if shape.grid.contains(&0) || shape.grid[1..].iter().any(|&blocks| blocks > 0xffff) {
            return Err(format!("invalid grid of {:?} blocks", shape.grid));
        }
        if threads == 0 || threads > MAX_BLOCK_THREADS || shape.shared > MAX_SHARED_BYTES {
            return Err(format!("invalid block of {:?} threads with {} bytes", shape.block, shape.shared));
        }
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let Kernels { loaded, clock, .. } = &mut *kernels;
        let kernel = loaded.get(function.0).ok_or("the kernel was not compiled")?;
        let launched = (kernel.file, kernel.name.clone());
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).insert(launched);
        let run = kernel.run(shape, arguments, self.reverse_order, clock);
        run.map_err(|error| format!("`{}`: {error}", kernel.name))
    }

    fn launched(&self) -> Launched {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn timestamps(&self) -> &TimestampSlots {
        &self.timestamps
    }

    /// Kernels for Hopper are emulated too.
    fn capability(&self) -> u32 {
        HOPPER
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}
