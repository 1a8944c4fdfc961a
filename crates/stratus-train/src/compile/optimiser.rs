//! The update rules of the `optimiser` keys.

use stratus_engine::ops::{Adaptive, AdaptiveUpdate, SgdUpdate};
use stratus_engine::passes::update::{Optimiser, Optimisers};
use stratus_experiment::{self as experiment, OptimiserName};

/// The update rules of weights and of biases, which may have their own learning rate.
pub(super) fn optimisers(settings: &experiment::Optimiser) -> Optimisers {
    let weights = optimiser(settings);
    Optimisers { weights, biases: weights.with_scaled_rate(settings.bias_rate), clip_norm: None }
}

fn optimiser(settings: &experiment::Optimiser) -> Optimiser {
    let weight_decay = settings.weight_decay;
    let adaptive = |rule| {
        Optimiser::Adaptive(AdaptiveUpdate { rule, weight_decay, rate_factor: 1.0, loss_scaled: false })
    };
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
            rate_factor: 1.0,
            loss_scaled: false,
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
    fn biases_have_their_own_learning_rate() {
        let check = |name: OptimiserName| {
            let settings =
                experiment::Optimiser { name, bias_rate: 64.0, weight_decay: 0.5, ..Default::default() };
            let Optimisers { weights, biases, .. } = optimisers(&settings);
            let rates = |optimiser| match optimiser {
                Optimiser::Sgd(sgd) => (f64::from(sgd.rate_factor), f64::from(sgd.weight_decay)),
                Optimiser::Adaptive(update) => (update.rate_factor, update.weight_decay),
            };
            assert_eq!((rates(weights), rates(biases)), ((1.0, 0.5), (64.0, 0.5 / 64.0)), "{name:?}");
        };
        use OptimiserName::{Adadelta, Adagrad, Adam, AdamW, Sgd};
        [Sgd, Adam, AdamW, Adagrad, Adadelta].into_iter().for_each(check);
        let settings = experiment::Optimiser::default();
        assert_eq!(optimisers(&settings).biases, optimisers(&settings).weights);
    }
}
