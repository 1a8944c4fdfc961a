//! The loss by the outputs of a teacher in three launches: labels, outputs, sums.

use super::convert::check_types;
use super::loss_scale::scaled;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Shape, Source, type_name};
use stratus_engine::ops::{BINARY_CLASSES, DistillationFunction, DistillationLoss, KernelSpec};
use stratus_engine::{DType, Layout};

/// The threads of a block.
const THREADS: u32 = 128;

/// Blocks per multiprocessor, each with a partial sum.
const BLOCKS_PER_SM: usize = 4;

/// The bytes of a partial loss (f64) in the scratch.
const LOSS_BYTES: usize = 8;
/// The bytes of a count of labels (int) in the scratch.
const COUNT_BYTES: usize = 4;

/// The kernels of outputs that are compared one by one.
const OUTPUT_KERNELS: [&str; 3] = ["output_counts", "output_terms", "output_sums"];

impl GpuOp for DistillationLoss {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [at_scale, at_counts, at_metrics, at_gradient] = self.positions();
        let maps = [&operands[0], &operands[1], &operands[at_gradient]];
        check_types(maps)?;
        let is_last = |map: &&Operand| map.layout.same_bytes(&Layout::channels_last(&map.value.shape));
        if !maps.iter().all(is_last) {
            return Err("logits and their gradient must be channels last".to_owned());
        }
        let [batch, channels, height, width] = operands[0].image()?;
        let pixels = batch * height * width;
        let source = |file| {
            Source::new(file, operands[0].dtype(), 1).with("T_OUT", type_name(operands[at_gradient].dtype()))
        };
        let by_output = |are_logits: bool| {
            source("output_distillation")
                .with("LABEL", type_name(operands[2].dtype()))
                .with("LOGITS", usize::from(are_logits))
        };
        // The number of rows, the length of label counts, and the kernels.
        let targets = if operands[2].dtype() == DType::F32 { channels } else { BINARY_CLASSES };
        let (rows, classes, source, [counts_name, rows_name, sums_name]) = match self.function {
            DistillationFunction::Softmax => {
                let source = source("distillation").with("STRIDE", self.label_stride());
                (pixels, channels, source, ["distillation_counts", "distillation_rows", "distillation_sums"])
            }
            DistillationFunction::Sigmoid => (pixels * channels, targets, by_output(true), OUTPUT_KERNELS),
            DistillationFunction::SquaredError => {
                (pixels * channels, targets, by_output(false), OUTPUT_KERNELS)
            }
        };
        let max_parts = BLOCKS_PER_SM * builder.processor.multiprocessors() as usize;
        let parts = rows.div_ceil(THREADS as usize).clamp(1, max_parts);
        let (source, scale) = scaled(source, operands, at_scale, self.loss_scaled)?;
        // The losses, which are doubles, are first.
        let (losses, counts) = (Argument::Scratch(0), Argument::Scratch(parts * LOSS_BYTES));
        let scratch = parts * (LOSS_BYTES + COUNT_BYTES);
        let label_counts = if self.partial { Argument::Operand(at_counts) } else { Argument::Null };
        let [weight, temperature] =
            [self.weight, self.temperature].map(|number| Argument::Double(f64::from(number)));
        let grid =
            |blocks: usize, threads| Shape { grid: [blocks as u32, 1, 1], block: [threads, 1, 1], shared: 0 };

        let arguments = vec![Argument::Operand(2), counts, long(rows)];
        let count = builder.launch(&source, counts_name, grid(parts, THREADS), arguments)?;
        let arguments = vec![
            Argument::Operand(0),
            Argument::Operand(1),
            Argument::Operand(2),
            counts,
            losses,
            Argument::Operand(at_gradient),
            long(rows),
            int(classes)?,
            weight,
            temperature,
            label_counts,
            scale,
        ];
        let loss = builder.launch(&source, rows_name, grid(parts, THREADS), arguments)?;
        let arguments = vec![
            counts,
            losses,
            Argument::Operand(at_metrics),
            int(parts)?,
            int(classes)?,
            weight,
            temperature,
            label_counts,
        ];
        let sums = builder.launch(&source, sums_name, grid(1, 32), arguments)?;
        Ok(Implementation::native(self.name(), vec![count, loss, sums], scratch))
    }
}
