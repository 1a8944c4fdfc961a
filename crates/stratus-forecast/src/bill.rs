//! The whole bill of a training: what it takes beside its steps.
//!
//! ```text
//! work  = set-up + data transfer + training + validation + checkpoints
//! lost  = set-up + interval / 2                          of each preemption
//! total = work + preemptions · lost,   preemptions = rate · total
//!       = work / (1 - rate · lost)
//! ```
//!
//! A machine that is taken away at any moment alike has lost half an interval of work in the mean, and starts
//! again: the first order of J. W. Young, "A first order approximation to the optimum checkpoint interval",
//! Communications of the ACM 17 (9), 1974; J. T. Daly, Future Generation Computer Systems 22 (3), 2006, has
//! higher ones. Starting again can be interrupted too: preemptions are counted over the total.

use crate::error::{Error, Result};
use crate::model::Framework;
use crate::profile::Interval;
use serde::Serialize;

/// Bytes a second to a disk that nothing else is known of: the 125 MiB/s that a gp3 volume has without paying
/// for more (Amazon EBS User Guide, "General Purpose SSD volumes", 2024-01).
pub const DISK: f64 = 125.0 * 1_048_576.0;
/// Seconds until the first iteration on a GPU: of ResNet-50 on an H100 16.0 for measuring kernels and cuDNN's
/// plans, and 11.4 for compiling kernels that no cache holds (docs/benchmarks/gpu.md).
pub const SET_UP_GPU: f64 = 27.4;
/// On a processor: the longest planning of ResNet-152 with nothing in the cache, f32 on a slow Xeon
/// (docs/benchmarks/planning.md).
pub const SET_UP_CPU: f64 = 10.8;

/// What the machine and the way to it are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Bytes a second at which the data set comes to the machine; where it is not known, the way of the data
    /// is not counted.
    pub link: Option<f64>,
    /// Bytes of the data set, where known.
    pub data: Option<u64>,
    /// Bytes a second at which checkpoints are written.
    pub disk: f64,
    /// How often an hour the machine is taken away.
    pub preemptions: f64,
    /// Seconds between checkpoints within an epoch; 0: there are only those at the ends of epochs.
    pub checkpoint_every: f64,
    /// Seconds until the first iteration, where they were measured.
    pub set_up: Option<f64>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { link: None, data: None, disk: DISK, preemptions: 0.0, checkpoint_every: 0.0, set_up: None }
    }
}

impl Conditions {
    /// Whether the bill can be made of this framework's training.
    ///
    /// # Errors
    /// Where a machine is taken away, and what starting again takes was never measured.
    pub fn check(&self, framework: Framework) -> Result<()> {
        if framework == Framework::Tensorflow && self.preemptions > 0.0 {
            return Err(Error::TooFew {
                problem: "what starting TensorFlow again takes was not measured: it has no preemptions"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

/// A part of the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    /// Until the first iteration.
    SetUp,
    /// The data set's way to the machine.
    DataTransfer,
    /// Training steps.
    Training,
    /// Steps of validation.
    Validation,
    /// Writing checkpoints.
    Checkpoints,
    /// Starting again, and what is computed again.
    Preemptions,
    /// All that is counted.
    Total,
}

impl Item {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SetUp => "set-up",
            Self::DataTransfer => "data transfer",
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Checkpoints => "checkpoints",
            Self::Preemptions => "preemptions",
            Self::Total => "total",
        }
    }
}

/// A line of the bill. What is not counted is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    /// What for.
    pub part: Item,
    /// How often, of checkpoints and preemptions; in the mean.
    pub count: Option<f64>,
    /// Hours.
    pub hours: Option<f64>,
    /// The price of these.
    pub price: Option<f64>,
}

/// What all epochs take, and what of them is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Epochs {
    /// How many.
    pub count: u64,
    /// Training steps of all.
    pub training: Interval,
    /// Validations of all, where the number of images is known.
    pub validation: Option<Interval>,
    /// Seconds until the first iteration, where known.
    pub set_up: Option<f64>,
    /// Bytes of a checkpoint, where they are written.
    pub checkpoint: Option<u64>,
}

/// How a number is taken out of an interval.
type End = fn(Interval) -> f64;

/// The seconds of a bill at one end of the intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seconds {
    data: Option<f64>,
    training: f64,
    validation: Option<f64>,
    /// How many, and seconds of all.
    checkpoints: Option<[f64; 2]>,
    /// The same. `None` where the machine is taken away faster than it gets on.
    preemptions: Option<[f64; 2]>,
    total: Option<f64>,
}

fn seconds(epochs: &Epochs, conditions: &Conditions, end: End) -> Seconds {
    let training = end(epochs.training);
    let validation = epochs.validation.map(end);
    let epoch = training / epochs.count.max(1) as f64;
    let every = if conditions.checkpoint_every > 0.0 { conditions.checkpoint_every } else { f64::INFINITY };
    let checkpoints = epochs.checkpoint.map(|bytes| {
        // One at the end of each epoch, and those within it.
        let count = epochs.count as f64 * ((epoch / every).floor() + 1.0);
        [count, count * bytes as f64 / conditions.disk]
    });
    let data = conditions.link.and_then(|link| Some(conditions.data? as f64 / link));
    let set_up = epochs.set_up.unwrap_or(0.0);
    let of_checkpoints = checkpoints.map_or(0.0, |[_, seconds]| seconds);
    let work = set_up + data.unwrap_or(0.0) + training + validation.unwrap_or(0.0) + of_checkpoints;
    let lost = set_up + 0.5 * every.min(epoch);
    let rate = conditions.preemptions / 3600.0;
    let total = (rate * lost < 1.0).then(|| work / (1.0 - rate * lost));
    let preemptions = total.map(|total| [rate * total, rate * total * lost]);
    Seconds { data, training, validation, checkpoints, preemptions, total }
}

/// The whole bill, a line each, the last the total; and the total's interval, each end where it is ever done.
pub(crate) fn bill(
    epochs: &Epochs,
    conditions: &Conditions,
    hourly: Option<f64>,
) -> (Vec<Part>, [Option<f64>; 3]) {
    let made = seconds(epochs, conditions, |interval| interval.seconds);
    let part = |part: Item, counted: Option<[f64; 2]>, seconds: Option<f64>| Part {
        part,
        count: counted.map(|[count, _]| count),
        hours: seconds.map(|seconds| seconds / 3600.0),
        price: seconds.zip(hourly).map(|(seconds, hourly)| hourly * seconds / 3600.0),
    };
    let of = |counted: Option<[f64; 2]>| counted.map(|[_, seconds]| seconds);
    let parts = vec![
        part(Item::SetUp, None, epochs.set_up),
        part(Item::DataTransfer, None, made.data),
        part(Item::Training, None, Some(made.training)),
        part(Item::Validation, None, made.validation),
        part(Item::Checkpoints, made.checkpoints, of(made.checkpoints)),
        part(Item::Preemptions, made.preemptions, of(made.preemptions)),
        part(Item::Total, None, made.total),
    ];
    let low = seconds(epochs, conditions, |interval| interval.low).total;
    let high = seconds(epochs, conditions, |interval| interval.high).total;
    (parts, [low, made.total, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten epochs of 1,000 s (500 to 2,000), 200 s of validation, checkpoints of 250 MB.
    fn epochs() -> Epochs {
        Epochs {
            count: 10,
            training: Interval { seconds: 10_000.0, low: 5_000.0, high: 20_000.0 },
            validation: Some(Interval { seconds: 200.0, low: 100.0, high: 400.0 }),
            set_up: Some(20.0),
            checkpoint: Some(250_000_000),
        }
    }

    fn conditions() -> Conditions {
        Conditions {
            link: Some(125e6),
            data: Some(10_000_000_000),
            disk: 1e8,
            preemptions: 0.0,
            checkpoint_every: 300.0,
            set_up: None,
        }
    }

    fn near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn every_part_is_counted() {
        let (parts, [low, total, high]) = bill(&epochs(), &conditions(), Some(3.6));
        // 10 GB at 125 MB/s take 80 s. An epoch has checkpoints after 300, 600 and 900 s and at its end: 40
        // of 2.5 s.
        let expected = [20.0, 80.0, 10_000.0, 200.0, 100.0, 0.0, 10_400.0];
        for (part, expected) in parts.iter().zip(expected) {
            assert!((part.hours.unwrap() * 3600.0 - expected).abs() < 1e-9, "{part:?}");
            assert!((part.price.unwrap() - expected / 1000.0).abs() < 1e-9, "{part:?}");
        }
        assert_eq!(parts.iter().map(|part| part.part).next_back(), Some(Item::Total));
        assert_eq!((parts[4].count, parts[5].count), (Some(40.0), Some(0.0)));
        near(total, 10_400.0);
        // Epochs of 500 s have two checkpoints each, of 2,000 s seven.
        near(low, 20.0 + 80.0 + 5_000.0 + 100.0 + 50.0);
        near(high, 20.0 + 80.0 + 20_000.0 + 400.0 + 175.0);
    }

    #[test]
    fn a_preemption_costs_a_start_and_half_an_interval() {
        let conditions = Conditions { preemptions: 0.5, ..conditions() };
        let (parts, [_, total, _]) = bill(&epochs(), &conditions, None);
        // 20 + 150 s each: total = 10,400 / (1 - 0.5 · 170 / 3600).
        let whole = 10_400.0 / (1.0 - 85.0 / 3600.0);
        near(total, whole);
        near(parts[5].count, whole / 7200.0);
        near(parts[5].hours, whole / 7200.0 * 170.0 / 3600.0);
        assert_eq!(parts[6].price, None);
        // Without checkpoints within an epoch it is half of the epoch: 20 + 500 s.
        let (parts, [_, total, _]) =
            bill(&epochs(), &Conditions { checkpoint_every: 0.0, ..conditions }, None);
        assert_eq!(parts[4].count, Some(10.0));
        near(total, (20.0 + 80.0 + 10_000.0 + 200.0 + 25.0) / (1.0 - 260.0 / 3600.0));
    }

    #[test]
    fn what_is_taken_away_too_often_is_never_done() {
        // 20 + 150 s are lost each time; every 170 s is just too often.
        let often = 3600.0 / 170.0;
        let total = |preemptions: f64| bill(&epochs(), &Conditions { preemptions, ..conditions() }, None).1;
        assert_eq!(total(often * 1.000_001)[1], None);
        assert!(total(often * 0.999)[1].unwrap() > 1000.0 * 10_400.0 * 0.999);
        assert_eq!(total(1e9), [None; 3]);
    }

    #[test]
    fn what_is_not_known_is_not_counted() {
        let epochs = Epochs { validation: None, set_up: None, checkpoint: None, ..epochs() };
        let (parts, [_, total, _]) = bill(&epochs, &Conditions { link: None, ..conditions() }, Some(1.0));
        let known: Vec<Item> =
            parts.iter().filter(|part| part.hours.is_some()).map(|part| part.part).collect();
        assert_eq!(known, [Item::Training, Item::Preemptions, Item::Total]);
        near(total, 10_000.0);
        let often = Conditions { preemptions: 0.1, ..conditions() };
        assert!(often.check(Framework::Stratus).is_ok() && often.check(Framework::Tensorflow).is_err());
        assert!(Conditions::default().check(Framework::Tensorflow).is_ok());
    }
}
