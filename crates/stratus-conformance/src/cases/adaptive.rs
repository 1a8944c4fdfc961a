//! The steps of optimisers that give each weight a rate of its own, with and without a copy in the compute
//! precision.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, HYPER, KernelSpec};
use stratus_engine::program::OptimiserState;

pub(super) const TABLE: Table = Table { tests, benchmarks };

const ADAM: Adaptive = Adaptive::Adam { betas: [0.9, 0.999], epsilon: 1e-8, decoupled: false };
const RULES: [Adaptive; 4] = [
    ADAM,
    Adaptive::Adam { betas: [0.8, 0.95], epsilon: 1e-3, decoupled: true },
    Adaptive::Adagrad { epsilon: 1e-10 },
    Adaptive::Adadelta { rho: 0.9, epsilon: 1e-6 },
];

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for rule in RULES {
        let update = AdaptiveUpdate { rule, weight_decay: 1e-4, rate: 1.0, scaled: false };
        for shape in [&[8, 1, 3, 3][..], &[32, 16, 3, 3], &[10, 1568], &[1], &[33, 17, 1, 1]] {
            cases.extend(kernels(shape, update, Fill::Hyper, ""));
        }
        cases.extend(kernels(&[17], AdaptiveUpdate { weight_decay: 0.0, ..update }, Fill::Hyper, ""));
        cases.extend(kernels(&[19], AdaptiveUpdate { rate: 0.25, ..update }, Fill::Hyper, " slower"));
        // A rate and an iteration of 1 to 3: later, nothing is left of the beginning, by which Adam's means
        // are corrected.
        cases.extend(kernels(&[32, 16, 3, 3], update, Fill::Whole { low: 1, high: 3 }, " early"));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(
        &[512, 512, 3, 3],
        AdaptiveUpdate { rule: ADAM, weight_decay: 1e-4, rate: 1.0, scaled: false },
        Fill::Hyper,
        "",
    )
}

fn kernels(shape: &[usize], update: AdaptiveUpdate, hyper: Fill, when: &str) -> Vec<Case> {
    let case = |what: &str| {
        let name = format!("{}{what} {} decay {}{when}", update.name(), extents(shape), update.weight_decay);
        let case = Case::new(name, update)
            .input("gradient", shape, Class::Master)
            .filled("hyper", &[HYPER.len()], Class::Hyper, hyper)
            .update("parameter", shape, Role::Parameter, numbers(-1.0), Class::Master);
        update.rule.states().iter().fold(case, |case, &state| {
            // Means of squares are not negative.
            let least = if state == OptimiserState::ExpAvg { -1.0 } else { 0.0 };
            case.update(state.name(), shape, Role::Momentum, numbers(least), Class::Master)
        })
    };
    let [scaled, skipped] = case("").of_scaled_loss(AdaptiveUpdate { scaled: true, ..update }, shape);
    vec![scaled, skipped, case(""), case("_with_copy").output("copy", shape, Class::Compute).mixed_only()]
}

fn numbers(low: f32) -> Fill {
    Fill::Uniform { low, high: 1.0 }
}
