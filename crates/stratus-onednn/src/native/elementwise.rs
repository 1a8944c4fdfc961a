//! Kernels that walk their operands once: rectifiers, sums, the optimiser, conversion, accumulation.

use super::simd::{Bf16, Element, Level, multiversion};
use super::threads::{MAX_THREADS, ThreadTeam, cut, split};
use stratus_engine::ops::SgdUpdate;

/// Below this many elements, waking the team costs more than it saves.
const SERIAL: usize = 1 << 15;

/// The most that an optimiser remembers of a parameter.
pub(super) const STATES: usize = 2;

/// A thread's part of a parameter, of its states and of its copy.
type Part<'a> = (&'a mut [f32], [&'a mut [f32]; STATES], &'a mut [Bf16]);

/// Where and with what instructions to run.
#[derive(Clone)]
pub struct CpuContext {
    /// Threads.
    pub team: ThreadTeam,
    /// Isa.
    pub level: Level,
}

impl CpuContext {
    /// Calls `body(range, piece of y)` for every thread's range of `0..y.len()`.
    pub(super) fn over<T: Send>(
        &self,
        y: &mut [T],
        body: &(dyn Fn(std::ops::Range<usize>, &mut [T]) + Sync),
    ) {
        let (threads, length) = (self.team.threads(), y.len());
        let mut parts = cut(y, (0..threads).map(|t| split(length, threads, t).len()));
        let task = |thread: usize, part: &mut &mut [T]| body(split(length, threads, thread), part);
        if length < SERIAL {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
    }

    /// `y = max(x, 0)`, at most `ceiling` where there is one; NaN passes.
    pub fn relu<A: Element, B: Element>(&self, ceiling: Option<f32>, x: &[A], y: &mut [B]) {
        self.over(y, &|range, y| relu(self.level, ceiling.unwrap_or(f32::NAN), &x[range], y));
    }

    /// `dx = dy` where `0 < y < ceiling`, else 0.
    pub fn relu_backward<E: Element>(&self, ceiling: Option<f32>, y: &[E], dy: &[E], dx: &mut [E]) {
        let ceiling = ceiling.unwrap_or(f32::NAN);
        self.over(dx, &|range, dx| relu_backward(self.level, ceiling, &y[range.clone()], &dy[range], dx));
    }

    /// `y = a + b`, or `max(a + b, 0)`; NaN passes.
    pub fn add<A: Element, B: Element>(&self, rectified: bool, a: &[A], b: &[A], y: &mut [B]) {
        let sum = if rectified { add_relu } else { add };
        self.over(y, &|range, y| sum(self.level, &a[range.clone()], &b[range], y));
    }

    /// `y = factor * x`.
    pub fn scale<E: Element>(&self, factor: f32, x: &[E], y: &mut [E]) {
        self.over(y, &|range, y| scale(self.level, factor, &x[range], y));
    }

    /// `sum += x`.
    pub fn accumulate<E: Element>(&self, x: &[E], sum: &mut [E]) {
        self.over(sum, &|range, sum| accumulate(self.level, &x[range], sum));
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
        self.over(y, &|range, y| y.copy_from_slice(&x[range]));
    }

    /// `y = x` in another type.
    pub fn convert<A: Element, B: Element>(&self, x: &[A], y: &mut [B]) {
        self.over(y, &|range, y| convert(self.level, &x[range], y));
    }

    /// See [`stratus_engine::ops::SgdUpdate`]. `copy` is empty where there is none.
    pub fn sgd(
        &self,
        rates: Rates,
        gradient: &[f32],
        parameter: &mut [f32],
        velocity: &mut [f32],
        copy: &mut [Bf16],
    ) {
        self.over_parameter(
            parameter,
            [velocity, &mut []],
            copy,
            &|range, (parameter, [velocity, _], copy)| {
                sgd(self.level, rates, &gradient[range], parameter, velocity, copy);
            },
        );
    }

    /// Calls `body(range, part)` for every thread's range of a parameter; states and a copy that there are not are empty.
    pub(super) fn over_parameter(
        &self,
        parameter: &mut [f32],
        states: [&mut [f32]; STATES],
        copy: &mut [Bf16],
        body: &(dyn Fn(std::ops::Range<usize>, &mut Part<'_>) + Sync),
    ) {
        let (threads, length) = (self.team.threads(), parameter.len());
        let lengths = |whole: usize| {
            (0..threads).map(move |t| if whole == 0 { 0 } else { split(length, threads, t).len() })
        };
        let copied = copy.len();
        let mut copies = cut(copy, lengths(copied));
        let mut parameters = cut(parameter, lengths(length));
        let mut states = states.map(|state| {
            let remembered = state.len();
            cut(state, lengths(remembered))
        });
        let mut parts: [Part<'_>; MAX_THREADS] = std::array::from_fn(|t| {
            let states = states.each_mut().map(|pieces| std::mem::take(&mut pieces[t]));
            (std::mem::take(&mut parameters[t]), states, std::mem::take(&mut copies[t]))
        });
        let task = |thread: usize, part: &mut Part<'_>| body(split(length, threads, thread), part);
        if length < SERIAL {
            self.team.run_serially(&mut parts[..threads], &task);
        } else {
            self.team.run_parts(&mut parts[..threads], &task);
        }
    }
}

impl Rates {
    /// Those of an optimiser; `hyper` is what [`stratus_engine::ops::HYPER`] says, rounded to what it was given as.
    #[must_use]
    pub fn of(sgd: SgdUpdate, hyper: &[f64]) -> Self {
        let learning = sgd.rate * hyper.first().copied().unwrap_or(0.0) as f32;
        Self { learning, momentum: sgd.momentum, decay: sgd.weight_decay, nesterov: sgd.nesterov }
    }
}

/// The numbers of an update.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Learning rate.
    pub learning: f32,
    /// Momentum.
    pub momentum: f32,
    /// Weight decay.
    pub decay: f32,
    /// Whether the step is Nesterov's.
    pub nesterov: bool,
}

multiversion! { fn relu / relu_body [A: Element, B: Element] [A, B] (ceiling: f32, x: &[A], y: &mut [B]) }

#[inline(always)]
fn relu_body<A: Element, B: Element>(ceiling: f32, x: &[A], y: &mut [B]) {
    for (y, x) in y.iter_mut().zip(x) {
        let value = x.load();
        // In this sense, so that NaN passes: a diverged run must show. Nothing is at least a ceiling that is NaN.
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
        // Both comparisons always: a branch for each element would keep vectors away.
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

multiversion! { pub(super) fn convert / convert_body [A: Element, B: Element] [A, B] (x: &[A], y: &mut [B]) }

#[inline(always)]
fn convert_body<A: Element, B: Element>(x: &[A], y: &mut [B]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = B::store(x.load());
    }
}

multiversion! {
    fn sgd / sgd_body [] [] (rates: Rates, gradient: &[f32], parameter: &mut [f32], velocity: &mut [f32], copy: &mut [Bf16])
}

#[inline(always)]
fn sgd_body(rates: Rates, gradient: &[f32], parameter: &mut [f32], velocity: &mut [f32], copy: &mut [Bf16]) {
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
