//! Convolution and its input gradient as one loop: each pixel of a result is the sum over taps of pixels of a
//! source, whose positions move with the pixel. Maps are `[N, H, W, C]`.

use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// A tap along one dimension: its position in the kernel, and the pixel that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineTap {
    pub position: usize,
    pub pixel: usize,
}

/// Equally spaced pixels of a row with taps at the same positions of the kernel: from one pixel to the
/// next, all source pixels move by the same distance.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub first: usize,
    pub count: usize,
    /// The taps of the first pixel.
    pub taps: Vec<LineTap>,
}

/// The offsets of a tap: from the first element of the first source row that a result row reads, and in the
/// packed weights.
pub(super) type TapOffsets = [usize; 2];

/// Rows of a result that read the same rows of the source, relative to the first of these.
#[derive(Clone, Debug)]
pub(super) struct RowClass {
    pub taps: Vec<LineTap>,
    /// The taps of the first pixel of each segment.
    pub offsets: Vec<Vec<TapOffsets>>,
}

impl RowClass {
    /// The number of source rows from the first to the last that are read.
    pub fn height(&self) -> usize {
        self.taps.iter().map(|tap| tap.pixel + 1).max().unwrap_or(0)
    }
}

/// A correlation of one map with the weights into another. Rows and columns are those of the result.
#[derive(Clone, Debug)]
pub(super) struct Correlation {
    /// The extents of the source.
    pub source: [usize; 2],
    /// The extents of the result.
    pub result: [usize; 2],
    pub classes: Vec<RowClass>,
    /// The class of each row of the result, and the first source row that it reads.
    pub rows: Vec<[usize; 2]>,
    /// The segments of a row of the result.
    pub segments: Vec<Segment>,
    /// The distance between consecutive pixels of a segment, in the source and in the result.
    pub steps: [usize; 2],
}

impl Correlation {
    /// `taps` are those of each row of the result, `tap_stride` the distance between consecutive taps in
    /// the packed weights.
    fn new(
        conv: &Conv2d,
        [source, result]: [[usize; 2]; 2],
        taps: &[Vec<LineTap>],
        segments: Vec<Segment>,
        steps: [usize; 2],
        tap_stride: usize,
    ) -> Self {
        let (channels, source_row) = (conv.in_channels, source[1] * conv.in_channels);
        let (mut classes, mut rows): (Vec<RowClass>, _) = (Vec::new(), Vec::new());
        for taps in taps {
            let first = taps.iter().map(|tap| tap.pixel).min().unwrap_or(0);
            let taps: Vec<LineTap> =
                taps.iter().map(|tap| LineTap { pixel: tap.pixel - first, ..*tap }).collect();
            let known = classes.iter().position(|class| class.taps == taps);
            rows.push([known.unwrap_or(classes.len()), first]);
            if known.is_some() {
                continue;
            }
            let offsets = segments.iter().map(|segment| {
                let pairs = taps.iter().flat_map(|row| segment.taps.iter().map(move |column| (row, column)));
                let offsets = pairs.map(|(row, column)| {
                    let weight = row.position * conv.kernel[1] + column.position;
                    [row.pixel * source_row + column.pixel * channels, weight * tap_stride]
                });
                offsets.collect()
            });
            classes.push(RowClass { offsets: offsets.collect(), taps });
        }
        Self { source, result, classes, rows, segments, steps }
    }

    /// The number of the class of a row of the result, counted over all images, and the source from the
    /// first row that it reads to the end of the image.
    #[inline(always)]
    pub fn row<'a, E>(&self, row: usize, channels: usize, source: &'a [E]) -> (usize, &'a [E]) {
        let [height, width] = self.source;
        let (image, row) = (row / self.result[0], row % self.result[0]);
        let [class, first] = self.rows[row];
        let rows = image * height + first..(image + 1) * height;
        (class, &source[rows.start * width * channels..rows.end * width * channels])
    }
}

/// A segment of a row with its taps.
#[derive(Clone, Copy)]
pub(super) struct SegmentView<'a, E> {
    segment: &'a Segment,
    pub taps: &'a [TapOffsets],
    /// The largest offset of a tap in the source.
    last: Option<usize>,
    /// The source from the first row that the result reads.
    source: &'a [E],
    /// The distance between consecutive pixels, in pixels of the source.
    pub source_pixels: usize,
    /// The same in elements of the source, and of the result.
    steps: [usize; 2],
    channels: usize,
}

/// Consecutive pixels of a segment: the elements that they read and write.
pub(super) struct PixelGroup<'a, E> {
    /// The source of the first pixel. Taps of the last pixel end at [`Self::end`], or there are none.
    pub source: &'a [E],
    pub end: usize,
    /// The result of the first pixel.
    pub result: &'a mut [E],
    /// The distance between consecutive pixels in the source and in the result.
    pub steps: [usize; 2],
}

impl<'a, E> SegmentView<'a, E> {
    /// The segments of a row; `class` and `source` are those of [`Correlation::row`].
    #[inline(always)]
    pub fn of_row(
        correlation: &'a Correlation,
        class: usize,
        source: &'a [E],
        channels: usize,
    ) -> impl Iterator<Item = Self> {
        let steps = correlation.steps.map(|step| step * channels);
        let source_pixels = correlation.steps[0];
        let offsets = &correlation.classes[class].offsets;
        correlation.segments.iter().zip(offsets).map(move |(segment, taps)| {
            let last = taps.iter().map(|[at, _]| *at).max();
            Self { segment, taps, last, source, source_pixels, steps, channels }
        })
    }

    /// The number of pixels.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.segment.count
    }

    /// The pixels from `pixel` to `pixel + count`, which is at least 1, of the row `result`. Every channel of
    /// every pixel and tap is inside of the slices.
    ///
    /// # Panics
    /// If there are fewer pixels.
    #[inline(always)]
    pub fn pixels<'b>(&self, pixel: usize, count: usize, result: &'b mut [E]) -> PixelGroup<'b, E>
    where
        'a: 'b,
    {
        let [source_step, step] = self.steps;
        let result = &mut result[self.segment.first * self.channels + pixel * step..];
        // Pixels without taps may be beyond the source.
        let source = self.source.get(pixel * source_step..).unwrap_or_default();
        let end = self.last.map_or(0, |last| last + (count - 1) * source_step + self.channels);
        assert!(end <= source.len(), "a window reaches beyond the map");
        assert!((count - 1) * step + self.channels <= result.len(), "a segment reaches beyond the row");
        PixelGroup { source, end, result, steps: self.steps }
    }
}

/// The taps of the outputs `0..outputs`, of those that are inside `0..inputs`.
fn forward_taps(conv: &Conv2d, axis: usize, [inputs, outputs]: [usize; 2]) -> Vec<Vec<LineTap>> {
    let taps = |output: usize| {
        let pixel = |position: usize| {
            let padded = output * conv.stride[axis] + position * conv.dilation[axis];
            padded.checked_sub(conv.padding_before[axis]).filter(|pixel| *pixel < inputs)
        };
        (0..conv.kernel[axis])
            .filter_map(|position| pixel(position).map(|pixel| LineTap { position, pixel }))
            .collect()
    };
    (0..outputs).map(taps).collect()
}

/// The inverse of [`forward_taps`]: for each input, the outputs that read it.
fn backward_taps(forward: &[Vec<LineTap>], inputs: usize) -> Vec<Vec<LineTap>> {
    let mut taps = vec![Vec::new(); inputs];
    for (output, of_output) in forward.iter().enumerate() {
        for tap in of_output {
            taps[tap.pixel].push(LineTap { position: tap.position, pixel: output });
        }
    }
    taps
}

/// Divides the pixels of a row, `step` apart, into segments; the source moves by `source_step`.
fn segments(taps: &[Vec<LineTap>], step: usize, source_step: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for remainder in 0..step {
        let mut last: Option<Segment> = None;
        for (first, taps) in taps.iter().enumerate().skip(remainder).step_by(step) {
            let continues = last.as_ref().is_some_and(|segment| {
                let moved = segment.taps.iter().map(|tap| LineTap {
                    position: tap.position,
                    pixel: tap.pixel + segment.count * source_step,
                });
                moved.eq(taps.iter().copied())
            });
            match &mut last {
                Some(segment) if continues => segment.count += 1,
                last => {
                    segments.extend(last.take());
                    *last = Some(Segment { first, count: 1, taps: taps.clone() });
                }
            }
        }
        segments.extend(last);
    }
    segments
}

/// Both passes of a convolution.
#[derive(Clone, Debug)]
pub(super) struct Correlations {
    pub forward: Correlation,
    pub backward: Correlation,
    pub columns: Vec<KernelColumn>,
}

/// A column of the kernel.
#[derive(Clone, Debug)]
pub(super) struct KernelColumn {
    /// The output pixels of a row for which it is inside the input.
    pub outputs: Range<usize>,
    /// The column of the input at output pixel 0; it may be outside.
    pub first: isize,
}

impl Correlations {
    /// The passes of a convolution of images `input` = `[H, W]`, as many input as output channels; `None`
    /// if the windows do not fit. `tap_stride` is the distance between consecutive taps in the packed
    /// weights.
    pub fn new(conv: &Conv2d, input: [usize; 2], tap_stride: usize) -> Option<Self> {
        let output = conv.output_size(input).ok()?;
        let [rows, columns] = [0, 1].map(|axis| forward_taps(conv, axis, [input[axis], output[axis]]));
        let across = conv.stride[1];
        let of_row = segments(&columns, 1, across);
        let forward = Correlation::new(conv, [input, output], &rows, of_row, [across, 1], tap_stride);
        let (inverse_rows, inverse) = (backward_taps(&rows, input[0]), backward_taps(&columns, input[1]));
        let of_row = segments(&inverse, across, 1);
        let backward =
            Correlation::new(conv, [output, input], &inverse_rows, of_row, [1, across], tap_stride);
        let column = |column: usize| {
            let is_inside = |taps: &Vec<LineTap>| taps.iter().any(|tap| tap.position == column);
            let start = columns.iter().position(is_inside).unwrap_or(0);
            let outputs = start..start + columns.iter().filter(|taps| is_inside(taps)).count();
            let first = (column * conv.dilation[1]) as isize - conv.padding_before[1] as isize;
            KernelColumn { outputs, first }
        };
        let columns = (0..conv.kernel[1]).map(column).collect();
        Some(Self { forward, backward, columns })
    }
}
