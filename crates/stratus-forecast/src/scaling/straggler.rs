//! The slowest of several devices, for which all others wait in every step.
//!
//! Times of a step on equal devices differ: by their chips, temperatures and interruptions. With a relative
//! standard deviation `s`, the slowest of `W` is slower than the mean by `s` times the expected maximum of
//! `W` numbers from the standard normal distribution.

/// The relative standard deviation of the time of a step, in and between devices: that by which the published
/// speed-ups of ResNet-50 on a DGX A100 and a DGX-1 (NVIDIA's MXNet of 2020, eight GPUs each, f16 and f32)
/// differ from forecasts without it.
const DEVICE_SPREAD: f64 = 0.014;

/// Limits and steps of the numerical integration.
const MAX_DEVIATIONS: f64 = 9.0;
const STEPS_PER_DEVIATION: usize = 200;

/// The time of the slowest of some devices as a multiple of the mean.
pub(super) fn slowest_factor(devices: u64) -> f64 {
    1.0 + DEVICE_SPREAD * expected_maximum(devices)
}

/// The expected maximum of some numbers from the standard normal distribution.
fn expected_maximum(count: u64) -> f64 {
    let count = count as f64;
    let width = 1.0 / STEPS_PER_DEVIATION as f64;
    let steps = (2.0 * MAX_DEVIATIONS) as usize * STEPS_PER_DEVIATION;
    let (mut below, mut expected) = (0.0_f64, 0.0);
    for step in 0..steps {
        let x = (step as f64 + 0.5) * width - MAX_DEVIATIONS;
        let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        // The distribution at the middle of the step.
        let distribution = below + 0.5 * density * width;
        expected += x * count * density * distribution.powf(count - 1.0) * width;
        below += density * width;
    }
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_maxima_are_those_of_tables() {
        for (count, expected) in [(1, 0.0), (2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)] {
            assert!(
                (expected_maximum(count) - expected).abs() < 1e-3,
                "{count}: {}",
                expected_maximum(count)
            );
        }
        let factors: Vec<f64> = (0..=16).map(|power| slowest_factor(1 << power)).collect();
        assert!(factors.is_sorted() && (factors[0] - 1.0).abs() < 1e-6 && factors[16] < 1.1);
    }
}
