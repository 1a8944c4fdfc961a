//! One dimension of a convolution: the inputs of each output's taps. The data gradient is described the same
//! way, with input and output exchanged.
//!
//! ```text
//! output pixel p reads, through tap t,   input p * input_step + offset(t)      (none if outside)
//! its result is written to               output_start + p * output_stride
//! ```
//!
//! The forward pass is one such axis. A data gradient of stride s has s of them, one per residue of `dx`
//! modulo s, with the taps that hit the residue.

use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The outputs along one dimension and the inputs that they read.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The number of outputs.
    pub count: usize,
    /// The position at which the first one is written.
    pub output_start: usize,
    /// The distance between written positions.
    pub output_stride: usize,
    /// The number of inputs.
    pub inputs: usize,
    /// The distance between the inputs of neighbouring outputs.
    pub input_step: usize,
    /// The number and input offset of each tap, in ascending order of offsets.
    pub taps: Vec<(usize, isize)>,
}

impl Axis {
    /// The outputs of a convolution along dimension `axis`, and the inputs of their windows.
    pub fn forward(conv: &Conv2d, axis: usize, [inputs, count]: [usize; 2]) -> Self {
        let offset =
            |tap: usize| (tap * conv.dilation[axis]).cast_signed() - conv.padding_before[axis].cast_signed();
        let taps = (0..conv.kernel[axis]).map(|tap| (tap, offset(tap))).collect();
        Self { count, output_start: 0, output_stride: 1, inputs, input_step: conv.stride[axis], taps }
    }

    /// The input pixels `first`, `first + stride`, …, and the outputs whose windows contain them.
    pub fn backward(conv: &Conv2d, axis: usize, [inputs, outputs]: [usize; 2], first: usize) -> Self {
        let stride = conv.stride[axis].cast_signed();
        let offset_of = |tap: usize| {
            let distance =
                (first + conv.padding_before[axis]).cast_signed() - (tap * conv.dilation[axis]).cast_signed();
            (distance % stride == 0).then_some((tap, distance / stride))
        };
        let taps = (0..conv.kernel[axis]).rev().filter_map(offset_of).collect();
        let output_stride = conv.stride[axis];
        Self {
            count: inputs.saturating_sub(first).div_ceil(output_stride),
            output_start: first,
            output_stride,
            inputs: outputs,
            input_step: 1,
            taps,
        }
    }

    /// The offset of the first tap.
    pub fn origin(&self) -> isize {
        self.taps.first().map_or(0, |&(_, offset)| offset)
    }

    /// A tap's offset from the first tap's, modulo `input_step` (its class) and divided by it (its shift):
    /// taps of one class read the same rows, `shift` further on.
    pub fn class_and_shift(&self, tap: usize) -> (usize, usize) {
        let distance = (self.taps[tap].1 - self.origin()).cast_unsigned();
        (distance % self.input_step, distance / self.input_step)
    }

    /// The classes that occur, with the largest shift of each.
    pub fn classes(&self) -> impl Iterator<Item = (usize, usize)> {
        let reach = |class| {
            let positions = (0..self.taps.len()).map(|tap| self.class_and_shift(tap));
            positions.filter(|position| position.0 == class).map(|position| position.1).max()
        };
        (0..self.input_step).filter_map(move |class| Some((class, reach(class)?)))
    }

    /// The input of a pixel at an offset; `None` for padding.
    pub fn input_at(&self, pixel: usize, from: isize) -> Option<usize> {
        let at = usize::try_from((pixel * self.input_step).cast_signed() + from).ok()?;
        (at < self.inputs).then_some(at)
    }

    /// The taps through which a pixel reads no padding.
    pub fn taps_inside(&self, pixel: usize) -> Range<usize> {
        let inside = |tap: &usize| self.input_at(pixel, self.taps[*tap].1).is_some();
        let first = (0..self.taps.len()).find(inside);
        let last = (0..self.taps.len()).rev().find(inside);
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }

    /// The pixels that read no padding through a tap.
    pub fn pixels_inside(&self, tap: usize) -> Range<usize> {
        let offset = self.taps[tap].1;
        let before =
            |end: usize| end.saturating_add_signed(-offset).div_ceil(self.input_step).min(self.count);
        before(0)..before(self.inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_and_taps_inside_agree() {
        let conv = |kernel, stride, padding, dilation| Conv2d {
            dilation: [dilation; 2],
            ..Conv2d::new(1, 1, kernel, stride, padding)
        };
        for conv in [
            conv(3, 1, 1, 1),
            conv(3, 2, 1, 1),
            conv(7, 2, 3, 1),
            conv(1, 2, 0, 1),
            conv(3, 1, 2, 2),
            conv(2, 3, 0, 1),
        ] {
            for inputs in [7, 8, 9] {
                let Ok([outputs, _]) = conv.output_size([inputs; 2]) else { panic!("{conv:?}") };
                let backward =
                    (0..conv.stride[0]).map(|first| Axis::backward(&conv, 0, [inputs, outputs], first));
                let axes: Vec<Axis> =
                    std::iter::once(Axis::forward(&conv, 0, [inputs, outputs])).chain(backward).collect();
                assert_eq!(axes[1..].iter().map(|axis| axis.count).sum::<usize>(), inputs);
                for axis in axes {
                    for pixel in 0..axis.count {
                        let offset = |tap: &usize| axis.input_at(pixel, axis.taps[*tap].1).is_some();
                        let taps: Vec<usize> = (0..axis.taps.len()).filter(offset).collect();
                        assert_eq!(axis.taps_inside(pixel).collect::<Vec<_>>(), taps, "{axis:?}");
                        let pixels = |tap: &usize| axis.pixels_inside(*tap).contains(&pixel);
                        assert_eq!((0..axis.taps.len()).filter(pixels).collect::<Vec<_>>(), taps, "{axis:?}");
                    }
                    for tap in 0..axis.taps.len() {
                        let (class, shift) = axis.class_and_shift(tap);
                        assert_eq!(
                            axis.origin() + (class + shift * axis.input_step).cast_signed(),
                            axis.taps[tap].1
                        );
                        assert!(axis.classes().any(|(other, reach)| other == class && shift <= reach));
                    }
                }
            }
        }
    }
}
