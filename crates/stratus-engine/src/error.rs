//! Errors between a graph and its execution.

use stratus_base::OutOfMemory;

/// An error of the engine. Each names the pass or the layer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A pass produced an invalid program: a bug of that pass.
    #[error("after pass `{pass}`, step {step} ({kernel} of `{layer}`): {problem}")]
    InvalidProgram {
        /// The pass.
        pass: &'static str,
        /// The step's position.
        step: usize,
        /// The kernel's name.
        kernel: String,
        /// The layer's name.
        layer: String,
        /// The violated rule.
        problem: String,
    },
    /// The backend has no kernel for a step.
    #[error("backend {backend} cannot run {kernel} of layer `{layer}`: {reason}")]
    Unsupported {
        /// The backend's name.
        backend: String,
        /// The kernel's name.
        kernel: String,
        /// The layer's name.
        layer: String,
        /// The reason.
        reason: String,
    },
    /// A step failed while running.
    #[error("{kernel} of layer `{layer}` failed: {reason}")]
    KernelFailed {
        /// The kernel's name.
        kernel: String,
        /// The layer's name.
        layer: String,
        /// The error message of the kernel's library or device.
        reason: String,
    },
    /// A plan that places values wrongly: a bug of the planner or the backend.
    #[error("invalid memory plan: {0} (this is a bug)")]
    Placement(String),
    /// Memory could not be allocated.
    #[error("out of memory: {purpose} needs {} MiB{}", bytes.div_ceil(1 << 20), available(*free))]
    OutOfMemory {
        /// The purpose of the memory.
        purpose: String,
        /// The requested size.
        bytes: usize,
        /// The available memory, if known.
        free: Option<usize>,
    },
    /// A device failed outside of any step.
    #[error("{device} failed: {reason}")]
    Device {
        /// The device's name.
        device: String,
        /// The error message of its driver or library.
        reason: String,
    },
    /// Communication with the other workers failed while a device ran a program.
    #[error("the exchange with other workers failed: {0}")]
    Exchange(String),
    /// The caller requested a stop.
    #[error("interrupted before the first iteration")]
    Interrupted,
    /// More pipeline stages than the network can be cut into.
    #[error("`{network}` can have at most {max} stages, got {requested}")]
    TooManyStages {
        /// The network's name.
        network: String,
        /// The maximum number of its stages.
        max: usize,
        /// The requested number.
        requested: usize,
    },
    /// No partition into pipeline stages keeps to the memory budget.
    #[error(
        "`{network}` does not fit {stages} stages of at most {} MiB; hint: use more stages or raise the \
         memory limit",
        bytes >> 20
    )]
    StagesTooLarge {
        /// The network's name.
        network: String,
        /// The number of stages.
        stages: usize,
        /// The budget of each.
        bytes: usize,
    },
    /// An invalid name, size or option in a request.
    #[error("{0}")]
    InvalidRequest(String),
}

impl From<OutOfMemory> for EngineError {
    fn from(OutOfMemory { purpose, bytes }: OutOfMemory) -> Self {
        Self::OutOfMemory { purpose, bytes, free: None }
    }
}

/// The suffix of the out-of-memory message.
fn available(free: Option<usize>) -> String {
    free.map_or(String::new(), |free| format!(", {} MiB available", free >> 20))
}
