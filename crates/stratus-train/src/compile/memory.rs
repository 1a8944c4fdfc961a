//! Checks the minimum memory of programs before any kernel is measured.

use super::programs::variant_programs;
use super::variant::ProgramVariant;
use super::{Programs, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use stratus_engine::{Backend, Plan, Program};
use stratus_graph::Graph;

/// Granularity of the batch size search, for larger batches.
const BATCH_SEARCH_STEP: usize = 8;

/// Minimum bytes that training needs, with any kernels: see [`Plan::min_bytes`]. On a GPU, sums with other
/// workers need memory too.
#[must_use]
pub fn min_bytes(programs: &Programs, backend: &dyn Backend) -> usize {
    let all = [Some(&programs.train), programs.tail.as_ref(), Some(&programs.evaluate)];
    let programs = all.into_iter().flatten();
    let largest_bucket = programs.clone().map(Program::largest_bucket_bytes).max().unwrap_or(0);
    programs.map(Plan::min_bytes).max().unwrap_or(0) + backend.direct_sum_bytes(largest_bucket)
}

/// The number that must divide a batch: its micro-batches or its parts, of which only one is more than 1.
#[must_use]
pub fn batch_divisor(resolved: &ResolvedProcess) -> usize {
    resolved.parts().max(resolved.settings().train.micro_batches)
}

/// The largest batch of at most `max_batch` samples whose minimum memory is within `limit` bytes; `None` if
/// the smallest batch needs more. Kernels also need scratch, so a plan may need a smaller batch.
///
/// # Errors
/// As [`programs()`].
pub fn largest_batch(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
    limit: usize,
    max_batch: usize,
) -> Result<Option<usize>, TrainError> {
    // Batches are counted in units of this number.
    let divisor = batch_divisor(resolved);
    let max_batch = max_batch / divisor;
    let fits = |batch: usize| -> Result<bool, TrainError> {
        let resolved = resolved.with_batch_size(batch * divisor);
        Ok(min_bytes(&programs(&resolved, graph, device)?, device.backend.as_ref()) <= limit)
    };
    if max_batch == 0 || !fits(1)? {
        return Ok(None);
    }
    let (mut fitting, mut too_large) = (1, 2);
    while too_large <= max_batch && fits(too_large)? {
        (fitting, too_large) = (too_large, too_large * 2);
    }
    if too_large > max_batch {
        if fits(max_batch)? {
            return Ok(Some(max_batch * divisor));
        }
        too_large = max_batch;
    }
    while too_large - fitting > if fitting < 2 * BATCH_SEARCH_STEP { 1 } else { BATCH_SEARCH_STEP } {
        let middle = fitting.midpoint(too_large);
        let middle = if fitting < 2 * BATCH_SEARCH_STEP {
            middle
        } else {
            (middle / BATCH_SEARCH_STEP * BATCH_SEARCH_STEP).max(fitting + 1)
        };
        *(if fits(middle)? { &mut fitting } else { &mut too_large }) = middle;
    }
    Ok(Some(fitting * divisor))
}

/// Checks that a run can fit the available memory, before its kernels are measured. `train.memory_limit_mib`
/// is checked later, including their scratch.
///
/// # Errors
/// If the run needs more memory than the device has.
pub(super) fn check_memory(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
    unlimited: &Programs,
) -> Result<(), TrainError> {
    let Some(available) = device.memory_bytes.and_then(|bytes| usize::try_from(bytes).ok()) else {
        return Ok(());
    };
    let backend = device.backend.as_ref();
    let mut needed = min_bytes(unlimited, backend);
    let settings = &resolved.settings().train;
    let recomputes = settings.memory_limit_mib.is_some() || settings.activations_kib.is_some();
    if needed > available && recomputes {
        let variant = ProgramVariant { activations_kib: Some(0), ..ProgramVariant::new(resolved) };
        needed = min_bytes(&variant_programs(variant, graph, device)?, backend);
    }
    if needed <= available {
        return Ok(());
    }
    // A tenth is reserved for scratch and the rest of the process.
    let largest = largest_batch(resolved, graph, device, available / 10 * 9, settings.batch_size)?;
    Err(device_memory_error(resolved, needed, available, recomputes, largest))
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

fn batches(resolved: &ResolvedProcess) -> String {
    let kind = if resolved.settings().train.micro_batches > 1 { "micro-batches" } else { "batches" };
    format!("{kind} of {}", resolved.settings().micro_batch_size())
}

fn device_memory_error(
    resolved: &ResolvedProcess,
    needed: usize,
    available: usize,
    recomputes: bool,
    largest: Option<usize>,
) -> TrainError {
    let settings = resolved.settings();
    let mut remedies = Vec::new();
    if let Some(batch) = largest {
        remedies.push(format!("use smaller batches, about {batch} fit: --set train.batch_size={batch}"));
        if batch_divisor(resolved) == 1 {
            let parts = settings.train.batch_size.div_ceil(batch.max(1));
            let parts = (parts..settings.train.batch_size)
                .find(|parts| settings.train.batch_size.is_multiple_of(*parts));
            remedies.extend(
                parts.map(|parts| {
                    format!("split batches into micro-batches: --set train.micro_batches={parts}")
                }),
            );
        }
    } else {
        remedies.push("not even one image fits: use smaller ones with --set data.shape=".to_owned());
    }
    if !recomputes {
        let limit = mib(available / 10 * 9);
        remedies.push(format!("recompute activations in the backward pass: --memory-limit {limit}MiB"));
    }
    TrainError::Configuration {
        problem: format!(
            "training {} in {} needs at least {} MiB of memory{}, but {} MiB are free",
            settings.model.name,
            batches(resolved),
            mib(needed),
            if recomputes { ", even with recomputed activations" } else { "" },
            available >> 20
        ),
        hint: remedies.join("\n  or "),
    }
}

/// The error of a run that does not fit `train.memory_limit_mib`.
pub(super) fn memory_limit_error(resolved: &ResolvedProcess, needed: usize) -> TrainError {
    let settings = resolved.settings();
    let mut remedies = vec![];
    if settings.train.batch_size > 1 {
        let more = if settings.train.micro_batches > 1 { "more " } else { "" };
        remedies.push(format!("split batches into {more}micro-batches with --set train.micro_batches="));
        remedies.push("use smaller batches with --set train.batch_size=".to_owned());
    }
    if resolved.precision() == stratus_engine::Precision::F32 {
        remedies.push("halve their bytes with --set train.precision=bf16".to_owned());
    }
    remedies.push(format!("allow {} MiB with --memory-limit", mib(needed)));
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {}, but {} in {} needs at least {} MiB, even with recomputed \
             activations",
            settings.train.memory_limit_mib.unwrap_or(0),
            settings.model.name,
            batches(resolved),
            mib(needed)
        ),
        hint: remedies.join(",\n  or "),
    }
}

/// The error if the largest pipeline stage needs `needed` bytes, more than `train.memory_limit_mib`.
pub(super) fn stage_memory_limit_error(resolved: &ResolvedProcess, needed: usize) -> TrainError {
    let settings = resolved.settings();
    let (stages, limit) = (settings.train.stages, settings.train.memory_limit_mib.unwrap_or(0));
    let needs = match needed {
        usize::MAX => "more, however it is partitioned".to_owned(),
        needed => format!("at least {} MiB, even with recomputed activations", mib(needed)),
    };
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {limit}, but in {stages} stages of {} parts, the largest stage of {} \
             needs {needs}",
            resolved.parts(),
            settings.model.name,
        ),
        hint: "use more stages with --set train.stages=,\n  or smaller parts with --set train.parts=,\n  or \
             allow more with --memory-limit"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use stratus_data::{Split, open};
    use stratus_engine::reference::ReferenceBackend;
    use stratus_experiment::Experiment;

    fn digits(keys: &[(&str, &str)], memory: Option<u64>) -> (ResolvedProcess, Graph, OpenDevice) {
        let set = [("data.name", "synthetic"), ("data.synthetic.images", "5000"), ("data.workers", "1")];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        let experiment = Experiment::builtin("digits").unwrap().with_overrides(&keys).unwrap();
        let options = crate::input::open_options(&experiment);
        let data = open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap();
        let graph = Network::for_dataset(&experiment, data.as_ref()).unwrap().graph;
        let device =
            OpenDevice { memory_bytes: memory, tile_kib: 0, ..OpenDevice::new(Box::new(ReferenceBackend)) };
        let resolved = ResolvedProcess::new(&experiment, data.as_ref(), &graph, &device).unwrap();
        (resolved, graph, device)
    }

    fn needed(resolved: &ResolvedProcess, graph: &Graph, device: &OpenDevice, batch: usize) -> usize {
        let programs = programs(&resolved.with_batch_size(batch), graph, device).unwrap();
        min_bytes(&programs, device.backend.as_ref())
    }

    #[test]
    fn the_largest_batch_fits_and_the_next_does_not() {
        let (resolved, graph, device) = digits(&[("data.drop_last", "true")], None);
        for fitting in [1, 2, 7, 15, 16, 40, 1000] {
            // The search may return any batch below the next one that it tries.
            let (limit, step) = (
                needed(&resolved, &graph, &device, fitting),
                if fitting < 2 * BATCH_SEARCH_STEP { 1 } else { BATCH_SEARCH_STEP },
            );
            let found = |max_batch| largest_batch(&resolved, &graph, &device, limit, max_batch).unwrap();
            let batch = found(5000).unwrap();
            assert!((fitting..fitting + step).contains(&batch), "{batch} for {fitting}");
            assert_eq!(found(5), Some(fitting.min(5)));
            assert_eq!(found(0), None);
        }
        let too_little = needed(&resolved, &graph, &device, 1) - 1;
        assert_eq!(largest_batch(&resolved, &graph, &device, too_little, 9).unwrap(), None);
    }

    #[test]
    fn the_largest_batch_is_a_multiple_of_its_parts() {
        for key in ["train.micro_batches", "train.parts"] {
            let (resolved, graph, device) = digits(&[("data.drop_last", "true"), (key, "4")], None);
            let limit = needed(&resolved, &graph, &device, 40);
            let found = largest_batch(&resolved, &graph, &device, limit, 1003).unwrap().unwrap();
            assert!(found >= 40 && found.is_multiple_of(4), "{key}: {found}");
            assert_eq!(largest_batch(&resolved, &graph, &device, limit, 3).unwrap(), None, "{key}");
        }
    }

    #[test]
    fn rejects_runs_that_exceed_the_memory_and_suggests_what_fits() {
        let refused = |keys: &[(&str, &str)], memory| {
            let (resolved, graph, device) = digits(keys, Some(memory));
            let unlimited = programs(&resolved, &graph, &device).unwrap();
            check_memory(&resolved, &graph, &device, &unlimited).map_err(|error| match error {
                TrainError::Configuration { problem, hint } => (problem, hint),
                other => panic!("{other}"),
            })
        };
        assert_eq!(refused(&[], 1 << 40), Ok(()));
        let (problem, hint) = refused(&[], 20 << 20).unwrap_err();
        assert!(problem.starts_with("training digits in batches of 1024 needs at least "), "{problem}");
        assert!(problem.ends_with(" MiB of memory, but 20 MiB are free"), "{problem}");
        assert!(hint.contains("--set train.batch_size=") && hint.contains("--memory-limit 18MiB"), "{hint}");
        assert!(hint.contains("--set train.micro_batches="), "{hint}");
        let (problem, hint) = refused(&[("train.memory_limit_mib", "4000")], 2 << 20).unwrap_err();
        assert!(problem.contains("even with recomputed activations"), "{problem}");
        assert!(!hint.contains("--memory-limit"), "{hint}");
        let (_, hint) = refused(&[("train.micro_batches", "4")], 1 << 10).unwrap_err();
        assert!(hint.starts_with("not even one image fits"), "{hint}");
    }
}
