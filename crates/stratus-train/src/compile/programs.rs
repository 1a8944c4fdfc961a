//! The programs of a run: the network lowered, fused, differentiated and tiled, before a backend sees it.

use super::fake_quantisation::fake_quantised;
use super::optimiser::optimisers;
use super::variant::ProgramVariant;
use crate::TrainError;
use crate::device::OpenDevice;
use crate::input::ScaleShifts;
use crate::resolve::ResolvedProcess;
use stratus_engine::Program;
use stratus_engine::fusions::Fusions;
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::images::with_byte_images;
use stratus_engine::passes::lower::{
    self, lower, refresh_copies, with_class_weights, with_label_smoothing, with_loss, with_mixed_labels,
};
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::parts::{BatchParts, split_into_parts};
use stratus_engine::passes::recompute::{live_bytes, recompute};
use stratus_engine::passes::stage::{PipelinePartition, StageMemory};
use stratus_engine::passes::step_costs::{ProgramCost, StepCosts};
use stratus_engine::passes::tile::{tile, tile_stage};
use stratus_engine::passes::update::{MIN_FUSED_UPDATE_WEIGHTS, Optimisers, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_experiment::{ClassWeighting, Experiment, LossFunction, PositiveWeighting};
use stratus_graph::Graph;

/// Minimum samples of a tile. Kernels divide them among threads and blocks, and lose more with fewer samples
/// than caches gain.
const MIN_TILE_SAMPLES: usize = 32;

/// Bytes of gradients that workers exchange together: smaller buckets mostly wait for each other, larger ones
/// start late.
const BUCKET_BYTES: usize = 4 << 20;

/// The programs of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Programs {
    /// A whole batch: forward, backward, update.
    pub train: Program,
    /// The smaller last batch of an epoch, if there is one.
    pub tail: Option<Program>,
    /// Validation.
    pub evaluate: Program,
    /// Refreshes the bf16 or f16 copies of weights; has no steps in f32.
    pub refresh: Program,
}

/// The programs of a resolved experiment.
///
/// # Errors
/// If the network cannot be lowered or differentiated.
pub fn programs(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Programs, TrainError> {
    variant_programs(ProgramVariant::new(resolved), graph, device)
}

/// As [`programs`], for a variant of the experiment.
pub(crate) fn variant_programs(
    variant: ProgramVariant<'_>,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Programs, TrainError> {
    Ok(costed_programs(variant, graph, device)?.0)
}

/// The cost of a pipeline stage for one part of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StageCost {
    /// Its steps, in operations.
    pub steps: ProgramCost,
    /// True if the times of layers were measured.
    pub is_measured: bool,
    /// Bytes of activations and gradients alive at the peak, for all parts in flight.
    pub live_bytes: usize,
}

/// As [`variant_programs`], with the cost of the variant's pipeline stage, if it has one.
pub(super) fn costed_programs(
    variant: ProgramVariant<'_>,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<(Programs, Option<StageCost>), TrainError> {
    let resolved = variant.resolved;
    let settings = resolved.settings();
    let budget = variant.stage_budget;
    let micro_batch = |batch| micro_batch_program(variant, graph, device, batch);
    let train = micro_batch(settings.train.batch_size)?;
    let tail = resolved.tail_batch().map(micro_batch).transpose()?;
    let evaluate = untiled_validation_program(resolved, graph, device)?;
    let times = variant.layer_times.filter(|times| !times.is_empty());
    let costs = times.map_or_else(StepCosts::estimated, |times| StepCosts::measured(&train, times));
    let (partition, index) = match variant.stage {
        Some(stage) => {
            let states = optimisers(&settings.optimiser).weights.states().len();
            let averages = usize::from(settings.train.ema_decay.is_some());
            let memory = StageMemory::new(resolved.parts(), states + averages, budget.bytes);
            let memory = StageMemory { recomputes: budget.recomputes, ..memory };
            (Some(PipelinePartition::balanced(&train, &evaluate, stage.count, memory, &costs)?), stage.index)
        }
        None => (None, 0),
    };
    let own_stage = |program: Program| {
        partition.as_ref().map_or(Ok(program.clone()), |partition| partition.stage(&program, index))
    };
    let recomputed = |program: Program| match budget.recomputes {
        true => recompute(&program, budget.live_bytes),
        false => Ok(program),
    };
    let train = recomputed(own_stage(train)?)?;
    let cost = variant.stage.map(|_| StageCost {
        steps: costs.of_program(&train),
        is_measured: costs.is_measured(),
        live_bytes: live_bytes(&train),
    });
    let train = training_program(variant, train, settings.train.batch_size)?;
    let tail = tail.zip(resolved.tail_batch()).map(|(tail, batch)| {
        let tail = recomputed(own_stage(tail)?)?;
        training_program(variant, tail, batch)
    });
    let programs = Programs {
        tail: tail.transpose()?,
        evaluate: match &partition {
            Some(partition) => tiled_stage(partition.stage(&evaluate, index)?, &evaluate, resolved)?,
            None => tiled(evaluate, resolved)?,
        },
        refresh: refresh_copies(&train)?,
        train,
    };
    Ok((programs, cost))
}

/// Forward and backward pass of one micro-batch or part of a batch of `batch` samples.
fn micro_batch_program(
    variant: ProgramVariant<'_>,
    graph: &Graph,
    device: &OpenDevice,
    batch: usize,
) -> Result<Program, TrainError> {
    let resolved = variant.resolved;
    let settings = resolved.settings();
    let samples = micro_batch_samples(resolved, batch);
    let forward = lower(graph, Mode::Train, resolved.precision(), samples)?;
    let forward = with_loss(forward, engine_loss(resolved.loss()))?;
    let forward = with_label_smoothing(forward, settings.train.label_smoothing as f32)?;
    let forward = if uses_class_weights(settings) { with_class_weights(forward)? } else { forward };
    let forward = if resolved.input().mixes() { with_mixed_labels(forward)? } else { forward };
    let forward = fake_quantised(forward, settings, device)?;
    let fusions = device.backend.fusions();
    // A stem computes its statistics from those of the images, not from sums that add up over parts.
    let stem = fusions.stem && !(resolved.parts() > 1 && settings.train.synchronise_batch_norm);
    let forward = fuse_with(&forward, Fusions { stem, ..fusions })?;
    let forward = match resolved.teacher() {
        Some(teacher) => teacher.teach(&forward, resolved, device)?,
        None => forward,
    };
    let forward = read_bytes_if_preferred(forward, resolved.input().training_scale_shifts(), device)?;
    Ok(recompute(&differentiate(&forward)?, variant.activations_limit())?)
}

/// Forward, backward and update for a batch of `batch` samples; `program` computes one micro-batch or part of
/// it.
fn training_program(
    variant: ProgramVariant<'_>,
    program: Program,
    batch: usize,
) -> Result<Program, TrainError> {
    let resolved = variant.resolved;
    let settings = resolved.settings();
    let parts = batch / micro_batch_samples(resolved, batch);
    let large = if resolved.parts() > 1 { usize::MAX } else { MIN_FUSED_UPDATE_WEIGHTS };
    let program = match (resolved.parts(), settings.train.micro_batches) {
        (1, 0 | 1) => tiled(program, resolved)?,
        (1, _) => split_into_micro_batches(&program, parts)?,
        // A worker may have one part or all of them: tiles and fused updates would change the order of sums.
        (count, _) => {
            let ProgramVariant { workers, gradients, .. } = variant;
            let synchronise_batch_norm = settings.train.synchronise_batch_norm;
            let parts =
                BatchParts { count, workers, bucket_bytes: BUCKET_BYTES, synchronise_batch_norm, gradients };
            split_into_parts(&program, parts)?
        }
    };
    with_updates(&program, settings, large)
}

/// Adds the updates, and the average of weights.
fn with_updates(
    program: &Program,
    settings: &Experiment,
    min_fused_weights: usize,
) -> Result<Program, TrainError> {
    let optimisers = Optimisers { clip_norm: settings.train.clip_norm, ..optimisers(&settings.optimiser) };
    let program = update_with_threshold(program, optimisers, min_fused_weights)?;
    Ok(match settings.train.ema_decay {
        Some(decay) => average(&program, decay)?,
        None => program,
    })
}

/// The training program of one of several workers, each of which computes one part of the samples of
/// `train.batch_size`. Its buckets do not depend on the number of workers.
pub(crate) fn worker_program(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    let settings = resolved.settings();
    let variant = ProgramVariant::new(resolved);
    let part = micro_batch_program(variant, graph, device, settings.train.batch_size)?;
    let parts = BatchParts {
        count: 2,
        workers: 2,
        bucket_bytes: BUCKET_BYTES,
        synchronise_batch_norm: false,
        gradients: variant.gradients,
    };
    with_updates(&split_into_parts(&part, parts)?, settings, usize::MAX)
}

/// Returns whether the training loss has class weights. Their values may still be unknown; plans do not
/// depend on them.
fn uses_class_weights(settings: &Experiment) -> bool {
    let train = &settings.train;
    train.class_weights.is_some()
        || train.class_weighting != ClassWeighting::None
        || train.positive_weights.is_some()
        || train.positive_weighting != PositiveWeighting::None
}

/// The loss of programs for a loss of an experiment.
pub(crate) fn engine_loss(loss: LossFunction) -> lower::LossFunction {
    match loss {
        LossFunction::CrossEntropy => lower::LossFunction::CrossEntropy,
        LossFunction::BinaryCrossEntropy => lower::LossFunction::BinaryCrossEntropy,
        LossFunction::SquaredError => lower::LossFunction::SquaredError,
        LossFunction::Huber => lower::LossFunction::Huber,
    }
}

/// Forward and loss for validation, with the fake quantisation of training.
pub(super) fn validation_program(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    tiled(untiled_validation_program(resolved, graph, device)?, resolved)
}

/// The program of [`validation_program`] before tiling.
fn untiled_validation_program(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    let forward = lower(graph, Mode::Evaluate, resolved.precision(), resolved.validation_batch())?;
    let forward = with_loss(forward, engine_loss(resolved.loss()))?;
    finish_evaluation(&fake_quantised(forward, resolved.settings(), device)?, resolved, device)
}

/// Forward and loss for evaluation, without fake quantisation, before tiling.
pub(super) fn untiled_evaluation_program(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    let forward = lower(graph, Mode::Evaluate, resolved.precision(), resolved.validation_batch())?;
    let forward = with_loss(forward, engine_loss(resolved.loss()))?;
    finish_evaluation(&forward, resolved, device)
}

fn finish_evaluation(
    forward: &Program,
    resolved: &ResolvedProcess,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    let forward = fuse_with(forward, device.backend.fusions())?;
    read_bytes_if_preferred(forward, resolved.input().evaluation_scale_shifts(), device)
}

/// Samples of a micro-batch or part of a batch.
pub(super) fn micro_batch_samples(resolved: &ResolvedProcess, batch: usize) -> usize {
    match resolved.parts() {
        1 => batch / equal_parts(batch, resolved.settings().micro_batch_size()),
        parts => batch / parts,
    }
}

/// The minimum number of equal parts of a batch with at most `max_samples` samples each. The number of
/// micro-batches does not always divide the last batch of an epoch.
fn equal_parts(batch: usize, max_samples: usize) -> usize {
    (batch.div_ceil(max_samples.max(1))..batch).find(|parts| batch.is_multiple_of(*parts)).unwrap_or(batch)
}

/// Makes a forward program read images as bytes and normalise them itself, if its backend prefers that.
fn read_bytes_if_preferred(
    program: Program,
    scale_shifts: Option<ScaleShifts>,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    match scale_shifts.filter(|_| device.backend.prefers_byte_images()) {
        Some(scale_shifts) => Ok(with_byte_images(program, scale_shifts)?),
        None => Ok(program),
    }
}

/// Divides the batch into tiles that fit the device's caches.
pub(super) fn tiled(program: Program, resolved: &ResolvedProcess) -> Result<Program, TrainError> {
    match resolved.tile_bytes() {
        0 => Ok(program),
        bytes => Ok(tile(&program, bytes, MIN_TILE_SAMPLES)?),
    }
}

/// A stage of the program `whole` in the tiles of that program, unless the device has no tiles.
fn tiled_stage(stage: Program, whole: &Program, resolved: &ResolvedProcess) -> Result<Program, TrainError> {
    match resolved.tile_bytes() {
        0 => Ok(stage),
        bytes => Ok(tile_stage(&stage, whole, bytes, MIN_TILE_SAMPLES)?),
    }
}
