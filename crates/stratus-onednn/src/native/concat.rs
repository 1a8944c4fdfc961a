//! Concatenation of feature maps along channels, and slicing: channels copied between maps. Threads divide
//! pixel rows of the output.

use super::rows::MapGeometry;
use super::simd::Element;
use super::threads::{ThreadTeam, split_lengths};
use std::ops::Range;
use stratus_engine::program::MAX_OPERANDS;

/// A range of channels of a source, and its position in the output.
#[derive(Clone, Copy, Debug)]
pub struct ChannelRange {
    /// The source's geometry; images and pixels are those of the output.
    pub from: MapGeometry,
    /// The first channel in the source.
    pub first: usize,
    /// The first channel in the output.
    pub at: usize,
    /// The number of channels.
    pub channels: usize,
}

/// A map concatenated from channels of others.
#[derive(Clone, Debug)]
pub struct Concat {
    /// The pieces, which together cover all channels of the output.
    pub pieces: Vec<ChannelRange>,
    /// The output's geometry.
    pub to: MapGeometry,
    /// The threads.
    pub team: ThreadTeam,
}

impl Concat {
    /// Copies every piece and zeroes the output's padding. `sources` are in the order of the pieces.
    pub fn run<E: Element>(&self, sources: &[&[E]; MAX_OPERANDS], y: &mut [E]) {
        let (threads, to) = (self.team.threads(), &self.to);
        let rows = |thread: usize| to.thread_rows(threads, thread);
        let mut parts = split_lengths(y, (0..threads).map(|thread| rows(thread).len() * to.row_elements()));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let mut rest = &mut **part;
            let (mut next, end) = (rows(thread).start, rows(thread).end);
            while next < end {
                // Rows of one plane: one image and one group of channels.
                let plane = next / to.height;
                let stop = ((plane + 1) * to.height).min(end);
                let (y, remaining) =
                    std::mem::take(&mut rest).split_at_mut((stop - next) * to.row_elements());
                let first = (next - plane * to.height) * to.row_pixels;
                self.plane(plane, first..first + (stop - next) * to.row_pixels, sources, y);
                (next, rest) = (stop, remaining);
            }
        });
    }

    /// Fills some pixels of one plane of the output.
    fn plane<E: Element>(
        &self,
        plane: usize,
        pixels: Range<usize>,
        sources: &[&[E]; MAX_OPERANDS],
        y: &mut [E],
    ) {
        let MapGeometry { pixel_channels: width, groups, channels, .. } = self.to;
        let (image, group) = (plane / groups, plane % groups);
        let group_channels = group * width..((group + 1) * width).min(channels);
        for (piece, source) in self.pieces.iter().zip(sources) {
            let mut channel = piece.at.max(group_channels.start);
            let end = (piece.at + piece.channels).min(group_channels.end);
            while channel < end {
                // Copy the channels that are contiguous in the source too.
                let from = piece.first + channel - piece.at;
                let (from_group, within) =
                    (from / piece.from.pixel_channels, from % piece.from.pixel_channels);
                let run = (end - channel).min(piece.from.pixel_channels - within);
                let from_plane = image * piece.from.groups + from_group;
                let x = &source[from_plane * piece.from.plane_elements()..][..piece.from.plane_elements()];
                let x = &x[pixels.start * piece.from.pixel_channels..pixels.end * piece.from.pixel_channels];
                copy([within, piece.from.pixel_channels], x, [channel - group_channels.start, width], y, run);
                channel += run;
            }
        }
        if group_channels.len() < width {
            y.chunks_exact_mut(width).for_each(|pixel| pixel[group_channels.len()..].fill(E::store(0.0)));
        }
    }
}

/// Copies `run` channels of every pixel; `from` and `to` are `[first channel, channels per pixel]`.
fn copy<E: Element>(from: [usize; 2], x: &[E], to: [usize; 2], y: &mut [E], run: usize) {
    if [from[1], to[1]] == [run; 2] {
        y.copy_from_slice(x);
        return;
    }
    for (y, x) in y.chunks_exact_mut(to[1]).zip(x.chunks_exact(from[1])) {
        y[to[0]..to[0] + run].copy_from_slice(&x[from[0]..from[0] + run]);
    }
}
