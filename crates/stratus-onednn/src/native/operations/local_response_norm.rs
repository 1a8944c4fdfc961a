//! Local response normalisation across channels.
//!
//! ```text
//! scale_c = k + α/n · Σ_{c' within the window} x_{c'}²           y_c = x_c · scale_c^-β
//! dx_c = dy_c · scale_c^-β - 2αβ/n · x_c · Σ_{c' whose window has c} dy_{c'} x_{c'} scale_{c'}^(-β-1)
//! ```
//!
//! A pixel's channels are gathered into scratch with zeros on both sides; window sums are then sums of n
//! shifted copies, in every layout of the map.

use crate::native::elementwise::CpuContext;
use crate::native::norm::pixels::PixelView;
use crate::native::rows::MapGeometry;
use crate::native::simd::{Element, IsaLevel, multiversion};
use crate::ops::{CpuOp, NativeStep, StepOperands, native_step, typed};
use stratus_engine::ops::{LrnBackward, LrnForward};
use stratus_graph::ops::LocalResponseNorm;

/// The parameters of local response norm kernels.
#[derive(Clone, Debug)]
pub struct Lrn {
    pixels: PixelView,
    /// The channels of a window before and after its own, limited to the number of channels.
    reach: [usize; 2],
    /// α/n.
    weight: f32,
    k: f32,
    beta: f32,
    level: IsaLevel,
}

/// A thread's scratch for one pixel.
struct PixelScratch<'a> {
    /// The terms summed over windows, with zeros on both sides.
    neighbours: &'a mut [f32],
    /// The sums over the windows.
    sums: &'a mut [f32],
    /// `scale^-beta`.
    factors: &'a mut [f32],
    /// The input.
    x: &'a mut [f32],
    /// The gradient of the output.
    dy: &'a mut [f32],
}

impl<'a> PixelScratch<'a> {
    fn new(scratch: &'a mut [f32], channels: usize) -> Self {
        let (sums, rest) = scratch.split_at_mut(channels);
        let (factors, rest) = rest.split_at_mut(channels);
        let (x, rest) = rest.split_at_mut(channels);
        let (dy, neighbours) = rest.split_at_mut(channels);
        Self { neighbours, sums, factors, x, dy }
    }
}

impl Lrn {
    /// The normalisation of maps with this geometry.
    #[must_use]
    pub fn new(norm: &LocalResponseNorm, geometry: MapGeometry, cpu: &CpuContext) -> Self {
        let reach = [norm.size / 2, (norm.size - 1) / 2].map(|reach| reach.min(geometry.channels));
        let weight = (f64::from(norm.alpha) / norm.size as f64) as f32;
        let pixels = PixelView { geometry, team: cpu.team.clone() };
        Self { pixels, reach, weight, k: norm.k, beta: norm.beta, level: cpu.level }
    }

    /// The floats of one thread's scratch.
    fn floats(&self) -> usize {
        (5 * self.pixels.geometry.channels + self.reach[0] + self.reach[1]).next_multiple_of(16)
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.pixels.team.threads() * self.floats() * size_of::<f32>()
    }

    /// Computes `y` from `x`.
    pub fn forward<E: Element>(&self, x: &[E], y: &mut [E], scratch: &mut [f32]) {
        self.pixels.for_each_share(y, scratch, self.floats(), &|start, pixels, y, scratch| {
            let x = &x[start..start + y.len()];
            normalise(
                self.level,
                self,
                pixels,
                x,
                y,
                PixelScratch::new(scratch, self.pixels.geometry.channels),
            );
        });
    }

    /// Computes `dx` from `x` and `dy`.
    pub fn backward<E: Element>(&self, x: &[E], dy: &[E], dx: &mut [E], scratch: &mut [f32]) {
        self.pixels.for_each_share(dx, scratch, self.floats(), &|start, pixels, dx, scratch| {
            let (x, dy) = (&x[start..start + dx.len()], &dy[start..start + dx.len()]);
            gradient(
                self.level,
                self,
                pixels,
                x,
                dy,
                dx,
                PixelScratch::new(scratch, self.pixels.geometry.channels),
            );
        });
    }

    /// Computes `sums[c]` over the window of `neighbours` that starts at `c`.
    #[inline(always)]
    fn window_sums(&self, neighbours: &[f32], sums: &mut [f32]) {
        sums.copy_from_slice(&neighbours[..sums.len()]);
        for shift in 1..=self.reach[0] + self.reach[1] {
            for (sum, value) in sums.iter_mut().zip(&neighbours[shift..]) {
                *sum += value;
            }
        }
    }

    /// Computes the scales of the gathered pixel, in `sums`, and `scale^-beta`, in `factors`.
    #[inline(always)]
    fn scales(&self, pixel: &mut PixelScratch<'_>) {
        let PixelScratch { neighbours, sums, factors, x, .. } = pixel;
        neighbours[..self.reach[0]].fill(0.0);
        let (squares, after) = neighbours[self.reach[0]..].split_at_mut(x.len());
        for (square, x) in squares.iter_mut().zip(&**x) {
            *square = x * x;
        }
        after.fill(0.0);
        self.window_sums(neighbours, sums);
        for sum in sums.iter_mut() {
            *sum = self.weight.mul_add(*sum, self.k);
        }
        let pairs = factors.iter_mut().zip(&**sums);
        // A power costs as much as all the rest; the published exponents need only roots.
        if self.beta == 0.75 {
            pairs.for_each(|(factor, scale)| {
                let root = scale.sqrt();
                *factor = 1.0 / (root * root.sqrt());
            });
        } else if self.beta == 0.5 {
            pairs.for_each(|(factor, scale)| *factor = 1.0 / scale.sqrt());
        } else if self.beta == 1.0 {
            pairs.for_each(|(factor, scale)| *factor = 1.0 / scale);
        } else {
            pairs.for_each(|(factor, scale)| *factor = scale.powf(-self.beta));
        }
    }
}

multiversion! {
    fn normalise / normalise_body [E: Element] [E] (
        lrn: &Lrn,
        pixels: usize,
        x: &[E],
        y: &mut [E],
        scratch: PixelScratch<'_>,
    )
}

#[inline(always)]
fn normalise_body<E: Element>(lrn: &Lrn, pixels: usize, x: &[E], y: &mut [E], mut scratch: PixelScratch<'_>) {
    for pixel in 0..pixels {
        lrn.pixels.gather(pixels, pixel, x, scratch.x);
        lrn.scales(&mut scratch);
        let (x, factors) = (&*scratch.x, &scratch.factors[..scratch.x.len()]);
        lrn.pixels.scatter(pixels, pixel, y, |c| x[c] * factors[c]);
    }
}

multiversion! {
    fn gradient / gradient_body [E: Element] [E] (
        lrn: &Lrn, pixels: usize, x: &[E], dy: &[E], dx: &mut [E], scratch: PixelScratch<'_>,
    )
}

#[inline(always)]
fn gradient_body<E: Element>(
    lrn: &Lrn,
    pixels: usize,
    x: &[E],
    dy: &[E],
    dx: &mut [E],
    mut scratch: PixelScratch<'_>,
) {
    let [before, after] = lrn.reach;
    let slope = 2.0 * lrn.beta * lrn.weight;
    for pixel in 0..pixels {
        lrn.pixels.gather(pixels, pixel, x, scratch.x);
        lrn.pixels.gather(pixels, pixel, dy, scratch.dy);
        lrn.scales(&mut scratch);
        let PixelScratch { neighbours, sums, factors, x, dy } = &mut scratch;
        let channels = x.len();
        // The channels whose windows contain `c`: the mirrored window.
        neighbours[..after].fill(0.0);
        neighbours[after + channels..][..before].fill(0.0);
        let passed = &mut neighbours[after..after + channels];
        for c in 0..channels {
            passed[c] = dy[c] * x[c] * factors[c] / sums[c];
        }
        lrn.window_sums(neighbours, sums);
        let (x, dy, factors, sums) = (&**x, &dy[..channels], &factors[..channels], &sums[..channels]);
        lrn.pixels.scatter(pixels, pixel, dx, |c| dy[c] * factors[c] - slope * x[c] * sums[c]);
    }
}

impl CpuOp for LrnForward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = Lrn::new(&self.norm, operands.common_geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1])?, E => native_step(norm.scratch_bytes(), move |o| {
            norm.forward::<E>(o.elements(0), o.elements(1), o.elements(2));
        })))
    }
}

impl CpuOp for LrnBackward {
    fn build(&self, operands: &StepOperands, cpu: &CpuContext) -> Result<NativeStep, String> {
        let norm = Lrn::new(&self.norm, operands.common_geometry(0)?, cpu);
        Ok(typed!(operands.one_type(&[0, 1, 2])?, E => native_step(norm.scratch_bytes(), move |o| {
            norm.backward::<E>(o.elements(0), o.elements(1), o.elements(2), o.elements(3));
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::threads::ThreadTeam;

    /// Forward and backward of two images of 20 channels, channels last or blocked, at a level.
    fn both(level: IsaLevel, [groups, width]: [usize; 2], beta: f32) -> [Vec<f32>; 2] {
        let geometry = MapGeometry {
            planes: 2 * groups,
            height: 3,
            row_pixels: 2,
            pixel_channels: width,
            groups,
            channels: 20,
        };
        let norm = LocalResponseNorm { size: 5, alpha: 2.0, beta, k: 1.0 };
        let lrn = Lrn::new(&norm, geometry, &CpuContext { team: ThreadTeam::single(), level });
        let count = geometry.planes * geometry.plane_elements();
        let number = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0;
        let (x, dy): (Vec<f32>, Vec<f32>) =
            ((0..count).map(number(3)).collect(), (0..count).map(number(55)).collect());
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; lrn.scratch_bytes() / size_of::<f32>()];
        let (mut y, mut dx) = (vec![f32::NAN; count], vec![f32::NAN; count]);
        lrn.forward(&x, &mut y, &mut scratch);
        scratch.fill(f32::NAN);
        lrn.backward(&x, &dy, &mut dx, &mut scratch);
        [y, dx]
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        for layout in [[1, 20], [2, 16]] {
            for beta in [0.75, 0.5, 1.0, 0.6] {
                let baseline = both(IsaLevel::detect([false, false]), layout, beta);
                assert!(baseline.iter().flatten().all(|value| value.is_finite()));
                for level in IsaLevel::all() {
                    assert_eq!(both(level, layout, beta), baseline, "{layout:?} {beta} {}", level.name());
                }
            }
        }
    }

    /// Exponents computed by roots match the powers.
    #[test]
    fn roots_match_powers() {
        for beta in [0.75, 0.5, 1.0] {
            let [roots, powers] =
                [beta, beta + 1e-7].map(|beta| both(IsaLevel::detect([true, true]), [1, 20], beta));
            for (a, b) in roots.iter().zip(&powers).flat_map(|(a, b)| a.iter().zip(b)) {
                assert!((a - b).abs() <= 2e-6 * a.abs().max(0.1), "{beta}: {a} {b}");
            }
        }
    }
}
