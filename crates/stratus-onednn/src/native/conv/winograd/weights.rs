//! Weights at the points, as the products of [`WinogradConv`] have them.

use super::conv::{Pass, WinogradConv};
use super::int16::{CHUNK, chunks, keep, round_filters};
use super::product::PANEL;
use super::transform::filter_plane;
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
    let of_columns = conv.channels[1];
    for part in 0..PANEL / LANES {
        let column = panel * PANEL + part * LANES;
        if column >= columns {
            break;
        }
        let columns = [column, LANES.min(of_columns - column)];
        for term in 0..terms {
            // SAFETY: the caller's.
            let filter = unsafe { taps_of::<V, E, TAPS>(conv, weights, term, columns) };
            // SAFETY: the caller's; a panel has `PANEL` floats for every point and term.
            unsafe {
                let plane = filter_plane::<V, TAPS, 0, REACH>(filter);
                if conv.words.is_none() {
                    store(plane, to, term * PANEL + part * LANES, terms * PANEL);
                } else {
                    keep(plane, strip, term % CHUNK);
                }
            }
            let (chunk, kept) = (term / CHUNK, term % CHUNK + 1);
            if conv.words.is_some() && (kept == CHUNK || term + 1 == terms) {
                let (words, units) = to.split_at_mut(POINTS * terms * PANEL / 2);
                let words = bytemuck::cast_slice_mut(words);
                let first = chunk * CHUNK / 2;
                let at = |point: usize, pair: usize| {
                    ((point * terms / 2 + first + pair) * PANEL + part * LANES) * 2
                };
                let of = |point: usize| (point * chunks(terms) + chunk) * PANEL + part * LANES;
                // SAFETY: the caller's; a panel has `PANEL` pairs for every point and two terms, and as many units for every point and chunk.
                unsafe { round_filters::<V>(strip, kept, words, at, units, of) };
            }
        }
    }
}

/// The taps of some columns at a term, zero where the weights have none of them. The columns are sixteen from the first on, or as many as there are.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn taps_of<V: Lanes, E: LaneElement, const TAPS: usize>(
    conv: &WinogradConv,
    weights: &[E],
    term: usize,
    [column, there]: [usize; 2],
) -> [[V; TAPS]; TAPS] {
    let [of_terms, of_columns] = conv.channels;
    let taps = TAPS * TAPS;
    // The weights are `[out, in, row, column]`, whichever of the two is summed over.
    let [first, apart] = match conv.pass {
        Pass::Forward => [column * of_terms + term, of_terms],
        Pass::BackwardData => [term * of_columns + column, 1],
    }
    .map(|filters| filters * taps);
    // SAFETY: the caller's; what is read lies within the weights.
    let mut filter = unsafe {
        let mut filter = [[V::splat(0.0); TAPS]; TAPS];
        if term >= of_terms {
            return filter;
        }
        let to = filter.as_flattened_mut();
        if there == LANES && first + (LANES - 1) * apart + taps.max(LANES) <= weights.len() {
            // Sixteen taps of each column, of which some may be of the next, read across; the last sixteen where they are more.
            let across = |from: usize| {
                let at = |column: usize| weights.as_ptr().add(first + column * apart + from);
                V::transpose(std::array::from_fn(|column| E::load_lanes(&*at(column).cast())))
            };
            for from in (0..taps).step_by(LANES).map(|from| from.min(taps.saturating_sub(LANES))) {
                for (to, value) in to[from..].iter_mut().zip(across(from)) {
                    *to = value;
                }
            }
        } else {
            for (tap, value) in to.iter_mut().enumerate() {
                let weight = |column: usize| weights[first + column * apart + tap].load();
                *value =
                    V::load(&std::array::from_fn(|column| if column < there { weight(column) } else { 0.0 }));
            }
        }
        filter
    };
    if conv.pass == Pass::BackwardData {
        filter.as_flattened_mut().reverse();
    }
    filter
}
