//! Scaling to several devices: the time of a data-parallel step with gradient exchange, from its pieces.
//!
//! ```text
//! program of one worker ──▶ actions: compute, start the exchange of a bucket, wait for it    (DeviceStep)
//! links, memory rates   ──▶ the time of a bucket, round by round                             (ExchangeModel)
//! both                  ──▶ a simulated step: what is exchanged, hidden and waited for        (simulation)
//! ```
//!
//! All devices wait for the slowest one. Each computes its own images. A bucket of gradients
//! is exchanged as soon as it is complete, one bucket after the other, while the backward pass continues.

mod connection;
mod exchange;
mod published;
mod simulation;
mod straggler;
mod template;

pub use connection::{Between, Connection};
pub use exchange::{ExchangeModel, Link, Network, Staging};
pub use published::{PublishedScaling, PublishedTable, published_scaling};
pub use template::{StepTemplate, TemplateAction, TemplateKernel};

use serde::Serialize;

/// A part of a step on one device, in its order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepAction {
    /// Kernels run.
    Compute {
        /// Seconds.
        seconds: f64,
    },
    /// The gradients of a bucket are complete, and their exchange starts.
    Start {
        /// The bucket.
        bucket: usize,
        /// Bytes of its gradients in f32.
        bytes: f64,
    },
    /// The kernels after it need the sums of a bucket.
    Wait {
        /// The bucket.
        bucket: usize,
    },
}

/// A step on one of several devices: kernels, and the exchange of gradients between them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceStep {
    /// The actions, in order.
    pub actions: Vec<StepAction>,
    /// Images of a device.
    pub batch: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
}

impl DeviceStep {
    /// Seconds of the kernels.
    #[must_use]
    pub fn compute_seconds(&self) -> f64 {
        let seconds = self.actions.iter().map(|action| match action {
            StepAction::Compute { seconds } => *seconds,
            _ => 0.0,
        });
        seconds.sum()
    }

    /// The step with kernels that take `factor` times as long.
    #[must_use]
    pub fn slower_by(&self, factor: f64) -> Self {
        let actions = self.actions.iter().map(|action| match *action {
            StepAction::Compute { seconds } => StepAction::Compute { seconds: seconds * factor },
            other => other,
        });
        Self { actions: actions.collect(), ..*self }
    }

    /// The bytes of each bucket.
    fn buckets(&self) -> impl Iterator<Item = f64> + '_ {
        self.actions.iter().filter_map(|action| match action {
            StepAction::Start { bytes, .. } => Some(*bytes),
            _ => None,
        })
    }

    /// The step on `devices` devices, a power of two above 1. `single_rate` is the images per second of a
    /// single device.
    #[must_use]
    pub fn scale_to(&self, devices: u64, model: &ExchangeModel, single_rate: f64) -> ScaledStep {
        let slowest = straggler::slowest_factor(devices);
        let simulated = simulation::simulate(&self.slower_by(slowest).actions, devices, model);
        let bytes: f64 = self.buckets().sum();
        let images_per_second = (devices * self.batch) as f64 / simulated.step_s;
        let exchange_s = simulated.exchange_s;
        ScaledStep {
            devices,
            batch: self.batch,
            step_s: simulated.step_s,
            images_per_second,
            speed_up: images_per_second / single_rate,
            efficiency: images_per_second / single_rate / devices as f64,
            exchange_s,
            hidden_s: (exchange_s - simulated.exposed_s).max(0.0),
            exposed_s: simulated.exposed_s,
            hidden_fraction: (exchange_s > 0.0).then(|| (1.0 - simulated.exposed_s / exchange_s).max(0.0)),
            added_s: simulated.added_s,
            straggling_s: (slowest - 1.0) * self.compute_seconds(),
            buckets: self.buckets().count(),
            exchanged_bytes: bytes as u64,
            sent_bytes: (2.0 * (1.0 - 1.0 / devices as f64) * bytes * model.sent_share()) as u64,
            device_bytes: self.device_bytes,
            pinned_bytes: model.staging.map_or(0, |_| bytes as u64),
        }
    }
}

/// A step on several devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ScaledStep {
    /// Number of devices.
    pub devices: u64,
    /// Images per device.
    pub batch: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Images per second over all devices.
    pub images_per_second: f64,
    /// Speed-up over one device.
    pub speed_up: f64,
    /// Speed-up divided by the number of devices, 0 to 1.
    pub efficiency: f64,
    /// Seconds of the exchange of all buckets.
    pub exchange_s: f64,
    /// Seconds of it during which a device computes.
    pub hidden_s: f64,
    /// Seconds that a device waits for sums.
    pub exposed_s: f64,
    /// Fraction of the exchange that the device does not wait for, 0 to 1; `None` for one device.
    pub hidden_fraction: Option<f64>,
    /// Seconds that a device spends on adding gradients.
    pub added_s: f64,
    /// Seconds that the slowest device takes longer than an average one.
    pub straggling_s: f64,
    /// Buckets of gradients.
    pub buckets: usize,
    /// Bytes of all buckets, in f32.
    pub exchanged_bytes: u64,
    /// Bytes that a device sends in a step.
    pub sent_bytes: u64,
    /// Bytes of memory of a device.
    pub device_bytes: u64,
    /// Bytes of pinned host memory of a device's process, if gradients pass through it.
    pub pinned_bytes: u64,
}

impl ScaledStep {
    /// A single device, which exchanges nothing.
    #[must_use]
    pub fn single(batch: u64, step_s: f64, device_bytes: u64) -> Self {
        let images_per_second = batch as f64 / step_s;
        Self {
            devices: 1,
            batch,
            step_s,
            images_per_second,
            speed_up: 1.0,
            efficiency: 1.0,
            device_bytes,
            ..Self::default()
        }
    }
}
