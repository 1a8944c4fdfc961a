//! Dropout. Masks equal those of the other backends, element by element.

use super::concat::channels_last;
use super::convert::{check_types, common_element_count};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Source, type_name};
use stratus_engine::ops::{Dropout, ITERATION_SCALAR_FIELDS};

/// Elements per Philox block: one random word each.
const BLOCK: usize = 4;

impl GpuOp for Dropout {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (x, y) = (&operands[0], &operands[2]);
        check_types([x, y])?;
        let count = common_element_count([x, y])?;
        let threshold = self.mask(&[0.0; ITERATION_SCALAR_FIELDS.len()]).threshold;
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        let layer = [
            // Tiles have equal sizes: elements before this tile = tiles before it · count.
            Argument::BatchOffset(i64::try_from(count).map_err(|error| error.to_string())?),
            Argument::Long(i64::from(self.layer)),
            Argument::Long(i64::from(threshold)),
            Argument::Float(self.scale() as f32),
        ];
        let types = [x.dtype(), y.dtype()];
        let source =
            |vector: usize| Source::new("dropout", x.dtype(), vector).with("T_OUT", type_name(y.dtype()));
        let launch = if x.layout.is_row_major() {
            let vector = vector(&types, &[count]);
            arguments.push(long(count));
            arguments.extend(layer);
            builder.grid_stride(
                &source(vector),
                "dropout_flat",
                count.div_ceil(vector.max(BLOCK)),
                arguments,
            )?
        } else {
            let [n, c, h, w] = channels_last(x)?;
            let pixels = h * w;
            // Several channels at once only if no block of random words spans two channels.
            let vector = if pixels.is_multiple_of(BLOCK) { vector(&types, &[c]) } else { 1 };
            let fours = if vector > 1 { pixels / BLOCK } else { (pixels + BLOCK - 1).div_ceil(BLOCK) };
            let items = n * fours * (c / vector);
            arguments.push(int(items)?);
            arguments.extend(layer);
            arguments.extend([int(c / vector)?, int(fours)?, int(pixels)?]);
            builder.grid_stride(&source(vector), "dropout_maps", items, arguments)?
        };
        Ok(Implementation::native("dropout", vec![launch], 0))
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
        let dropout = Dropout { p: 0.4, layer: 7 };
        let mut scalars = [0.1, 5.0, 6.0, 7.0];
        let mask = dropout.mask(&scalars);
        for shape in [&[1, 5, 3, 3][..], &[2, 8, 2, 2], &[3, 1, 5, 1], &[1, 10], &[2, 16], &[1, 3, 1, 2]] {
            let layout = Layout::channels_last(shape);
            let count: usize = shape.iter().product();
            let like = || operand(DType::F32, shape, layout.clone());
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
                layout.for_each(shape, |offset, plain| {
                    assert_eq!(
                        y[offset] != 0.0,
                        mask.keeps((index * count + plain) as u64),
                        "{shape:?} {index}"
                    );
                });
            }
        }
    }
}
