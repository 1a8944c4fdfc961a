//! Maps pixel by pixel, for what is computed from all channels of each: these are gathered from, and go back
//! to, where the layout has them. Threads divide pixels, or images where channels are blocked.

use crate::native::rows::Geometry;
use crate::native::simd::Element;
use crate::native::threads::{MAX_THREADS, ThreadTeam, cut, split};
use std::ops::Range;

/// A map's geometry, and the threads that share it.
#[derive(Clone, Debug)]
pub(super) struct Pixels {
    pub geometry: Geometry,
    pub team: ThreadTeam,
}

/// Called for a share of a map: first element, pixels, the share, a thread's scratch.
pub(super) type PixelsBody<'a, E, S> = dyn Fn(usize, usize, &mut [E], &mut [S]) + Sync + 'a;

impl Pixels {
    /// What threads share: pixels, or images. Its elements, its pixels, and how many there are.
    fn units(&self) -> [usize; 3] {
        let Geometry { planes, height, row, width, groups, .. } = self.geometry;
        let pixels = height * row;
        if groups == 1 {
            [width, 1, planes * pixels]
        } else {
            [groups * pixels * width, pixels, planes / groups]
        }
    }

    /// What a thread has of a map, in pieces whose groups lie one behind the other: first element, pixels.
    pub fn shares(&self, thread: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [elements, pixels, count] = self.units();
        let Range { start, end } = split(count, self.team.threads(), thread);
        // Pixels are one piece, images one each.
        let step = if self.geometry.groups == 1 { (end - start).max(1) } else { 1 };
        (start..end).step_by(step).map(move |first| (first * elements, pixels * step))
    }

    /// Calls `body` for a share of a map of whole pixels, on all threads; each has `each` elements of
    /// scratch.
    pub fn for_each_share<E: Element, S: Send>(
        &self,
        map: &mut [E],
        scratch: &mut [S],
        each: usize,
        body: &PixelsBody<'_, E, S>,
    ) {
        let (threads, [elements, _, count]) = (self.team.threads(), self.units());
        let width = self.geometry.padded();
        let mut maps = cut(map, (0..threads).map(|t| split(count, threads, t).len() * elements));
        let mut scratches = cut(scratch, (0..threads).map(|_| each));
        let mut parts: [(&mut [E], &mut [S]); MAX_THREADS] =
            std::array::from_fn(|t| (std::mem::take(&mut maps[t]), std::mem::take(&mut scratches[t])));
        self.team.run_parts(&mut parts[..threads], &|thread, (map, scratch)| {
            let mut rest = &mut map[..];
            for (first, pixels) in self.shares(thread) {
                let (share, behind) = std::mem::take(&mut rest).split_at_mut(pixels * width);
                body(first, pixels, share, scratch);
                rest = behind;
            }
        });
    }

    /// A pixel's channels within some pixels, by group: first channel, first element, how many.
    #[inline(always)]
    fn channel_groups(
        &self,
        pixels: usize,
        pixel: usize,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let Geometry { groups, width, channels, .. } = self.geometry;
        (0..groups).map(move |group| {
            let first = group * width;
            (first, (group * pixels + pixel) * width, width.min(channels - first))
        })
    }

    /// The channels of a pixel of some.
    #[inline(always)]
    pub fn gather<E: Element>(&self, pixels: usize, pixel: usize, from: &[E], to: &mut [f32]) {
        for (first, at, length) in self.channel_groups(pixels, pixel) {
            for (to, from) in to[first..first + length].iter_mut().zip(&from[at..at + length]) {
                *to = from.load();
            }
        }
    }

    /// Stores `value(channel)` for a pixel; padded channels become zero.
    #[inline(always)]
    pub fn scatter<E: Element>(
        &self,
        pixels: usize,
        pixel: usize,
        to: &mut [E],
        value: impl Fn(usize) -> f32,
    ) {
        for (first, at, length) in self.channel_groups(pixels, pixel) {
            let (filled, padding) = to[at..at + self.geometry.width].split_at_mut(length);
            for (offset, to) in filled.iter_mut().enumerate() {
                *to = E::store(value(first + offset));
            }
            padding.fill(E::store(0.0));
        }
    }
}
