//! Warns when the loss rises far above its initial value.

/// Iterations whose smallest loss is the baseline.
const BASELINE_ITERATIONS: u32 = 5;
/// The weight of an iteration in the moving mean.
const MEAN_WEIGHT: f64 = 0.1;
/// The multiple of the baseline above which the moving mean counts as risen. An untrained network starts near
/// the logarithm of the number of classes; one that is merely confident and wrong stays below.
const RISE_FACTOR: f64 = 4.0;

/// Rates below this are printed with an exponent.
const MIN_DECIMAL_RATE: f64 = 1e-3;

/// Follows the loss of this process's iterations, and warns once if it rises.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossMonitor {
    seen: u32,
    baseline: f64,
    recent: f64,
    warned: bool,
}

impl LossMonitor {
    /// Adds an iteration at a learning rate; returns the warning. Cheap unless there is one.
    pub fn add(&mut self, loss: f64, rate: f64) -> Option<String> {
        if self.warned {
            return None;
        }
        if self.seen < BASELINE_ITERATIONS {
            // Of a batch whose images are all damaged or without labels, nothing is known.
            if loss <= 0.0 {
                return None;
            }
            self.seen += 1;
            self.recent += (loss - self.recent) / f64::from(self.seen);
            // The smallest: a learning rate that is far too high has raised the loss by the second iteration.
            self.baseline = if self.seen == 1 { loss } else { self.baseline.min(loss) };
            return None;
        }
        self.recent += MEAN_WEIGHT * (loss - self.recent);
        if self.recent <= RISE_FACTOR * self.baseline {
            return None;
        }
        self.warned = true;
        let rate = if rate < MIN_DECIMAL_RATE { format!("{rate:.1e}") } else { format!("{rate:.4}") };
        Some(format!(
            "the loss has risen to {:.3} from {:.3} at the start: the learning rate, {rate}, may be too \
             high. Try a tenth of it with --lr, or a longer schedule.warmup_epochs",
            self.recent, self.baseline
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(losses: impl IntoIterator<Item = f64>) -> Vec<(usize, String)> {
        let mut monitor = LossMonitor::default();
        losses.into_iter().enumerate().filter_map(|(at, loss)| Some((at, monitor.add(loss, 0.1)?))).collect()
    }

    #[test]
    fn warns_once_when_the_loss_rises_far() {
        let rises = (0..100).map(|i| 2.3 * 1.2f64.powi(i));
        let warnings = warnings(rises);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].1.contains(" from 2.300 at the start: the learning rate, 0.1000, may be"),
            "{warnings:?}"
        );
    }

    #[test]
    fn ignores_noise_and_single_batches() {
        assert_eq!(warnings([2.3; 500]), []);
        assert_eq!(warnings((0..500).map(|i| if i % 50 == 49 { 20.0 } else { 2.0 })), []);
        assert_eq!(warnings((0..500).map(|i| 2.3 * 0.99f64.powi(i))), []);
        // A baseline of zero has no multiple.
        assert_eq!(warnings([0.0; 50]), []);
        // Without any labelled image in the first batches there is no loss to compare with.
        assert_eq!(warnings((0..50).map(|i| if i < 3 { 0.0 } else { 2.3 })), []);
    }
}
