//! Concatenation of feature maps along channels, and slicing: channels copied from map to map. Threads divide
//! pixel rows of the result.

use super::rows::Geometry;
use super::simd::Element;
use super::threads::{ThreadTeam, cut};
use std::ops::Range;
use stratus_engine::backend::MAX_OPERANDS;

/// Channels of a source, and where in the result they go.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The source's geometry, with the images and pixels of the result.
    pub from: Geometry,
    /// The first channel in the source.
    pub first: usize,
    /// The first channel in the result.
    pub at: usize,
    /// How many channels.
    pub channels: usize,
}

/// A map that is put together from channels of others.
#[derive(Clone, Debug)]
pub struct Concat {
    /// The pieces: together they are every channel of the result.
    pub pieces: Vec<Piece>,
    /// The result's geometry.
    pub to: Geometry,
    /// Threads.
    pub team: ThreadTeam,
}

impl Concat {
    /// Copies every piece and zeroes the result's padding. `sources` are in the order of the pieces.
    pub fn run<E: Element>(&self, sources: &[&[E]; MAX_OPERANDS], y: &mut [E]) {
        let (threads, to) = (self.team.threads(), &self.to);
        let rows = |thread: usize| to.thread_rows(threads, thread);
        let mut parts = cut(y, (0..threads).map(|thread| rows(thread).len() * to.row_elements()));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            let mut rest = &mut **part;
            let (mut next, end) = (rows(thread).start, rows(thread).end);
            while next < end {
                // Rows of one plane: one image and one group of channels.
                let plane = next / to.height;
                let stop = ((plane + 1) * to.height).min(end);
                let (y, remaining) =
                    std::mem::take(&mut rest).split_at_mut((stop - next) * to.row_elements());
                let first = (next - plane * to.height) * to.row;
                self.plane(plane, first..first + (stop - next) * to.row, sources, y);
                (next, rest) = (stop, remaining);
            }
        });
    }

    /// Fills some pixels of one plane of the result.
    fn plane<E: Element>(
        &self,
        plane: usize,
        pixels: Range<usize>,
        sources: &[&[E]; MAX_OPERANDS],
        y: &mut [E],
    ) {
        let Geometry { width, groups, channels, .. } = self.to;
        let (image, group) = (plane / groups, plane % groups);
        let group_channels = group * width..((group + 1) * width).min(channels);
        for (piece, source) in self.pieces.iter().zip(sources) {
            let mut channel = piece.at.max(group_channels.start);
            let end = (piece.at + piece.channels).min(group_channels.end);
            while channel < end {
                // As many channels as are contiguous in the source too.
                let from = piece.first + channel - piece.at;
                let (from_group, within) = (from / piece.from.width, from % piece.from.width);
                let run = (end - channel).min(piece.from.width - within);
                let from_plane = image * piece.from.groups + from_group;
                let x = &source[from_plane * piece.from.plane_elements()..][..piece.from.plane_elements()];
                let x = &x[pixels.start * piece.from.width..pixels.end * piece.from.width];
                copy([within, piece.from.width], x, [channel - group_channels.start, width], y, run);
                channel += run;
            }
        }
        if group_channels.len() < width {
            y.chunks_exact_mut(width).for_each(|pixel| pixel[group_channels.len()..].fill(E::store(0.0)));
        }
    }
}

/// Copies `run` channels of every pixel; `from` and `to` are `[first channel, channels of a pixel]`.
fn copy<E: Element>(from: [usize; 2], x: &[E], to: [usize; 2], y: &mut [E], run: usize) {
    if [from[1], to[1]] == [run; 2] {
        y.copy_from_slice(x);
        return;
    }
    for (y, x) in y.chunks_exact_mut(to[1]).zip(x.chunks_exact(from[1])) {
        y[to[0]..to[0] + run].copy_from_slice(&x[from[0]..from[0] + run]);
    }
}
