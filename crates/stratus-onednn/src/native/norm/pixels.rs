//! Access to maps pixel by pixel, for computations over all channels of a pixel: gathers its channels from
//! the map's layout and scatters them back. Threads divide pixels, or images if channels are blocked.

use crate::native::rows::MapGeometry;
use crate::native::simd::Element;
use crate::native::threads::{MAX_THREADS, ThreadTeam, split, split_lengths};
use std::ops::Range;

/// A map's geometry, and the threads that share it.
#[derive(Clone, Debug)]
pub(crate) struct PixelView {
    pub geometry: MapGeometry,
    pub team: ThreadTeam,
}

/// A closure called for a range of a map: first element, number of pixels, the elements, a thread's scratch.
pub(crate) type PixelsBody<'a, E, S> = dyn Fn(usize, usize, &mut [E], &mut [S]) + Sync + 'a;

impl PixelView {
    /// The unit of division among threads, a pixel or an image: its elements, its pixels, and the number of
    /// units.
    fn units(&self) -> [usize; 3] {
        let MapGeometry { planes, height, row_pixels: row, pixel_channels: width, groups, .. } =
            self.geometry;
        let pixels = height * row;
        if groups == 1 {
            [width, 1, planes * pixels]
        } else {
            [groups * pixels * width, pixels, planes / groups]
        }
    }

    /// A thread's share of a map, in pieces whose groups are contiguous: first element, number of pixels.
    pub fn shares(&self, thread: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [elements, pixels, count] = self.units();
        let Range { start, end } = split(count, self.team.threads(), thread);
        // Pixels form one piece, images one piece each.
        let step = if self.geometry.groups == 1 { (end - start).max(1) } else { 1 };
        (start..end).step_by(step).map(move |first| (first * elements, pixels * step))
    }

    /// Calls `body` for ranges of whole pixels of a map, on all threads; each thread has `each` elements of
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
        let mut maps = split_lengths(map, (0..threads).map(|t| split(count, threads, t).len() * elements));
        let mut scratches = split_lengths(scratch, (0..threads).map(|_| each));
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

    /// The channels of a pixel, by group: first channel, first element, count.
    #[inline(always)]
    fn channel_groups(
        &self,
        pixels: usize,
        pixel: usize,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let MapGeometry { groups, pixel_channels: width, channels, .. } = self.geometry;
        (0..groups).map(move |group| {
            let first = group * width;
            (first, (group * pixels + pixel) * width, width.min(channels - first))
        })
    }

    /// Gathers the channels of one of `pixels` pixels.
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
            let (filled, padding) = to[at..at + self.geometry.pixel_channels].split_at_mut(length);
            for (offset, to) in filled.iter_mut().enumerate() {
                *to = E::store(value(first + offset));
            }
            padding.fill(E::store(0.0));
        }
    }
}
