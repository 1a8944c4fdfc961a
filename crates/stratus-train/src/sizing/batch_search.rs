//! The search for the largest batch: which size to plan next.
//!
//! The memory of a plan is nearly `a + b · batch`, so the next size follows from a line through the last two
//! plans. Kernels with other layouts or scratch make steps in it; bisection then bounds the number of plans.

/// The maximum number of plans.
const MAX_PLANS: usize = 12;
/// The number of plans after which the search bisects.
const PLANS_BEFORE_BISECTION: usize = 6;
/// The search ends with a batch that uses at least this share of the limit.
const CLOSE_ENOUGH_SHARE: f64 = 0.97;
/// The share that the next batch is to use.
const INTENDED_SHARE: f64 = (CLOSE_ENOUGH_SHARE + 1.0) / 2.0;
/// The batch size above which multiples of [`COARSE_STEP`] are preferred.
const COARSE_ABOVE: usize = 16;
/// The step between preferred batch sizes.
const COARSE_STEP: usize = 8;

/// A planned batch, and the share of the limit that it uses.
#[derive(Clone, Copy, Debug)]
struct Planned {
    batch: usize,
    share: f64,
}

/// The state of a search among batches of 1 to a maximum.
#[derive(Debug)]
pub(super) struct BatchSearch {
    /// The largest batch that fits.
    fitting: Option<usize>,
    /// The smallest batch that is too large: planned, or one above the maximum.
    too_large: usize,
    /// The last two plans.
    last: Option<Planned>,
    before: Option<Planned>,
    plans: usize,
}

impl BatchSearch {
    /// A search among batches of at most `max_batch`.
    pub fn new(max_batch: usize) -> Self {
        let too_large = max_batch.saturating_add(1);
        Self { fitting: None, too_large, last: None, before: None, plans: 0 }
    }

    /// Records the share of the limit that a batch uses, and returns the next batch to plan; `None` if the
    /// search has ended.
    pub fn next(&mut self, batch: usize, share: f64) -> Option<usize> {
        self.plans += 1;
        self.before = self.last.replace(Planned { batch, share });
        if share <= 1.0 {
            self.fitting = self.fitting.max(Some(batch));
        } else {
            self.too_large = self.too_large.min(batch);
        }
        let smallest = self.fitting.map_or(1, |fitting| fitting + 1);
        let is_close_enough = (CLOSE_ENOUGH_SHARE..=1.0).contains(&share);
        if is_close_enough || smallest >= self.too_large || self.plans >= MAX_PLANS {
            return None;
        }
        let largest = self.too_large - 1;
        let next = match self.plans {
            PLANS_BEFORE_BISECTION.. => smallest.midpoint(largest),
            _ => self.estimate().unwrap_or_else(|| smallest.midpoint(largest)),
        };
        let coarse = if next > COARSE_ABOVE { next / COARSE_STEP * COARSE_STEP } else { next };
        let next = if coarse >= smallest { coarse } else { next };
        Some(next.clamp(smallest, largest))
    }

    /// The batch of the intended share, on the line through the last two plans, or through zero; `None` if
    /// the plans are not on a rising line.
    fn estimate(&self) -> Option<usize> {
        let last = self.last?;
        let before = self.before.unwrap_or(Planned { batch: 0, share: 0.0 });
        let slope = (last.share - before.share) / (last.batch as f64 - before.batch as f64);
        let batch = last.batch as f64 + (INTENDED_SHARE - last.share) / slope;
        (slope > 0.0 && batch.is_finite()).then_some(batch.max(0.0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches from a first guess, and returns the largest batch that fits.
    fn search(first: usize, max_batch: usize, share: impl Fn(usize) -> f64) -> Option<usize> {
        let mut search = BatchSearch::new(max_batch);
        let (mut batch, mut plans) = (first, 1);
        while let Some(next) = search.next(batch, share(batch)) {
            assert!((1..=max_batch).contains(&next), "{next}");
            (batch, plans) = (next, plans + 1);
        }
        assert!(plans <= MAX_PLANS);
        search.fitting
    }

    #[test]
    fn batch_uses_the_limit_unless_the_next_one_exceeds_it() {
        for fixed in [0.0, 0.05, 0.3, 0.6, 0.9] {
            for largest in [1, 2, 7, 15, 17, 20, 23, 31, 64, 100, 267, 1000, 50_000] {
                let share = |batch: usize| fixed + (1.0 - fixed) * batch as f64 / (largest as f64 + 0.5);
                // Scratch that grows in steps.
                let stepped = |batch: usize| share(batch) + 0.02 * (batch / 8 % 3) as f64;
                for first in [1, largest, largest * 5 / 4 + 1, largest * 3] {
                    for (name, share) in [("line", &share as &dyn Fn(usize) -> f64), ("steps", &stepped)] {
                        let Some(found) = search(first, 1_000_000, share) else {
                            assert!(share(1) > 1.0, "{name}: nothing found for {largest}");
                            continue;
                        };
                        assert!(share(found) <= 1.0, "{name}: {found} does not fit");
                        let is_used = share(found) >= CLOSE_ENOUGH_SHARE || share(found + 1) > 1.0;
                        assert!(is_used, "{name}: {found} of {largest}, {fixed} from {first}");
                    }
                }
            }
        }
    }

    #[test]
    fn batch_is_at_most_the_maximum() {
        assert_eq!(search(5, 18, |batch| batch as f64 / 1000.0), Some(18));
        assert_eq!(search(18, 18, |batch| batch as f64 / 1000.0), Some(18));
        assert_eq!(search(3, 18, |_| 2.0), None);
        assert_eq!(search(3, 18, |_| f64::INFINITY), None);
    }
}
