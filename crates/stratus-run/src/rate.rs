//! Scales a learning rate to another batch size.

/// The factor by which a learning rate tuned for batches of `reference_batch` is multiplied for batches of
/// `batch`: linear for SGD (Goyal et al.: "Accurate, large minibatch SGD", 2017), the square root
/// for optimisers that normalise gradients (Malladi et al.: "On the SDEs and scaling rules for adaptive
/// gradient algorithms", 2022).
#[must_use]
pub fn batch_scaling_factor(optimiser: &str, batch: f64, reference_batch: f64) -> f64 {
    let ratio = batch / reference_batch;
    if optimiser == "sgd" { ratio } else { ratio.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::batch_scaling_factor;

    #[test]
    fn scales_linearly_for_sgd_and_by_the_root_for_adaptive_optimisers() {
        assert_eq!(
            (batch_scaling_factor("sgd", 32.0, 128.0), batch_scaling_factor("adamw", 32.0, 128.0)),
            (0.25, 0.5)
        );
    }
}
