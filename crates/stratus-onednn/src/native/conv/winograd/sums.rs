//! Products of [`WinogradGradient`]: their sums over tiles, and the taps that these are.

use super::gradient::{Block, WinogradGradient};
use super::product::{Left, PANEL, Right, product};
use super::transform::output_plane;
use super::{POINTS, REACH, filled, panels};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::piece;
use std::ops::Range;

with_lanes! {
    pub(super) fn add_products / add_products_body(
        of: &WinogradGradient,
        block: Block,
        panel: usize,
        patches: &[f32],
        gradients: &[f32],
        sums: &mut [f32],
    )
}

/// Adds a block up, at a point and for a panel of the output's channels.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn add_products_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    block: Block,
    panel: usize,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
) {
    let [of_x, of_dy] = of.registers();
    let (point, panel) = (panel / panels(of.channels[1]), panel % panels(of.channels[1]));
    let points = POINTS / of.groups;
    let (group, point) = (point / points, point % points);
    for part in 0..of.parts {
        let terms = piece(part, of.depth, block.count).len();
        if terms == 0 {
            break;
        }
        let add = block.first + part > 0;
        let at = |of_map: usize, register: usize| {
            ((group * of.parts + part) * of_map + register) * of.strip() + point * of.apart()
        };
        let of_panel =
            |register: usize| &gradients[at(of_dy, panel * PANEL / LANES + register)..][..terms * LANES];
        for (register, sums) in sums.chunks_exact_mut(LANES * PANEL).enumerate() {
            let elements = &patches[at(of_x, register)..][..terms * LANES];
            // SAFETY: the caller's.
            unsafe { panel_product::<V>(of, panel, elements, of_panel, sums, add) };
        }
    }
}

/// The sums of a register of the input's channels and of a panel of the output's, over the tiles in `elements`; `of_panel` gives these of each of the
/// panel's registers.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn panel_product<'a, V: Lanes>(
    of: &WinogradGradient,
    panel: usize,
    elements: &[f32],
    of_panel: impl Fn(usize) -> &'a [f32],
    sums: &mut [f32],
    add: bool,
) {
    let left = Left { elements, apart: [1, LANES] };
    let extents = [LANES, elements.len() / LANES];
    // SAFETY: the caller's.
    unsafe {
        if (panel + 1) * PANEL > filled(of.channels[1]) {
            let right = Right { registers: [of_panel(0)], apart: LANES };
            product::<V, 1>(left, right, sums, PANEL, extents, add);
        } else {
            let right = Right { registers: [of_panel(0), of_panel(1)], apart: LANES };
            product::<V, 2>(left, right, sums, PANEL, extents, add);
        }
    }
}

with_lanes! {
    pub(super) fn finish_filters / finish_filters_body(
        of: &WinogradGradient,
        filter: usize,
        sums: &[f32],
        dw: &mut [E],
    )
}

/// Brings the sums of sixteen filters, from `filter` on, to their taps.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn finish_filters_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    // SAFETY: the caller's.
    unsafe {
        if of.grid.taps == 5 {
            finish::<V, E, 5>(of, filter, sums, dw);
        } else {
            finish::<V, E, 3>(of, filter, sums, dw);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn finish<V: Lanes, E: LaneElement, const TAPS: usize>(
    of: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    let [inputs, outputs] = of.channels;
    for first in (0..inputs).step_by(LANES) {
        let at = (filter / PANEL * filled(inputs) + first) * PANEL + filter % PANEL;
        let apart = panels(outputs) * filled(inputs) * PANEL;
        // SAFETY: the caller's; there are sums for every point, panel and channel of the input.
        unsafe { finish_block::<V, E, TAPS>(&sums[at..], apart, [inputs, first], dw) };
    }
}

/// Brings the sums of sixteen filters and of sixteen channels of the input, from `first` on of `inputs`, to taps. Those of points are `apart` floats
/// from each other, those of channels a panel.
///
/// # Safety
/// Of [`Lanes`]; there are sums for every point and channel.
#[inline(always)]
unsafe fn finish_block<V: Lanes, E: LaneElement, const TAPS: usize>(
    sums: &[f32],
    apart: usize,
    [inputs, first]: [usize; 2],
    dw: &mut [E],
) {
    // Filters lie far apart: what is written of each is collected first.
    let mut filters = [[[[0.0; TAPS]; TAPS]; LANES]; LANES];
    for input in 0..LANES {
        // SAFETY: the caller's.
        unsafe {
            let mut plane = [[V::splat(0.0); REACH]; REACH];
            for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                let at = point * apart + input * PANEL;
                debug_assert!(at + LANES <= sums.len());
                *value = V::load(&*sums.as_ptr().add(at).cast());
            }
            let taps: [[V; TAPS]; TAPS] = output_plane(plane);
            for (tap, values) in taps.as_flattened().iter().enumerate() {
                let mut lanes = [0.0; LANES];
                values.store(&mut lanes);
                for (filter, value) in filters.iter_mut().zip(lanes) {
                    filter[input].as_flattened_mut()[tap] = value;
                }
            }
        }
    }
    let there = LANES.min(inputs - first);
    for (filter, dw) in filters.iter().zip(dw.chunks_exact_mut(inputs * TAPS * TAPS)) {
        let to = &mut dw[first * TAPS * TAPS..][..there * TAPS * TAPS];
        for (to, value) in to.iter_mut().zip(filter.as_flattened().as_flattened()) {
            *to = E::store(*value);
        }
    }
}

with_lanes! {
    pub(super) fn make_filters / make_filters_body(
        of: &WinogradGradient,
        tiles: usize,
        share: Range<usize>,
        patches: &[f32],
        gradients: &[f32],
        sums: &mut [f32],
        dw: &mut [E],
    )
}

/// Makes the gradients of a share of the panels of filters, of all tiles at once.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Of `with_lanes`: slices and constants, not structures of them.
unsafe fn make_filters_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    tiles: usize,
    share: Range<usize>,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
    dw: &mut [E],
) {
    // SAFETY: the caller's.
    unsafe {
        if of.grid.taps == 5 {
            make::<V, E, 5>(of, tiles, share, patches, gradients, sums, dw);
        } else {
            make::<V, E, 3>(of, tiles, share, patches, gradients, sums, dw);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn make<V: Lanes, E: LaneElement, const TAPS: usize>(
    of: &WinogradGradient,
    tiles: usize,
    share: Range<usize>,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
    dw: &mut [E],
) {
    let inputs = of.channels[0];
    let of_filter = inputs * TAPS * TAPS;
    for (panel, dw) in share.zip(dw.chunks_mut(PANEL * of_filter)) {
        for register in 0..of.registers()[0] {
            for (point, sums) in sums.chunks_exact_mut(LANES * PANEL).enumerate() {
                let strip = [point, tiles * LANES];
                let elements = of.strip_of(patches, register, strip);
                let of_panel = |half: usize| of.strip_of(gradients, panel * PANEL / LANES + half, strip);
                // SAFETY: the caller's.
                unsafe { panel_product::<V>(of, panel, elements, of_panel, sums, false) };
            }
            for (half, dw) in dw.chunks_mut(LANES * of_filter).enumerate() {
                let (sums, apart) = (&sums[half * LANES..], LANES * PANEL);
                // SAFETY: the caller's; there are sums for every point and channel.
                unsafe { finish_block::<V, E, TAPS>(sums, apart, [inputs, register * LANES], dw) };
            }
        }
    }
}
