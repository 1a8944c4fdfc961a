//! The loss of several targets per sample in three launches: the targets of each sample; their losses and the
//! gradient of the outputs; the sums over all samples.

use super::convert::check_types;
use super::loss_scale::{expect_f32, scaled};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int};
use crate::processor::{Argument, Implementation, Shape, Source, type_name};
use stratus_engine::ops::{TargetFunction, TargetLoss};

/// The bytes of a sample in the scratch: loss and score (f64), and its number of targets (int).
const SAMPLE_BYTES: [usize; 3] = [8, 8, 4];

/// The maximum threads of a block, and those of the single block that sums over all samples.
const MAX_THREADS: u32 = 512;

/// `count` blocks of `threads` threads.
fn blocks(count: u32, threads: u32) -> Shape {
    Shape { grid: [count, 1, 1], block: [threads, 1, 1], shared: 0 }
}

impl GpuOp for TargetLoss {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [at_weights, at_scale, at_counts, at_metrics, at_gradient] = self.positions();
        let (outputs, gradient) = (&operands[0], operands.get(at_gradient));
        check_types([outputs].into_iter().chain(gradient))?;
        if self.class_weighted {
            expect_f32(&operands[at_weights])?;
        }
        let in_rows = [0, 1, at_weights, at_gradient];
        if in_rows.iter().filter_map(|&i| operands.get(i)).any(|operand| !operand.layout.is_row_major()) {
            return Err("outputs, targets, weights and gradients must be row-major".to_owned());
        }
        let [batch, columns, ..] = outputs.image()?;
        let samples = u32::try_from(batch).map_err(|error| error.to_string())?;
        let function = match self.function {
            TargetFunction::BinaryCrossEntropy => "LABELS",
            TargetFunction::SquaredError => "SQUARED",
            TargetFunction::Huber => "HUBER",
        };
        let source = Source::new("target_loss", outputs.dtype(), 1)
            .with("T_OUT", type_name(gradient.unwrap_or(outputs).dtype()))
            .with("FUNCTION", function)
            .with("WEIGHTED", usize::from(self.class_weighted));
        let (source, scale) = scaled(source, operands, at_scale, self.loss_scaled)?;
        let mut end = 0;
        let [losses, scores, counts] = SAMPLE_BYTES.map(|bytes| {
            end += batch * bytes;
            Argument::Scratch(end - batch * bytes)
        });
        let scratch = end;
        let operand = |is_present: bool, position| match is_present {
            true => Argument::Operand(position),
            false => Argument::Null,
        };
        let label_counts = operand(self.partial, at_counts);
        let factor = Argument::Double(f64::from(self.factor()));
        // About four targets per thread.
        let threads = columns.div_ceil(4).next_power_of_two().clamp(32, MAX_THREADS as usize) as u32;

        let arguments = vec![Argument::Operand(1), counts, int(columns)?];
        let count = builder.launch(&source, "present_targets", blocks(samples, threads), arguments)?;
        let arguments = vec![
            Argument::Operand(0),
            Argument::Operand(1),
            operand(self.class_weighted, at_weights),
            counts,
            losses,
            scores,
            operand(gradient.is_some(), at_gradient),
            int(batch)?,
            int(columns)?,
            Argument::Double(f64::from(self.smoothing)),
            factor,
            label_counts,
            scale,
        ];
        let rows = builder.launch(&source, "target_rows", blocks(samples, threads), arguments)?;
        let arguments = vec![
            counts,
            losses,
            scores,
            Argument::Operand(at_metrics),
            int(batch)?,
            int(columns)?,
            factor,
            label_counts,
            Argument::Int(i32::from(self.auxiliary.is_some())),
            Argument::IsFirstOfAll,
        ];
        let sums = builder.launch(&source, "target_sums", blocks(1, MAX_THREADS), arguments)?;
        Ok(Implementation::native(self.function.name(), vec![count, rows, sums], scratch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::tests::{address, operand, run};
    use stratus_engine::backend::Tile;
    use stratus_engine::{DType, Layout};

    #[test]
    fn a_partial_loss_is_summed_and_a_label_out_of_range_makes_it_nan() {
        let row_major = |dtype, shape: &[usize]| operand(dtype, shape, Layout::plain(shape));
        let outputs = row_major(DType::F32, &[3, 70]);
        let operands = [outputs.clone(), outputs.clone(), row_major(DType::F64, &[4]), outputs];
        let mut numbers: Vec<f32> = (0..210).map(|i| (i * 37 % 101) as f32 / 25.0 - 2.0).collect();
        // The second sample has no targets, and every third target of the others is missing.
        let mut targets: Vec<f32> =
            (0..210).map(|i| if i / 70 == 1 || i % 3 == 0 { f32::NAN } else { (i % 2) as f32 }).collect();
        let (mut metrics, mut gradient) = ([f64::NAN; 4], [f32::NAN; 210]);
        let addresses =
            [address(&mut numbers), address(&mut targets), address(&mut metrics), address(&mut gradient)];
        let loss = TargetLoss::default();
        run(&loss, &operands, [2, 0, 2], &addresses, Tile::WHOLE);
        let (whole_metrics, whole_gradient) = (metrics, gradient);
        let present = targets.iter().filter(|target| !target.is_nan()).count() as f64;
        assert_eq!([whole_metrics[1], whole_metrics[3]], [present, 2.0]);
        assert!(
            whole_gradient.iter().zip(&targets).all(|(slope, target)| (*slope == 0.0) == target.is_nan())
        );
        // The whole batch has twice the targets of this part.
        let mut label_counts = [0.0; 70];
        label_counts[7] = 2.0 * present;
        let partial = TargetLoss { partial: true, ..loss };
        let part_operands = [&operands[..2], &[row_major(DType::F64, &[70])], &operands[2..]].concat();
        let addresses_of_part =
            [addresses[0], addresses[1], address(&mut label_counts), addresses[2], addresses[3]];
        for micro_batch in 0..2 {
            let tile = Tile { micro_batch, micro_batches: 2, ..Tile::WHOLE };
            run(&partial, &part_operands, [3, 0, 2], &addresses_of_part, tile);
        }
        let [mean, counted, score, samples] = whole_metrics;
        assert_eq!(metrics, [mean, 2.0 * counted, 2.0 * score, 2.0 * samples]);
        assert_eq!(gradient, whole_gradient.map(|slope| slope / 2.0));
        targets[200] = 1.25;
        run(&loss, &operands, [2, 0, 2], &addresses, Tile::WHOLE);
        assert!(metrics[0].is_nan() && gradient[200].is_nan());
        assert!(gradient[70..140].iter().all(|&slope| slope == 0.0));
        // Numbers may have any size.
        run(
            &TargetLoss { function: TargetFunction::Huber, ..loss },
            &operands,
            [2, 0, 2],
            &addresses,
            Tile::WHOLE,
        );
        assert!(metrics[0].is_finite() && gradient[200].is_finite());
    }
}
