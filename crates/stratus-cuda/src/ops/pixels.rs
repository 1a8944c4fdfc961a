//! Normalisation of images `[N, H, W, C]` from bytes: `y = a[c] · x + b[c]`.

use super::concat::channels_last;
use super::convert::{check_types, common_element_count};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::DType;
use stratus_engine::ops::NormalisePixels;

impl GpuOp for NormalisePixels {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (images, y) = (&operands[0], &operands[1]);
        check_types([y])?;
        let ([_, channels, ..], count) = (channels_last(images)?, common_element_count([images, y])?);
        let vector = vector(&[DType::U8, y.dtype()], &[count]);
        let source = Source::new("pixels", y.dtype(), vector).with("CHANNELS", channels);
        let lines = self.scale_shift.iter().flatten().map(|&number| Argument::Float(number));
        let arguments = [Argument::Operand(0), Argument::Operand(1), long(count)].into_iter().chain(lines);
        let launch = builder.grid_stride(&source, "normalise_pixels", count / vector, arguments.collect())?;
        Ok(Implementation::native("normalise_pixels", vec![launch], 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::convert::tests::{address, operand, run};
    use stratus_engine::backend::Tile;
    use stratus_engine::{AlignedBytes, Layout};

    /// In f32, where a fused multiply-add would change the last bit.
    #[test]
    fn normalised_pixels_are_bitwise_equal_to_those_of_the_loader() {
        let kernel =
            NormalisePixels { scale_shift: [[0.0171, -2.118], [0.0123, -1.9], [0.02, 0.3], [0.004, -0.1]] };
        for channels in 1..=4 {
            for pixels in [256, 512, 1280, 257, 1, 6, 4 * 4 * 256 + 3] {
                let shape = [1, channels, 1, pixels];
                let count = channels * pixels;
                let mut images = AlignedBytes::zeroed(count, "images").unwrap();
                let mut y = AlignedBytes::zeroed(4 * count, "numbers").unwrap();
                for (at, pixel) in images.as_mut_slice().iter_mut().enumerate() {
                    *pixel = (at / channels % 256) as u8;
                }
                let channels_last = |dtype| operand(dtype, &shape, Layout::channels_last(&shape));
                let operands = [channels_last(DType::U8), channels_last(DType::F32)];
                let addresses = [address(images.as_mut_slice()), address(y.as_mut_slice())];
                run(&kernel, &operands, [1, 0, 1], &addresses, Tile::WHOLE);
                for (at, &pixel) in images.as_slice().iter().enumerate() {
                    let expected = f64::from(kernel.normalise(at % channels, pixel));
                    assert_eq!(DType::F32.load(y.as_slice(), at), expected, "{shape:?} {at}");
                }
            }
        }
    }

    #[test]
    fn refuses_images_in_planes() {
        let kernel = NormalisePixels { scale_shift: [[1.0, 0.0]; 4] };
        let shape = [2, 3, 4, 4];
        let refused = |layouts: [Layout; 2]| {
            let [images, y] = layouts;
            let operands = [operand(DType::U8, &shape, images), operand(DType::F32, &shape, y)];
            let processor: std::sync::Arc<dyn crate::processor::Processor> =
                std::sync::Arc::new(crate::emulation::Emulation::with(4, false).unwrap());
            let builder = KernelBuilder::without_libraries(&processor);
            kernel.build(&operands, [1, 0, 1], &builder).err()
        };
        let (plain, last) = (|| Layout::plain(&shape), || Layout::channels_last(&shape));
        assert_eq!(refused([last(), last()]), None);
        assert_eq!(refused([plain(), plain()]).as_deref(), Some("`operand` is not channels last"));
        assert_eq!(
            refused([last(), plain()]).as_deref(),
            Some("`operand` and `operand` have different layouts")
        );
    }
}
