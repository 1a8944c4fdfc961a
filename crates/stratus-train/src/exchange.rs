//! The exchange of gradients between workers: as the configuration sets it, and its path.

use crate::TrainError;
use crate::device::OpenDevice;
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
    let alone = match resolved.settings().train.stages {
        0 | 1 => "one worker",
        _ => "one pipeline",
    };
    let unused = irreproducible_keys(resolved.settings()).into_iter();
    unused.map(|key| format!("{key} has no effect with {alone}")).collect()
}

/// The keys, with their values, by which results depend on the number of workers.
pub(crate) fn irreproducible_keys(settings: &Experiment) -> Vec<String> {
    let SumMethod { as_bf16, any_order } = gradient_sums(settings);
    let train = &settings.train;
    let keys = [
        (any_order, "exchange", train.exchange.as_str()),
        (as_bf16, "exchange_type", train.exchange_type.as_str()),
    ];
    let set = keys.into_iter().filter(|(is_set, ..)| *is_set);
    set.map(|(_, key, value)| format!("train.{key} = \"{value}\"")).collect()
}

/// The error if `train.exchange = "fast"` cannot be used.
pub(crate) fn fast_refused(reason: &str) -> TrainError {
    TrainError::Configuration {
        problem: format!("train.exchange = \"fast\" cannot be used: {reason}"),
        hint: "it needs a GPU for each worker, and NCCL: install it with `pip install nvidia-nccl-cu12`, or \
               name its folder in STRATUS_CUDA; or set train.exchange to exact"
            .to_owned(),
    }
}

/// Checks on one device whether several workers on such devices can sum as `train.exchange` says, as
/// training does with all of them.
///
/// # Errors
/// If `train.exchange` is `fast` and this device cannot sum directly.
pub fn check_exchange(resolved: &ResolvedProcess, device: &OpenDevice) -> Result<(), TrainError> {
    if resolved.rank().world_size < 2 || !gradient_sums(resolved.settings()).any_order {
        return Ok(());
    }
    ExchangePath::choose(&[Offer::of(device)])
        .refuses_fast()
        .map_or(Ok(()), |reason| Err(fast_refused(reason)))
}

/// Says what results depend on; `None` if they do not depend on the workers.
#[must_use]
pub fn reproducibility_note(settings: &Experiment) -> Option<&'static str> {
    let SumMethod { as_bf16, any_order } = gradient_sums(settings);
    match (as_bf16, any_order) {
        (false, false) => None,
        (true, false) => Some("gradients are sent as bf16: results depend on the number of workers"),
        (false, true) => Some("NCCL chooses the order of sums: results depend on the GPUs and their number"),
        (true, true) => Some(
            "gradients are sent as bf16, and NCCL chooses the order of sums: results depend on the GPUs and \
             their number",
        ),
    }
}

/// The path on which workers exchange the gradients that they sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExchangePath {
    /// Between processes, because the devices are CPUs.
    Processes,
    /// Through host memory, although the devices are GPUs.
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

/// The path that one worker offers.
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
    /// The offer of a worker whose device nobody shares.
    pub fn of(device: &OpenDevice) -> Self {
        match device.is_accelerator {
            true => device.backend.direct_exchange().map_or_else(Self::HostMemory, Self::Direct),
            false => Self::Processes,
        }
    }

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
        let (kind, rest) = bytes.split_first().unwrap_or((&b'h', &[]));
        let text = String::from_utf8_lossy(rest).into_owned();
        match kind {
            b'p' => Self::Processes,
            b'd' => Self::Direct(text),
            _ => Self::HostMemory(text),
        }
    }
}

impl ExchangePath {
    /// The path that the offers of all workers allow, by rank.
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

    /// Describes the path, and what results depend on; `None` if there is nothing to say, as with one worker.
    pub fn describe(&self, resolved: &ResolvedProcess) -> Option<String> {
        if resolved.rank().world_size < 2 {
            return None;
        }
        let path = match self {
            Self::Processes => None,
            Self::HostMemory { reason } => Some(format!("through host memory: {reason}")),
            Self::Direct { library } => Some(library.clone()),
        };
        let texts: Vec<String> =
            path.into_iter().chain(reproducibility_note(resolved.settings()).map(str::to_owned)).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Returns whether the processes exchange the values that are summed.
    pub fn uses_processes(&self) -> bool {
        !matches!(self, Self::Direct { .. })
    }

    /// Why `train.exchange = "fast"` cannot be used on this path; `None` if it can.
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
        let path = ExchangePath::choose(&[direct("NCCL 2.27.5"), direct("NCCL 2.27.5")]);
        assert_eq!(path, ExchangePath::Direct { library: "NCCL 2.27.5".to_owned() });
        assert_eq!(path.refuses_fast(), None);
        let reason = |offers: &[Offer]| match ExchangePath::choose(offers) {
            ExchangePath::HostMemory { reason } => reason,
            other => format!("{other:?}"),
        };
        let missing = Offer::HostMemory("NCCL was not found".to_owned());
        assert_eq!(reason(&[missing.clone(), missing.clone()]), "NCCL was not found");
        assert_eq!(reason(&[direct("NCCL 2.27.5"), missing]), "worker 1: NCCL was not found");
        let versions = [direct("NCCL 2.27.5"), direct("NCCL 2.21.5")];
        assert_eq!(reason(&versions), "worker 0 has NCCL 2.27.5, but worker 1 NCCL 2.21.5");
        assert_eq!(ExchangePath::choose(&[Offer::Processes, direct("x")]), ExchangePath::Processes);
    }

    #[test]
    fn offers_round_trip() {
        for offer in [Offer::Processes, direct("NCCL 2.27.5"), Offer::HostMemory("größer".to_owned())] {
            assert_eq!(Offer::from_bytes(&offer.to_bytes()), offer);
        }
        assert_eq!(Offer::from_bytes(&[]), Offer::HostMemory(String::new()));
        assert_eq!(Offer::from_bytes(&[0xff, 0xfe]), Offer::HostMemory("\u{fffd}".to_owned()));
    }
}
