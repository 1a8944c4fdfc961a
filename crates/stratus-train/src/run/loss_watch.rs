//! Whether the loss rises far above where it began.

/// Iterations whose least loss is where it began.
const FIRST: u32 = 5;
/// The share of an iteration in the moving mean.
const NEW: f64 = 0.1;
/// The loss has risen when its moving mean is this many times what it was. A network that knows nothing
/// begins near the logarithm of the number of classes; one that is merely confident and wrong stays below.
const RISEN: f64 = 4.0;

/// Follows the loss of a process's iterations, and says once that it has risen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossWatch {
    seen: u32,
    first: f64,
    recent: f64,
    said: bool,
}

impl LossWatch {
    /// After an iteration at a learning rate. Cheap, as long as there is nothing to say.
    pub fn add(&mut self, loss: f64, rate: f64) -> Option<String> {
        if self.said {
            return None;
        }
        if self.seen < FIRST {
            self.seen += 1;
            self.recent += (loss - self.recent) / f64::from(self.seen);
            // The least of them: a rate that is far too high has raised it by the second.
            self.first = if self.seen == 1 { loss } else { self.first.min(loss) };
            return None;
        }
        self.recent += NEW * (loss - self.recent);
        if self.recent <= RISEN * self.first {
            return None;
        }
        self.said = true;
        Some(format!(
            "the loss has risen to {:.3} from {:.3} at the start: the learning rate, {rate:.4}, may be too \
             high. Try a tenth of it with --lr, or a longer schedule.warmup_epochs",
            self.recent, self.first
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(losses: impl IntoIterator<Item = f64>) -> Vec<(usize, String)> {
        let mut watch = LossWatch::default();
        losses.into_iter().enumerate().filter_map(|(at, loss)| Some((at, watch.add(loss, 0.1)?))).collect()
    }

    #[test]
    fn a_loss_that_rises_far_is_told_once() {
        let rises = (0..100).map(|i| 2.3 * 1.2f64.powi(i));
        let told = said(rises);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].1.contains(" from 2.300 at the start: the learning rate, 0.1000, may be"),
            "{told:?}"
        );
    }

    #[test]
    fn noise_and_single_batches_are_no_rise() {
        assert_eq!(said([2.3; 500]), []);
        assert_eq!(said((0..500).map(|i| if i % 50 == 49 { 20.0 } else { 2.0 })), []);
        assert_eq!(said((0..500).map(|i| 2.3 * 0.99f64.powi(i))), []);
        // A first loss of nothing is not multiplied.
        assert_eq!(said([0.0; 50]), []);
    }
}
