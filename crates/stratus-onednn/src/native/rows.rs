//! Feature maps as native kernels walk them: planes of pixel rows, each pixel `width` contiguous channels.
//!
//! ```text
//! nhwc       [N][H][W][C]               a plane per image                     width = C
//! nChw16c    [N][C / 16][H][W][16]      a plane per image and block of 16     width = 16, groups = C / 16
//! ```
//!
//! The channels of plane `p` begin at `(p % groups) * width`.

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
    /// The geometry of `[N, C, H, W]` in a layout, if it is one of the two. `[N, C]` is a map of one pixel.
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

    /// Whether all channels of a pixel are contiguous, without padding.
    fn is_channels_last(&self) -> bool {
        self.groups == 1 && self.width == self.channels
    }

    /// The geometry of a map with other channels and otherwise the same layout.
    #[must_use]
    pub fn with_channels(&self, channels: usize) -> Self {
        let images = self.planes / self.groups.max(1);
        let width = if self.is_channels_last() { channels } else { self.width };
        let groups = channels.div_ceil(width.max(1));
        Self { planes: images * groups, width, groups, channels, ..*self }
    }

    /// Channels, padding included.
    #[must_use]
    pub fn padded(&self) -> usize {
        self.groups * self.width
    }

    /// Sets the padding of the last channel group to zero.
    pub fn clear_padding<E: bytemuck::Zeroable>(&self, map: &mut [E]) {
        let used = self.width - (self.padded() - self.channels);
        if used == self.width {
            return;
        }
        for plane in map.chunks_exact_mut(self.plane_elements()).skip(self.groups - 1).step_by(self.groups) {
            plane.chunks_exact_mut(self.width).for_each(|pixel| pixel[used..].fill_with(E::zeroed));
        }
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

    /// Pixels of a channel: what a mean is over.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.planes / self.groups.max(1) * self.height * self.row
    }

    /// Elements over which per-channel constants are repeated, to make inner loops long: a multiple of
    /// `width`, at least 128.
    #[must_use]
    pub fn period(&self) -> usize {
        self.width * 128usize.div_ceil(self.width.max(1))
    }

    /// A thread's pixel rows, counted over all planes.
    #[must_use]
    pub fn thread_rows(&self, threads: usize, thread: usize) -> Range<usize> {
        split(self.planes * self.height, threads, thread)
    }
}

/// A feature map that is some channels of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSlice {
    slice: Geometry,
    whole: Geometry,
    /// Its first channel group in the whole.
    group: usize,
    /// Its first channel in a pixel of that group.
    channel_offset: usize,
}

impl ChannelSlice {
    /// A whole map.
    #[must_use]
    pub fn all_of(map: Geometry) -> Self {
        Self { slice: map, whole: map, group: 0, channel_offset: 0 }
    }

    /// The channels of `whole` from `first` on, as many as `slice` has; `None` where they are not whole
    /// groups.
    ///
    /// Blocked channels are divided between blocks: [`stratus_engine::ops::PART_BORDER`].
    #[must_use]
    pub fn of(whole: Geometry, first: usize, slice: Geometry) -> Option<Self> {
        let alike = (whole.height, whole.row) == (slice.height, slice.row)
            && whole.planes * slice.groups == slice.planes * whole.groups
            && first + slice.channels <= whole.channels;
        if whole.is_channels_last() && slice.is_channels_last() {
            return alike.then_some(Self { slice, whole, group: 0, channel_offset: first });
        }
        let ends = slice.channels.is_multiple_of(slice.width) || first + slice.channels == whole.channels;
        let fits = whole.width == slice.width && first.is_multiple_of(whole.width) && ends;
        (alike && fits).then(|| Self { slice, whole, group: first / whole.width, channel_offset: 0 })
    }

    /// The slice as a map by itself.
    #[must_use]
    pub fn slice(&self) -> Geometry {
        self.slice
    }

    /// Whether its pixels are contiguous in the whole.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.whole.width == self.slice.width
    }

    /// Elements of the whole from one period to the next. A period of a slice that is not dense is a pixel's
    /// channels.
    #[must_use]
    pub fn step(&self, period: usize) -> usize {
        if self.is_dense() { period } else { self.whole.width }
    }

    /// The elements of the whole from the first to the last of some pixel rows of one of its
    /// [`stretches`](Self::stretches).
    #[must_use]
    pub fn span(&self, rows: Range<usize>) -> Range<usize> {
        let start = self.row_start(rows.start);
        let pixels = rows.len() * self.slice.row;
        start..start + (pixels * self.whole.width).saturating_sub(self.whole.width - self.slice.width)
    }

    /// Whether the whole has several channel groups.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.whole.groups > 1
    }

    /// Elements of the whole from one pixel to the next.
    #[must_use]
    pub fn pixel_step(&self) -> usize {
        self.whole.width
    }

    /// First element of a pixel row in the whole; the end of the whole for the row after the last.
    #[must_use]
    pub fn row_start(&self, row: usize) -> usize {
        let Geometry { planes, height, groups, .. } = self.slice;
        if row == planes * height {
            return self.whole.planes * self.whole.plane_elements();
        }
        let plane = row / height;
        let plane = plane / groups * self.whole.groups + self.group + plane % groups;
        (plane * height + row % height) * self.whole.row_elements() + self.channel_offset
    }

    /// Divides a range of pixel rows into runs of one channel group that are contiguous in the whole:
    /// `(group, rows)`.
    pub fn stretches(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let Self { slice: Geometry { height, groups, .. }, whole, .. } = *self;
        let mut next = rows.start;
        std::iter::from_fn(move || {
            if next >= rows.end {
                return None;
            }
            let plane = next / height;
            let end = if whole.groups == 1 { rows.end } else { ((plane + 1) * height).min(rows.end) };
            let stretch = (plane % groups, next..end);
            next = end;
            Some(stretch)
        })
    }

    /// Elements of the whole that each thread owns when it writes its rows of the slice.
    pub fn shares(&self, threads: usize) -> impl Iterator<Item = usize> + use<> {
        let slice = *self;
        (0..threads).map(move |t| slice.share_start(threads, t + 1) - slice.share_start(threads, t))
    }

    /// First element of a thread's share: of the first thread the whole's, of others the pixel in which their
    /// rows begin.
    #[must_use]
    pub fn share_start(&self, threads: usize, thread: usize) -> usize {
        if thread == 0 {
            return 0;
        }
        let rows = self.slice.planes * self.slice.height;
        let row = split(rows, threads, thread).start;
        self.row_start(row) - if row == rows { 0 } else { self.channel_offset }
    }
}

/// Repeats each group's `width` constants over a period: `to` is `[groups, period]`.
pub fn repeat(geometry: &Geometry, period: usize, from: &[f32], to: &mut [f32]) {
    for (group, values) in from.chunks_exact(geometry.width).enumerate() {
        for copy in to[group * period..][..period].chunks_exact_mut(geometry.width) {
            copy.copy_from_slice(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels_last(channels: usize) -> Geometry {
        let shape = [3, channels, 2, 5];
        Geometry::of(&shape, &Layout::channels_last(&shape)).unwrap()
    }

    fn in_blocks(channels: usize) -> Geometry {
        let groups = channels.div_ceil(16);
        Geometry { planes: 3 * groups, height: 2, row: 5, width: 16, groups, channels }
    }

    /// By shares and row starts, every element of every slice is an element of the whole of its own.
    #[test]
    fn parts_of_a_map_share_no_element() {
        for (geometry, widths) in [
            (channels_last as fn(usize) -> Geometry, [16, 32, 5]),
            (in_blocks, [16, 32, 5]),
            (in_blocks, [32, 16, 16]),
        ] {
            let whole = geometry(widths.iter().sum());
            let mut seen = vec![0; whole.planes * whole.plane_elements()];
            let mut first = 0;
            for channels in widths {
                let part = geometry(channels);
                let place = ChannelSlice::of(whole, first, part).unwrap();
                first += channels;
                for threads in [1, 2, 7] {
                    let shares: Vec<usize> = place.shares(threads).collect();
                    assert_eq!(shares.iter().sum::<usize>(), seen.len());
                    for (thread, share) in shares.into_iter().enumerate() {
                        let start = place.share_start(threads, thread);
                        for row in part.thread_rows(threads, thread) {
                            let row = place.row_start(row);
                            let end = row + (part.row - 1) * whole.width + part.width;
                            assert!(start <= row && end <= start + share, "{place:?} {threads} {thread}");
                        }
                    }
                }
                for row in 0..part.planes * part.height {
                    for pixel in 0..part.row {
                        let at = place.row_start(row) + pixel * whole.width;
                        seen[at..at + part.width].iter_mut().for_each(|seen| *seen += 1);
                    }
                }
            }
            assert!(seen.iter().all(|&seen| seen == 1), "{whole:?}");
        }
    }

    #[test]
    fn a_part_that_shares_a_block_is_refused() {
        assert_eq!(ChannelSlice::of(in_blocks(48), 8, in_blocks(16)), None);
        assert_eq!(ChannelSlice::of(in_blocks(48), 16, in_blocks(5)), None);
        assert_eq!(ChannelSlice::of(in_blocks(48), 16, channels_last(32)), None);
        assert_eq!(ChannelSlice::of(in_blocks(5), 0, channels_last(5)), None);
        assert_eq!(ChannelSlice::of(channels_last(48), 40, channels_last(16)), None);
        assert!(ChannelSlice::of(channels_last(48), 40, channels_last(8)).is_some());
    }
}
