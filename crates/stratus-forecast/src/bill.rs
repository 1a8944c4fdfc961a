//! The bill of a training run: its steps and all other costs.
//!
//! ```text
//! work  = set-up + data transfer + training + validation + checkpoints
//! lost  = set-up + interval / 2                          of each preemption
//! total = work + preemptions · lost,   preemptions = rate · total
//!       = work / (1 - rate · lost)
//! ```
//!
//! A machine that is preempted at a uniformly random moment loses half an interval of work on average and
//! restarts: the first-order model of J. W. Young, "A first order approximation to the optimum checkpoint
//! interval", Communications of the ACM 17 (9), 1974; J. T. Daly, Future Generation Computer Systems 22 (3),
//! 2006, has higher orders. A restart can be interrupted too, so preemptions are counted over the total.

use crate::error::{Error, Result};
use crate::model::Framework;
use crate::profile::Interval;
use serde::Serialize;

/// Default write rate of a disk: the 125 MiB/s of a gp3 volume without additional cost (Amazon EBS User
/// Guide, "General Purpose SSD volumes", 2024-01).
pub const DISK_BYTES_PER_S: f64 = 125.0 * 1_048_576.0;
/// Seconds until the first iteration on a GPU: ResNet-50 on an H100 takes 16.0 for measuring kernels and
/// cuDNN plans, and 11.4 for compiling kernels with a cold cache (docs/benchmarks/gpu.md).
pub const GPU_STARTUP_S: f64 = 27.4;
/// Seconds until the first iteration on a CPU: the longest planning of ResNet-152 with a cold cache, f32 on a
/// slow Xeon (docs/benchmarks/planning.md).
pub const CPU_STARTUP_S: f64 = 10.8;

/// The conditions of a run on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunConditions {
    /// Download rate of the data set, bytes/s; `None` means that the transfer is not counted.
    pub download_bytes_per_s: Option<f64>,
    /// Bytes of the data set, if known.
    pub data_bytes: Option<u64>,
    /// Write rate of checkpoints, bytes/s.
    pub disk_bytes_per_s: f64,
    /// Preemptions per hour.
    pub preemptions_per_hour: f64,
    /// Seconds between checkpoints within an epoch; 0 means only at the ends of epochs.
    pub checkpoint_interval_s: f64,
    /// Seconds until the first iteration, if measured.
    pub startup_s: Option<f64>,
    /// Emissions of the electricity, g of CO₂ per kWh, if given.
    pub grid_g_per_kwh: Option<f64>,
}

impl Default for RunConditions {
    fn default() -> Self {
        Self {
            download_bytes_per_s: None,
            data_bytes: None,
            disk_bytes_per_s: DISK_BYTES_PER_S,
            preemptions_per_hour: 0.0,
            checkpoint_interval_s: 0.0,
            startup_s: None,
            grid_g_per_kwh: None,
        }
    }
}

impl RunConditions {
    /// Checks that the bill can be computed for training with this framework.
    ///
    /// # Errors
    /// If there are preemptions, but restarts of the framework were never measured.
    pub fn check(&self, framework: Framework) -> Result<()> {
        if framework == Framework::Tensorflow && self.preemptions_per_hour > 0.0 {
            return Err(Error::TooFew {
                problem: "preemptions are not supported for TensorFlow: its restart time was not measured"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

/// An item of the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BillItem {
    /// Startup, until the first iteration.
    SetUp,
    /// Transfer of the data set to the machine.
    DataTransfer,
    /// Training steps.
    Training,
    /// Validation steps.
    Validation,
    /// Writing checkpoints.
    Checkpoints,
    /// Restarts and repeated work.
    Preemptions,
    /// The sum of all counted items.
    Total,
}

impl BillItem {
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

/// A line of the bill. Values that are not counted are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BillLine {
    /// The item.
    pub part: BillItem,
    /// Mean number of checkpoints or preemptions.
    pub count: Option<f64>,
    /// Hours.
    pub hours: Option<f64>,
    /// The price of these hours.
    pub price: Option<f64>,
}

/// The known times of all epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Epochs {
    /// Number of epochs.
    pub count: u64,
    /// Training steps of all epochs.
    pub training: Interval,
    /// Validations of all epochs, if the number of images is known.
    pub validation: Option<Interval>,
    /// Seconds until the first iteration, if known.
    pub startup_s: Option<f64>,
    /// Bytes of a checkpoint, if checkpoints are written.
    pub checkpoint: Option<u64>,
}

/// Selects a bound or the centre of an interval.
type IntervalEnd = fn(Interval) -> f64;

/// The seconds of a bill at one end of the intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BillSeconds {
    data: Option<f64>,
    training: f64,
    validation: Option<f64>,
    /// Number and seconds of checkpoints.
    checkpoints: Option<[f64; 2]>,
    /// Number and seconds of preemptions; `None` if training never finishes.
    preemptions: Option<[f64; 2]>,
    total: Option<f64>,
}

fn seconds(epochs: &Epochs, conditions: &RunConditions, end: IntervalEnd) -> BillSeconds {
    let training = end(epochs.training);
    let validation = epochs.validation.map(end);
    let epoch = training / epochs.count.max(1) as f64;
    let every =
        if conditions.checkpoint_interval_s > 0.0 { conditions.checkpoint_interval_s } else { f64::INFINITY };
    let checkpoints = epochs.checkpoint.map(|bytes| {
        // Counts one at the end of each epoch, and those within it.
        let count = epochs.count as f64 * ((epoch / every).floor() + 1.0);
        [count, count * bytes as f64 / conditions.disk_bytes_per_s]
    });
    let data = conditions.download_bytes_per_s.and_then(|link| Some(conditions.data_bytes? as f64 / link));
    let set_up = epochs.startup_s.unwrap_or(0.0);
    let checkpoint_s = checkpoints.map_or(0.0, |[_, seconds]| seconds);
    let work = set_up + data.unwrap_or(0.0) + training + validation.unwrap_or(0.0) + checkpoint_s;
    let lost = set_up + 0.5 * every.min(epoch);
    let rate = conditions.preemptions_per_hour / 3600.0;
    let total = (rate * lost < 1.0).then(|| work / (1.0 - rate * lost));
    let preemptions = total.map(|total| [rate * total, rate * total * lost]);
    BillSeconds { data, training, validation, checkpoints, preemptions, total }
}

/// Returns the lines of the bill, the total last, and the interval of the total, with `None` if training
/// never finishes.
pub(crate) fn bill(
    epochs: &Epochs,
    conditions: &RunConditions,
    hourly: Option<f64>,
) -> (Vec<BillLine>, [Option<f64>; 3]) {
    let expected = seconds(epochs, conditions, |interval| interval.seconds);
    let part = |part: BillItem, counted: Option<[f64; 2]>, seconds: Option<f64>| BillLine {
        part,
        count: counted.map(|[count, _]| count),
        hours: seconds.map(|seconds| seconds / 3600.0),
        price: seconds.zip(hourly).map(|(seconds, hourly)| hourly * seconds / 3600.0),
    };
    let seconds_of = |counted: Option<[f64; 2]>| counted.map(|[_, seconds]| seconds);
    let parts = vec![
        part(BillItem::SetUp, None, epochs.startup_s),
        part(BillItem::DataTransfer, None, expected.data),
        part(BillItem::Training, None, Some(expected.training)),
        part(BillItem::Validation, None, expected.validation),
        part(BillItem::Checkpoints, expected.checkpoints, seconds_of(expected.checkpoints)),
        part(BillItem::Preemptions, expected.preemptions, seconds_of(expected.preemptions)),
        part(BillItem::Total, None, expected.total),
    ];
    let low = seconds(epochs, conditions, |interval| interval.low).total;
    let high = seconds(epochs, conditions, |interval| interval.high).total;
    (parts, [low, expected.total, high])
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
            startup_s: Some(20.0),
            checkpoint: Some(250_000_000),
        }
    }

    fn conditions() -> RunConditions {
        RunConditions {
            download_bytes_per_s: Some(125e6),
            data_bytes: Some(10_000_000_000),
            disk_bytes_per_s: 1e8,
            preemptions_per_hour: 0.0,
            checkpoint_interval_s: 300.0,
            startup_s: None,
            grid_g_per_kwh: None,
        }
    }

    fn assert_close(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn counts_every_item() {
        let (parts, [low, total, high]) = bill(&epochs(), &conditions(), Some(3.6));
        // 10 GB at 125 MB/s take 80 s. An epoch has checkpoints after 300, 600 and 900 s and at its end: 40
        // of 2.5 s.
        let expected = [20.0, 80.0, 10_000.0, 200.0, 100.0, 0.0, 10_400.0];
        for (part, expected) in parts.iter().zip(expected) {
            assert!((part.hours.unwrap() * 3600.0 - expected).abs() < 1e-9, "{part:?}");
            assert!((part.price.unwrap() - expected / 1000.0).abs() < 1e-9, "{part:?}");
        }
        assert_eq!(parts.iter().map(|part| part.part).next_back(), Some(BillItem::Total));
        assert_eq!((parts[4].count, parts[5].count), (Some(40.0), Some(0.0)));
        assert_close(total, 10_400.0);
        // Epochs of 500 s have two checkpoints each, of 2,000 s seven.
        assert_close(low, 20.0 + 80.0 + 5_000.0 + 100.0 + 50.0);
        assert_close(high, 20.0 + 80.0 + 20_000.0 + 400.0 + 175.0);
    }

    #[test]
    fn preemption_costs_a_restart_and_half_an_interval() {
        let conditions = RunConditions { preemptions_per_hour: 0.5, ..conditions() };
        let (parts, [_, total, _]) = bill(&epochs(), &conditions, None);
        // 20 + 150 s each: total = 10,400 / (1 - 0.5 · 170 / 3600).
        let whole = 10_400.0 / (1.0 - 85.0 / 3600.0);
        assert_close(total, whole);
        assert_close(parts[5].count, whole / 7200.0);
        assert_close(parts[5].hours, whole / 7200.0 * 170.0 / 3600.0);
        assert_eq!(parts[6].price, None);
        // Without checkpoints within an epoch it is half of the epoch: 20 + 500 s.
        let (parts, [_, total, _]) =
            bill(&epochs(), &RunConditions { checkpoint_interval_s: 0.0, ..conditions }, None);
        assert_eq!(parts[4].count, Some(10.0));
        assert_close(total, (20.0 + 80.0 + 10_000.0 + 200.0 + 25.0) / (1.0 - 260.0 / 3600.0));
    }

    #[test]
    fn too_frequent_preemptions_never_finish() {
        // 20 + 150 s are lost each time; every 170 s is just too often.
        let often = 3600.0 / 170.0;
        let total = |preemptions: f64| {
            bill(&epochs(), &RunConditions { preemptions_per_hour: preemptions, ..conditions() }, None).1
        };
        assert_eq!(total(often * 1.000_001)[1], None);
        assert!(total(often * 0.999)[1].unwrap() > 1000.0 * 10_400.0 * 0.999);
        assert_eq!(total(1e9), [None; 3]);
    }

    #[test]
    fn unknown_items_are_not_counted() {
        let epochs = Epochs { validation: None, startup_s: None, checkpoint: None, ..epochs() };
        let (parts, [_, total, _]) =
            bill(&epochs, &RunConditions { download_bytes_per_s: None, ..conditions() }, Some(1.0));
        let known: Vec<BillItem> =
            parts.iter().filter(|part| part.hours.is_some()).map(|part| part.part).collect();
        assert_eq!(known, [BillItem::Training, BillItem::Preemptions, BillItem::Total]);
        assert_close(total, 10_000.0);
        let often = RunConditions { preemptions_per_hour: 0.1, ..conditions() };
        assert!(often.check(Framework::Stratus).is_ok() && often.check(Framework::Tensorflow).is_err());
        assert!(RunConditions::default().check(Framework::Tensorflow).is_ok());
    }
}
