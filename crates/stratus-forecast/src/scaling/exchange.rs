//! The time to exchange a bucket of gradients.
//!
//! With `W` devices, recursive vector halving and distance doubling (Thakur, Rabenseifner, Gropp:
//! "Optimization of collective communication operations in MPICH", 2005, section 4.5) takes `log₂(W)` rounds
//! to add and as many to gather. In the round with distance `d` = 1, 2, 4 … a device sends and receives
//! `n / 2d` of `n` bytes:
//!
//! ```text
//! add       latency + n / 2d / rate(d), then one kernel: reads two numbers, writes one
//! gather    latency + n / 2d / rate(d)
//! ```
//!
//! `rate(d)` is that of the link within a machine if `d` is less than the devices of a machine, else that of
//! the network, which the devices of a machine share.

/// Bytes of a gradient.
const F32_BYTES: f64 = 4.0;

/// The connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bandwidth, bytes/s, simultaneously in each direction.
    pub bytes_per_s: f64,
    /// Latency, seconds.
    pub latency_s: f64,
}

/// The connection between machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The link of a machine.
    pub link: Link,
    /// The devices of a machine, which share it.
    pub devices_per_machine: u64,
}

/// Copies through pinned host memory, where gradients are also added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Staging {
    /// Bandwidth between device and host memory, bytes/s, simultaneously in each direction.
    pub copy_bytes_per_s: f64,
}

/// The pieces of an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeModel {
    /// The link between devices of one machine, or between all.
    pub link: Link,
    /// The network between machines, if devices are in several.
    pub network: Option<Network>,
    /// Bytes that are sent per gradient: 4 for f32, 2 for bf16.
    pub value_bytes: f64,
    /// Bandwidth of the memory in which gradients are added, bytes/s.
    pub memory_bytes_per_s: f64,
    /// Copies through host memory; `None` if devices exchange gradients directly.
    pub staging: Option<Staging>,
}

/// A round of the exchange of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    /// Seconds of the message.
    pub message_s: f64,
    /// Seconds of the kernel that adds what was received, and converts it.
    pub kernel_s: f64,
}

impl ExchangeModel {
    /// Bytes that are sent per byte of gradients.
    pub(super) fn sent_share(&self) -> f64 {
        self.value_bytes / F32_BYTES
    }

    /// The rounds of a bucket of `bytes` bytes among `devices` devices, a power of two.
    pub(super) fn rounds(&self, devices: u64, bytes: f64) -> impl Iterator<Item = Round> + '_ {
        let share = self.sent_share();
        let distances = std::iter::successors(Some(1u64), |distance| Some(distance * 2));
        let distances: Vec<u64> = distances.take_while(|&distance| distance < devices).collect();
        let round = move |distance: u64, adds: bool| {
            let half = bytes / (2 * distance) as f64;
            // A sum in f32 is read and written; a received number is read. If numbers are sent in another
            // type, they are also converted: before they are sent, or after they are received.
            let touched = match (adds, share < 1.0) {
                (true, false) => 3.0,
                (true, true) => 2.0 + share + (1.0 + share),
                (false, true) => 1.0 + share,
                (false, false) => 0.0,
            };
            Round {
                message_s: self.message_seconds(distance, half * share, devices),
                kernel_s: half * touched / self.memory_bytes_per_s,
            }
        };
        let adding: Vec<Round> = distances.iter().map(|&distance| round(distance, true)).collect();
        let gathering: Vec<Round> = distances.iter().rev().map(|&distance| round(distance, false)).collect();
        adding.into_iter().chain(gathering)
    }

    fn message_seconds(&self, distance: u64, bytes: f64, devices: u64) -> f64 {
        match self.network {
            Some(Network { link, devices_per_machine }) if distance >= devices_per_machine => {
                let sharing = devices_per_machine.min(devices).max(1) as f64;
                link.latency_s + bytes * sharing / link.bytes_per_s
            }
            _ => self.link.latency_s + bytes / self.link.bytes_per_s,
        }
    }

    /// Seconds to copy a bucket between device and host memory.
    pub(super) fn copy_seconds(&self, bytes: f64) -> f64 {
        self.staging.map_or(0.0, |staging| bytes / staging.copy_bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ExchangeModel {
        ExchangeModel {
            link: Link { bytes_per_s: 1e9, latency_s: 1e-3 },
            network: None,
            value_bytes: 4.0,
            memory_bytes_per_s: f64::INFINITY,
            staging: None,
        }
    }

    fn seconds(model: &ExchangeModel, devices: u64, bytes: f64) -> f64 {
        model.rounds(devices, bytes).map(|round| round.message_s + round.kernel_s).sum()
    }

    /// `2 · log₂(W) · latency + 2 · (1 - 1/W) · n / rate`.
    #[test]
    fn messages_halve_and_double() {
        for (devices, rounds, share) in
            [(1, 0, 0.0), (2, 2, 1.0), (4, 4, 1.5), (8, 6, 1.75), (64, 12, 1.96875)]
        {
            assert_eq!(model().rounds(devices, 8e6).count(), rounds);
            let expected = rounds as f64 * 1e-3 + share * 8e6 / 1e9;
            assert!((seconds(&model(), devices, 8e6) - expected).abs() < 1e-12, "{devices} devices");
        }
    }

    #[test]
    fn devices_of_a_machine_share_its_network() {
        let link = Link { bytes_per_s: 1e8, latency_s: 2e-3 };
        let network = Some(Network { link, devices_per_machine: 4 });
        let several = ExchangeModel { network, ..model() };
        assert_eq!(seconds(&several, 4, 8e6), seconds(&model(), 4, 8e6));
        // Among eight, one round each way is between machines: an eighth of the bytes of each of four
        // devices.
        let within = 4.0 * 1e-3 + 1.5 * 8e6 / 1e9;
        let between = 2.0 * (2e-3 + 4.0 * 1e6 / 1e8);
        assert!((seconds(&several, 8, 8e6) - within - between).abs() < 1e-12);
        // One device per machine: every round is between machines.
        let alone = ExchangeModel { network: Some(Network { link, devices_per_machine: 1 }), ..model() };
        assert!((seconds(&alone, 2, 8e6) - 2.0 * (2e-3 + 4e6 / 1e8)).abs() < 1e-12);
    }

    #[test]
    fn half_the_bytes_take_half_the_time_and_conversions() {
        let memory_bytes_per_s = 1e12;
        let exact = ExchangeModel { memory_bytes_per_s, ..model() };
        let bf16 = ExchangeModel { value_bytes: 2.0, ..exact };
        let kernels =
            |model: &ExchangeModel| -> f64 { model.rounds(2, 8e6).map(|round| round.kernel_s).sum() };
        // Half of the bucket is added: 3 × 4 MB.
        assert!((kernels(&exact) - 12e6 / 1e12).abs() < 1e-15);
        // In bf16, adding reads 6 MB and writes 4, rounding and restoring touch 6 each.
        assert!((kernels(&bf16) - 22e6 / 1e12).abs() < 1e-15);
        let messages =
            |model: &ExchangeModel| -> f64 { model.rounds(2, 8e6).map(|round| round.message_s).sum() };
        assert!((messages(&exact) - 10e-3).abs() < 1e-12 && (messages(&bf16) - 6e-3).abs() < 1e-12);
    }
}
