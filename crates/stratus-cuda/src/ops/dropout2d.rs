//! Spatial dropout and stochastic depth. Masks equal those of the other backends, channel by channel.

use super::concat::channels_last;
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{Dropout2d, ITERATION_SCALAR_FIELDS};

/// Pixels that a thread multiplies by the factors it draws.
const PIXELS_PER_THREAD: usize = 16;

impl GpuOp for Dropout2d {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (x, y) = (&operands[0], &operands[2]);
        check_types([x, y])?;
        let [n, c, h, w] = channels_last(x)?;
        channels_last(y)?;
        let threshold = self.mask(&[0.0; ITERATION_SCALAR_FIELDS.len()]).threshold;
        let vector = vector(&[x.dtype(), y.dtype()], &[c]);
        let (groups, runs) = (c / vector, (h * w).div_ceil(PIXELS_PER_THREAD));
        let items = n * runs * groups;
        let before =
            i64::try_from(if self.whole_samples { n } else { n * c }).map_err(|error| error.to_string())?;
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        arguments.extend([
            long(items),
            // Tiles have equal sizes: channels before this tile = tiles before it · N · C, samples N.
            Argument::BatchOffset(before),
            Argument::Long(i64::from(self.layer)),
            Argument::Long(i64::from(threshold)),
            Argument::Float(self.scale() as f32),
            int(groups)?,
            int(runs)?,
            int(h * w)?,
        ]);
        let source = Source::new("dropout", x.dtype(), vector)
            .with("PIXELS", PIXELS_PER_THREAD)
            .with("WHOLE", u8::from(self.whole_samples));
        let launch = builder.grid_stride(&source, "dropout_channels", items, arguments)?;
        Ok(Implementation::native("dropout2d", vec![launch], 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::tests::{address, operand, run};
    use stratus_engine::backend::Tile;
    use stratus_engine::{DType, Layout};

    #[test]
    fn masks_are_indexed_over_the_whole_batch() {
        let shapes = [[2, 5, 3, 3], [2, 8, 5, 7], [3, 6, 5, 1], [1, 36, 1, 2]];
        for (shape, whole) in shapes.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let dropout = Dropout2d { p: 0.4, layer: 7, whole_samples: whole };
            let mut scalars = [0.1, 5.0, 6.0, 7.0];
            let mask = dropout.mask(&scalars);
            let layout = Layout::channels_last(&shape);
            let (count, pixels) = (shape.iter().product::<usize>(), shape[2] * shape[3]);
            let like = || operand(DType::F32, &shape, layout.clone());
            let operands = [like(), operand(DType::F64, &[4], Layout::plain(&[4])), like()];
            for index in 0..6 {
                let (mut x, mut y) = (vec![1.0f32; count], vec![f32::NAN; count]);
                let addresses = [address(&mut x), address(&mut scalars), address(&mut y)];
                let (micro_batch, position) = (index / 3, index % 3);
                let tile = Tile {
                    run_index: 0,
                    position,
                    count: 3,
                    micro_batch,
                    micro_batches: 2,
                    separate_sums: false,
                };
                run(&dropout, &operands, [2, 0, 1], &addresses, tile);
                layout.for_each(&shape, |offset, plain| {
                    let each = if whole { shape[1] * pixels } else { pixels };
                    let number = (index * count + plain) / each;
                    assert_eq!(y[offset] != 0.0, mask.keeps(number as u64), "{shape:?} {index}");
                });
            }
        }
    }
}
