//! Feature maps as our kernels see them: planes of pixel rows, each pixel `width` contiguous channels.
//!
//! `nhwc` has one plane an image and all channels in a pixel; `nChw16c` has a plane per image and block of 16 channels. Both are walked by the
//! same code: a plane's channels begin at `(plane % groups) * width`.

use super::threads::split;
use std::ops::Range;
use stratus_engine::Layout;

/// How a feature map is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Images times channel groups.
    pub planes: usize,
    /// Pixel rows of a plane.
    pub height: usize,
    /// Pixels of a row.
    pub row: usize,
    /// Contiguous channels of a pixel.
    pub width: usize,
    /// Channel groups of an image.
    pub groups: usize,
    /// Channels that are not padding.
    pub channels: usize,
}

impl Geometry {
    /// The geometry of `[N, C, H, W]` in a layout, where it is one that our kernels walk. `[N, C]` is a map of one pixel.
    #[must_use]
    pub fn of(shape: &[usize], layout: &Layout) -> Option<Self> {
        if let &[n, channels] = shape {
            let pixel = Self { planes: n, height: 1, row: 1, width: channels, groups: 1, channels };
            return layout.is_row_major().then_some(pixel);
        }
        let &[n, channels, height, row] = shape else { return None };
        let whole =
            |groups: usize, width: usize| Self { planes: n * groups, height, row, width, groups, channels };
        if layout.same_bytes(&Layout::channels_last(shape)) {
            return Some(whole(1, channels));
        }
        let groups = channels.div_ceil(16);
        let blocked = Layout {
            tag: String::new(),
            shape: shape.to_vec(),
            padded: vec![n, groups * 16, height, row],
            strides: vec![groups * height * row * 16, height * row * 16, row * 16, 16],
            blocks: vec![(1, 16)],
        };
        layout.same_bytes(&blocked).then(|| whole(groups, 16))
    }

    /// Channels, padding included.
    #[must_use]
    pub fn padded(&self) -> usize {
        self.groups * self.width
    }

    /// Elements of a pixel row.
    #[must_use]
    pub fn row_elements(&self) -> usize {
        self.row * self.width
    }

    /// Elements of a plane.
    #[must_use]
    pub fn plane_elements(&self) -> usize {
        self.height * self.row_elements()
    }

    /// Pixels per channel: what a mean is over.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.planes / self.groups.max(1) * self.height * self.row
    }

    /// How many channels' constants are repeated so that inner loops are long: at least 128 elements, a multiple of `width`.
    #[must_use]
    pub fn period(&self) -> usize {
        self.width * 128usize.div_ceil(self.width.max(1))
    }

    /// The pixel rows (counted over all planes) of one thread.
    #[must_use]
    pub fn thread_rows(&self, threads: usize, thread: usize) -> Range<usize> {
        split(self.planes * self.height, threads, thread)
    }

    /// Cuts a range of pixel rows into stretches of one channel group: `(group, rows)`. With one group it is a single stretch.
    pub fn stretches(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let Self { height, groups, .. } = *self;
        let mut next = rows.start;
        std::iter::from_fn(move || {
            if next >= rows.end {
                return None;
            }
            let plane = next / height;
            let end = if groups == 1 { rows.end } else { ((plane + 1) * height).min(rows.end) };
            let stretch = (plane % groups, next..end);
            next = end;
            Some(stretch)
        })
    }
}

/// Repeats each group's `width` constants over its period: `to` has `groups * period` elements.
pub fn repeat(geometry: &Geometry, from: &[f32], to: &mut [f32]) {
    let period = geometry.period();
    for (group, values) in from.chunks_exact(geometry.width).enumerate() {
        for copy in to[group * period..][..period].chunks_exact_mut(geometry.width) {
            copy.copy_from_slice(values);
        }
    }
}
