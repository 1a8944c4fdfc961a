//! Max-pooling, and helpers shared with average pooling.

use super::concat::channels_last;
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{MaxPoolBackward, MaxPoolForward};
use stratus_graph::ops::MaxPool2d;

/// Pooling windows: `[vertical, horizontal]`.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
}

/// The sizes of a pooling: `[height, width]` of its input and of its output.
pub(super) struct Sizes {
    pub batch: usize,
    pub channels: usize,
    pub image: [usize; 2],
    pub pooled: [usize; 2],
    /// Channels per thread.
    pub vector: usize,
}

impl Sizes {
    /// The sizes of a map and its pooled map, both channels last.
    pub fn new(x: &Operand, y: &Operand) -> Result<Self, String> {
        check_types([x, y])?;
        if x.dtype() != y.dtype() {
            return Err(format!("cannot convert {} to {}", x.dtype(), y.dtype()));
        }
        let ([batch, channels, h, w], [_, _, height, width]) = (channels_last(x)?, channels_last(y)?);
        // Kernels index within a sample by `int`.
        int((h * w).max(height * width) * channels)?;
        let vector = vector(&[x.dtype()], &[channels]);
        Ok(Self { batch, channels, image: [h, w], pooled: [height, width], vector })
    }

    /// The vectors of channels.
    pub fn groups(&self) -> usize {
        self.channels / self.vector
    }

    /// The work items of a result of `[height, width]`, a vector each, and the source for that count.
    pub fn items(
        &self,
        [height, width]: [usize; 2],
        x: &Operand,
        windows: Windows,
        averages: Option<[bool; 2]>,
    ) -> (usize, Source) {
        let items = self.batch * height * width * self.groups();
        // Grid-stride loops count beyond the items, which must not overflow.
        let index = if items < 1 << 31 { "u32" } else { "u64" };
        let [bins, counts_padding] = averages.unwrap_or_default().map(u8::from);
        let mut source = Source::new("pool", x.dtype(), self.vector)
            .with("INDEX", index)
            .with("BINS", bins)
            .with("COUNT_PADDING", counts_padding);
        for (names, values) in
            [(["KH", "KW"], windows.kernel), (["SH", "SW"], windows.stride), (["PH", "PW"], windows.padding)]
        {
            source = source.with(names[0], values[0]).with(names[1], values[1]);
        }
        (items, source)
    }

    /// The parameters after the addresses.
    pub fn arguments(&self, items: usize) -> Result<Vec<Argument>, String> {
        let mut arguments = vec![long(items), int(self.groups())?];
        for extent in self.image.iter().chain(&self.pooled) {
            arguments.push(int(*extent)?);
        }
        Ok(arguments)
    }
}

fn windows(pool: &MaxPool2d) -> Windows {
    Windows { kernel: pool.kernel, stride: pool.stride, padding: pool.padding }
}

impl GpuOp for MaxPoolForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (x, y, index) = (&operands[0], &operands[1], operands.get(2));
        let sizes = Sizes::new(x, y)?;
        index.map(channels_last).transpose()?;
        let (items, source) = sizes.items(sizes.pooled, x, windows(&self.pool), None);
        let source = source.with("MASK_RELU", u8::from(self.mask_relu));
        let index = index.map_or(Argument::Null, |_| Argument::Operand(2));
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1), index];
        arguments.extend(sizes.arguments(items)?);
        Ok(Implementation::native(
            "max_pool",
            vec![builder.grid_stride(&source, "max_pool_forward", items, arguments)?],
            0,
        ))
    }
}

impl GpuOp for MaxPoolBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (dy, dx) = (&operands[0], &operands[2]);
        let sizes = Sizes::new(dx, dy)?;
        channels_last(&operands[1])?;
        let (items, source) = sizes.items(sizes.image, dx, windows(&self.pool), None);
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        arguments.extend(sizes.arguments(items)?);
        let launch = builder.grid_stride(&source, "max_pool_backward", items, arguments)?;
        Ok(Implementation::native("max_pool_backward", vec![launch], 0))
    }
}
