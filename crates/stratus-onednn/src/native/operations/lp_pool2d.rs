//! Power-average pooling of norm 2.
//!
//! ```text
//! y = √(Σ x²)        dx = x Σ dy / y        over the pixels of a window, and the windows of a pixel
//! ```
//!
//! Sums are `f32` for every element type. Threads divide the written rows; a pixel of the gradient gathers
//! from the windows that contain it.

use crate::native::elementwise::CpuContext;
use crate::native::rows::{MapGeometry, for_each_row};
use crate::native::simd::{Element, multiversion};
use crate::ops::{CpuOp, NativeStep, StepOperands, native_step, typed};
use std::ops::Range;
use stratus_engine::ops::{LpPoolBackward, LpPoolForward};
use stratus_graph::ops::LpPool2d;

/// The number of channels summed at a time.
const BLOCK: usize = 64;

/// A pooling. Input and output have the same channels in the same groups.
#[derive(Clone, Debug)]
struct LpPool {
    pool: LpPool2d,
    input: MapGeometry,
    output: MapGeometry,
    cpu: CpuContext,
}

impl LpPool {
    /// Computes `y` from `x`.
    fn forward<E: Element>(&self, x: &[E], y: &mut [E]) {
        let plane_elements = self.input.plane_elements();
        for_each_row(&self.cpu.team, &self.output, y, &|plane, row, y| {
            let x = &x[plane * plane_elements..][..plane_elements];
            norm_row::<E>(self.cpu.level, self, row, x, y);
        });
    }

    /// Computes `dx` from `x`, `y` and `dy`.
    fn backward<E: Element>(&self, x: &[E], [y, dy]: [&[E]; 2], dx: &mut [E]) {
        let plane_elements = self.output.plane_elements();
        let row_elements = self.input.row_elements();
        for_each_row(&self.cpu.team, &self.input, dx, &|plane, row, dx| {
            let maps = [y, dy].map(|map| &map[plane * plane_elements..][..plane_elements]);
            let x = &x[(plane * self.input.height + row) * row_elements..][..row_elements];
            gather_row::<E>(self.cpu.level, self, row, x, maps, dx);
        });
    }

    /// The outputs along an axis whose windows contain a position.
    #[inline(always)]
    fn readers(&self, axis: usize, position: usize, outputs: usize) -> Range<usize> {
        let (kernel, stride) = (self.pool.kernel[axis], self.pool.stride[axis]);
        let first = (position + 1).saturating_sub(kernel).div_ceil(stride);
        first..(position / stride + 1).min(outputs).max(first)
    }
}

multiversion! {
    fn norm_row / norm_row_body [E: Element] [E] (pool: &LpPool, row: usize, x: &[E], y: &mut [E])
}

#[inline(always)]
fn norm_row_body<E: Element>(pool: &LpPool, row: usize, x: &[E], y: &mut [E]) {
    let (in_row, width, LpPool2d { kernel, stride }) =
        (pool.input.row_pixels, pool.input.pixel_channels, pool.pool);
    for (column, y) in y.chunks_exact_mut(width).enumerate() {
        for (block, y) in y.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0.0f32; BLOCK];
            let sums = &mut sums[..y.len()];
            for i in 0..kernel[0] {
                for j in 0..kernel[1] {
                    let pixel = (row * stride[0] + i) * in_row + column * stride[1] + j;
                    let x = &x[pixel * width + block * BLOCK..][..y.len()];
                    for (sum, x) in sums.iter_mut().zip(x) {
                        *sum = x.load().mul_add(x.load(), *sum);
                    }
                }
            }
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = E::store(sum.sqrt());
            }
        }
    }
}

multiversion! {
    fn gather_row / gather_row_body [E: Element] [E] (
        pool: &LpPool, row: usize, x: &[E], outputs: [&[E]; 2], dx: &mut [E],
    )
}

#[inline(always)]
fn gather_row_body<E: Element>(pool: &LpPool, row: usize, x: &[E], [y, dy]: [&[E]; 2], dx: &mut [E]) {
    let (out_row, width) = (pool.output.row_pixels, pool.output.pixel_channels);
    let rows = pool.readers(0, row, pool.output.height);
    for (column, (x, dx)) in x.chunks_exact(width).zip(dx.chunks_exact_mut(width)).enumerate() {
        let columns = pool.readers(1, column, out_row);
        for (block, (x, dx)) in x.chunks(BLOCK).zip(dx.chunks_mut(BLOCK)).enumerate() {
            let mut sums = [0.0f32; BLOCK];
            let sums = &mut sums[..dx.len()];
            for i in rows.clone() {
                for j in columns.clone() {
                    let first = (i * out_row + j) * width + block * BLOCK;
                    let (y, dy) = (&y[first..][..dx.len()], &dy[first..][..dx.len()]);
                    for ((sum, y), dy) in sums.iter_mut().zip(y).zip(dy) {
                        let norm = y.load();
                        *sum += if norm == 0.0 { 0.0 } else { dy.load() / norm };
                    }
                }
            }
            for ((dx, x), sum) in dx.iter_mut().zip(x).zip(sums) {
                *dx = E::store(x.load() * *sum);
            }
        }
    }
}

impl CpuOp for LpPoolForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (input, output) = (operands.common_geometry(0)?, operands.common_geometry(1)?);
        let pool = LpPool { pool: self.pool, input, output, cpu: cpu.clone() };
        Ok(typed!(operands.one_type(&[0, 1])?, E => {
            native_step(0, move |o| pool.forward::<E>(o.elements(0), o.elements(1)))
        }))
    }
}

impl CpuOp for LpPoolBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let (input, output) = (operands.common_geometry(0)?, operands.common_geometry(1)?);
        let pool = LpPool { pool: self.pool, input, output, cpu: cpu.clone() };
        Ok(typed!(operands.one_type(&[0, 1, 2, 3])?, E => native_step(0, move |o| {
            let outputs = [&*o.elements(1), &*o.elements(2)];
            pool.backward::<E>(o.elements(0), outputs, o.elements(3));
        })))
    }
}
