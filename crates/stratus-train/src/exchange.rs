//! The exchange of gradients between workers: as the configuration sets it, and by which way.

use crate::resolve::ResolvedProcess;
use stratus_engine::ops::SumMethod;
use stratus_experiment::{ExchangeMode, ExchangeType, Experiment};

/// How workers sum gradients.
#[must_use]
pub fn gradient_sums(settings: &Experiment) -> SumMethod {
    SumMethod {
        as_bf16: settings.train.exchange_type == ExchangeType::Bf16,
        any_order: settings.train.exchange == ExchangeMode::Fast,
    }
}

/// The warnings of keys that have no effect, because no other worker computes the same gradients.
#[must_use]
pub fn unused_keys(resolved: &ResolvedProcess) -> Vec<String> {
    if resolved.rank().world_size > 1 {
        return Vec::new();
    }
    let SumMethod { as_bf16, any_order } = gradient_sums(resolved.settings());
    let train = &resolved.settings().train;
    let keys = [
        (any_order, "exchange", train.exchange.as_str()),
        (as_bf16, "exchange_type", train.exchange_type.as_str()),
    ];
    let unused = keys.into_iter().filter(|(is_set, ..)| *is_set);
    unused.map(|(_, key, value)| format!("train.{key} = \"{value}\" has no effect with one worker")).collect()
}

/// Says what results depend on, if sums are not exact.
#[must_use]
pub fn exactness_note(settings: &Experiment) -> Option<&'static str> {
    let SumMethod { as_bf16, any_order } = gradient_sums(settings);
    match (as_bf16, any_order) {
        (false, false) => None,
        (true, false) => Some("gradients travel as bf16: results depend on the number of workers"),
        (false, true) => Some("NCCL chooses the order of sums: results depend on the GPUs and their number"),
        (true, true) => Some(
            "gradients travel as bf16, and NCCL chooses the order of sums: results depend on the GPUs and \
             their number",
        ),
    }
}

/// The way by which workers sum gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeWay {
    /// Through the memory of the processes, because the devices are CPUs.
    Processes,
    /// Through the memory of the processes, although the devices are GPUs.
    HostMemory {
        /// Why the GPUs do not sum directly.
        reason: String,
    },
    /// Directly between the GPUs.
    Direct {
        /// The library, with its version.
        library: String,
    },
}

/// The way that one worker offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It computes on a CPU.
    Processes,
    /// Its GPU can sum directly, with a library.
    Direct(String),
    /// Its GPU cannot, for a reason.
    HostMemory(String),
}

impl Offer {
    /// The bytes that other workers receive.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Self::Processes => ('p', ""),
            Self::Direct(library) => ('d', library.as_str()),
            Self::HostMemory(reason) => ('h', reason.as_str()),
        };
        format!("{kind}{text}").into_bytes()
    }

    /// Reads what another worker sent.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (kind, rest) = text.split_at_checked(1).unwrap_or_default();
        match kind {
            "p" => Self::Processes,
            "d" => Self::Direct(rest.to_owned()),
            _ => Self::HostMemory(rest.to_owned()),
        }
    }
}

impl ExchangeWay {
    /// The way that the offers of all workers allow, by rank.
    pub fn choose(offers: &[Offer]) -> Self {
        if offers.contains(&Offer::Processes) {
            return Self::Processes;
        }
        let of_worker = |rank: usize, reason: &str| match rank {
            0 => reason.to_owned(),
            _ => format!("worker {rank}: {reason}"),
        };
        let mut libraries = Vec::new();
        for (rank, offer) in offers.iter().enumerate() {
            match offer {
                Offer::Direct(library) => libraries.push(library),
                Offer::HostMemory(reason) => return Self::HostMemory { reason: of_worker(rank, reason) },
                Offer::Processes => {}
            }
        }
        let Some(first) = libraries.first() else { return Self::Processes };
        match libraries.iter().position(|library| library != first) {
            None => Self::Direct { library: (*first).clone() },
            Some(other) => Self::HostMemory {
                reason: format!("worker 0 has {first}, but worker {other} {}", libraries[other]),
            },
        }
    }

    /// Describes the way and the exactness of sums; `None` if there is nothing to say, as with one worker.
    pub fn describe(&self, resolved: &ResolvedProcess) -> Option<String> {
        if resolved.rank().world_size < 2 {
            return None;
        }
        let way = match self {
            Self::Processes => None,
            Self::HostMemory { reason } => Some(format!("through host memory: {reason}")),
            Self::Direct { library } => Some(library.clone()),
        };
        let texts: Vec<String> =
            way.into_iter().chain(exactness_note(resolved.settings()).map(str::to_owned)).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Returns whether values travel through the memory of the processes.
    pub fn uses_processes(&self) -> bool {
        !matches!(self, Self::Direct { .. })
    }

    /// Why `train.exchange = "fast"` cannot be used by this way; `None` if it can.
    pub fn refuses_fast(&self) -> Option<&str> {
        match self {
            Self::Processes => Some("workers on CPUs do not use NCCL"),
            Self::HostMemory { reason } => Some(reason),
            Self::Direct { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(library: &str) -> Offer {
        Offer::Direct(library.to_owned())
    }

    #[test]
    fn gpus_sum_directly_if_all_can() {
        let way = ExchangeWay::choose(&[direct("NCCL 2.27.5"), direct("NCCL 2.27.5")]);
        assert_eq!(way, ExchangeWay::Direct { library: "NCCL 2.27.5".to_owned() });
        assert_eq!(way.refuses_fast(), None);
        let reason = |offers: &[Offer]| match ExchangeWay::choose(offers) {
            ExchangeWay::HostMemory { reason } => reason,
            other => format!("{other:?}"),
        };
        let missing = Offer::HostMemory("NCCL was not found".to_owned());
        assert_eq!(reason(&[missing.clone(), missing.clone()]), "NCCL was not found");
        assert_eq!(reason(&[direct("NCCL 2.27.5"), missing]), "worker 1: NCCL was not found");
        let versions = [direct("NCCL 2.27.5"), direct("NCCL 2.21.5")];
        assert_eq!(reason(&versions), "worker 0 has NCCL 2.27.5, but worker 1 NCCL 2.21.5");
        assert_eq!(ExchangeWay::choose(&[Offer::Processes, direct("x")]), ExchangeWay::Processes);
    }

    #[test]
    fn offers_survive_their_way_to_other_workers() {
        for offer in [Offer::Processes, direct("NCCL 2.27.5"), Offer::HostMemory("größer".to_owned())] {
            assert_eq!(Offer::from_bytes(&offer.to_bytes()), offer);
        }
        assert_eq!(Offer::from_bytes(&[]), Offer::HostMemory(String::new()));
        assert_eq!(Offer::from_bytes(&[0xff, 0xfe]), Offer::HostMemory("\u{fffd}".to_owned()));
    }
}
