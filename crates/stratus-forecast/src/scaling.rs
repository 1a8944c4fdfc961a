//! Scaling to several devices: the time of a data-parallel step with gradient exchange.
//!
//! Each device computes its own images. A bucket of gradients is exchanged as soon as it is complete, one
//! bucket after the other, during the backward pass; the rest of the exchange is waited for, then the
//! parameters are updated. With `W` devices, exchanging `n` bytes by recursive vector halving and doubling
//! (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in MPICH", 2005,
//! section 4.5) takes
//!
//! ```text
//! 2 · log₂(W) · latency + 2 · (1 - 1/W) · n / bandwidth
//! ```

use serde::Serialize;

/// Bytes of gradients of a bucket, as in Stratus.
pub const BUCKET_BYTES: f64 = (4 << 20) as f64;

/// The connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Bandwidth, bytes/s, simultaneously in each direction.
    pub bytes_per_s: f64,
    /// Latency, seconds.
    pub latency_s: f64,
}

/// A kernel of the forward or backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimedKernel {
    /// Seconds.
    pub seconds: f64,
    /// Bytes of the gradients that are complete after it.
    pub gradient: f64,
}

/// A step on one device: the forward and backward pass in order, then the updates.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStep {
    /// Kernels in order.
    pub kernels: Vec<TimedKernel>,
    /// Seconds of the updates.
    pub update_s: f64,
    /// The bytes that are sent for each byte of gradients.
    pub sent_fraction: f64,
}

/// A step on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    /// Seconds of the exchange.
    pub exchange_s: f64,
    /// Fraction of the exchange hidden by the backward pass, 0 to 1; `None` for one device.
    pub hidden: Option<f64>,
}

impl DeviceStep {
    /// A step from its kernels, each with its layers and seconds, and the bytes of gradients per layer, which
    /// are complete after the last kernel of the layer. `update_s` is the total of all updates.
    pub fn new<'a>(
        kernels: impl IntoIterator<Item = (&'a str, f64)>,
        gradients: &[(String, f64)],
        update_s: f64,
    ) -> Self {
        let kernels: Vec<(&str, f64)> = kernels.into_iter().collect();
        let mut step = Self {
            kernels: kernels.iter().map(|&(_, seconds)| TimedKernel { seconds, gradient: 0.0 }).collect(),
            update_s,
            sent_fraction: 1.0,
        };
        for (layer, bytes) in gradients {
            let has_layer = |(layers, _): &(&str, f64)| layers.split('+').any(|name| name == layer);
            if let Some(last) = kernels.iter().rposition(has_layer) {
                step.kernels[last].gradient += bytes;
            }
        }
        step
    }

    /// The step whose gradients are sent in this fraction of their bytes: 0.5 as bf16.
    #[must_use]
    pub fn sent_as(self, sent_fraction: f64) -> Self {
        Self { sent_fraction, ..self }
    }

    /// Seconds on one device.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.seconds).sum::<f64>() + self.update_s
    }

    /// The step on several devices with `batch` images each; `single_rate` is the images per second
    /// of a single device.
    #[must_use]
    pub fn scale_to(&self, devices: u64, batch: u64, link: &Link, single_rate: f64) -> ScaledStep {
        let count = devices.max(1) as f64;
        let exchange = |bytes: f64| {
            2.0 * count.log2().ceil() * link.latency_s + 2.0 * (1.0 - 1.0 / count) * bytes / link.bytes_per_s
        };
        let (mut now, mut link_free, mut waiting, mut exchange_s) = (0.0, 0.0f64, 0.0, 0.0);
        let mut send = |bytes: f64, now: f64| {
            let takes = exchange(bytes * self.sent_fraction);
            link_free = link_free.max(now) + takes;
            exchange_s += takes;
        };
        for kernel in &self.kernels {
            now += kernel.seconds;
            waiting += kernel.gradient;
            if waiting >= BUCKET_BYTES {
                send(std::mem::take(&mut waiting), now);
            }
        }
        if waiting > 0.0 {
            send(waiting, now);
        }
        let is_single = devices <= 1;
        let (exchange_s, exposed) =
            if is_single { (0.0, 0.0) } else { (exchange_s, (link_free - now).max(0.0)) };
        let step_s = now + exposed + self.update_s;
        let images_per_second = count * batch as f64 / step_s;
        ScaledStep {
            devices,
            batch,
            step_s,
            images_per_second,
            speed_up: images_per_second / single_rate,
            efficiency: images_per_second / single_rate / count,
            exchange_s,
            hidden: (exchange_s > 0.0).then(|| 1.0 - exposed / exchange_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { bytes_per_s: 1e9, latency_s: 1e-3 };

    /// A forward pass of 10 ms; two backward kernels of 10 ms, the first with 8 MB of gradients, the second
    /// with 5 MB.
    fn step() -> DeviceStep {
        let kernels = [("a", 0.005), ("b", 0.005), ("b", 0.010), ("a+x", 0.010)];
        DeviceStep::new(kernels, &[("b".to_owned(), 8e6), ("a".to_owned(), 5e6)], 0.002)
    }

    #[test]
    fn gradients_are_complete_after_the_last_kernel_of_their_layer() {
        let gradients: Vec<f64> = step().kernels.iter().map(|kernel| kernel.gradient).collect();
        assert_eq!(gradients, [0.0, 0.0, 8e6, 5e6]);
        assert!((step().seconds() - 0.032).abs() < 1e-12);
    }

    #[test]
    fn exchange_overlaps_the_backward_pass() {
        let one = 32.0 / 0.032;
        let two = step().scale_to(2, 32, &LINK, one);
        // Each: 2 ms of latency, 2 (1 - 1/2) of the bytes. The first, 10 ms, is hidden by 10 ms of
        // computation; the second, 7 ms, is not.
        assert!((two.exchange_s - 0.017).abs() < 1e-12, "{two:?}");
        assert!((two.step_s - 0.039).abs() < 1e-12 && (two.hidden.unwrap() - 10.0 / 17.0).abs() < 1e-9);
        assert!((two.speed_up - 2.0 * 0.032 / 0.039).abs() < 1e-9);
        // Eight: twice three rounds of latency, 2 (1 - 1/8) of the bytes.
        let eight = step().scale_to(8, 32, &LINK, one);
        assert!((eight.exchange_s - (0.006 + 0.014 + 0.006 + 0.008_75)).abs() < 1e-12, "{eight:?}");
        // The exchanges start at 20 ms and 40 ms, and end at 54.75 ms.
        assert!((eight.step_s - 0.056_75).abs() < 1e-12, "{eight:?}");
        // In half of the bytes: the bytes of each exchange take half the time.
        let halved = step().sent_as(0.5).scale_to(8, 32, &LINK, one);
        assert!((halved.exchange_s - (0.006 + 0.007 + 0.006 + 0.004_375)).abs() < 1e-12, "{halved:?}");
        let alone = step().scale_to(1, 32, &LINK, one);
        assert_eq!((alone.exchange_s, alone.hidden), (0.0, None));
        assert!((alone.speed_up - 1.0).abs() < 1e-12 && (alone.efficiency - 1.0).abs() < 1e-12);
    }
}
