//! The counts and latencies of a stream, in constant memory.

use crate::errors::{Failure, Result};
use crate::output::key_value_list;
use std::fmt;

/// The ratio of the bounds of a bucket, so that a percentile is exact to half a percent.
const BUCKET_RATIO: f64 = 1.01;
/// The lower bound of the first bucket with one, in seconds; shorter times are in the bucket before.
const MIN_SECONDS: f64 = 1e-6;
/// The number of buckets: up to an hour.
const BUCKETS: usize = 2215;

/// The durations of images, counted in buckets of logarithmic width.
struct LatencyHistogram {
    counts: Vec<u64>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

impl LatencyHistogram {
    fn record(&mut self, seconds: f64) {
        let bucket = (seconds / MIN_SECONDS).ln() / BUCKET_RATIO.ln() + 1.0;
        // The conversion saturates: NaN and negative numbers become 0.
        self.counts[(bucket as usize).min(BUCKETS - 1)] += 1;
    }

    /// A quantile in milliseconds: the middle of the bucket that contains it.
    fn quantile(&self, share: f64) -> f64 {
        let total: u64 = self.counts.iter().sum();
        let rank = ((share * total as f64).ceil() as u64).max(1);
        let mut count = 0;
        let bucket = self.counts.iter().position(|of_bucket| {
            count += of_bucket;
            count >= rank
        });
        match bucket {
            None | Some(0) => 0.0,
            Some(bucket) => 1e3 * MIN_SECONDS * BUCKET_RATIO.powf(bucket as f64 - 0.5),
        }
    }

    fn percentiles(&self) -> String {
        format!("median {:.2} ms, p99 {:.2} ms", self.quantile(0.5), self.quantile(0.99))
    }
}

/// The counts and latencies of a stream.
#[derive(Default)]
pub(super) struct StreamTotals {
    predicted: u64,
    failed: u64,
    all: LatencyHistogram,
    /// Decoding, network and writing.
    parts: [LatencyHistogram; 3],
}

impl StreamTotals {
    /// Records an image and its seconds of decoding, network and writing.
    pub fn record(&mut self, seconds: [f64; 3]) {
        self.predicted += 1;
        self.all.record(seconds.iter().sum());
        self.parts.iter_mut().zip(seconds).for_each(|(part, seconds)| part.record(seconds));
    }

    /// Records an image or video without a prediction.
    pub fn record_failure(&mut self) {
        self.failed += 1;
    }

    /// The number of images, and of videos that failed.
    pub fn requests(&self) -> u64 {
        self.predicted + self.failed
    }

    /// Checks that every image has a prediction.
    ///
    /// # Errors
    /// If one has none.
    pub fn check_all_predicted(&self) -> Result {
        if self.failed == 0 {
            return Ok(());
        }
        let (failed, all) = (self.failed, self.requests());
        let plural = if all == 1 { "" } else { "s" };
        Err(Failure::failed(format!("no prediction for {failed} of {all} image{plural}"))
            .with_hint("see the reason in their lines"))
    }
}

impl fmt::Display for StreamTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![("images".to_owned(), self.predicted.to_string())];
        if self.failed > 0 {
            rows.push(("without answer".to_owned(), self.failed.to_string()));
        }
        let names = ["per image", "decoding", "network", "writing"];
        let [decoding, network, writing] = &self.parts;
        for (name, times) in names.into_iter().zip([&self.all, decoding, network, writing]) {
            rows.push((name.to_owned(), times.percentiles()));
        }
        f.write_str(key_value_list(&rows).trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_half_a_percent() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), 0.0);
        for millisecond in 1..=1000 {
            histogram.record(f64::from(millisecond) * 1e-3);
        }
        for (share, expected) in [(0.0, 1.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let error = histogram.quantile(share) / expected - 1.0;
            assert!(error.abs() < 0.006, "{share}: {error}");
        }
    }

    #[test]
    fn extreme_durations_are_counted() {
        let mut histogram = LatencyHistogram::default();
        for seconds in [0.0, -1.0, f64::NAN, 1e-9, f64::INFINITY, 1e9, f64::MAX] {
            histogram.record(seconds);
        }
        assert_eq!(histogram.counts.iter().sum::<u64>(), 7);
        assert_eq!(histogram.quantile(0.0), 0.0);
        assert!(histogram.quantile(1.0) > 3.5e6 && histogram.quantile(1.0).is_finite());
    }

    #[test]
    fn totals_count_failures() {
        let mut totals = StreamTotals::default();
        totals.record([0.001, 0.002, 0.0]);
        assert!(totals.check_all_predicted().is_ok());
        assert!(!totals.to_string().contains("failed"), "{totals}");
        totals.record_failure();
        let failure = totals.check_all_predicted().unwrap_err();
        assert_eq!(failure.error.to_string(), "no prediction for 1 of 2 images");
        assert!(totals.to_string().contains("without answer  1"), "{totals}");
    }
}
