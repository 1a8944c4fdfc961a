//! Weights at the points, as the products of [`WinogradConv`] have them.

use super::conv::{Pass, WinogradConv};
use super::product::PANEL;
use super::transform::filter_plane;
use super::words::{keep, round_filters};
use super::{POINTS, REACH, store};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};

with_lanes! {
    pub(super) fn transform_weights / transform_weights_body(
        conv: &WinogradConv,
        weights: &[E],
        panel: usize,
        to: &mut [f32],
        strip: &mut [f32],
    )
}

/// Brings a panel of the weights to values at the points. Of whole numbers two are in a float, and their units are behind all of them.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn transform_weights_body<V: Lanes, E: LaneElement>(
    conv: &WinogradConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    strip: &mut [f32],
) {
    // SAFETY: the caller's.
    unsafe {
        if conv.grid.taps == 5 {
            transform::<V, E, 5>(conv, weights, panel, to, strip);
        } else {
            transform::<V, E, 3>(conv, weights, panel, to, strip);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn transform<V: Lanes, E: LaneElement, const TAPS: usize>(
    conv: &WinogradConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    strip: &mut [f32],
) {
    let [terms, columns] = conv.matrix();
    let [of_terms, of_columns] = conv.channels;
    for part in 0..PANEL / LANES {
        let column = panel * PANEL + part * LANES;
        if column >= columns {
            break;
        }
        for term in 0..terms {
            // A row for each of the sixteen, as they lie, to be read across.
            let mut taps = [[[0.0; TAPS]; TAPS]; LANES];
            let there = if term < of_terms { LANES.min(of_columns - column) } else { 0 };
            for (lane, taps) in taps.iter_mut().enumerate().take(there) {
                // The weights are `[out, in, row, column]`, whichever of the two is summed over.
                let filter = match conv.pass {
                    Pass::Forward => (column + lane) * of_terms + term,
                    Pass::BackwardData => term * of_columns + column + lane,
                };
                let weights = weights[filter * TAPS * TAPS..][..TAPS * TAPS].iter();
                let taps = taps.as_flattened_mut().iter_mut();
                match conv.pass {
                    Pass::Forward => {
                        taps.zip(weights).for_each(|(tap, weight)| *tap = weight.load());
                    }
                    Pass::BackwardData => {
                        taps.rev().zip(weights).for_each(|(tap, weight)| *tap = weight.load());
                    }
                }
            }
            // SAFETY: the caller's; a panel has `PANEL` floats for every point and term.
            unsafe {
                let mut filter = [[V::splat(0.0); TAPS]; TAPS];
                for (tap, value) in filter.as_flattened_mut().iter_mut().enumerate() {
                    *value = V::load(&std::array::from_fn(|lane| taps[lane].as_flattened()[tap]));
                }
                let plane = filter_plane::<V, TAPS, 0, REACH>(filter);
                if conv.words.is_none() {
                    store(plane, to, term * PANEL + part * LANES, terms * PANEL);
                } else {
                    keep(plane, strip, term);
                }
            }
        }
        if conv.words.is_some() {
            let (words, units) = to.split_at_mut(POINTS * terms * PANEL / 2);
            let words = bytemuck::cast_slice_mut(words);
            let at = |point: usize, pair: usize| ((point * terms / 2 + pair) * PANEL + part * LANES) * 2;
            let of = |point: usize| point * PANEL + part * LANES;
            // SAFETY: the caller's; a panel has `PANEL` pairs for every point and two terms, and as many units for every point.
            unsafe { round_filters::<V>(strip, terms, words, at, units, of) };
        }
    }
}
