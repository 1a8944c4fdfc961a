//! Updates of adaptive optimisers, with and without a copy in the compute precision.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, ITERATION_SCALAR_FIELDS, KernelSpec};
use stratus_engine::program::OptimiserState;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

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
        let update = AdaptiveUpdate { rule, weight_decay: 1e-4, rate_factor: 1.0, loss_scaled: false };
        for shape in [&[8, 1, 3, 3][..], &[32, 16, 3, 3], &[10, 1568], &[1], &[33, 17, 1, 1]] {
            cases.extend(kernels(shape, update, Fill::IterationScalars, ""));
        }
        cases.extend(kernels(
            &[17],
            AdaptiveUpdate { weight_decay: 0.0, ..update },
            Fill::IterationScalars,
            "",
        ));
        cases.extend(kernels(
            &[19],
            AdaptiveUpdate { rate_factor: 0.25, ..update },
            Fill::IterationScalars,
            " slower",
        ));
        // Iterations 1 to 3, because Adam's bias corrections vanish later.
        cases.extend(kernels(&[32, 16, 3, 3], update, Fill::Integers { low: 1, high: 3 }, " early"));
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(
        &[512, 512, 3, 3],
        AdaptiveUpdate { rule: ADAM, weight_decay: 1e-4, rate_factor: 1.0, loss_scaled: false },
        Fill::IterationScalars,
        "",
    )
}

fn kernels(shape: &[usize], update: AdaptiveUpdate, scalars: Fill, when: &str) -> Vec<Case> {
    let case = |what: &str| {
        let name = format!("{}{what} {} decay {}{when}", update.name(), extents(shape), update.weight_decay);
        let case = Case::new(name, update)
            .input("gradient", shape, DTypeClass::Master)
            .filled("hyper", &[ITERATION_SCALAR_FIELDS.len()], DTypeClass::IterationScalars, scalars)
            .update("parameter", shape, Role::Parameter, numbers(-1.0), DTypeClass::Master);
        update.rule.states().iter().fold(case, |case, &state| {
            // Means of squares are not negative.
            let low = if state == OptimiserState::ExpAvg { -1.0 } else { 0.0 };
            case.update(state.name(), shape, Role::OptimiserState, numbers(low), DTypeClass::Master)
        })
    };
    let [scaled, skipped] = case("").with_loss_scaling(AdaptiveUpdate { loss_scaled: true, ..update }, shape);
    vec![
        scaled,
        skipped,
        case(""),
        case("_with_copy").output("copy", shape, DTypeClass::Compute).mixed_precision_only(),
    ]
}

fn numbers(low: f32) -> Fill {
    Fill::Uniform { low, high: 1.0 }
}
