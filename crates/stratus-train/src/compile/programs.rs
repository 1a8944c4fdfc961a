//! The programs of a run: the network lowered, fused, differentiated and tiled, before a backend sees it.

use super::optimiser::optimisers;
use crate::TrainError;
use crate::device::OpenDevice;
use crate::experiment::{ClassWeighting, Experiment};
use crate::input::ScaleShifts;
use crate::resolve::{Place, Resolved, StageRoom};
use stratus_engine::Program;
use stratus_engine::passes::average::average;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_as;
use stratus_engine::passes::images::images_as_bytes;
use stratus_engine::passes::lower::{lower, mix_labels, refresh, smooth_labels, weigh_classes};
use stratus_engine::passes::micro_batch::micro_batches;
use stratus_engine::passes::parts::{Parts, parts as in_parts};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::stage::{Cut, Room};
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{LARGE, Optimisers, update_joined};
use stratus_engine::program::Mode;
use stratus_graph::Graph;

/// Kernels share a tile's samples out among threads and blocks: with fewer than this they lose more than
/// caches give.
const MIN_TILE_SAMPLES: usize = 32;

/// Bytes of gradients that workers exchange together: fewer would be mostly waiting for each other, more
/// would begin late.
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
    /// Brings the bf16 or f16 copies of weights up to date; has no steps in f32.
    pub refresh: Program,
}

/// The programs of a resolved experiment.
///
/// # Errors
/// If the network cannot be lowered or differentiated.
pub fn programs(resolved: &Resolved, graph: &Graph, device: &OpenDevice) -> Result<Programs, TrainError> {
    let settings = resolved.settings();
    let at_once = |batch| program_at_once(resolved, graph, device, batch);
    let train = at_once(settings.train.batch_size)?;
    let tail = resolved.tail_batch().map(at_once).transpose()?;
    let evaluate = measuring_program(resolved, graph, device)?;
    let (cut, number) = match resolved.stage() {
        Some(stage) => {
            let states = optimisers(&settings.optimiser).weights.states().len();
            let averages = usize::from(settings.train.ema_decay.is_some());
            let StageRoom { bytes: limit, recomputes } = resolved.stage_room();
            let room = Room { recomputes, ..Room::new(resolved.parts(), states + averages, limit) };
            (Some(Cut::balanced(&train, &evaluate, stage.count, room)?), stage.number)
        }
        None => (None, 0),
    };
    let own = |program: Program| cut.as_ref().map_or(Ok(program.clone()), |cut| cut.stage(&program, number));
    let trained = |program: Program, batch| {
        let program = own(program)?;
        let program = if resolved.stage_room().recomputes { recompute(&program, 0)? } else { program };
        training_program(resolved, program, batch)
    };
    let train = trained(train, settings.train.batch_size)?;
    let tail = tail.zip(resolved.tail_batch()).map(|(tail, batch)| trained(tail, batch)).transpose()?;
    Ok(Programs { tail, evaluate: tiled(own(evaluate)?, resolved)?, refresh: refresh(&train)?, train })
}

/// Forward and backward pass of the samples that go through the network together, of a batch of `batch`.
fn program_at_once(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    batch: usize,
) -> Result<Program, TrainError> {
    let settings = resolved.settings();
    let samples = samples_at_once(resolved, batch);
    let forward = lower(graph, Mode::Train, resolved.precision(), samples)?;
    let forward = smooth_labels(forward, settings.train.label_smoothing as f32)?;
    let forward = if weighs_classes(settings) { weigh_classes(forward)? } else { forward };
    let forward = if resolved.input().mixes() { mix_labels(forward)? } else { forward };
    let forward = fuse_as(&forward, device.backend.fusions())?;
    let forward = read_bytes(forward, resolved.input().training_scale_shifts(), device)?;
    Ok(recompute(&differentiate(&forward)?, resolved.activations_limit())?)
}

/// Forward, backward and update for a batch of `batch` samples, of which `program` computes those that go
/// through the network together.
fn training_program(resolved: &Resolved, program: Program, batch: usize) -> Result<Program, TrainError> {
    let settings = resolved.settings();
    let parts = batch / samples_at_once(resolved, batch);
    let large = if resolved.parts() > 1 { usize::MAX } else { LARGE };
    let program = match (resolved.parts(), settings.train.micro_batches) {
        (1, 0 | 1) => tiled(program, resolved)?,
        (1, _) => micro_batches(&program, parts)?,
        // A worker may have one part or all of them: tiles, and gradients that are never stored, would make
        // other sums.
        (count, _) => {
            let Place { workers, .. } = resolved.place();
            in_parts(&program, Parts { count, workers, bucket_bytes: BUCKET_BYTES })?
        }
    };
    let optimisers = Optimisers { clip_norm: settings.train.clip_norm, ..optimisers(&settings.optimiser) };
    let program = update_joined(&program, optimisers, large)?;
    Ok(match settings.train.ema_decay {
        Some(decay) => average(&program, decay)?,
        None => program,
    })
}

/// Whether the training loss has class weights. They need not be counted yet: a plan is the same.
fn weighs_classes(settings: &Experiment) -> bool {
    settings.train.class_weights.is_some() || settings.train.class_weighting != ClassWeighting::None
}

/// Forward and loss for validation.
pub(super) fn evaluation_program(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    tiled(measuring_program(resolved, graph, device)?, resolved)
}

/// The same, before it is cut into tiles.
fn measuring_program(resolved: &Resolved, graph: &Graph, device: &OpenDevice) -> Result<Program, TrainError> {
    let forward = lower(graph, Mode::Evaluate, resolved.precision(), resolved.validation_batch())?;
    let forward = fuse_as(&forward, device.backend.fusions())?;
    read_bytes(forward, resolved.input().measuring_scale_shifts(), device)
}

/// Samples of a batch that go through the training program together.
pub(super) fn samples_at_once(resolved: &Resolved, batch: usize) -> usize {
    match resolved.parts() {
        1 => batch / equal_parts(batch, resolved.settings().micro_batch_size()),
        parts => batch / parts,
    }
}

/// The fewest equal parts of a batch that have at most `most` samples each. The last batch of an epoch may
/// have another size than the others, so that their number of micro-batches does not divide it.
fn equal_parts(batch: usize, most: usize) -> usize {
    (batch.div_ceil(most.max(1))..batch).find(|parts| batch.is_multiple_of(*parts)).unwrap_or(batch)
}

/// Has a forward program read images as bytes and normalise them itself, if its backend gains from that.
fn read_bytes(
    program: Program,
    scale_shifts: Option<ScaleShifts>,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    match scale_shifts.filter(|_| device.backend.gains_from_bytes()) {
        Some(scale_shifts) => Ok(images_as_bytes(program, scale_shifts)?),
        None => Ok(program),
    }
}

/// Cuts the batch into tiles that fit the device's caches.
fn tiled(program: Program, resolved: &Resolved) -> Result<Program, TrainError> {
    match resolved.tile_bytes() {
        0 => Ok(program),
        bytes => Ok(tile(&program, bytes, MIN_TILE_SAMPLES)?),
    }
}
