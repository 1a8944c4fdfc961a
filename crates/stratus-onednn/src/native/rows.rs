//! The geometry of feature maps in native kernels: planes of pixel rows, each pixel `width` contiguous
//! channels.
//!
//! ```text
//! nhwc       [N][H][W][C]               a plane per image                     width = C
//! nChw16c    [N][C / 16][H][W][16]      a plane per image and block of 16     width = 16, groups = C / 16
//! ```
//!
//! The channels of plane `p` start at `(p % groups) * width`.

use super::threads::{ThreadTeam, split, split_lengths};
use std::ops::Range;
use stratus_engine::Layout;

/// The geometry of a feature map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapGeometry {
    /// Images times channel groups.
    pub planes: usize,
    /// The pixel rows of a plane.
    pub height: usize,
    /// The pixels of a row.
    pub row_pixels: usize,
    /// The contiguous channels of a pixel.
    pub pixel_channels: usize,
    /// The channel groups of an image.
    pub groups: usize,
    /// The channels that are not padding.
    pub channels: usize,
}

impl MapGeometry {
    /// The geometry of `[N, C, H, W]` in a layout, if it is one of the two. `[N, C]` is a map of one pixel.
    #[must_use]
    pub fn from_layout(shape: &[usize], layout: &Layout) -> Option<Self> {
        if let &[n, channels] = shape {
            let pixel =
                Self { planes: n, height: 1, row_pixels: 1, pixel_channels: channels, groups: 1, channels };
            return layout.is_row_major().then_some(pixel);
        }
        let &[n, channels, height, row] = shape else { return None };
        let geometry = |groups: usize, width: usize| Self {
            planes: n * groups,
            height,
            row_pixels: row,
            pixel_channels: width,
            groups,
            channels,
        };
        if layout.same_bytes(&Layout::channels_last(shape)) {
            return Some(geometry(1, channels));
        }
        let groups = channels.div_ceil(16);
        let blocked = Layout {
            tag: String::new(),
            shape: shape.to_vec(),
            padded: vec![n, groups * 16, height, row],
            strides: vec![groups * height * row * 16, height * row * 16, row * 16, 16],
            blocks: vec![(1, 16)],
        };
        layout.same_bytes(&blocked).then(|| geometry(groups, 16))
    }

    /// Returns whether all channels of a pixel are contiguous, without padding.
    fn is_channels_last(&self) -> bool {
        self.groups == 1 && self.pixel_channels == self.channels
    }

    /// The geometry of a map with other channels in the same layout.
    #[must_use]
    pub fn with_channels(&self, channels: usize) -> Self {
        let images = self.planes / self.groups.max(1);
        let width = if self.is_channels_last() { channels } else { self.pixel_channels };
        let groups = channels.div_ceil(width.max(1));
        Self { planes: images * groups, pixel_channels: width, groups, channels, ..*self }
    }

    /// The number of channels, including padding.
    #[must_use]
    pub fn padded(&self) -> usize {
        self.groups * self.pixel_channels
    }

    /// Sets the padding of the last channel group to zero.
    pub fn clear_padding<E: bytemuck::Zeroable>(&self, map: &mut [E]) {
        let used = self.pixel_channels - (self.padded() - self.channels);
        if used == self.pixel_channels {
            return;
        }
        for plane in map.chunks_exact_mut(self.plane_elements()).skip(self.groups - 1).step_by(self.groups) {
            plane.chunks_exact_mut(self.pixel_channels).for_each(|pixel| pixel[used..].fill_with(E::zeroed));
        }
    }

    /// The elements of a pixel row.
    #[must_use]
    pub fn row_elements(&self) -> usize {
        self.row_pixels * self.pixel_channels
    }

    /// The elements of a plane.
    #[must_use]
    pub fn plane_elements(&self) -> usize {
        self.height * self.row_elements()
    }

    /// The pixels of a channel, over which means are taken.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.planes / self.groups.max(1) * self.height * self.row_pixels
    }

    /// The elements over which per-channel constants are repeated, to make inner loops long: a multiple of
    /// `pixel_channels`, at least 128.
    #[must_use]
    pub fn period(&self) -> usize {
        self.pixel_channels * 128usize.div_ceil(self.pixel_channels.max(1))
    }

    /// The pixel rows of a thread, counted over all planes.
    #[must_use]
    pub fn thread_rows(&self, threads: usize, thread: usize) -> Range<usize> {
        split(self.planes * self.height, threads, thread)
    }
}

/// Calls `body(plane, row, elements of the row)` for every pixel row of a map, on all threads.
pub fn for_each_row<E: Send>(
    team: &ThreadTeam,
    geometry: &MapGeometry,
    map: &mut [E],
    body: &(dyn Fn(usize, usize, &mut [E]) + Sync),
) {
    let (threads, rows, elements) =
        (team.threads(), geometry.planes * geometry.height, geometry.row_elements());
    let mut parts = split_lengths(map, (0..threads).map(|t| split(rows, threads, t).len() * elements));
    team.run_parts(&mut parts[..threads], &|thread, part| {
        for (number, to) in split(rows, threads, thread).zip(part.chunks_exact_mut(elements)) {
            body(number / geometry.height, number % geometry.height, to);
        }
    });
}

/// A feature map that is a channel slice of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSlice {
    slice: MapGeometry,
    whole: MapGeometry,
    /// The first channel group in the whole.
    group: usize,
    /// The first channel in a pixel of that group.
    channel_offset: usize,
}

impl ChannelSlice {
    /// A whole map.
    #[must_use]
    pub fn all_of(map: MapGeometry) -> Self {
        Self { slice: map, whole: map, group: 0, channel_offset: 0 }
    }

    /// The channels of `whole` from `first`, with the count of `slice`; `None` unless they are whole groups.
    ///
    /// Blocked channels are divided between blocks: [`stratus_engine::ops::CHANNEL_SLICE_ALIGNMENT`].
    #[must_use]
    pub fn new(whole: MapGeometry, first: usize, slice: MapGeometry) -> Option<Self> {
        let alike = (whole.height, whole.row_pixels) == (slice.height, slice.row_pixels)
            && whole.planes * slice.groups == slice.planes * whole.groups
            && first + slice.channels <= whole.channels;
        if whole.is_channels_last() && slice.is_channels_last() {
            return alike.then_some(Self { slice, whole, group: 0, channel_offset: first });
        }
        let ends =
            slice.channels.is_multiple_of(slice.pixel_channels) || first + slice.channels == whole.channels;
        let fits = whole.pixel_channels == slice.pixel_channels
            && first.is_multiple_of(whole.pixel_channels)
            && ends;
        (alike && fits).then(|| Self { slice, whole, group: first / whole.pixel_channels, channel_offset: 0 })
    }

    /// The slice as a separate map.
    #[must_use]
    pub fn slice(&self) -> MapGeometry {
        self.slice
    }

    /// Returns whether its pixels are contiguous in the whole.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.whole.pixel_channels == self.slice.pixel_channels
    }

    /// The elements of the whole between the starts of two periods. A period of a slice that is not dense is
    /// a pixel's channels.
    #[must_use]
    pub fn step(&self, period: usize) -> usize {
        if self.is_dense() { period } else { self.whole.pixel_channels }
    }

    /// The elements of the whole from the first to the last of some pixel rows of one of its
    /// [`stretches`](Self::stretches).
    #[must_use]
    pub fn span(&self, rows: Range<usize>) -> Range<usize> {
        let start = self.row_start(rows.start);
        let pixels = rows.len() * self.slice.row_pixels;
        start
            ..start
                + (pixels * self.whole.pixel_channels)
                    .saturating_sub(self.whole.pixel_channels - self.slice.pixel_channels)
    }

    /// Returns whether the whole has several channel groups.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.whole.groups > 1
    }

    /// The elements of the whole between the starts of two pixels.
    #[must_use]
    pub fn pixel_step(&self) -> usize {
        self.whole.pixel_channels
    }

    /// The first element of a pixel row in the whole; the end of the whole for the row after the last.
    #[must_use]
    pub fn row_start(&self, row: usize) -> usize {
        let MapGeometry { planes, height, groups, .. } = self.slice;
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
        let Self { slice: MapGeometry { height, groups, .. }, whole, .. } = *self;
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

    /// The number of elements of the whole that each thread owns when it writes its rows of the slice.
    pub fn shares(&self, threads: usize) -> impl Iterator<Item = usize> + use<> {
        let slice = *self;
        (0..threads).map(move |t| slice.share_start(threads, t + 1) - slice.share_start(threads, t))
    }

    /// The first element of a thread's share: the start of the whole for the first thread, the first pixel of
    /// its rows for others.
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

/// Repeats each group's constants over a period: `to` is `[groups, period]`.
pub fn repeat(geometry: &MapGeometry, period: usize, from: &[f32], to: &mut [f32]) {
    for (group, values) in from.chunks_exact(geometry.pixel_channels).enumerate() {
        for copy in to[group * period..][..period].chunks_exact_mut(geometry.pixel_channels) {
            copy.copy_from_slice(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels_last(channels: usize) -> MapGeometry {
        let shape = [3, channels, 2, 5];
        MapGeometry::from_layout(&shape, &Layout::channels_last(&shape)).unwrap()
    }

    fn in_blocks(channels: usize) -> MapGeometry {
        let groups = channels.div_ceil(16);
        MapGeometry { planes: 3 * groups, height: 2, row_pixels: 5, pixel_channels: 16, groups, channels }
    }

    /// By shares and row starts, every element of every slice is a different element of the whole.
    #[test]
    fn slices_of_a_map_are_disjoint() {
        for (geometry, widths) in [
            (channels_last as fn(usize) -> MapGeometry, [16, 32, 5]),
            (in_blocks, [16, 32, 5]),
            (in_blocks, [32, 16, 16]),
        ] {
            let whole = geometry(widths.iter().sum());
            let mut seen = vec![0; whole.planes * whole.plane_elements()];
            let mut first = 0;
            for channels in widths {
                let part = geometry(channels);
                let whole_slice = ChannelSlice::new(whole, first, part).unwrap();
                first += channels;
                for threads in [1, 2, 7] {
                    let shares: Vec<usize> = whole_slice.shares(threads).collect();
                    assert_eq!(shares.iter().sum::<usize>(), seen.len());
                    for (thread, share) in shares.into_iter().enumerate() {
                        let start = whole_slice.share_start(threads, thread);
                        for row in part.thread_rows(threads, thread) {
                            let row = whole_slice.row_start(row);
                            let end =
                                row + (part.row_pixels - 1) * whole.pixel_channels + part.pixel_channels;
                            assert!(
                                start <= row && end <= start + share,
                                "{whole_slice:?} {threads} {thread}"
                            );
                        }
                    }
                }
                for row in 0..part.planes * part.height {
                    for pixel in 0..part.row_pixels {
                        let at = whole_slice.row_start(row) + pixel * whole.pixel_channels;
                        seen[at..at + part.pixel_channels].iter_mut().for_each(|seen| *seen += 1);
                    }
                }
            }
            assert!(seen.iter().all(|&seen| seen == 1), "{whole:?}");
        }
    }

    #[test]
    fn refuses_a_slice_that_splits_a_block() {
        assert_eq!(ChannelSlice::new(in_blocks(48), 8, in_blocks(16)), None);
        assert_eq!(ChannelSlice::new(in_blocks(48), 16, in_blocks(5)), None);
        assert_eq!(ChannelSlice::new(in_blocks(48), 16, channels_last(32)), None);
        assert_eq!(ChannelSlice::new(in_blocks(5), 0, channels_last(5)), None);
        assert_eq!(ChannelSlice::new(channels_last(48), 40, channels_last(16)), None);
        assert!(ChannelSlice::new(channels_last(48), 40, channels_last(8)).is_some());
    }
}
