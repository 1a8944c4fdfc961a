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

    /// Whether all channels of a pixel lie side by side, without padding.
    fn is_channels_last(&self) -> bool {
        self.groups == 1 && self.width == self.channels
    }

    /// The same of a map with other channels, which lies as this one does.
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
}

/// Where a feature map lies that is part of another: some of its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelSlice {
    part: Geometry,
    whole: Geometry,
    /// The first of its channel groups in the whole.
    group: usize,
    /// Channels before its own in a pixel of the group.
    within: usize,
}

impl ChannelSlice {
    /// A map for itself.
    #[must_use]
    pub fn all_of(map: Geometry) -> Self {
        Self { part: map, whole: map, group: 0, within: 0 }
    }

    /// The channels of `whole` from `first` on, as many as `part` has; `None` where their groups are not groups of the whole.
    ///
    /// Where channels lie in blocks, parts begin and end with blocks: [`stratus_engine::ops::PART_BORDER`].
    #[must_use]
    pub fn of(whole: Geometry, first: usize, part: Geometry) -> Option<Self> {
        let alike = (whole.height, whole.row) == (part.height, part.row)
            && whole.planes * part.groups == part.planes * whole.groups
            && first + part.channels <= whole.channels;
        if whole.is_channels_last() && part.is_channels_last() {
            return alike.then_some(Self { part, whole, group: 0, within: first });
        }
        let ends = part.channels.is_multiple_of(part.width) || first + part.channels == whole.channels;
        let fits = whole.width == part.width && first.is_multiple_of(whole.width) && ends;
        (alike && fits).then(|| Self { part, whole, group: first / whole.width, within: 0 })
    }

    /// The part, as it is by itself.
    #[must_use]
    pub fn part(&self) -> Geometry {
        self.part
    }

    /// Whether nothing lies between its pixels in the whole.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.whole.width == self.part.width
    }

    /// Elements of the whole from one period to the next: of a part that is not dense, a period is a pixel's channels.
    #[must_use]
    pub fn step(&self, period: usize) -> usize {
        if self.is_dense() { period } else { self.whole.width }
    }

    /// The elements of the whole in which some pixel rows of the part lie, of one of its [`stretches`](Self::stretches): from its first one to its last.
    #[must_use]
    pub fn span(&self, rows: Range<usize>) -> Range<usize> {
        let start = self.row_start(rows.start);
        let pixels = rows.len() * self.part.row;
        start..start + (pixels * self.whole.width).saturating_sub(self.whole.width - self.part.width)
    }

    /// Whether its channel groups lie apart in the whole.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.whole.groups > 1
    }

    /// Elements of the whole from one pixel to the next.
    #[must_use]
    pub fn pixel_step(&self) -> usize {
        self.whole.width
    }

    /// The element with which a pixel row of the part begins in the whole; the whole's end for the row behind the last.
    #[must_use]
    pub fn row_start(&self, row: usize) -> usize {
        let Geometry { planes, height, groups, .. } = self.part;
        if row == planes * height {
            return self.whole.planes * self.whole.plane_elements();
        }
        let plane = row / height;
        let plane = plane / groups * self.whole.groups + self.group + plane % groups;
        (plane * height + row % height) * self.whole.row_elements() + self.within
    }

    /// Cuts a range of the part's pixel rows into stretches of one channel group, without other rows between them in the whole: `(group, rows)`. With
    /// one group it is a single stretch.
    pub fn stretches(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let Self { part: Geometry { height, groups, .. }, whole, .. } = *self;
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

    /// How many elements of the whole each thread has for itself that writes its rows of the part.
    pub fn shares(&self, threads: usize) -> impl Iterator<Item = usize> + use<> {
        let part = *self;
        (0..threads).map(move |t| part.share_start(threads, t + 1) - part.share_start(threads, t))
    }

    /// The element of the whole that a thread's share begins with: the first one's with the whole, the others' with the pixel that their rows begin in.
    #[must_use]
    pub fn share_start(&self, threads: usize, thread: usize) -> usize {
        if thread == 0 {
            return 0;
        }
        let rows = self.part.planes * self.part.height;
        let row = split(rows, threads, thread).start;
        self.row_start(row) - if row == rows { 0 } else { self.within }
    }
}

/// Repeats each group's `width` constants over a period: `to` has `groups * period` elements.
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

    /// Every element of every part, by what a thread's share and a row's beginning say, falls on an element of the whole of its own.
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
