//! Channels in another order, or some of them: each channel of the result is one of the source, or zero.
//! Threads divide pixel rows of the result.

use super::rows::Geometry;
use super::simd::Element;
use super::threads::{ThreadTeam, cut};

/// Channels of a source at equal distances, and where in the result they go.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The first channel in the source, and from one to the next.
    pub from: [usize; 2],
    /// The same in the result.
    pub to: [usize; 2],
    /// How many.
    pub channels: usize,
}

/// A map whose channels are some of another's.
#[derive(Clone, Debug)]
pub struct Channels {
    from: Geometry,
    to: Geometry,
    runs: Vec<Run>,
    /// For each channel of the result, padding included, where it lies in an image of the source: of its
    /// first pixel. [`NONE`] where it is zero.
    places: Vec<usize>,
    team: ThreadTeam,
}

const NONE: usize = usize::MAX;

impl Channels {
    /// The result's channels that no run has are zero.
    #[must_use]
    pub fn new([from, to]: [Geometry; 2], runs: Vec<Run>, team: ThreadTeam) -> Self {
        let mut places = vec![NONE; to.padded()];
        for run in &runs {
            for channel in 0..run.channels {
                let source = run.from[0] + channel * run.from[1];
                places[run.to[0] + channel * run.to[1]] =
                    source / from.width * from.plane_elements() + source % from.width;
            }
        }
        Self { from, to, runs, places, team }
    }

    /// Makes `y` of channels of `x`.
    pub fn run<E: Element>(&self, x: &[E], y: &mut [E]) {
        let (threads, from, to) = (self.team.threads(), &self.from, &self.to);
        let rows = |thread: usize| to.thread_rows(threads, thread);
        let whole_pixels = [from, to].iter().all(|map| map.groups == 1);
        let clears = self.places.contains(&NONE);
        let mut parts = cut(y, (0..threads).map(|thread| rows(thread).len() * to.row_elements()));
        self.team.run_parts(&mut parts[..threads], &|thread, part| {
            for (row, y) in rows(thread).zip(part.chunks_exact_mut(to.row_elements().max(1))) {
                let (plane, line) = (row / to.height, row % to.height);
                let (image, group) = (plane / to.groups, plane % to.groups);
                let first = image * from.groups * from.plane_elements() + line * from.row_elements();
                if whole_pixels {
                    let pixels = x[first..first + from.row_elements()].chunks_exact(from.width);
                    pixels.zip(y.chunks_exact_mut(to.width)).for_each(|(x, y)| self.pixel(clears, x, y));
                    continue;
                }
                let places = &self.places[group * to.width..(group + 1) * to.width];
                for (pixel, y) in y.chunks_exact_mut(to.width).enumerate() {
                    let at = first + pixel * from.width;
                    for (y, &place) in y.iter_mut().zip(places) {
                        *y = if place == NONE { E::store(0.0) } else { x[at + place] };
                    }
                }
            }
        });
    }

    /// One pixel, all of whose channels are contiguous; cleared first where some are zero.
    fn pixel<E: Element>(&self, clears: bool, x: &[E], y: &mut [E]) {
        if clears {
            y.fill(E::store(0.0));
        }
        for Run { from, to, channels } in &self.runs {
            if [from[1], to[1]] == [1; 2] {
                y[to[0]..to[0] + channels].copy_from_slice(&x[from[0]..from[0] + channels]);
                continue;
            }
            let x = x[from[0]..].iter().step_by(from[1]);
            y[to[0]..].iter_mut().step_by(to[1]).zip(x).take(*channels).for_each(|(y, x)| *y = *x);
        }
    }
}
