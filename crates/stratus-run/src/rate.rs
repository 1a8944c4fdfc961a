//! What a learning rate that is meant for one batch size is for another.

/// The factor on a rate that is meant for batches of `meant_for`, for batches of `batch`: in proportion for
/// plain gradient descent (Goyal et al.: "Accurate, large minibatch SGD", 2017), by the root for rules that
/// divide by the gradient's size (Malladi et al.: "On the SDEs and scaling rules for adaptive gradient
/// algorithms", 2022).
#[must_use]
pub fn factor(optimiser: &str, batch: f64, meant_for: f64) -> f64 {
    let ratio = batch / meant_for;
    if optimiser == "sgd" { ratio } else { ratio.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::factor;

    #[test]
    fn in_proportion_or_by_the_root() {
        assert_eq!((factor("sgd", 32.0, 128.0), factor("adamw", 32.0, 128.0)), (0.25, 0.5));
    }
}
