//! Average-pooling, over windows and to a given size.

use super::max_pool2d::{Sizes, Windows};
use super::{Maker, OnGpu, Operand, int};
use crate::processor::{Argument, Made, Shape};
use stratus_engine::ops::{Averages, AvgPoolBackward, AvgPoolForward};

/// Vectors of channels that a block averages over whole maps, and its threads for each.
const WHOLE: [u32; 2] = [32, 8];

/// The windows, and whether there are bins in their place and whether padding counts.
fn windows(averages: &Averages) -> (Windows, Option<[bool; 2]>) {
    match averages {
        Averages::Windows(pool) => (
            Windows { kernel: pool.kernel, stride: pool.stride, padding: pool.padding },
            Some([false, pool.count_include_pad]),
        ),
        // Bins follow from the sizes alone.
        Averages::Bins(_) => {
            (Windows { kernel: [1; 2], stride: [1; 2], padding: [0; 2] }, Some([true, false]))
        }
    }
}

/// By how much the sum over a map is divided, where one output averages all of it.
fn whole(averages: &Averages, sizes: &Sizes) -> Option<usize> {
    let [vertical, horizontal] = [0, 1].map(|axis| averages.stretch(axis, 0, sizes.image[axis]));
    let is_whole = sizes.pooled == [1, 1]
        && vertical.pixels == (0..sizes.image[0])
        && horizontal.pixels == (0..sizes.image[1]);
    is_whole.then_some(vertical.count * horizontal.count)
}

impl OnGpu for AvgPoolForward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (x, y) = (&operands[0], &operands[1]);
        let sizes = Sizes::of(x, y)?;
        let (windows, kind) = windows(&self.averages);
        let (items, source) = sizes.items(sizes.pooled, x, windows, kind);
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1)];
        let pixels = sizes.image.iter().product();
        let launch = if let Some(divisor) = whole(&self.averages, &sizes).filter(|_| pixels > 1) {
            let chunks = sizes.groups().div_ceil(WHOLE[0] as usize);
            let share = Argument::Float((1.0 / divisor as f64) as f32);
            arguments.extend([int(sizes.groups())?, int(chunks)?, int(pixels)?, share]);
            let grid = u32::try_from(sizes.batch * chunks).map_err(|error| error.to_string())?;
            let shape = Shape { grid: [grid, 1, 1], block: [WHOLE[0], WHOLE[1], 1], shared: 0 };
            maker.launch(&source, "avg_pool_whole", shape, arguments)?
        } else {
            arguments.extend(sizes.arguments(items)?);
            maker.spread(&source, "avg_pool_forward", items, arguments)?
        };
        Ok(Made::of("avg_pool", vec![launch], 0))
    }
}

impl OnGpu for AvgPoolBackward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (dy, dx) = (&operands[0], &operands[1]);
        let sizes = Sizes::of(dx, dy)?;
        let (windows, kind) = windows(&self.averages);
        let (items, source) = sizes.items(sizes.image, dx, windows, kind);
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1)];
        arguments.extend(sizes.arguments(items)?);
        let launch = maker.spread(&source, "avg_pool_backward", items, arguments)?;
        Ok(Made::of("avg_pool_backward", vec![launch], 0))
    }
}
