//! The update rules that the keys of `optimiser` ask for.

use crate::experiment::{self, OptimiserName};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate, SgdUpdate};
use stratus_engine::passes::update::{Optimiser, Optimisers};

/// The update rules of weights and of biases, which may have a learning rate of their own.
pub(super) fn optimisers(settings: &experiment::Optimiser) -> Optimisers {
    let weights = optimiser(settings);
    Optimisers { weights, biases: weights.faster(settings.bias_rate), clip_norm: None }
}

fn optimiser(settings: &experiment::Optimiser) -> Optimiser {
    let weight_decay = settings.weight_decay;
    let adaptive =
        |rule| Optimiser::Adaptive(AdaptiveUpdate { rule, weight_decay, rate: 1.0, scaled: false });
    // PyTorch's defaults.
    let epsilon = |default| settings.epsilon.unwrap_or(default);
    let adam = |decoupled| Adaptive::Adam {
        betas: [settings.beta1, settings.beta2],
        epsilon: epsilon(1e-8),
        decoupled,
    };
    match settings.name {
        OptimiserName::Sgd => Optimiser::Sgd(SgdUpdate {
            momentum: settings.momentum as f32,
            weight_decay: weight_decay as f32,
            nesterov: settings.nesterov,
            rate: 1.0,
            scaled: false,
        }),
        OptimiserName::Adam => adaptive(adam(false)),
        OptimiserName::AdamW => adaptive(adam(true)),
        OptimiserName::Adagrad => adaptive(Adaptive::Adagrad { epsilon: epsilon(1e-10) }),
        OptimiserName::Adadelta => adaptive(Adaptive::Adadelta { rho: settings.rho, epsilon: epsilon(1e-6) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_learn_at_the_rate_that_is_set() {
        let of = |name: OptimiserName| {
            let settings =
                experiment::Optimiser { name, bias_rate: 64.0, weight_decay: 0.5, ..Default::default() };
            let Optimisers { weights, biases, .. } = optimisers(&settings);
            let rates = |optimiser| match optimiser {
                Optimiser::Sgd(sgd) => (f64::from(sgd.rate), f64::from(sgd.weight_decay)),
                Optimiser::Adaptive(update) => (update.rate, update.weight_decay),
            };
            assert_eq!((rates(weights), rates(biases)), ((1.0, 0.5), (64.0, 0.5 / 64.0)), "{name:?}");
        };
        use OptimiserName::{Adadelta, Adagrad, Adam, AdamW, Sgd};
        [Sgd, Adam, AdamW, Adagrad, Adadelta].into_iter().for_each(of);
        let settings = experiment::Optimiser::default();
        assert_eq!(optimisers(&settings).biases, optimisers(&settings).weights);
    }
}
