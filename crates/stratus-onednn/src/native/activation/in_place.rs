//! Activations in place, of what another kernel has just written.

use super::{ActivationLoop, Constants, NativeActivation, run_activated};
use crate::native::elementwise::CpuContext;
use crate::native::simd::{Element, IsaLevel, multiversion};
use stratus_engine::ops::FusedActivation;
use stratus_graph::ops::{self, Activation};

/// Generates the choice of the function.
macro_rules! functions {
    ($($name:ident $kind:literal,)*) => {
        /// Runs a loop with the function of any activation.
        fn run_with(activation: FusedActivation, body: impl ActivationLoop) {
            match activation {
                FusedActivation::Activation(activation) => match activation {
                    $(Activation::$name(_) => body.run::<ops::$name>(activation.constants()),)*
                },
                rectifier => run_activated(rectifier, body),
            }
        }
    };
}

stratus_graph::with_activations!(functions);

/// `y = f(y + addend)` for some elements of a map.
struct InPlace<'a, E> {
    level: IsaLevel,
    /// Empty if nothing is added.
    addend: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> ActivationLoop for InPlace<'_, E> {
    fn run<F: NativeActivation>(self, constants: Constants) {
        let Self { level, addend, y } = self;
        if addend.is_empty() {
            activate::<F, E>(level, constants, y);
        } else {
            add_and_activate::<F, E>(level, constants, addend, y);
        }
    }
}

/// `y = f(y)` on the calling thread.
pub fn activate_in_place<E: Element>(level: IsaLevel, activation: FusedActivation, y: &mut [E]) {
    if activation != FusedActivation::Identity {
        run_with(activation, InPlace { level, addend: &[], y });
    }
}

impl CpuContext {
    /// `y = f(y + addend)`; `addend` is empty or as long as `y`.
    pub fn add_and_activate_in_place<E: Element>(
        &self,
        activation: FusedActivation,
        addend: &[E],
        y: &mut [E],
    ) {
        self.for_ranges(y, &|range, y| {
            let addend = if addend.is_empty() { addend } else { &addend[range] };
            run_with(activation, InPlace { level: self.level, addend, y });
        });
    }
}

multiversion! {
    fn activate / activate_body [F: NativeActivation, E: Element] [F, E] (constants: Constants, y: &mut [E])
}

#[inline(always)]
fn activate_body<F: NativeActivation, E: Element>(constants: Constants, y: &mut [E]) {
    for y in y {
        *y = E::store(F::value(y.load(), constants));
    }
}

multiversion! {
    fn add_and_activate / add_and_activate_body [F: NativeActivation, E: Element] [F, E]
    (constants: Constants, addend: &[E], y: &mut [E])
}

#[inline(always)]
fn add_and_activate_body<F: NativeActivation, E: Element>(constants: Constants, addend: &[E], y: &mut [E]) {
    for (y, addend) in y.iter_mut().zip(addend) {
        *y = E::store(F::value(y.load() + addend.load(), constants));
    }
}
