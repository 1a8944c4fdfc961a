//! What programs need at least against the memory that there is: known before any kernel is measured.

use super::{Programs, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::Resolved;
use stratus_engine::Plan;
use stratus_graph::Graph;

/// Batches of more samples than this are searched for in steps of it.
const STEP: usize = 8;

/// Bytes that training needs at least, whatever kernels it will have: see [`Plan::least_bytes`].
#[must_use]
pub fn least_bytes(programs: &Programs) -> usize {
    let all = [Some(&programs.train), programs.tail.as_ref(), Some(&programs.evaluate)];
    all.into_iter().flatten().map(Plan::least_bytes).max().unwrap_or(0)
}

/// The largest batch, of at most `most` samples, whose programs need no more than `limit` bytes at least;
/// `None` where a single sample needs more. Kernels need scratch besides, so that a plan may need a smaller
/// one.
///
/// # Errors
/// As [`programs()`].
pub fn largest_batch(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    limit: usize,
    most: usize,
) -> Result<Option<usize>, TrainError> {
    let fits = |batch: usize| -> Result<bool, TrainError> {
        let resolved = resolved.with_batch_size(batch);
        Ok(least_bytes(&programs(&resolved, graph, device)?) <= limit)
    };
    if most == 0 || !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut too_large) = (1, 2);
    while too_large <= most && fits(too_large)? {
        (fitting, too_large) = (too_large, too_large * 2);
    }
    if too_large > most {
        if fits(most)? {
            return Ok(Some(most));
        }
        too_large = most;
    }
    while too_large - fitting > if fitting < 2 * STEP { 1 } else { STEP } {
        let middle = fitting.midpoint(too_large);
        let middle = if fitting < 2 * STEP { middle } else { (middle / STEP * STEP).max(fitting + 1) };
        *(if fits(middle)? { &mut fitting } else { &mut too_large }) = middle;
    }
    Ok(Some(fitting))
}

/// Whether the memory that there is can hold a run at all, before its kernels are measured. What
/// `train.memory_limit_mib` allows beyond that is found out with their scratch.
///
/// # Errors
/// If it needs more than the device has.
pub(super) fn expect_room(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    wanted: &Programs,
) -> Result<(), TrainError> {
    let Some(there) = device.memory_bytes.and_then(|bytes| usize::try_from(bytes).ok()) else {
        return Ok(());
    };
    let mut least = least_bytes(wanted);
    let settings = &resolved.settings().train;
    let recomputes = settings.memory_limit_mib.is_some() || settings.activations_kib.is_some();
    if least > there && recomputes {
        least = least_bytes(&programs(&resolved.with_activations_kib(Some(0)), graph, device)?);
    }
    if least <= there {
        return Ok(());
    }
    // A tenth is left for scratch and for the rest of the process.
    let largest = largest_batch(resolved, graph, device, there / 10 * 9, settings.batch_size)?;
    Err(too_large(resolved, least, there, recomputes, largest))
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

fn batches(resolved: &Resolved) -> String {
    let kind = if resolved.settings().train.micro_batches > 1 { "micro-batches" } else { "batches" };
    format!("{kind} of {}", resolved.settings().micro_batch_size())
}

fn too_large(
    resolved: &Resolved,
    least: usize,
    there: usize,
    recomputes: bool,
    largest: Option<usize>,
) -> TrainError {
    let settings = resolved.settings();
    let mut remedies = Vec::new();
    if let Some(batch) = largest {
        remedies.push(format!("take smaller batches, about {batch} fit: --set train.batch_size={batch}"));
        if settings.train.micro_batches <= 1 {
            let parts = settings.train.batch_size.div_ceil(batch.max(1));
            let parts = (parts..settings.train.batch_size)
                .find(|parts| settings.train.batch_size.is_multiple_of(*parts));
            remedies.extend(
                parts.map(|parts| format!("compute the batch in parts: --set train.micro_batches={parts}")),
            );
        }
    } else {
        remedies.push("not even one image fits: take smaller ones with --set data.shape=".to_owned());
    }
    if !recomputes {
        let limit = mib(there / 10 * 9);
        remedies.push(format!("recompute activations in the backward pass: --memory-limit {limit}MiB"));
    }
    TrainError::Configuration {
        problem: format!(
            "training {} in {} needs at least {} MiB of memory{}, {} MiB are free",
            settings.model.name,
            batches(resolved),
            mib(least),
            if recomputes { ", even if all activations that can be are recomputed" } else { "" },
            there >> 20
        ),
        hint: remedies.join("\n  or "),
    }
}

/// The error of a run that does not fit `train.memory_limit_mib`.
pub(super) fn does_not_fit(resolved: &Resolved, least: usize) -> TrainError {
    let settings = resolved.settings();
    let mut remedies = vec![];
    if settings.train.batch_size > 1 {
        let more = if settings.train.micro_batches > 1 { "more " } else { "" };
        remedies.push(format!("split batches into {more}micro-batches with --set train.micro_batches="));
        remedies.push("take smaller batches with --set train.batch_size=".to_owned());
    }
    if resolved.precision() == stratus_engine::Precision::F32 {
        remedies.push("halve their bytes with --set train.precision=bf16".to_owned());
    }
    remedies.push(format!("allow {} MiB with --memory-limit", mib(least)));
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {}; in {}, {} needs at least {} MiB, even if all activations that can \
             be are recomputed",
            settings.train.memory_limit_mib.unwrap_or(0),
            batches(resolved),
            settings.model.name,
            mib(least)
        ),
        hint: remedies.join(",\n  or "),
    }
}

/// The error of stages that do not fit `train.memory_limit_mib`; the largest needs at least so many bytes.
pub(super) fn stage_does_not_fit(resolved: &Resolved, least: usize) -> TrainError {
    let settings = resolved.settings();
    let (stages, limit) = (settings.train.stages, settings.train.memory_limit_mib.unwrap_or(0));
    let needs = match least {
        usize::MAX => "more, wherever it is cut".to_owned(),
        least => format!("at least {} MiB, even if activations are recomputed", mib(least)),
    };
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {limit}; in {stages} stages of {} parts, the largest stage of {} \
             needs {needs}",
            resolved.parts(),
            settings.model.name,
        ),
        hint:
            "take more stages with --set train.stages=,\n  or smaller parts with --set train.parts=,\n  or \
             allow more with --memory-limit"
                .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use crate::network::Network;
    use stratus_data::{Split, open};
    use stratus_engine::reference::ReferenceBackend;

    fn digits(keys: &[(&str, &str)], memory: Option<u64>) -> (Resolved, Graph, OpenDevice) {
        let set = [("data.name", "synthetic"), ("data.synthetic.images", "5000"), ("data.workers", "1")];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        let experiment = Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap();
        let options = crate::input::open_options(&experiment);
        let data = open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap();
        let graph = Network::of(&experiment, data.as_ref()).unwrap().graph;
        let device =
            OpenDevice { memory_bytes: memory, tile_kib: 0, ..OpenDevice::new(Box::new(ReferenceBackend)) };
        let resolved = Resolved::new(&experiment, data.as_ref(), &graph, &device).unwrap();
        (resolved, graph, device)
    }

    fn least(resolved: &Resolved, graph: &Graph, device: &OpenDevice, batch: usize) -> usize {
        least_bytes(&programs(&resolved.with_batch_size(batch), graph, device).unwrap())
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let (resolved, graph, device) = digits(&[("data.drop_last", "true")], None);
        for fitting in [1, 2, 7, 15, 16, 40, 1000] {
            // All between this and the next one that is looked at.
            let (limit, step) =
                (least(&resolved, &graph, &device, fitting), if fitting < 2 * STEP { 1 } else { STEP });
            let found = |most| largest_batch(&resolved, &graph, &device, limit, most).unwrap();
            let batch = found(5000).unwrap();
            assert!((fitting..fitting + step).contains(&batch), "{batch} for {fitting}");
            assert_eq!(found(5), Some(fitting.min(5)));
            assert_eq!(found(0), None);
        }
        let too_little = least(&resolved, &graph, &device, 1) - 1;
        assert_eq!(largest_batch(&resolved, &graph, &device, too_little, 9).unwrap(), None);
    }

    #[test]
    fn what_cannot_be_held_is_refused_with_what_can() {
        let refused = |keys: &[(&str, &str)], memory| {
            let (resolved, graph, device) = digits(keys, Some(memory));
            let wanted = programs(&resolved, &graph, &device).unwrap();
            expect_room(&resolved, &graph, &device, &wanted).map_err(|error| match error {
                TrainError::Configuration { problem, hint } => (problem, hint),
                other => panic!("{other}"),
            })
        };
        assert_eq!(refused(&[], 1 << 40), Ok(()));
        let (problem, hint) = refused(&[], 20 << 20).unwrap_err();
        assert!(problem.starts_with("training digits in batches of 1024 needs at least "), "{problem}");
        assert!(problem.ends_with(" MiB of memory, 20 MiB are free"), "{problem}");
        assert!(hint.contains("--set train.batch_size=") && hint.contains("--memory-limit 18MiB"), "{hint}");
        assert!(hint.contains("--set train.micro_batches="), "{hint}");
        let (problem, hint) = refused(&[("train.memory_limit_mib", "4000")], 2 << 20).unwrap_err();
        assert!(problem.contains("even if all activations that can be are recomputed"), "{problem}");
        assert!(!hint.contains("--memory-limit"), "{hint}");
        let (_, hint) = refused(&[("train.micro_batches", "4")], 1 << 10).unwrap_err();
        assert!(hint.starts_with("not even one image fits"), "{hint}");
    }
}
