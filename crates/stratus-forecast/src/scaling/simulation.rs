//! A simulated step on several equal devices.
//!
//! ```text
//! kernels    ████ start 0 ███ start 1 █████       wait 0 ▒▒ update ▒ wait 1 ▒▒▒▒ update
//! copy out        ──0──       ──1──                                                        with staging
//! exchange             ═══0═══     ═══════1═══════
//! copy in                     ──0──               ──1──                                    with staging
//! ```
//!
//! Each row does one thing at a time, in the order of the buckets. Kernels that add gradients on the device
//! delay its other kernels by their own time.

use super::{ExchangeModel, StepAction};
use std::collections::{HashMap, VecDeque};

/// The outcome of a simulated step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SimulatedStep {
    /// Seconds of the step.
    pub step_s: f64,
    /// Seconds during which buckets were exchanged or copied, each counted alone.
    pub exchange_s: f64,
    /// Seconds that the device waited.
    pub exposed_s: f64,
    /// Seconds of kernels that added gradients on the device.
    pub added_s: f64,
}

/// The copies and messages beside the kernels.
struct Exchange<'a> {
    model: &'a ExchangeModel,
    devices: u64,
    /// When the outgoing copies, the exchange, and the incoming copies are free.
    free: [f64; 3],
    /// When the sums of each bucket are there.
    done: HashMap<usize, f64>,
    /// Kernels on the device that have not delayed others yet: their starts and seconds, in order.
    kernels: VecDeque<(f64, f64)>,
}

impl Exchange<'_> {
    /// Starts the exchange of a bucket that is complete at `now`; returns its seconds.
    fn start(&mut self, bucket: usize, bytes: f64, now: f64) -> f64 {
        let copy = self.model.copy_seconds(bytes);
        let [outgoing, exchange, incoming] = &mut self.free;
        *outgoing = outgoing.max(now) + copy;
        let start = exchange.max(*outgoing);
        let mut at = start;
        for round in self.model.rounds(self.devices, bytes) {
            at += round.message_s;
            // With staging, the process adds.
            if self.model.staging.is_none() && round.kernel_s > 0.0 {
                self.kernels.push_back((at, round.kernel_s));
            }
            at += round.kernel_s;
        }
        *exchange = at;
        *incoming = incoming.max(at) + copy;
        self.done.insert(bucket, *incoming);
        at - start + 2.0 * copy
    }

    /// The end of kernels that run for `seconds` from `now` on, delayed by those that add gradients.
    fn run(&mut self, now: f64, seconds: f64) -> f64 {
        let mut end = now + seconds;
        while let Some(seconds) = self.next_kernel(end) {
            end += seconds;
        }
        end
    }

    /// Takes the next kernel that adds gradients and starts before `end`; returns its seconds.
    fn next_kernel(&mut self, end: f64) -> Option<f64> {
        let &(start, seconds) = self.kernels.front()?;
        if start >= end {
            return None;
        }
        self.kernels.pop_front();
        Some(seconds)
    }
}

/// Simulates a step on `devices` devices.
pub(super) fn simulate(actions: &[StepAction], devices: u64, model: &ExchangeModel) -> SimulatedStep {
    let mut exchange =
        Exchange { model, devices, free: [0.0; 3], done: HashMap::new(), kernels: VecDeque::new() };
    let mut step = SimulatedStep::default();
    let (mut now, mut computed) = (0.0, 0.0);
    for action in actions {
        match *action {
            StepAction::Compute { seconds } => {
                now = exchange.run(now, seconds);
                computed += seconds;
            }
            StepAction::Start { bucket, bytes } => step.exchange_s += exchange.start(bucket, bytes, now),
            StepAction::Wait { bucket } => {
                let done = exchange.done.get(&bucket).copied().unwrap_or(now);
                if done > now {
                    step.exposed_s += done - now;
                    // Kernels that ran while the device waited delayed no others.
                    while exchange.next_kernel(done).is_some() {}
                    now = done;
                }
            }
        }
    }
    step.added_s = now - computed - step.exposed_s;
    step.step_s = now;
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::{Link, Staging};

    const MODEL: ExchangeModel = ExchangeModel {
        link: Link { bytes_per_s: 1e9, latency_s: 1e-3 },
        network: None,
        value_bytes: 4.0,
        memory_bytes_per_s: f64::INFINITY,
        staging: None,
    };

    /// A forward pass of 10 ms; two backward kernels of 10 ms, the first with 8 MB of gradients, the second
    /// with 5 MB; two updates of 1 ms.
    fn actions() -> Vec<StepAction> {
        let compute = |ms: f64| StepAction::Compute { seconds: ms * 1e-3 };
        vec![
            compute(10.0),
            compute(10.0),
            StepAction::Start { bucket: 0, bytes: 8e6 },
            compute(10.0),
            StepAction::Start { bucket: 1, bytes: 5e6 },
            StepAction::Wait { bucket: 0 },
            compute(1.0),
            StepAction::Wait { bucket: 1 },
            compute(1.0),
        ]
    }

    fn close(seconds: f64, expected_ms: f64) {
        assert!((seconds * 1e3 - expected_ms).abs() < 1e-9, "{} ms, expected {expected_ms}", seconds * 1e3);
    }

    #[test]
    fn the_exchange_overlaps_the_backward_pass() {
        // Two devices: each bucket takes 2 ms of latency and its bytes at 1 GB/s. The first is exchanged from
        // 20 to 30 ms, the second from 30 to 37 ms; the first update runs meanwhile.
        let two = simulate(&actions(), 2, &MODEL);
        close(two.exchange_s, 17.0);
        close(two.exposed_s, 6.0);
        close(two.step_s, 38.0);
        close(two.added_s, 0.0);
        // Eight: six rounds of latency, 1.75 times the bytes. The exchanges end at 40 and 54.75 ms.
        let eight = simulate(&actions(), 8, &MODEL);
        close(eight.exchange_s, 20.0 + 14.75);
        close(eight.step_s, 55.75);
        close(eight.exposed_s, 10.0 + 13.75);
        // An immediate exchange is hidden.
        let fast = Link { bytes_per_s: 1e15, latency_s: 0.0 };
        let hidden = simulate(&actions(), 8, &ExchangeModel { link: fast, ..MODEL });
        assert!(hidden.exposed_s < 1e-6);
        close((hidden.step_s * 1e5).round() / 1e5, 32.0);
    }

    #[test]
    fn additions_delay_the_kernels_of_a_device() {
        // Half of each bucket is read twice and written once: 12 MB and 7.5 MB, at 2 GB/s 6 and 3.75 ms. The
        // first addition starts at 25 ms, within a kernel.
        let slow = ExchangeModel { memory_bytes_per_s: 2e9, ..MODEL };
        let two = simulate(&actions(), 2, &slow);
        // The kernel that ends at 30 ms ends at 36; the first exchange ends at 20 + 5 + 6 + 5 = 36.
        close(two.added_s, 6.0);
        // The second is from 36 to 46.75 ms; its addition runs while the device waits.
        close(two.step_s, 47.75);
        close(two.exposed_s, 9.75);
        // With staging, the process adds: the device is not delayed.
        let staged = ExchangeModel { staging: Some(Staging { copy_bytes_per_s: 1e15 }), ..slow };
        let two = simulate(&actions(), 2, &staged);
        assert!(two.added_s.abs() < 1e-9, "{two:?}");
    }

    #[test]
    fn copies_through_host_memory_overlap_other_buckets() {
        let staged = ExchangeModel { staging: Some(Staging { copy_bytes_per_s: 1e9 }), ..MODEL };
        let two = simulate(&actions(), 2, &staged);
        // Bucket 0: out until 28, exchanged until 38, in until 46. Bucket 1: out from 30 to 35, exchanged
        // from 38 to 45, in from 46 to 51.
        close(two.exchange_s, 17.0 + 2.0 * 13.0);
        close(two.step_s, 52.0);
        close(two.exposed_s, 16.0 + 4.0);
    }

    #[test]
    fn nothing_to_exchange_takes_no_time() {
        assert_eq!(simulate(&[], 8, &MODEL), SimulatedStep::default());
        let empty = [StepAction::Start { bucket: 0, bytes: 0.0 }, StepAction::Wait { bucket: 3 }];
        let step = simulate(&empty, 1, &MODEL);
        assert_eq!((step.step_s, step.exchange_s), (0.0, 0.0));
    }
}
