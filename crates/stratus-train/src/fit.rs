//! Training within a budget of memory.

use crate::compile::{Planned, Planning, Programs, plan, programs};
use crate::device::Opened;
use crate::{Experiment, TrainError};
use stratus_data::Dataset;
use stratus_engine::recompute::live_bytes;
use stratus_graph::Graph;

/// The most plans that are made on the way to one that fits.
const MOST_ATTEMPTS: usize = 16;

/// The programs of an experiment that trains on `dataset`, planned so that what they allocate fits `train.memory_limit_mib`. Where it does not, activations are made
/// again, on the same kernels, so that the numbers are the same to the bit; how few may be alive is then written to `train.activations_kib`, by
/// which a run that is continued has the same programs.
///
/// # Errors
/// As [`programs`] and [`plan`]; where nothing fits the limit, it says what would.
pub fn fit(
    experiment: &mut Experiment,
    graph: &Graph,
    opened: &Opened,
    dataset: &dyn Dataset,
    planning: &Planning<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<(Programs, Planned), TrainError> {
    let limit = experiment.train.memory_limit_mib.map_or(usize::MAX, |mib| mib << 20);
    let mut attempt = |experiment: &Experiment, planning: &Planning<'_>| {
        let programs = programs(experiment, graph, opened, dataset)?;
        let planned = plan(&programs, opened, planning, warn)?;
        Ok::<_, TrainError>((programs, planned))
    };
    if let Planning::Repeat(_) = planning {
        return attempt(experiment, planning);
    }
    let asked = experiment.train.activations_kib.take();
    let (mut programs, mut planned) = attempt(experiment, planning)?;
    let chosen = planned.chosen();
    if asked.is_some() {
        experiment.train.activations_kib = asked;
        (programs, planned) = attempt(experiment, &Planning::Repeat(&chosen))?;
    }
    for _ in 0..MOST_ATTEMPTS {
        let arena = planned.arena_bytes();
        if arena <= limit {
            return Ok((programs, planned));
        }
        // What is alive is not all that is allocated: scratch, padding and gaps come to it, parameters too.
        let alive = experiment.train.activations_kib.map_or(usize::MAX, |kib| kib << 10);
        let alive = alive.min(live_bytes(&programs.train));
        experiment.train.activations_kib = Some(alive.saturating_sub(arena - limit) >> 10);
        (programs, planned) = attempt(experiment, &Planning::Repeat(&chosen))?;
        if planned.arena_bytes() >= arena {
            return Err(too_little(experiment, arena));
        }
    }
    Err(too_little(experiment, planned.arena_bytes()))
}

fn too_little(experiment: &Experiment, least: usize) -> TrainError {
    let limit = experiment.train.memory_limit_mib.unwrap_or(0);
    TrainError::Configuration {
        problem: format!(
            "train.memory_limit_mib is {limit}; in {} of {}, {} needs at least {} MiB, everything made again that can be",
            if experiment.train.micro_batches > 1 { "micro-batches" } else { "batches" },
            experiment.micro_batch_size(),
            experiment.model.name,
            least.div_ceil(1 << 20)
        ),
        hint: "cut batches into micro-batches with --set train.micro_batches=, take smaller ones with --set train.batch_size=, or half the bytes with --set train.precision=bf16".to_owned(),
    }
}
