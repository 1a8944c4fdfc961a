//! What a convolution's windows see along one dimension, of the input for its outputs, or of the outputs for its input.

use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// Pixels of a result along one dimension, and what they see.
#[derive(Clone, Debug)]
pub struct Axis {
    /// How many there are.
    pub count: usize,
    /// Where the first one is written.
    pub first: usize,
    /// How far from it the next one is written.
    pub apart: usize,
    /// Pixels that are read.
    pub inputs: usize,
    /// How far the next pixel sees from what this one does.
    pub step: usize,
    /// The number of each tap, and what it sees for the first pixel; ascending.
    pub taps: Vec<(usize, isize)>,
}

impl Axis {
    /// All outputs of a convolution along dimension `axis`, and the inputs in their windows.
    pub fn forward(conv: &Conv2d, axis: usize, [inputs, count]: [usize; 2]) -> Self {
        let sees =
            |tap: usize| (tap * conv.dilation[axis]).cast_signed() - conv.padding_before[axis].cast_signed();
        let taps = (0..conv.kernel[axis]).map(|tap| (tap, sees(tap))).collect();
        Self { count, first: 0, apart: 1, inputs, step: conv.stride[axis], taps }
    }

    /// The pixels of the input that leave remainder `first` by the stride, and the outputs whose windows they are in.
    pub fn backward(conv: &Conv2d, axis: usize, [inputs, outputs]: [usize; 2], first: usize) -> Self {
        let stride = conv.stride[axis].cast_signed();
        let seen_by = |tap: usize| {
            let distance =
                (first + conv.padding_before[axis]).cast_signed() - (tap * conv.dilation[axis]).cast_signed();
            (distance % stride == 0).then_some((tap, distance / stride))
        };
        let taps = (0..conv.kernel[axis]).rev().filter_map(seen_by).collect();
        let apart = conv.stride[axis];
        Self {
            count: inputs.saturating_sub(first).div_ceil(apart),
            first,
            apart,
            inputs: outputs,
            step: 1,
            taps,
        }
    }

    /// What the first tap sees for the first pixel.
    pub fn origin(&self) -> isize {
        self.taps.first().map_or(0, |&(_, sees)| sees)
    }

    /// The remainder of what a tap sees by the step, and how many steps it lies further on; both from what the first tap sees.
    pub fn place(&self, tap: usize) -> (usize, usize) {
        let distance = (self.taps[tap].1 - self.origin()).cast_unsigned();
        (distance % self.step, distance / self.step)
    }

    /// The remainders that taps leave, and how many steps the last tap of each lies further on.
    pub fn classes(&self) -> impl Iterator<Item = (usize, usize)> {
        let reach = |class| {
            let places = (0..self.taps.len()).map(|tap| self.place(tap));
            places.filter(|place| place.0 == class).map(|place| place.1).max()
        };
        (0..self.step).filter_map(move |class| Some((class, reach(class)?)))
    }

    /// What is seen of the input for a pixel; `None` where it is padding.
    pub fn inside(&self, pixel: usize, from: isize) -> Option<usize> {
        let at = usize::try_from((pixel * self.step).cast_signed() + from).ok()?;
        (at < self.inputs).then_some(at)
    }

    /// The taps that see a pixel and no padding.
    pub fn taps_inside(&self, pixel: usize) -> Range<usize> {
        let inside = |tap: &usize| self.inside(pixel, self.taps[*tap].1).is_some();
        let first = (0..self.taps.len()).find(inside);
        let last = (0..self.taps.len()).rev().find(inside);
        first.zip(last).map_or(0..0, |(first, last)| first..last + 1)
    }

    /// The pixels for which a tap sees no padding.
    pub fn pixels_inside(&self, tap: usize) -> Range<usize> {
        let sees = self.taps[tap].1;
        let before = |end: usize| end.saturating_add_signed(-sees).div_ceil(self.step).min(self.count);
        before(0)..before(self.inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_ask_what_is_inside_says_the_same() {
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
                        let sees = |tap: &usize| axis.inside(pixel, axis.taps[*tap].1).is_some();
                        let taps: Vec<usize> = (0..axis.taps.len()).filter(sees).collect();
                        assert_eq!(axis.taps_inside(pixel).collect::<Vec<_>>(), taps, "{axis:?}");
                        let pixels = |tap: &usize| axis.pixels_inside(*tap).contains(&pixel);
                        assert_eq!((0..axis.taps.len()).filter(pixels).collect::<Vec<_>>(), taps, "{axis:?}");
                    }
                    for tap in 0..axis.taps.len() {
                        let (class, shift) = axis.place(tap);
                        assert_eq!(
                            axis.origin() + (class + shift * axis.step).cast_signed(),
                            axis.taps[tap].1
                        );
                        assert!(axis.classes().any(|(other, reach)| other == class && shift <= reach));
                    }
                }
            }
        }
    }
}
