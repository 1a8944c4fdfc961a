//! Kernels that read and write their operands once: ReLU, sums, SGD, conversion, accumulation.
//!
//! Memory-bound loops that the compiler vectorises, compiled for each level. Threads divide ranges of
//! elements.

use super::simd::{Bf16, Element, IsaLevel, multiversion};
use super::threads::{MAX_THREADS, ThreadTeam, split, split_lengths};
use stratus_engine::ops::SgdUpdate;

/// Below this size, waking the team costs more than it saves.
pub(super) const MIN_PARALLEL_ELEMENTS: usize = 1 << 15;

/// The number of elements whose squares form one term of the sum. It is fixed, so that the sum does not
/// depend on the number of threads.
pub const SQUARES_PER_SUM: usize = 1 << 13;

/// Partial sums of squares, enough to fill the registers.
const SQUARE_LANES: usize = 32;

/// The maximum number of state tensors of an optimiser.
pub(super) const MAX_STATES: usize = 2;

/// A thread's range of a parameter, of its states and of its bf16 copy.
type ParameterShare<'a> = (&'a mut [f32], [&'a mut [f32]; MAX_STATES], &'a mut [Bf16]);

/// The threads and instructions of native kernels.
#[derive(Clone, Debug)]
pub struct CpuContext {
    /// The threads.
    pub team: ThreadTeam,
    /// The instruction set.
    pub level: IsaLevel,
}

impl CpuContext {
    /// Calls `body(range, part of y)` for every thread's range of `0..y.len()`.
    pub(super) fn for_ranges<T: Send>(
        &self,
        y: &mut [T],
        body: &(dyn Fn(std::ops::Range<usize>, &mut [T]) + Sync),
    ) {
        let (threads, length) = (self.team.threads(), y.len());
        let mut parts = split_lengths(y, (0..threads).map(|t| split(length, threads, t).len()));
        let task = |thread: usize, part: &mut &mut [T]| body(split(length, threads, thread), part);
        if length < MIN_PARALLEL_ELEMENTS {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
    }

    /// `y = max(x, 0)`, or `min(max(x, 0), ceiling)`; NaN is propagated.
    pub fn relu<A: Element, B: Element>(&self, ceiling: Option<f32>, x: &[A], y: &mut [B]) {
        self.for_ranges(y, &|range, y| relu(self.level, ceiling.unwrap_or(f32::NAN), &x[range], y));
    }

    /// `dx = dy` if `0 < y < ceiling`, else 0.
    pub fn relu_backward<E: Element>(&self, ceiling: Option<f32>, y: &[E], dy: &[E], dx: &mut [E]) {
        let ceiling = ceiling.unwrap_or(f32::NAN);
        self.for_ranges(dx, &|range, dx| {
            relu_backward(self.level, ceiling, &y[range.clone()], &dy[range], dx);
        });
    }

    /// `y = a + b`, or `max(a + b, 0)`; NaN is propagated.
    pub fn add<A: Element, B: Element>(&self, with_relu: bool, a: &[A], b: &[A], y: &mut [B]) {
        let sum = if with_relu { add_relu } else { add };
        self.for_ranges(y, &|range, y| sum(self.level, &a[range.clone()], &b[range], y));
    }

    /// `y = factor * x`.
    pub fn scale<E: Element>(&self, factor: f32, x: &[E], y: &mut [E]) {
        self.for_ranges(y, &|range, y| scale(self.level, factor, &x[range], y));
    }

    /// `sum += x`.
    pub fn accumulate<E: Element>(&self, x: &[E], sum: &mut [E]) {
        self.for_ranges(sum, &|range, sum| accumulate(self.level, &x[range], sum));
    }

    /// `x *= factor`.
    pub fn multiply(&self, factor: f32, x: &mut [f32]) {
        if factor != 1.0 {
            self.for_ranges(x, &|_, x| multiply(self.level, factor, x));
        }
    }

    /// `Σ x²`. Scratch has at least one element per [`SQUARES_PER_SUM`] elements of `x`, rounded up.
    pub fn sum_of_squares(&self, x: &[f32], scratch: &mut [f64]) -> f64 {
        let (threads, length) = (self.team.threads(), x.len().div_ceil(SQUARES_PER_SUM));
        let mut parts = split_lengths(scratch, (0..threads).map(|t| split(length, threads, t).len()));
        let task = |thread: usize, sums: &mut &mut [f64]| {
            let first = split(length, threads, thread).start * SQUARES_PER_SUM;
            let parts = x.get(first..).unwrap_or_default().chunks(SQUARES_PER_SUM);
            sums.iter_mut().zip(parts).for_each(|(sum, x)| sum_of_squares(self.level, x, sum));
        };
        if x.len() < MIN_PARALLEL_ELEMENTS {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
        parts[..threads].iter().flat_map(|sums| sums.iter()).sum()
    }

    /// `average += gain * (x - average)`.
    pub fn ema(&self, gain: f32, x: &[f32], average: &mut [f32]) {
        self.for_ranges(average, &|range, average| ema(self.level, gain, &x[range], average));
    }

    /// `sum = x` for the first tile of a batch, `sum += x` for the others.
    pub fn add_tile<E: Element>(&self, first: bool, x: &[E], sum: &mut [E]) {
        if first {
            self.copy(x, sum);
        } else {
            self.accumulate(x, sum);
        }
    }

    /// `y = x`.
    pub fn copy<E: Element>(&self, x: &[E], y: &mut [E]) {
        self.for_ranges(y, &|range, y| y.copy_from_slice(&x[range]));
    }

    /// `y = x`, converted.
    pub fn convert<A: Element, B: Element>(&self, x: &[A], y: &mut [B]) {
        self.for_ranges(y, &|range, y| convert(self.level, &x[range], y));
    }

    /// See [`stratus_engine::ops::SgdUpdate`]. `copy` may be empty.
    pub fn sgd(
        &self,
        rates: SgdConstants,
        gradient: &[f32],
        parameter: &mut [f32],
        velocity: &mut [f32],
        copy: &mut [Bf16],
    ) {
        self.for_parameter_ranges(parameter, [velocity, &mut []], copy, &|range,
                                                                          (
            parameter,
            [velocity, _],
            copy,
        )| {
            sgd(self.level, rates, &gradient[range], parameter, velocity, copy);
        });
    }

    /// Calls `body(range, share)` for every thread's range of a parameter; states and a copy may be empty.
    pub(super) fn for_parameter_ranges(
        &self,
        parameter: &mut [f32],
        states: [&mut [f32]; MAX_STATES],
        copy: &mut [Bf16],
        body: &(dyn Fn(std::ops::Range<usize>, &mut ParameterShare<'_>) + Sync),
    ) {
        let (threads, length) = (self.team.threads(), parameter.len());
        let lengths = |whole: usize| {
            (0..threads).map(move |t| if whole == 0 { 0 } else { split(length, threads, t).len() })
        };
        let copied = copy.len();
        let mut copies = split_lengths(copy, lengths(copied));
        let mut parameters = split_lengths(parameter, lengths(length));
        let mut states = states.map(|state| {
            let remembered = state.len();
            split_lengths(state, lengths(remembered))
        });
        let mut parts: [ParameterShare<'_>; MAX_THREADS] = std::array::from_fn(|t| {
            let states = states.each_mut().map(|pieces| std::mem::take(&mut pieces[t]));
            (std::mem::take(&mut parameters[t]), states, std::mem::take(&mut copies[t]))
        });
        let task = |thread: usize, part: &mut ParameterShare<'_>| body(split(length, threads, thread), part);
        if length < MIN_PARALLEL_ELEMENTS {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
    }
}

impl SgdConstants {
    /// The constants of an update; `scalars` is [`stratus_engine::ops::ITERATION_SCALAR_FIELDS`], rounded to
    /// `f32`.
    #[must_use]
    pub fn from_scalars(sgd: SgdUpdate, scalars: &[f64]) -> Self {
        let learning = sgd.rate_factor * scalars.first().copied().unwrap_or(0.0) as f32;
        Self { learning, momentum: sgd.momentum, decay: sgd.weight_decay, nesterov: sgd.nesterov }
    }
}

/// The constants of an SGD update.
#[derive(Clone, Copy, Debug)]
pub struct SgdConstants {
    /// Learning rate.
    pub learning: f32,
    /// Momentum.
    pub momentum: f32,
    /// Weight decay.
    pub decay: f32,
    /// True to use Nesterov momentum.
    pub nesterov: bool,
}

multiversion! { fn relu / relu_body [A: Element, B: Element] [A, B] (ceiling: f32, x: &[A], y: &mut [B]) }

#[inline(always)]
fn relu_body<A: Element, B: Element>(ceiling: f32, x: &[A], y: &mut [B]) {
    for (y, x) in y.iter_mut().zip(x) {
        let value = x.load();
        // Comparisons that propagate NaN, so that a diverged run is noticed. A NaN ceiling has no effect.
        let value = if value <= 0.0 { 0.0 } else { value };
        *y = B::store(if value >= ceiling { ceiling } else { value });
    }
}

multiversion! {
    fn relu_backward / relu_backward_body [E: Element] [E] (ceiling: f32, y: &[E], dy: &[E], dx: &mut [E])
}

#[inline(always)]
fn relu_backward_body<E: Element>(ceiling: f32, y: &[E], dy: &[E], dx: &mut [E]) {
    for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
        let (y, dy) = (y.load(), dy.load());
        // Both comparisons are always evaluated: a branch per element would not be vectorised.
        let clipped = y >= ceiling;
        *dx = E::store(if (y > 0.0) & !clipped { dy } else { 0.0 });
    }
}

multiversion! { fn add / add_body [A: Element, B: Element] [A, B] (a: &[A], b: &[A], y: &mut [B]) }

#[inline(always)]
fn add_body<A: Element, B: Element>(a: &[A], b: &[A], y: &mut [B]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = B::store(a.load() + b.load());
    }
}

multiversion! { fn add_relu / add_relu_body [A: Element, B: Element] [A, B] (a: &[A], b: &[A], y: &mut [B]) }

#[inline(always)]
fn add_relu_body<A: Element, B: Element>(a: &[A], b: &[A], y: &mut [B]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        let value = a.load() + b.load();
        *y = B::store(if value <= 0.0 { 0.0 } else { value });
    }
}

multiversion! { fn scale / scale_body [E: Element] [E] (factor: f32, x: &[E], y: &mut [E]) }

#[inline(always)]
fn scale_body<E: Element>(factor: f32, x: &[E], y: &mut [E]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = E::store(factor * x.load());
    }
}

multiversion! { fn accumulate / accumulate_body [E: Element] [E] (x: &[E], sum: &mut [E]) }

#[inline(always)]
fn accumulate_body<E: Element>(x: &[E], sum: &mut [E]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum = E::store(sum.load() + x.load());
    }
}

multiversion! { fn multiply / multiply_body [] [] (factor: f32, x: &mut [f32]) }

#[inline(always)]
fn multiply_body(factor: f32, x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x *= factor);
}

multiversion! { fn sum_of_squares / sum_of_squares_body [] [] (x: &[f32], sum: &mut f64) }

#[inline(always)]
fn sum_of_squares_body(x: &[f32], sum: &mut f64) {
    let mut lanes = [0.0; SQUARE_LANES];
    let (vectors, rest) = x.as_chunks::<SQUARE_LANES>();
    // The square of an f32 is exact in f64.
    for x in vectors {
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    *sum = lanes.iter().sum();
}

multiversion! { fn ema / ema_body [] [] (gain: f32, x: &[f32], average: &mut [f32]) }

#[inline(always)]
fn ema_body(gain: f32, x: &[f32], average: &mut [f32]) {
    for (average, x) in average.iter_mut().zip(x) {
        *average = (x - *average).mul_add(gain, *average);
    }
}

multiversion! { pub(super) fn convert / convert_body [A: Element, B: Element] [A, B] (x: &[A], y: &mut [B]) }

#[inline(always)]
fn convert_body<A: Element, B: Element>(x: &[A], y: &mut [B]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = B::store(x.load());
    }
}

multiversion! {
    fn sgd / sgd_body [] [] (
        rates: SgdConstants,
        gradient: &[f32],
        parameter: &mut [f32],
        velocity: &mut [f32],
        copy: &mut [Bf16],
    )
}

#[inline(always)]
fn sgd_body(
    rates: SgdConstants,
    gradient: &[f32],
    parameter: &mut [f32],
    velocity: &mut [f32],
    copy: &mut [Bf16],
) {
    if rates.nesterov {
        for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
            let decayed = p.mul_add(rates.decay, *g);
            *v = v.mul_add(rates.momentum, decayed);
            *p = v.mul_add(rates.momentum, decayed).mul_add(-rates.learning, *p);
        }
    } else {
        for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
            *v = v.mul_add(rates.momentum, p.mul_add(rates.decay, *g));
            *p = v.mul_add(-rates.learning, *p);
        }
    }
    for (copy, p) in copy.iter_mut().zip(parameter) {
        *copy = Bf16::store(*p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither threads nor instructions change a bit of a norm.
    #[test]
    fn sums_of_squares_depend_only_on_the_values() {
        for count in [0, 1, 31, 33, SQUARES_PER_SUM, 5 * SQUARES_PER_SUM + 17] {
            let x: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
            let exact: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let mut sums = Vec::new();
            for level in IsaLevel::all() {
                for threads in [1, 2, 3, 7] {
                    let cpu = CpuContext { team: ThreadTeam::emulating(threads), level };
                    // More scratch than needed, not zeroed.
                    let mut scratch = vec![f64::NAN; count.div_ceil(SQUARES_PER_SUM) + 3];
                    sums.push(cpu.sum_of_squares(&x, &mut scratch));
                }
            }
            assert!((sums[0] - exact).abs() <= 1e-12 * exact, "{count}: {} {exact}", sums[0]);
            assert!(sums.iter().all(|sum| sum.to_bits() == sums[0].to_bits()), "{count}: {sums:?}");
        }
    }

    #[test]
    fn the_average_of_a_constant_is_constant() {
        let x = [0.1, -3.7, 1e-30];
        let mut average = x;
        let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
        cpu.ema(0.3, &x, &mut average);
        assert_eq!(average, x);
        cpu.ema(0.5, &[1.1, -1.7, 1.0], &mut average);
        assert_eq!(average, [0.6, -2.7, 0.5]);
    }
}
