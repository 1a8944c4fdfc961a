//! The weights of [`WinogradConv`], transformed and packed in panels of 32 columns.

use super::{Pass, WinogradConv};
use crate::native::conv::winograd::int16::{K_CHUNK, chunks, quantise_filters, stage};
use crate::native::conv::winograd::product::PANEL;
use crate::native::conv::winograd::transform::filter_transform;
use crate::native::conv::winograd::{ALPHA, POINTS, store_points};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};

with_wide_lanes! {
    pub(super) fn transform_weights / transform_weights_body(
        conv: &WinogradConv,
        weights: &[E],
        panel: usize,
        to: &mut [f32],
        staging: &mut [f32],
    )
}

/// Packs panel `panel`: `[36][K, 32]` floats, or integers in pairs of terms, `[36][K / 2, 32, 2]`, followed
/// by their scales, `[36][chunks of K][32]`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn transform_weights_body<V: Lanes, E: LaneElement>(
    conv: &WinogradConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    staging: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        if conv.grid.taps == 5 {
            transform::<V, E, 5>(conv, weights, panel, to, staging);
        } else {
            transform::<V, E, 3>(conv, weights, panel, to, staging);
        }
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn transform<V: Lanes, E: LaneElement, const TAPS: usize>(
    conv: &WinogradConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    staging: &mut [f32],
) {
    let [terms, columns] = conv.padded_channels();
    let column_channels = conv.channels[1];
    for part in 0..PANEL / LANES {
        let column = panel * PANEL + part * LANES;
        if column >= columns {
            break;
        }
        let columns = [column, LANES.min(column_channels - column)];
        for term in 0..terms {
            // SAFETY: upheld by the caller.
            let filter = unsafe { load_taps::<V, E, TAPS>(conv, weights, term, columns) };
            // SAFETY: upheld by the caller; a panel has `PANEL` floats for every point and term.
            unsafe {
                let plane = filter_transform::<V, TAPS, 0, ALPHA>(filter);
                if conv.int16.is_none() {
                    store_points(plane, to, term * PANEL + part * LANES, terms * PANEL);
                } else {
                    stage(plane.as_flattened(), staging, term % K_CHUNK);
                }
            }
            let (chunk, staged_terms) = (term / K_CHUNK, term % K_CHUNK + 1);
            if conv.int16.is_some() && (staged_terms == K_CHUNK || term + 1 == terms) {
                let (quantised, scales) = to.split_at_mut(POINTS * terms * PANEL / 2);
                let quantised = bytemuck::cast_slice_mut(quantised);
                let first = chunk * K_CHUNK / 2;
                let value_offset = |point: usize, pair: usize| {
                    ((point * terms / 2 + first + pair) * PANEL + part * LANES) * 2
                };
                let scale_offset = |point: usize| (point * chunks(terms) + chunk) * PANEL + part * LANES;
                // SAFETY: upheld by the caller; a panel has `PANEL` pairs per point and two terms, and
                // `PANEL` scales per point and chunk.
                unsafe {
                    quantise_filters::<V, POINTS>(
                        staging,
                        staged_terms,
                        quantised,
                        value_offset,
                        scales,
                        scale_offset,
                    );
                };
            }
        }
    }
}

/// The taps of sixteen columns at a term, rotated by 180° for the data gradient. Only the first `present`
/// columns exist; other columns and terms are zero.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn load_taps<V: Lanes, E: LaneElement, const TAPS: usize>(
    conv: &WinogradConv,
    weights: &[E],
    term: usize,
    [column, present]: [usize; 2],
) -> [[V; TAPS]; TAPS] {
    let [term_channels, column_channels] = conv.channels;
    let taps = TAPS * TAPS;
    // Weights are `[O, I, H, W]`; the terms are `I` in the forward pass, `O` in the data gradient.
    let [first, column_stride] = match conv.pass {
        Pass::Forward => [column * term_channels + term, term_channels],
        Pass::BackwardData => [term * column_channels + column, 1],
    }
    .map(|filters| filters * taps);
    // SAFETY: upheld by the caller; the elements read are within the weights.
    let mut filter = unsafe {
        let mut filter = [[V::splat(0.0); TAPS]; TAPS];
        if term >= term_channels {
            return filter;
        }
        let to = filter.as_flattened_mut();
        if present == LANES && first + (LANES - 1) * column_stride + taps.max(LANES) <= weights.len() {
            // Sixteen consecutive weights of each column (some may belong to the next one), transposed. Of 25
            // taps, the second sixteen overlap the first.
            let transposed = |from: usize| {
                let at = |column: usize| weights.as_ptr().add(first + column * column_stride + from);
                V::transpose(std::array::from_fn(|column| E::load_lanes(&*at(column).cast())))
            };
            for from in (0..taps).step_by(LANES).map(|from| from.min(taps.saturating_sub(LANES))) {
                for (to, value) in to[from..].iter_mut().zip(transposed(from)) {
                    *to = value;
                }
            }
        } else {
            for (tap, value) in to.iter_mut().enumerate() {
                let weight = |column: usize| weights[first + column * column_stride + tap].load();
                *value = V::load(&std::array::from_fn(
                    |column| if column < present { weight(column) } else { 0.0 },
                ));
            }
        }
        filter
    };
    if conv.pass == Pass::BackwardData {
        filter.as_flattened_mut().reverse();
    }
    filter
}
