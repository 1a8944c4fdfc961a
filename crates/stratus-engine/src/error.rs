//! What can go wrong between a graph and its execution.

use stratus_base::OutOfMemory;

/// An error of the engine. Each names the pass or the layer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A pass left a program that does not hold together: a defect of that pass.
    #[error("after pass `{pass}`, step {step} ({kernel} of `{layer}`): {problem}")]
    Invalid {
        /// The pass.
        pass: &'static str,
        /// The step's position.
        step: usize,
        /// The kernel's name.
        kernel: String,
        /// The layer's name.
        layer: String,
        /// What does not hold.
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
        /// Why not.
        reason: String,
    },
    /// A step failed while running.
    #[error("{kernel} of layer `{layer}` failed: {reason}")]
    Failed {
        /// The kernel's name.
        kernel: String,
        /// The layer's name.
        layer: String,
        /// What the library said.
        reason: String,
    },
    /// A plan that places values wrongly: a defect of the planner or the backend.
    #[error("the memory plan is wrong: {0}")]
    Placement(String),
    /// Memory could not be had.
    #[error("there is no memory for {what}: it takes {} MiB{}", bytes.div_ceil(1 << 20), beside(*free))]
    OutOfMemory {
        /// What the memory is for.
        what: String,
        /// How much was asked for.
        bytes: usize,
        /// How much was free, where that is known.
        free: Option<usize>,
    },
    /// A device failed, apart from any step.
    #[error("{device} failed: {reason}")]
    Device {
        /// What it is.
        device: String,
        /// What its driver or library said.
        reason: String,
    },
    /// Who asked for it wants it no more.
    #[error("interrupted before the first iteration")]
    Interrupted,
    /// A name or size that does not exist in the session.
    #[error("{0}")]
    Mismatch(String),
}

impl From<OutOfMemory> for EngineError {
    fn from(OutOfMemory { what, bytes }: OutOfMemory) -> Self {
        Self::OutOfMemory { what, bytes, free: None }
    }
}

/// What is said of the memory that is free.
fn beside(free: Option<usize>) -> String {
    free.map_or(String::new(), |free| format!(", {} MiB are free", free >> 20))
}
