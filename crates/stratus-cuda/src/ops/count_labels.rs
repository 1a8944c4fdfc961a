//! Counts the labels of a batch by class.

use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{CountLabels, KernelSpec};

/// The number of threads that count a class.
const THREADS: u32 = 512;

impl GpuOp for CountLabels {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [labels, counts] = operands else { return Err("expected labels and their counts".to_owned()) };
        if !labels.layout.is_row_major() {
            return Err("labels must be row-major".to_owned());
        }
        let classes = u32::try_from(counts.elements()).map_err(|error| error.to_string())?;
        let shape = Shape { grid: [classes, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        let (name, stride) = match labels.dtype() {
            DType::F32 => ("target_counts", counts.elements().max(1)),
            _ => ("label_counts", self.stride()),
        };
        let samples = labels.elements() / stride;
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(samples), int(stride)?];
        let source = Source::new("label_counts", DType::F32, 1);
        let launch = builder.launch(&source, name, shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
