//! Programs under construction: what operations and kernels add their steps to. The passes call these; the
//! builders call no pass.

mod differentiator;
mod lowering;

pub use differentiator::Differentiator;
pub use lowering::Lowering;
