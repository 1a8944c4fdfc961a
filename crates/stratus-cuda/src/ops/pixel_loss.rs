//! The per-pixel loss in three launches: class weights of the labels, pixels, sums.

use super::convert::check_types;
use super::loss_scale::scaled;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Shape, Source, type_name};
use stratus_engine::Layout;
use stratus_engine::ops::PixelCrossEntropy;

/// The threads of a block.
const THREADS: u32 = 256;

/// Blocks per multiprocessor, each with a partial sum.
const BLOCKS_PER_SM: usize = 4;

/// The bytes of a partial sum in the scratch: weight and loss (f64), counted pixels and hits (int).
const PARTIAL_SUM_BYTES: [usize; 4] = [8, 8, 4, 4];

impl GpuOp for PixelCrossEntropy {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [at_weights, at_scale, at_counts, at_metrics, at_predictions, at_gradient] = self.positions();
        let (logits, gradient) = (&operands[0], operands.get(at_gradient));
        check_types([logits].into_iter().chain(gradient))?;
        let [batch, channels, height, width] = logits.image()?;
        let classes = self.classes(channels);
        let last =
            |operand: &Operand| operand.layout.same_bytes(&Layout::channels_last(&operand.value.shape));
        if ![Some(logits), gradient].into_iter().flatten().all(last) {
            return Err("logits and their gradient must be channels last".to_owned());
        }
        let pixels = batch * height * width;
        let max_parts = BLOCKS_PER_SM * builder.processor.multiprocessors() as usize;
        let parts = pixels.div_ceil(THREADS as usize).clamp(1, max_parts);
        let source = Source::new("pixel_loss", logits.dtype(), 1)
            .with("T_OUT", type_name(gradient.unwrap_or(logits).dtype()))
            .with("BINARY", usize::from(self.binary));
        let (source, scale) = scaled(source, operands, at_scale, self.loss_scaled)?;
        // Weights and losses, which are doubles, are first.
        let mut end = 0;
        let [weights, losses, counts, hits] = PARTIAL_SUM_BYTES.map(|bytes| {
            end += parts * bytes;
            Argument::Scratch(end - parts * bytes)
        });
        let scratch = end;
        let operand = |is_present: bool, position| match is_present {
            true => Argument::Operand(position),
            false => Argument::Null,
        };
        let class_weights = operand(self.class_weighted, at_weights);
        let label_counts = operand(self.partial, at_counts);
        let auxiliary = Argument::Double(f64::from(self.factor()));
        let grid =
            |blocks: usize, threads| Shape { grid: [blocks as u32, 1, 1], block: [threads, 1, 1], shared: 0 };

        let arguments =
            vec![Argument::Operand(1), class_weights, weights, counts, long(pixels), int(classes)?];
        let weigh = builder.launch(&source, "pixel_weights", grid(parts, THREADS), arguments)?;
        let arguments = vec![
            Argument::Operand(0),
            Argument::Operand(1),
            class_weights,
            weights,
            losses,
            hits,
            operand(self.predicts, at_predictions),
            operand(gradient.is_some(), at_gradient),
            long(pixels),
            int(classes)?,
            Argument::Double(f64::from(self.smoothing)),
            auxiliary,
            label_counts,
            scale,
        ];
        let rows = builder.launch(&source, "pixel_rows", grid(parts, THREADS), arguments)?;
        let arguments = vec![
            weights,
            losses,
            counts,
            hits,
            Argument::Operand(at_metrics),
            int(parts)?,
            auxiliary,
            label_counts,
            class_weights,
            int(classes)?,
            Argument::Int(i32::from(self.auxiliary.is_some())),
            Argument::IsFirstOfAll,
        ];
        let sums = builder.launch(&source, "pixel_sums", grid(1, 32), arguments)?;
        Ok(Implementation::native("pixel_cross_entropy", vec![weigh, rows, sums], scratch))
    }
}
