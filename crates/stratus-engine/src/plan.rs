//! The plan: a prepared program with every byte placed. Plain data, written to `plan.json`.

use crate::backend::{Choices, PrepareRequest, PreparedStep};
use crate::memory::{self, Block, aligned};
use crate::ops::{KernelSpec, Tiling};
use crate::{Backend, EngineError, Layout, Program, Role, Section, Step, Value, ValueId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Location {
    /// Offset in the persistent part of the arena.
    Persistent(usize),
    /// Offset in the transient part of the arena, which each run overwrites.
    Transient(usize),
    /// In the caller's buffer: 0 images, 1 labels.
    External(usize),
}

/// A value's location and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Its location.
    pub location: Location,
    /// Bytes, padding included.
    pub bytes: usize,
    /// Its layout.
    pub layout: Layout,
}

/// The plan of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// The backend's name for the implementation.
    pub implementation: String,
    /// Scratch: offset in the transient part, and bytes.
    pub scratch: (usize, usize),
}

/// A program with a kernel for every step and a location for every value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The backend's name.
    pub backend: String,
    /// Library, version, instruction set.
    #[serde(rename = "library")]
    pub library_description: String,
    /// The revision of the kernels, see [`Backend::revision`]; empty in plans of earlier versions.
    #[serde(default)]
    #[serde(rename = "kernels")]
    pub kernel_revision: String,
    /// Threads of the kernels.
    pub threads: usize,
    /// All choices made by measuring.
    pub choices: Choices,
    /// Bytes of persistent values: parameters, statistics, velocities. Shared by all programs of a session.
    pub persistent_bytes: usize,
    /// Bytes of activations, gradients and scratch.
    pub transient_bytes: usize,
    /// The peak of bytes alive at one step: a lower bound of `transient_bytes`.
    pub transient_lower_bound: usize,
    /// The placement of each value of the program.
    pub placements: Vec<Placement>,
    /// The plan of each step of the program.
    pub steps: Vec<PlannedStep>,
    /// The program.
    pub program: Program,
}

/// The persistent values of a session: set by its first plan, shared by the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Persistent {
    /// Their placements, by name.
    pub values: BTreeMap<String, Placement>,
    /// Bytes in all.
    pub bytes: usize,
}

/// The memory of the tiles of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileSpan {
    /// Bytes of one tile.
    pub length: usize,
    /// Distance between tiles in bytes.
    pub stride: usize,
    /// The number of tiles with separate memory, after which the first one's bytes are reused.
    pub slots: usize,
}

/// A plan and its kernels.
pub struct PreparedPlan {
    /// Plain data.
    pub plan: Plan,
    /// A kernel per step.
    pub kernels: Vec<PreparedStep>,
}

impl Plan {
    /// Prepares `program` on `backend` and places every byte. Persistent values that no earlier program has
    /// are added to `persistent`.
    ///
    /// # Errors
    /// If the backend does not support a step, or the result does not verify.
    pub fn prepare(
        backend: &dyn Backend,
        program: &Program,
        choices: Choices,
        measure: bool,
        persistent: &mut Persistent,
    ) -> Result<PreparedPlan, EngineError> {
        let fixed = persistent
            .values
            .iter()
            .map(|(name, placement)| (name.clone(), placement.layout.clone()))
            .collect();
        let prepared = backend.prepare(program, &PrepareRequest { choices, fixed, measure })?;
        prepared.program.verify("prepare")?;
        let plan = Self::place(
            backend,
            prepared.program,
            &prepared.layouts,
            &prepared.steps,
            prepared.choices,
            persistent,
        )?;
        plan.verify()?;
        Ok(PreparedPlan { plan, kernels: prepared.steps })
    }

    fn place(
        backend: &dyn Backend,
        program: Program,
        layouts: &[Layout],
        steps: &[PreparedStep],
        choices: Choices,
        persistent: &mut Persistent,
    ) -> Result<Self, EngineError> {
        if layouts.len() != program.values.len() || steps.len() != program.steps.len() {
            return Err(EngineError::Placement("the backend prepared another program".to_owned()));
        }
        let value_bytes = |id: ValueId| layouts[id.0].bytes(program.value(id).dtype);
        let lifetimes = lifetimes(&program, value_bytes, steps.iter().map(|step| step.scratch_bytes));
        let blocks: Vec<Block> = lifetimes.iter().map(Lifetime::block).collect();
        let (offsets, transient_bytes) = memory::place(&blocks);
        memory::verify(&blocks, &offsets, transient_bytes)?;
        let mut planned: Vec<PlannedStep> = steps
            .iter()
            .map(|step| PlannedStep {
                implementation: step.implementation.clone(),
                scratch: (0, step.scratch_bytes),
            })
            .collect();
        let mut transient = vec![0; program.values.len()];
        for (lifetime, offset) in lifetimes.iter().zip(&offsets) {
            match lifetime.owner {
                Owner::Value(value) => transient[value.0] = *offset,
                Owner::Scratch(step) => planned[step].scratch.0 = *offset,
            }
        }
        let mut placements = Vec::with_capacity(program.values.len());
        for (id, value) in program.values.iter().enumerate() {
            let layout = layouts[id].clone();
            let bytes = layout.bytes(value.dtype);
            let location = match value.role {
                Role::Images => Location::External(0),
                Role::Labels => Location::External(1),
                Role::Transient => Location::Transient(transient[id]),
                _ => {
                    let known = persistent.values.get(&value.name);
                    if let Some(known) =
                        known.filter(|known| !known.layout.same_bytes(&layout) || known.bytes != bytes)
                    {
                        return Err(EngineError::Placement(format!(
                            "`{}` has layout {} in one program and {} in another",
                            value.name, known.layout.tag, layout.tag
                        )));
                    }
                    match known {
                        Some(known) => known.location,
                        None => {
                            let location = Location::Persistent(persistent.bytes);
                            persistent.bytes += aligned(bytes);
                            let placement = Placement { location, bytes, layout: layout.clone() };
                            persistent.values.insert(value.name.clone(), placement);
                            location
                        }
                    }
                }
            };
            placements.push(Placement { location, bytes, layout });
        }
        Ok(Self {
            backend: backend.name().to_owned(),
            library_description: backend.describe(),
            kernel_revision: backend.revision().to_owned(),
            threads: backend.threads(),
            choices,
            persistent_bytes: persistent.bytes,
            transient_bytes,
            transient_lower_bound: memory::lower_bound(&blocks),
            placements,
            steps: planned,
            program,
        })
    }

    /// A lower bound of the memory of a program, images and labels included, known before kernels are chosen.
    /// Padding, scratch and gaps between values are not included.
    #[must_use]
    pub fn min_bytes(program: &Program) -> usize {
        let scratch = program.steps.iter().map(|_| 0);
        let lifetimes = lifetimes(program, |id| program.value(id).bytes(), scratch);
        let blocks: Vec<Block> = lifetimes.iter().map(Lifetime::block).collect();
        let rest = program.values.iter().filter(|value| value.role != Role::Transient);
        memory::lower_bound(&blocks) + rest.map(Value::bytes).sum::<usize>()
    }

    /// The bytes of the largest bucket of sums that is exchanged with other workers, padding included; 0
    /// without any.
    #[must_use]
    pub fn largest_bucket_bytes(&self) -> usize {
        self.program.largest_bucket(|id| self.placements[id.0].bytes)
    }

    /// The lifetimes of transient values and of the steps' scratch.
    #[must_use]
    pub fn lifetimes(&self) -> Vec<Lifetime> {
        let value_bytes = |id: ValueId| self.placements[id.0].bytes;
        lifetimes(&self.program, value_bytes, self.steps.iter().map(|step| step.scratch.1))
    }

    /// Bytes of images and labels of one batch.
    #[must_use]
    pub fn input_bytes(&self) -> usize {
        self.external(0).map_or(0, |p| p.bytes) + self.external(1).map_or(0, |p| p.bytes)
    }

    /// Bytes of the operands that the step at `position` reads and writes, over all tiles of the batch.
    #[must_use]
    pub fn step_bytes(&self, position: usize) -> u64 {
        let tiles = self.program.tiles(position);
        let (step, operands) = (&self.program.steps[position], self.program.operands(position));
        let operands: Vec<&Value> = operands.iter().collect();
        let bytes = |(at, id): (usize, ValueId)| {
            let every_tile =
                tiles > 1 && self.program.value(id).per_sample && !self.program.is_tiled(id, tiles);
            let bytes = self.placements[id.0].bytes * if every_tile { tiles } else { 1 };
            let touched = step.kernel.channels_touched(&operands, at).zip(operands[at].shape.get(1));
            touched.map_or(bytes, |(touched, channels)| bytes * touched / (*channels).max(1)) as u64
        };
        step.operands().enumerate().map(bytes).sum()
    }

    /// The memory that a step in `tiles` tiles uses of a value with the given number of `copies`, see
    /// [`Program::live_copies`].
    #[must_use]
    pub(crate) fn tile_span(&self, id: ValueId, tiles: usize, copies: usize) -> TileSpan {
        let bytes = self.placements[id.0].bytes;
        // The batch is the outermost dimension in every layout of a per-sample value.
        if self.program.is_tiled(id, tiles) {
            TileSpan { length: bytes / tiles, stride: bytes / tiles, slots: tiles }
        } else if copies > 1 {
            TileSpan { length: bytes, stride: aligned(bytes), slots: copies }
        } else {
            TileSpan { length: bytes, stride: 0, slots: 1 }
        }
    }

    /// The placement of an external value.
    #[must_use]
    pub fn external(&self, slot: usize) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.location == Location::External(slot))
    }

    /// Checks that no two operands of a step overlap, and that everything is within its part of the arena.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn verify_placements(&self) -> Result<(), EngineError> {
        let copies = self.program.live_copies();
        for (position, step) in self.program.steps.iter().enumerate() {
            let mut ranges: Vec<(u8, usize, usize)> = Vec::new();
            for id in step.operands() {
                let placement = &self.placements[id.0];
                let (part, offset, size) = match placement.location {
                    Location::Persistent(offset) => (0, offset, self.persistent_bytes),
                    Location::Transient(offset) => (1, offset, self.transient_bytes),
                    Location::External(slot) => (2 + slot as u8, 0, placement.bytes),
                };
                let bytes = copies_bytes(placement.bytes, copies[id.0]);
                if offset + bytes > size {
                    return Err(EngineError::Placement(format!(
                        "`{}` exceeds its part of the arena",
                        self.program.value(id).name
                    )));
                }
                ranges.push((part, offset, offset + bytes));
            }
            let (scratch, bytes) = self.steps[position].scratch;
            ranges.push((1, scratch, scratch + bytes));
            ranges.retain(|range| range.1 < range.2);
            ranges.sort_unstable();
            if ranges.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1) {
                return Err(EngineError::Placement(format!(
                    "two operands of step {position} (layer `{}`) overlap",
                    self.program.layer_name(step)
                )));
            }
        }
        Ok(())
    }
}

/// The owner of transient memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A transient value.
    Value(ValueId),
    /// The scratch of the step at a position.
    Scratch(usize),
}

/// The lifetime of transient memory, as an inclusive range of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The owner.
    pub owner: Owner,
    /// Bytes, padding included.
    pub bytes: usize,
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
}

impl Lifetime {
    fn block(&self) -> Block {
        Block { bytes: self.bytes, first: self.first, last: self.last }
    }
}

/// Returns whether a value lives within one tile of a section: it has one tile's rows, is one tile's partial
/// sum, or is written for each micro-batch.
fn is_tile_local(program: &Program, section: &Section, id: ValueId) -> bool {
    let is_partial_sum = || {
        let mut steps = section.steps().map(|position| &program.steps[position]);
        let writes_partial_sum = |step: &Step| match section.micro_batches {
            true => !step.kernel.accumulates_tiles(),
            false => step.kernel.tiling() == Tiling::PartialSums,
        };
        steps.any(|step| writes_partial_sum(step) && step.outputs.contains(&id))
    };
    if program.value(id).per_sample { !program.is_tiled(id, section.tiles) } else { is_partial_sum() }
}

/// The bytes of all copies of a value, each aligned.
fn copies_bytes(bytes: usize, copies: usize) -> usize {
    if copies > 1 { copies * aligned(bytes) } else { bytes }
}

/// Lifetimes of transient values and of scratch.
///
/// A value of more than one tile is alive during every section that uses it, because the section's steps run
/// once per tile; so is a sum that is carried from tile to tile. Scratch and values of one tile are
/// overwritten for each tile.
fn lifetimes(
    program: &Program,
    value_bytes: impl Fn(ValueId) -> usize,
    scratch_bytes: impl Iterator<Item = usize>,
) -> Vec<Lifetime> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; program.values.len()];
    let copies = program.live_copies();
    for (position, step) in program.steps.iter().enumerate() {
        let section = program.section_of(position);
        for id in step.operands() {
            let (first, last) = match section {
                Some(section) if copies[id.0] > 1 || !is_tile_local(program, section, id) => {
                    (section.first, section.steps().end - 1)
                }
                _ => (position, position),
            };
            let span = spans[id.0].get_or_insert((first, last));
            *span = (span.0.min(first), span.1.max(last));
        }
    }
    let values = (0..program.values.len()).map(ValueId).filter_map(|id| {
        let (first, last) = spans[id.0].filter(|_| program.value(id).role == Role::Transient)?;
        let bytes = copies_bytes(value_bytes(id), copies[id.0]);
        Some(Lifetime { owner: Owner::Value(id), bytes, first, last })
    });
    let scratch = scratch_bytes.enumerate().filter(|(_, bytes)| *bytes > 0).map(|(step, bytes)| Lifetime {
        owner: Owner::Scratch(step),
        bytes,
        first: step,
        last: step,
    });
    values.chain(scratch).collect()
}
