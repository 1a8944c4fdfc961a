//! The learning rate as a pure function of the iteration.
//!
//! Iterations are counted from 0 over the whole of training, so a resumed run asks the same question and gets
//! the same answer.

use crate::experiment::{Experiment, ScheduleName};
use std::f64::consts::PI;

/// How the learning rate changes during training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Always `rate`, after the warm-up.
    Constant {
        /// The learning rate.
        rate: f64,
        /// Epochs of linear warm-up.
        warmup_epochs: f64,
    },
    /// Multiplied by `gamma` every `step_epochs` epochs.
    Step {
        /// The learning rate at the beginning.
        rate: f64,
        /// Epochs of linear warm-up.
        warmup_epochs: f64,
        /// Epochs between two steps.
        step_epochs: u64,
        /// The factor of each step.
        gamma: f64,
    },
    /// From `rate` to `final_rate` along half a cosine (Loshchilov and Hutter 2017, without restarts).
    Cosine {
        /// The learning rate after the warm-up.
        rate: f64,
        /// Epochs of linear warm-up.
        warmup_epochs: f64,
        /// The learning rate that the end of training would reach.
        final_rate: f64,
    },
    /// Up and down along half cosines (Smith and Topin 2018, in the two-phase shape of PyTorch's
    /// `OneCycleLR`, with the momentum left as it is). The last iteration has the lowest rate.
    OneCycle {
        /// The highest learning rate.
        rate: f64,
        /// Share of training, 0 to 1, in which the rate rises.
        peak_at: f64,
        /// The rate begins at `rate / initial_divisor`.
        initial_divisor: f64,
        /// The rate ends at its beginning divided by this.
        final_divisor: f64,
    },
}

impl Schedule {
    /// The schedule of an experiment.
    pub fn of(experiment: &Experiment) -> Self {
        let settings = &experiment.schedule;
        let (rate, warmup_epochs) = (experiment.optimiser.learning_rate, settings.warmup_epochs);
        match settings.name {
            ScheduleName::Constant => Schedule::Constant { rate, warmup_epochs },
            ScheduleName::Step => Schedule::Step {
                rate,
                warmup_epochs,
                step_epochs: settings.step_epochs,
                gamma: settings.gamma,
            },
            ScheduleName::Cosine => {
                Schedule::Cosine { rate, warmup_epochs, final_rate: settings.final_learning_rate }
            }
            ScheduleName::OneCycle => Schedule::OneCycle {
                rate,
                peak_at: settings.peak_at,
                initial_divisor: settings.initial_divisor,
                final_divisor: settings.final_divisor,
            },
        }
    }

    /// The learning rate of an iteration of training, which has `total` of them in all.
    pub fn learning_rate(&self, iteration: u64, iterations_per_epoch: u64, total: u64) -> f64 {
        let per_epoch = iterations_per_epoch.max(1);
        match *self {
            Schedule::Constant { rate, warmup_epochs } => rate * warmup(iteration, per_epoch, warmup_epochs),
            Schedule::Step { rate, warmup_epochs, step_epochs, gamma } => {
                let steps = iteration / per_epoch / step_epochs.max(1);
                let fallen = gamma.powi(i32::try_from(steps).unwrap_or(i32::MAX));
                rate * fallen * warmup(iteration, per_epoch, warmup_epochs)
            }
            Schedule::Cosine { rate, warmup_epochs, final_rate } => {
                let rising = warmup_epochs * per_epoch as f64;
                let share = progress(iteration as f64, rising, total as f64);
                anneal(rate, final_rate, share) * warmup(iteration, per_epoch, warmup_epochs)
            }
            Schedule::OneCycle { rate, peak_at, initial_divisor, final_divisor } => {
                let first = rate / initial_divisor;
                let peak = peak_at * total as f64 - 1.0;
                let last = total as f64 - 1.0;
                let now = iteration as f64;
                if now < peak {
                    anneal(first, rate, progress(now, 0.0, peak))
                } else {
                    anneal(rate, first / final_divisor, progress(now, peak.max(0.0), last))
                }
            }
        }
    }
}

/// The factor of a linear warm-up; the first iteration's is above 0.
fn warmup(iteration: u64, per_epoch: u64, epochs: f64) -> f64 {
    let rising = epochs * per_epoch as f64;
    let done = iteration as f64 + 1.0;
    if done < rising { done / rising } else { 1.0 }
}

/// How far `now` is from `from` to `to`, 0 to 1.
fn progress(now: f64, from: f64, to: f64) -> f64 {
    if to > from { ((now - from) / (to - from)).clamp(0.0, 1.0) } else { f64::from(u8::from(now > from)) }
}

/// From `from` to `to` along half a cosine; exact at both ends.
fn anneal(from: f64, to: f64, share: f64) -> f64 {
    if share <= 0.0 {
        from
    } else if share >= 1.0 {
        to
    } else {
        to + (from - to) * 0.5 * (1.0 + (PI * share).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1e-3), "{a} is not {b}");
    }

    #[test]
    fn step_is_that_of_the_decks() {
        let schedule = Schedule::Step { rate: 0.003, warmup_epochs: 0.0, step_epochs: 10, gamma: 0.3 };
        for (epoch, rate) in [(0, 0.003), (9, 0.003), (10, 0.0009), (19, 0.0009), (20, 0.00027)] {
            close(schedule.learning_rate(epoch * 59, 59, 3000), rate);
            close(schedule.learning_rate(epoch * 59 + 58, 59, 3000), rate);
        }
    }

    #[test]
    fn warmup_rises_to_the_rate_and_stays() {
        let schedule = Schedule::Constant { rate: 1.0, warmup_epochs: 0.5 };
        let rates: Vec<f64> = (0..7).map(|i| schedule.learning_rate(i, 8, 80)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn cosine_halves_in_the_middle() {
        let schedule = Schedule::Cosine { rate: 1.0, warmup_epochs: 0.0, final_rate: 0.2 };
        close(schedule.learning_rate(0, 10, 100), 1.0);
        close(schedule.learning_rate(50, 10, 100), 0.6);
        close(schedule.learning_rate(100, 10, 100), 0.2);
    }

    #[test]
    fn cosine_begins_to_fall_after_the_warmup() {
        let schedule = Schedule::Cosine { rate: 1.0, warmup_epochs: 2.0, final_rate: 0.0 };
        close(schedule.learning_rate(19, 10, 100), 1.0);
        close(schedule.learning_rate(60, 10, 100), 0.5);
    }

    /// By the definition of PyTorch's `OneCycleLR(max_lr=1, total_steps=10)`: the rise ends at step
    /// 0.3 · 10 − 1 = 2, the fall at step 9.
    #[test]
    fn one_cycle_follows_the_published_shape() {
        let schedule =
            Schedule::OneCycle { rate: 1.0, peak_at: 0.3, initial_divisor: 25.0, final_divisor: 1e4 };
        let at = |iteration| schedule.learning_rate(iteration, 5, 10);
        let low = 0.04 / 1e4;
        close(at(0), 0.04);
        close(at(1), 0.52);
        close(at(2), 1.0);
        close(at(3), low + (1.0 - low) * 0.5 * (1.0 + (std::f64::consts::PI / 7.0).cos()));
        close(at(9), low);
    }

    #[test]
    fn runs_too_short_for_a_shape_still_have_a_rate() {
        let schedule =
            Schedule::OneCycle { rate: 1.0, peak_at: 0.3, initial_divisor: 25.0, final_divisor: 1e4 };
        for total in 0..4 {
            for iteration in 0..5 {
                let rate = schedule.learning_rate(iteration, 0, total);
                assert!(rate.is_finite() && rate > 0.0, "total {total}, iteration {iteration}: {rate}");
            }
        }
        assert_eq!(schedule.learning_rate(0, 1, 1), 1.0);
    }

    fn schedules() -> impl Strategy<Value = Schedule> {
        let rate = 1e-6..10.0f64;
        prop_oneof![
            (rate.clone(), 0.0..5.0f64)
                .prop_map(|(rate, warmup_epochs)| Schedule::Constant { rate, warmup_epochs }),
            (rate.clone(), 0.0..5.0f64, 1..20u64, 0.01..1.0f64).prop_map(
                |(rate, warmup_epochs, step_epochs, gamma)| Schedule::Step {
                    rate,
                    warmup_epochs,
                    step_epochs,
                    gamma
                }
            ),
            (rate.clone(), 0.0..5.0f64, 0.0..1.0f64).prop_map(|(rate, warmup_epochs, share)| {
                Schedule::Cosine { rate, warmup_epochs, final_rate: rate * share }
            }),
            (rate, 0.0..0.99f64, 1.0..100.0f64, 1.0..1e6f64).prop_map(
                |(rate, peak_at, initial_divisor, final_divisor)| Schedule::OneCycle {
                    rate,
                    peak_at,
                    initial_divisor,
                    final_divisor
                }
            ),
        ]
    }

    proptest! {
        /// The configured rate is the highest one, and no iteration is without a finite rate.
        #[test]
        fn rates_stay_between_nothing_and_the_configured_rate(
            schedule in schedules(), per_epoch in 0..500u64, total in 0..5000u64, iteration in 0..6000u64,
        ) {
            let (Schedule::Constant { rate, .. } | Schedule::Step { rate, .. } | Schedule::Cosine { rate, .. }
                | Schedule::OneCycle { rate, .. }) = schedule;
            let now = schedule.learning_rate(iteration, per_epoch, total);
            prop_assert!((0.0..=rate * (1.0 + 1e-12)).contains(&now), "{now} of {rate}");
        }

        /// One cycle rises, then falls: never up again after it went down.
        #[test]
        fn one_cycle_has_one_peak(peak_at in 0.0..0.99f64, total in 1..400u64) {
            let schedule =
                Schedule::OneCycle { rate: 1.0, peak_at, initial_divisor: 25.0, final_divisor: 1e4 };
            let rates: Vec<f64> = (0..total).map(|i| schedule.learning_rate(i, 10, total)).collect();
            let mut falling = false;
            for pair in rates.windows(2) {
                falling |= pair[1] < pair[0];
                prop_assert!(!falling || pair[1] <= pair[0]);
            }
        }
    }
}
