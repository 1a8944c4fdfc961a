//! Programs under construction, to which operations and kernels add their steps. The passes call these; the
//! builders call no pass.

mod differentiator;
mod lowering;

pub use differentiator::Differentiator;
pub use lowering::{Lowering, output_name};
