//! Softmax and cross-entropy in three launches: the divisor of the loss; the rows of logits; the sums of
//! their losses and ranks.

use super::convert::check_types;
use super::loss_scale::scaled;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int};
use crate::processor::{Argument, Implementation, Shape, Source, type_name};
use stratus_engine::ops::{MIXED_LABEL_LEN, SoftmaxCrossEntropy};

/// The size of the loss's divisor (f64) in the scratch.
const DIVISOR_BYTES: usize = 8;
/// The size of a sample's loss (f64) in the scratch.
const LOSS_BYTES: usize = 8;
/// The size of a sample's rank (int) in the scratch.
const RANK_BYTES: usize = 4;

/// The threads of the single block that sums over all samples.
const SUM_THREADS: u32 = 512;

/// `count` blocks of `threads` threads.
fn blocks(count: u32, threads: u32) -> Shape {
    Shape { grid: [count, 1, 1], block: [threads, 1, 1], shared: 0 }
}

impl GpuOp for SoftmaxCrossEntropy {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [at_weights, at_scale, at_counts, metrics, gradient_position] = self.positions();
        let (logits, gradient) = (&operands[0], operands.get(gradient_position));
        check_types([logits].into_iter().chain(gradient))?;
        let [batch, classes, ..] = logits.image()?;
        let in_rows = [0, 1, gradient_position];
        if in_rows.iter().filter_map(|&i| operands.get(i)).any(|operand| !operand.layout.is_row_major()) {
            return Err("logits, labels and gradients must be row-major".to_owned());
        }
        let samples = u32::try_from(batch).map_err(|error| error.to_string())?;
        let ranks = DIVISOR_BYTES + batch * LOSS_BYTES;
        let [divisor, losses, ranks, scratch] = [0, DIVISOR_BYTES, ranks, ranks + batch * RANK_BYTES];
        let source = Source::new("loss", logits.dtype(), 1)
            .with("T_OUT", type_name(gradient.unwrap_or(logits).dtype()))
            .with("LABELS", if self.mixed_labels { MIXED_LABEL_LEN } else { 1 })
            .with("WEIGHTED", usize::from(self.class_weighted));
        let (source, scale) = scaled(source, operands, at_scale, self.loss_scaled)?;
        let class_weights = if self.class_weighted { Argument::Operand(at_weights) } else { Argument::Null };
        let label_counts = if self.partial { Argument::Operand(at_counts) } else { Argument::Null };
        let weight = Argument::Double(f64::from(self.factor()));
        let flag = |is: bool| Argument::Int(i32::from(is));

        let arguments = vec![
            Argument::Operand(1),
            class_weights,
            label_counts,
            Argument::Scratch(divisor),
            int(batch)?,
            int(classes)?,
        ];
        let weigh = builder.launch(&source, "add_label_weights", blocks(1, SUM_THREADS), arguments)?;
        let arguments = vec![
            Argument::Operand(0),
            Argument::Operand(1),
            class_weights,
            Argument::Scratch(divisor),
            Argument::Scratch(losses),
            Argument::Scratch(ranks),
            gradient.map_or(Argument::Null, |_| Argument::Operand(gradient_position)),
            int(classes)?,
            Argument::Double(f64::from(self.smoothing)),
            weight,
            scale,
        ];
        // About four classes per thread.
        let threads = classes.div_ceil(4).next_power_of_two().clamp(32, SUM_THREADS as usize);
        let rows =
            builder.launch(&source, "cross_entropy_rows", blocks(samples, threads as u32), arguments)?;
        let arguments = vec![
            Argument::Scratch(losses),
            Argument::Scratch(ranks),
            Argument::Scratch(divisor),
            Argument::Operand(metrics),
            int(batch)?,
            weight,
            flag(self.auxiliary.is_some()),
            Argument::IsFirstOfAll,
        ];
        let sums = builder.launch(&source, "cross_entropy_sums", blocks(1, SUM_THREADS), arguments)?;
        Ok(Implementation::native("softmax_cross_entropy", vec![weigh, rows, sums], scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::tests::{address, operand, run};
    use stratus_engine::backend::Tile;
    use stratus_engine::{DType, Layout};

    #[test]
    fn a_partial_loss_is_summed_and_an_out_of_range_label_makes_it_nan() {
        let row_major = |dtype, shape: &[usize]| operand(dtype, shape, Layout::plain(shape));
        let logits = row_major(DType::F32, &[3, 70]);
        let operands = [logits.clone(), row_major(DType::I32, &[3]), row_major(DType::F64, &[4]), logits];
        let mut numbers: Vec<f32> = (0..210).map(|i| (i * 37 % 101) as f32 / 50.0).collect();
        let (mut labels, mut metrics, mut gradient) = ([5, -1, 69], [f64::NAN; 4], [f32::NAN; 210]);
        let addresses =
            [address(&mut numbers), address(&mut labels), address(&mut metrics), address(&mut gradient)];
        let loss = SoftmaxCrossEntropy::default();
        run(&loss, &operands, [2, 0, 2], &addresses, Tile::WHOLE);
        let (whole_metrics, whole_gradient) = (metrics, gradient);
        assert_eq!(whole_metrics[1], 2.0);
        // The whole batch has twice the labels of this part.
        let mut label_counts = [0.0; 70];
        (label_counts[5], label_counts[69]) = (2.0, 2.0);
        let partial = SoftmaxCrossEntropy { partial: true, ..loss };
        let counts = row_major(DType::F64, &[70]);
        let part_operands = [&operands[..2], &[counts], &operands[2..]].concat();
        let addresses_of_part =
            [addresses[0], addresses[1], address(&mut label_counts), addresses[2], addresses[3]];
        for micro_batch in 0..2 {
            let tile = Tile { micro_batch, micro_batches: 2, ..Tile::WHOLE };
            run(&partial, &part_operands, [3, 0, 2], &addresses_of_part, tile);
        }
        assert_eq!(metrics, [whole_metrics[0], 4.0, 2.0 * whole_metrics[2], 2.0 * whole_metrics[3]]);
        assert_eq!(gradient, whole_gradient.map(|value| value / 2.0));
        let mut labels = [5, -1, 70];
        let addresses = [addresses[0], address(&mut labels), addresses[2], addresses[3]];
        run(&loss, &operands, [2, 0, 2], &addresses, Tile::WHOLE);
        assert!(metrics[0].is_nan() && gradient[140..].iter().all(|x| x.is_nan()));
        assert!(gradient[70..140].iter().all(|&x| x == 0.0));
    }
}
