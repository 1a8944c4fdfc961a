//! Channel shuffles and slices: each channel of the output is one of the source, or zero. Threads divide
//! pixel rows of the output.

use super::rows::MapGeometry;
use super::simd::Element;
use super::threads::{ThreadTeam, split_lengths};

/// Equally spaced channels of a source, and their positions in the output.
#[derive(Clone, Copy, Debug)]
pub struct ChannelRun {
    /// The first channel in the source, and the stride.
    pub from: [usize; 2],
    /// The first channel in the output, and the stride.
    pub to: [usize; 2],
    /// The number of channels.
    pub channels: usize,
}

/// A map whose channels are gathered from another's.
#[derive(Clone, Debug)]
pub struct ChannelGather {
    from: MapGeometry,
    to: MapGeometry,
    runs: Vec<ChannelRun>,
    /// The offset of each channel of the output, padding included, in an image of the source, at its first
    /// pixel. [`NONE`] for channels that are zero.
    source_offsets: Vec<usize>,
    team: ThreadTeam,
}

const NONE: usize = usize::MAX;

impl ChannelGather {
    /// The output's channels outside of all runs are zero.
    #[must_use]
    pub fn new([from, to]: [MapGeometry; 2], runs: Vec<ChannelRun>, team: ThreadTeam) -> Self {
        let mut places = vec![NONE; to.padded()];
        for run in &runs {
            for channel in 0..run.channels {
                let source = run.from[0] + channel * run.from[1];
                places[run.to[0] + channel * run.to[1]] =
                    source / from.pixel_channels * from.plane_elements() + source % from.pixel_channels;
            }
        }
        Self { from, to, runs, source_offsets: places, team }
    }

    /// Gathers the channels of `y` from `x`.
    pub fn run<E: Element>(&self, x: &[E], y: &mut [E]) {
        let (threads, from, to) = (self.team.threads(), &self.from, &self.to);
        let rows = |thread: usize| to.thread_rows(threads, thread);
        let whole_pixels = [from, to].iter().all(|map| map.groups == 1);
        let clears = self.source_offsets.contains(&NONE);
        let mut parts = split_lengths(y, (0..threads).map(|thread| rows(thread).len() * to.row_elements()));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            for (row, y) in rows(thread).zip(part.chunks_exact_mut(to.row_elements().max(1))) {
                let (plane, line) = (row / to.height, row % to.height);
                let (image, group) = (plane / to.groups, plane % to.groups);
                let first = image * from.groups * from.plane_elements() + line * from.row_elements();
                if whole_pixels {
                    let pixels = x[first..first + from.row_elements()].chunks_exact(from.pixel_channels);
                    pixels
                        .zip(y.chunks_exact_mut(to.pixel_channels))
                        .for_each(|(x, y)| self.pixel(clears, x, y));
                    continue;
                }
                let offsets =
                    &self.source_offsets[group * to.pixel_channels..(group + 1) * to.pixel_channels];
                for (pixel, y) in y.chunks_exact_mut(to.pixel_channels).enumerate() {
                    let at = first + pixel * from.pixel_channels;
                    for (y, &offset) in y.iter_mut().zip(offsets) {
                        *y = if offset == NONE { E::store(0.0) } else { x[at + offset] };
                    }
                }
            }
        });
    }

    /// Copies one pixel, all of whose channels are contiguous; clears it first if some are zero.
    fn pixel<E: Element>(&self, clears: bool, x: &[E], y: &mut [E]) {
        if clears {
            y.fill(E::store(0.0));
        }
        for ChannelRun { from, to, channels } in &self.runs {
            if [from[1], to[1]] == [1; 2] {
                y[to[0]..to[0] + channels].copy_from_slice(&x[from[0]..from[0] + channels]);
                continue;
            }
            let x = x[from[0]..].iter().step_by(from[1]);
            y[to[0]..].iter_mut().step_by(to[1]).zip(x).take(*channels).for_each(|(y, x)| *y = *x);
        }
    }
}
