//! The products of [`WinogradGradient`], and the transform of their sums to taps.

use super::{Block, WinogradGradient};
use crate::native::conv::winograd::product::{LeftMatrix, PANEL, RightPanel, product};
use crate::native::conv::winograd::transform::output_transform;
use crate::native::conv::winograd::{ALPHA, POINTS, padded, panel_count};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};
use crate::native::threads::chunk_range;
use std::ops::Range;

with_wide_lanes! {
    pub(super) fn accumulate_block / accumulate_block_body(
        kernel: &WinogradGradient,
        block: Block,
        panel: usize,
        patches: &[f32],
        gradients: &[f32],
        sums: &mut [f32],
    )
}

/// Adds a block to the sums of one panel: `[in, 32]` of a point and 32 output channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn accumulate_block_body<V: Lanes, E: LaneElement>(
    kernel: &WinogradGradient,
    block: Block,
    panel: usize,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
) {
    let [of_x, of_dy] = kernel.registers();
    let (point, panel) = (panel / panel_count(kernel.channels[1]), panel % panel_count(kernel.channels[1]));
    let points = POINTS / kernel.groups;
    let (group, point) = (point / points, point % points);
    for part in 0..kernel.parts {
        let terms = chunk_range(part, kernel.depth, block.count).len();
        if terms == 0 {
            break;
        }
        let add = block.first + part > 0;
        let at = |registers: usize, register: usize| {
            ((group * kernel.parts + part) * registers + register) * kernel.register_stride()
                + point * kernel.point_stride()
        };
        let panel_register =
            |register: usize| &gradients[at(of_dy, panel * PANEL / LANES + register)..][..terms * LANES];
        for (register, sums) in sums.chunks_exact_mut(LANES * PANEL).enumerate() {
            let elements = &patches[at(of_x, register)..][..terms * LANES];
            // SAFETY: upheld by the caller.
            unsafe { panel_product::<V>(kernel, panel, elements, panel_register, sums, add) };
        }
    }
}

/// `sums[16, 32] (+)= elementsᵀ × gradients` over tiles: `elements` is a register of patches, `[tiles, 16]`;
/// `panel_register(0)` and `(1)` are the panel's registers of gradients.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn panel_product<'a, V: Lanes>(
    kernel: &WinogradGradient,
    panel: usize,
    elements: &[f32],
    panel_register: impl Fn(usize) -> &'a [f32],
    sums: &mut [f32],
    add: bool,
) {
    let left = LeftMatrix { elements, strides: [1, LANES] };
    let extents = [LANES, elements.len() / LANES];
    // SAFETY: upheld by the caller.
    unsafe {
        if (panel + 1) * PANEL > padded(kernel.channels[1]) {
            let right = RightPanel { registers: [panel_register(0)], stride: LANES };
            product::<V, 1>(left, right, sums, PANEL, extents, add);
        } else {
            let right = RightPanel { registers: [panel_register(0), panel_register(1)], stride: LANES };
            product::<V, 2>(left, right, sums, PANEL, extents, add);
        }
    }
}

with_wide_lanes! {
    pub(super) fn store_filters / store_filters_body(
        kernel: &WinogradGradient,
        filter: usize,
        sums: &[f32],
        dw: &mut [E],
    )
}

/// Transforms the sums of filters `filter..filter + 16` to their taps.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn store_filters_body<V: Lanes, E: LaneElement>(
    kernel: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        if kernel.grid.taps == 5 {
            store_taps::<V, E, 5>(kernel, filter, sums, dw);
        } else {
            store_taps::<V, E, 3>(kernel, filter, sums, dw);
        }
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn store_taps<V: Lanes, E: LaneElement, const TAPS: usize>(
    kernel: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    let [inputs, outputs] = kernel.channels;
    for first in (0..inputs).step_by(LANES) {
        let at = (filter / PANEL * padded(inputs) + first) * PANEL + filter % PANEL;
        let point_stride = panel_count(outputs) * padded(inputs) * PANEL;
        // SAFETY: upheld by the caller; there are sums for every point, panel and channel of the input.
        unsafe { store_square::<V, E, TAPS>(&sums[at..], point_stride, [inputs, first], dw) };
    }
}

/// Transforms the sums of sixteen filters by input channels `first..first + 16` of `inputs` to taps. Points
/// are `point_stride` floats apart, channels a panel.
///
/// # Safety
/// As [`Lanes`] requires; there must be sums for every point and channel.
#[inline(always)]
unsafe fn store_square<V: Lanes, E: LaneElement, const TAPS: usize>(
    sums: &[f32],
    point_stride: usize,
    [inputs, first]: [usize; 2],
    dw: &mut [E],
) {
    // Filters are far apart in `dw`: taps are collected, then written filter by filter.
    let mut filters = [[[[0.0; TAPS]; TAPS]; LANES]; LANES];
    for input in 0..LANES {
        // SAFETY: upheld by the caller.
        unsafe {
            let mut plane = [[V::splat(0.0); ALPHA]; ALPHA];
            for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                let at = point * point_stride + input * PANEL;
                debug_assert!(at + LANES <= sums.len());
                *value = V::load(&*sums.as_ptr().add(at).cast());
            }
            let taps: [[V; TAPS]; TAPS] = output_transform(plane);
            for (tap, values) in taps.as_flattened().iter().enumerate() {
                let mut lanes = [0.0; LANES];
                values.store(&mut lanes);
                for (filter, value) in filters.iter_mut().zip(lanes) {
                    filter[input].as_flattened_mut()[tap] = value;
                }
            }
        }
    }
    let present = LANES.min(inputs - first);
    for (filter, dw) in filters.iter().zip(dw.chunks_exact_mut(inputs * TAPS * TAPS)) {
        let to = &mut dw[first * TAPS * TAPS..][..present * TAPS * TAPS];
        for (to, value) in to.iter_mut().zip(filter.as_flattened().as_flattened()) {
            *to = E::store(*value);
        }
    }
}

with_wide_lanes! {
    pub(super) fn single_block_filters / single_block_filters_body(
        kernel: &WinogradGradient,
        tiles: usize,
        share: Range<usize>,
        patches: &[f32],
        gradients: &[f32],
        sums: &mut [f32],
        dw: &mut [E],
    )
}

/// Computes a thread's panels of filters if all tiles are one block.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // `with_wide_lanes` passes slices and constants separately.
unsafe fn single_block_filters_body<V: Lanes, E: LaneElement>(
    kernel: &WinogradGradient,
    tiles: usize,
    share: Range<usize>,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
    dw: &mut [E],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        if kernel.grid.taps == 5 {
            single_block::<V, E, 5>(kernel, tiles, share, patches, gradients, sums, dw);
        } else {
            single_block::<V, E, 3>(kernel, tiles, share, patches, gradients, sums, dw);
        }
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn single_block<V: Lanes, E: LaneElement, const TAPS: usize>(
    kernel: &WinogradGradient,
    tiles: usize,
    share: Range<usize>,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
    dw: &mut [E],
) {
    let inputs = kernel.channels[0];
    let filter_elements = inputs * TAPS * TAPS;
    for (panel, dw) in share.zip(dw.chunks_mut(PANEL * filter_elements)) {
        for register in 0..kernel.registers()[0] {
            for (point, sums) in sums.chunks_exact_mut(LANES * PANEL).enumerate() {
                let strip = [point, tiles * LANES];
                let elements = kernel.tiles_at(patches, register, strip);
                let panel_register =
                    |half: usize| kernel.tiles_at(gradients, panel * PANEL / LANES + half, strip);
                // SAFETY: upheld by the caller.
                unsafe { panel_product::<V>(kernel, panel, elements, panel_register, sums, false) };
            }
            for (half, dw) in dw.chunks_mut(LANES * filter_elements).enumerate() {
                let (sums, point_stride) = (&sums[half * LANES..], LANES * PANEL);
                // SAFETY: upheld by the caller; there are sums for every point and channel.
                unsafe { store_square::<V, E, TAPS>(sums, point_stride, [inputs, register * LANES], dw) };
            }
        }
    }
}
