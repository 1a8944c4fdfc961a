//! Several devices that train together: what a step takes when gradients are exchanged.
//!
//! Each device computes its own images. A bucket of gradients is exchanged as soon as its last is made, one
//! bucket after the other, while the backward pass goes on; what is left at its end is waited for, and the
//! parameters are updated. Of `W` devices, an exchange of `n` bytes by recursive vector halving and doubling
//! takes (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in MPICH", 2005,
//! section 4.5)
//!
//! ```text
//! 2 · log₂(W) · latency + 2 · (1 - 1/W) · n / bandwidth
//! ```

use serde::Serialize;

/// Bytes of gradients from which on a bucket is exchanged, as Stratus does it.
pub const BUCKET: f64 = (4 << 20) as f64;

/// The way between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Bytes a second, in each direction at once.
    pub bytes_per_s: f64,
    /// Seconds until the first byte is there.
    pub latency_s: f64,
}

/// A kernel of the forward or backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Computed {
    /// Seconds.
    pub seconds: f64,
    /// Bytes of the gradients that are complete behind it.
    pub gradient: f64,
}

/// A step of one device: forward and backward pass in order, then the updates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Kernels in order.
    pub kernels: Vec<Computed>,
    /// Seconds of the updates.
    pub update_s: f64,
}

/// A step of several devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaled {
    /// How many devices.
    pub devices: u64,
    /// Images of each.
    pub batch: u64,
    /// Seconds of a step.
    pub step_s: f64,
    /// Images a second of all.
    pub images_per_second: f64,
    /// Times the images a second of one device.
    pub speed_up: f64,
    /// That, as a share of the number of devices, 0 to 1.
    pub efficiency: f64,
    /// Seconds that exchanging takes.
    pub exchange_s: f64,
    /// What share of it the backward pass hides, 0 to 1; `None` of one device.
    pub hidden: Option<f64>,
}

impl Step {
    /// Of kernels with the layers that each computes, and gradients' bytes by layer: a layer's gradients are
    /// complete behind the last kernel that computes something of it. `update_s` are all updates together.
    pub fn new<'a>(
        kernels: impl IntoIterator<Item = (&'a str, f64)>,
        gradients: &[(String, f64)],
        update_s: f64,
    ) -> Self {
        let kernels: Vec<(&str, f64)> = kernels.into_iter().collect();
        let mut step = Self {
            kernels: kernels.iter().map(|&(_, seconds)| Computed { seconds, gradient: 0.0 }).collect(),
            update_s,
        };
        for (layer, bytes) in gradients {
            let of_layer = |(layers, _): &(&str, f64)| layers.split('+').any(|one| one == layer);
            if let Some(last) = kernels.iter().rposition(of_layer) {
                step.kernels[last].gradient += bytes;
            }
        }
        step
    }

    /// Seconds on one device.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.seconds).sum::<f64>() + self.update_s
    }

    /// On several, each with so many images a step; `one` is the images a second of one alone.
    #[must_use]
    pub fn scaled(&self, devices: u64, batch: u64, link: &Link, one: f64) -> Scaled {
        let count = devices.max(1) as f64;
        let exchange = |bytes: f64| {
            2.0 * count.log2().ceil() * link.latency_s + 2.0 * (1.0 - 1.0 / count) * bytes / link.bytes_per_s
        };
        let (mut now, mut link_free, mut waiting, mut exchange_s) = (0.0, 0.0f64, 0.0, 0.0);
        let mut send = |bytes: f64, now: f64| {
            let takes = exchange(bytes);
            link_free = link_free.max(now) + takes;
            exchange_s += takes;
        };
        for kernel in &self.kernels {
            now += kernel.seconds;
            waiting += kernel.gradient;
            if waiting >= BUCKET {
                send(std::mem::take(&mut waiting), now);
            }
        }
        if waiting > 0.0 {
            send(waiting, now);
        }
        let alone = devices <= 1;
        let (exchange_s, exposed) = if alone { (0.0, 0.0) } else { (exchange_s, (link_free - now).max(0.0)) };
        let step_s = now + exposed + self.update_s;
        let images_per_second = count * batch as f64 / step_s;
        Scaled {
            devices,
            batch,
            step_s,
            images_per_second,
            speed_up: images_per_second / one,
            efficiency: images_per_second / one / count,
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
    fn step() -> Step {
        let kernels = [("a", 0.005), ("b", 0.005), ("b", 0.010), ("a+x", 0.010)];
        Step::new(kernels, &[("b".to_owned(), 8e6), ("a".to_owned(), 5e6)], 0.002)
    }

    #[test]
    fn gradients_are_complete_behind_the_last_kernel_of_their_layer() {
        let gradients: Vec<f64> = step().kernels.iter().map(|kernel| kernel.gradient).collect();
        assert_eq!(gradients, [0.0, 0.0, 8e6, 5e6]);
        assert!((step().seconds() - 0.032).abs() < 1e-12);
    }

    #[test]
    fn an_exchange_goes_on_beside_the_backward_pass() {
        let one = 32.0 / 0.032;
        let two = step().scaled(2, 32, &LINK, one);
        // Each: 2 ms of latency, 2 (1 - 1/2) of the bytes. The first, 10 ms, hides behind 10 ms; the second,
        // 7 ms, does not.
        assert!((two.exchange_s - 0.017).abs() < 1e-12, "{two:?}");
        assert!((two.step_s - 0.039).abs() < 1e-12 && (two.hidden.unwrap() - 10.0 / 17.0).abs() < 1e-9);
        assert!((two.speed_up - 2.0 * 0.032 / 0.039).abs() < 1e-9);
        // Eight: three rounds of latency twice, 2 (1 - 1/8) of the bytes.
        let eight = step().scaled(8, 32, &LINK, one);
        assert!((eight.exchange_s - (0.006 + 0.014 + 0.006 + 0.008_75)).abs() < 1e-12, "{eight:?}");
        // It begins at 20 ms and 40 ms, and ends at 54.75 ms.
        assert!((eight.step_s - 0.056_75).abs() < 1e-12, "{eight:?}");
        let alone = step().scaled(1, 32, &LINK, one);
        assert_eq!((alone.exchange_s, alone.hidden), (0.0, None));
        assert!((alone.speed_up - 1.0).abs() < 1e-12 && (alone.efficiency - 1.0).abs() < 1e-12);
    }
}
