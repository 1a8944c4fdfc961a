//! The learning rate as a pure function of the iteration.
//!
//! Iterations are counted from 0 over the whole training, so a resumed run has the same learning rates.

use crate::choices::ScheduleName;
use crate::keys::Experiment;
use std::f64::consts::PI;

/// The schedule of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest learning rate.
    pub rate: f64,
    /// Epochs of linear warm-up.
    pub warmup_epochs: f64,
    /// The shape after the warm-up.
    pub shape: ScheduleShape,
}

/// The shape of a schedule. Shapes that run to the end of training start after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScheduleShape {
    /// A constant rate.
    Constant,
    /// Multiplied by `gamma` every `step_epochs` epochs, counted from the start of training.
    Step {
        /// Epochs between two steps.
        step_epochs: u64,
        /// The factor of each step.
        gamma: f64,
    },
    /// Falls to `final_rate` along half a cosine (Loshchilov and Hutter 2017, without restarts).
    Cosine {
        /// The learning rate at the end of training.
        final_rate: f64,
    },
    /// Falls to `final_rate` as `(1 - iteration / iterations)^power`, the "poly" policy of DeepLab (Chen et
    /// al., "DeepLab", 2017, section 4.1).
    Poly {
        /// The exponent. 1 falls along a straight line, smaller values fall later, larger values sooner.
        power: f64,
        /// The learning rate at the end of training.
        final_rate: f64,
    },
    /// Rises and falls along half cosines (Smith and Topin 2018, in the two-phase shape of PyTorch's
    /// `OneCycleLR`, without changing the momentum). The last iteration has the lowest rate.
    OneCycle {
        /// Fraction of the cycle, 0 to 1, in which the rate rises.
        peak_at: f64,
        /// The first rate is the highest divided by this.
        initial_divisor: f64,
        /// The last rate is the first divided by this.
        final_divisor: f64,
    },
}

impl Schedule {
    /// The schedule of an experiment, its rates scaled to the batch size.
    pub fn from_experiment(experiment: &Experiment) -> Self {
        let settings = &experiment.schedule;
        let factor = experiment.learning_rate_factor().unwrap_or(1.0);
        let final_rate = settings.final_learning_rate * factor;
        let shape = match settings.name {
            ScheduleName::Constant => ScheduleShape::Constant,
            ScheduleName::Step => {
                ScheduleShape::Step { step_epochs: settings.step_epochs, gamma: settings.gamma }
            }
            ScheduleName::Cosine => ScheduleShape::Cosine { final_rate },
            ScheduleName::Poly => ScheduleShape::Poly { power: settings.power, final_rate },
            ScheduleName::OneCycle => ScheduleShape::OneCycle {
                peak_at: settings.peak_at,
                initial_divisor: settings.initial_divisor,
                final_divisor: settings.final_divisor,
            },
        };
        let rate = experiment.optimiser.learning_rate * factor;
        Schedule { rate, warmup_epochs: settings.warmup_epochs, shape }
    }

    /// The learning rate of an iteration of a training with `total` iterations.
    pub fn learning_rate(&self, iteration: u64, iterations_per_epoch: u64, total: u64) -> f64 {
        let per_epoch = iterations_per_epoch.max(1);
        let rate = self.rate;
        let rising = self.warmup_epochs * per_epoch as f64;
        let shaped = match self.shape {
            ScheduleShape::Constant => rate,
            ScheduleShape::Step { step_epochs, gamma } => {
                let steps = iteration / per_epoch / step_epochs.max(1);
                rate * gamma.powi(i32::try_from(steps).unwrap_or(i32::MAX))
            }
            ScheduleShape::Cosine { final_rate } => {
                anneal(rate, final_rate, progress(iteration as f64, rising, total as f64))
            }
            ScheduleShape::Poly { power, final_rate } => {
                let remaining = 1.0 - progress(iteration as f64, rising, total as f64);
                final_rate + (rate - final_rate) * remaining.powf(power)
            }
            ScheduleShape::OneCycle { peak_at, initial_divisor, final_divisor } => {
                let first = rate / initial_divisor;
                let (now, cycle) = ((iteration as f64 - rising).max(0.0), total as f64 - rising);
                let (peak, last) = (peak_at * cycle - 1.0, cycle - 1.0);
                if now < peak {
                    anneal(first, rate, progress(now, 0.0, peak))
                } else {
                    anneal(rate, first / final_divisor, progress(now, peak.max(0.0), last))
                }
            }
        };
        shaped * warmup(iteration, rising)
    }
}

/// The factor of a linear warm-up of `rising` iterations; the first iteration's is above 0.
fn warmup(iteration: u64, rising: f64) -> f64 {
    let done = iteration as f64 + 1.0;
    if done < rising { done / rising } else { 1.0 }
}

/// The position of `now` between `from` and `to`, 0 to 1.
fn progress(now: f64, from: f64, to: f64) -> f64 {
    if to > from { ((now - from) / (to - from)).clamp(0.0, 1.0) } else { f64::from(u8::from(now > from)) }
}

/// The value at `fraction` of half a cosine from `from` to `to`; exact at both ends.
fn anneal(from: f64, to: f64, fraction: f64) -> f64 {
    if fraction <= 0.0 {
        from
    } else if fraction >= 1.0 {
        to
    } else {
        to + (from - to) * 0.5 * (1.0 + (PI * fraction).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, ScheduleShape};
    use proptest::prelude::*;

    const ONE_CYCLE: ScheduleShape =
        ScheduleShape::OneCycle { peak_at: 0.3, initial_divisor: 25.0, final_divisor: 1e4 };

    fn new_schedule(rate: f64, warmup_epochs: f64, shape: ScheduleShape) -> Schedule {
        Schedule { rate, warmup_epochs, shape }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1e-3), "{a} is not {b}");
    }

    #[test]
    fn step_multiplies_the_rate_every_step_epochs() {
        let schedule = new_schedule(0.003, 0.0, ScheduleShape::Step { step_epochs: 10, gamma: 0.3 });
        for (epoch, rate) in [(0, 0.003), (9, 0.003), (10, 0.0009), (19, 0.0009), (20, 0.00027)] {
            close(schedule.learning_rate(epoch * 59, 59, 3000), rate);
            close(schedule.learning_rate(epoch * 59 + 58, 59, 3000), rate);
        }
    }

    #[test]
    fn warmup_rises_linearly_to_the_rate() {
        let schedule = new_schedule(1.0, 0.5, ScheduleShape::Constant);
        let rates: Vec<f64> = (0..7).map(|i| schedule.learning_rate(i, 8, 80)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]);
    }

    /// The rate rises to the initial rate of the shape; then follows the shape of a shorter training.
    #[test]
    fn every_shape_can_have_a_warmup() {
        for shape in [
            ScheduleShape::Constant,
            ScheduleShape::Cosine { final_rate: 0.1 },
            ScheduleShape::Poly { power: 0.9, final_rate: 0.1 },
            ONE_CYCLE,
        ] {
            let (warmed, plain) = (new_schedule(1.0, 2.0, shape), new_schedule(1.0, 0.0, shape));
            let first = plain.learning_rate(0, 10, 80);
            for iteration in 0..20 {
                let fraction = (iteration + 1) as f64 / 20.0;
                close(warmed.learning_rate(iteration, 10, 100), first * fraction);
            }
            for iteration in 0..80 {
                let (warmed, plain) =
                    (warmed.learning_rate(20 + iteration, 10, 100), plain.learning_rate(iteration, 10, 80));
                assert_eq!(warmed, plain, "{shape:?}, iteration {iteration}");
            }
        }
        // A warm-up does not move steps.
        let schedule = new_schedule(1.0, 2.0, ScheduleShape::Step { step_epochs: 5, gamma: 0.5 });
        let rates = [0, 19, 49, 50].map(|iteration| schedule.learning_rate(iteration, 10, 100));
        assert_eq!(rates, [0.05, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn cosine_halves_in_the_middle() {
        let schedule = new_schedule(1.0, 0.0, ScheduleShape::Cosine { final_rate: 0.2 });
        close(schedule.learning_rate(0, 10, 100), 1.0);
        close(schedule.learning_rate(50, 10, 100), 0.6);
        close(schedule.learning_rate(100, 10, 100), 0.2);
    }

    #[test]
    fn cosine_falls_after_the_warmup() {
        let schedule = new_schedule(1.0, 2.0, ScheduleShape::Cosine { final_rate: 0.0 });
        close(schedule.learning_rate(19, 10, 100), 1.0);
        close(schedule.learning_rate(60, 10, 100), 0.5);
    }

    /// Compared with the rates of PyTorch's `PolynomialLR(total_iters=10, power=0.9)`, from a rate of 0.01.
    #[test]
    fn poly_matches_pytorch() {
        let schedule = new_schedule(0.01, 0.0, ScheduleShape::Poly { power: 0.9, final_rate: 0.0 });
        let rates = [
            0.01,
            0.009095325760829623,
            0.008180521460508584,
            0.007254178469372199,
            0.006314458674893553,
            0.005358867312681466,
            0.0043838329055408696,
            0.0033838346190164987,
            0.0023492378861760376,
            0.001258925411794167,
            0.0,
        ];
        for (iteration, rate) in rates.into_iter().enumerate() {
            close(schedule.learning_rate(iteration as u64, 5, 10), rate);
        }
        let line = new_schedule(1.0, 0.0, ScheduleShape::Poly { power: 1.0, final_rate: 0.5 });
        assert_eq!([0, 5, 10].map(|iteration| line.learning_rate(iteration, 5, 10)), [1.0, 0.75, 0.5]);
    }

    /// By the definition of PyTorch's `OneCycleLR(max_lr=1, total_steps=10)`: the rise ends at step
    /// 0.3 · 10 − 1 = 2, the fall at step 9.
    #[test]
    fn one_cycle_follows_the_published_shape() {
        let schedule = new_schedule(1.0, 0.0, ONE_CYCLE);
        let at = |iteration| schedule.learning_rate(iteration, 5, 10);
        let low = 0.04 / 1e4;
        close(at(0), 0.04);
        close(at(1), 0.52);
        close(at(2), 1.0);
        close(at(3), low + (1.0 - low) * 0.5 * (1.0 + (std::f64::consts::PI / 7.0).cos()));
        close(at(9), low);
    }

    #[test]
    fn very_short_runs_have_a_positive_rate() {
        let schedule = new_schedule(1.0, 0.0, ONE_CYCLE);
        for total in 0..4 {
            for iteration in 0..5 {
                let rate = schedule.learning_rate(iteration, 0, total);
                assert!(rate.is_finite() && rate > 0.0, "total {total}, iteration {iteration}: {rate}");
            }
        }
        assert_eq!(schedule.learning_rate(0, 1, 1), 1.0);
    }

    fn schedules() -> impl Strategy<Value = Schedule> {
        let fraction = 0.0..1.0f64;
        let shape = prop_oneof![
            Just(ScheduleShape::Constant),
            (1..20u64, 0.01..1.0f64)
                .prop_map(|(step_epochs, gamma)| ScheduleShape::Step { step_epochs, gamma }),
            fraction.clone().prop_map(|final_rate| ScheduleShape::Cosine { final_rate }),
            (0.01..10.0f64, fraction)
                .prop_map(|(power, final_rate)| ScheduleShape::Poly { power, final_rate }),
            (0.0..0.99f64, 1.0..100.0f64, 1.0..1e6f64).prop_map(
                |(peak_at, initial_divisor, final_divisor)| ScheduleShape::OneCycle {
                    peak_at,
                    initial_divisor,
                    final_divisor
                }
            ),
        ];
        (1e-6..10.0f64, 0.0..5.0f64, shape).prop_map(|(rate, warmup_epochs, shape)| {
            let shape = match shape {
                ScheduleShape::Cosine { final_rate } => {
                    ScheduleShape::Cosine { final_rate: final_rate * rate }
                }
                ScheduleShape::Poly { power, final_rate } => {
                    ScheduleShape::Poly { power, final_rate: final_rate * rate }
                }
                other => other,
            };
            Schedule { rate, warmup_epochs, shape }
        })
    }

    proptest! {
        /// The configured rate is the highest, and every rate is finite.
        #[test]
        fn rates_stay_between_zero_and_the_configured_rate(
            schedule in schedules(), per_epoch in 0..500u64, total in 0..5000u64, iteration in 0..6000u64,
        ) {
            let rate = schedule.rate;
            let now = schedule.learning_rate(iteration, per_epoch, total);
            prop_assert!((0.0..=rate * (1.0 + 1e-12)).contains(&now), "{now} of {rate}");
        }

        /// A cycle never rises again after it has fallen.
        #[test]
        fn one_cycle_has_one_peak(peak_at in 0.0..0.99f64, total in 1..400u64) {
            let shape = ScheduleShape::OneCycle { peak_at, initial_divisor: 25.0, final_divisor: 1e4 };
            let schedule = new_schedule(1.0, 0.0, shape);
            let rates: Vec<f64> = (0..total).map(|i| schedule.learning_rate(i, 10, total)).collect();
            let mut falling = false;
            for pair in rates.windows(2) {
                falling |= pair[1] < pair[0];
                prop_assert!(!falling || pair[1] <= pair[0]);
            }
        }
    }
}
