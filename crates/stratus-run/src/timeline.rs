//! `timeline/records.bin`: the time of every slot of every iteration.
//!
//! A *program* is what an iteration runs: a list of *slots*, each a step or something between the steps
//! (waiting for data, bookkeeping, …), in their order. A full batch and an epoch's smaller last batch are two
//! programs. An iteration is one record: its program, epoch, number, wall time and the nanoseconds of each
//! slot.
//!
//! The file is `STRATUSL`, the format's version (u32), and then frames, everything little-endian:
//!
//! ```text
//! length of payload u32 | CRC-32 of kind and payload u32 | kind u8 | payload
//! kind 1   a program as JSON; numbered from 0 in this order, each before its first iteration
//! kind 2   an iteration: program, epoch, iteration, wall ns, then ns of each slot, each an unsigned LEB128
//! ```
//!
//! A frame that is cut, or whose checksum is wrong, ends the file: a reader returns what precedes it and says
//! how many bytes follow; a writer cuts them off. Frames of unknown kinds are skipped.

mod reader;
mod writer;

use serde::{Deserialize, Serialize};

pub use reader::TimelineReader;
pub use writer::TimelineWriter;

/// The version of the file's format.
pub const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"STRATUSL";
const PREAMBLE: u64 = 12;
const FRAME_HEAD: usize = 9;
/// Longer frames are not written, and taken for damage when read.
const FRAME_LIMIT: u32 = 64 << 20;
const KIND_PROGRAM: u8 = 1;
const KIND_ITERATION: u8 = 2;

/// What a slot's time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// Computing layers' outputs.
    Forward,
    /// Computing gradients of layers' inputs.
    BackwardData,
    /// Computing gradients of layers' parameters.
    BackwardWeights,
    /// Changing parameters.
    Update,
    /// The loss and its gradient.
    Loss,
    /// Changing a value's layout.
    Layout,
    /// Copying between memories.
    Copy,
    /// The device had nothing to do, or had finished without the process knowing yet.
    Idle,
    /// Waiting for the next batch.
    DataWait,
    /// Exchanging values with other devices or machines.
    Communication,
    /// Metrics, rows, progress.
    Bookkeeping,
    /// Saving the state.
    Checkpoint,
    /// Anything else, also the phases of later versions.
    #[serde(other)]
    Other,
}

impl Phase {
    /// The name in files: `backward_data`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::BackwardData => "backward_data",
            Self::BackwardWeights => "backward_weights",
            Self::Update => "update",
            Self::Loss => "loss",
            Self::Layout => "layout",
            Self::Copy => "copy",
            Self::Idle => "idle",
            Self::DataWait => "data_wait",
            Self::Communication => "communication",
            Self::Bookkeeping => "bookkeeping",
            Self::Checkpoint => "checkpoint",
            Self::Other => "other",
        }
    }
}

/// One interval of an iteration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The layers that it computes: one; several if their steps are fused; none for what is between the
    /// steps.
    #[serde(default)]
    pub layers: Vec<String>,
    /// What the step does: `conv2d`, `batch_norm`, ….
    #[serde(default)]
    pub kind: String,
    /// What the time is spent on.
    pub phase: Phase,
    /// Where it runs: `cpu`, `cuda:0`.
    #[serde(default)]
    pub device: String,
}

/// What a program is run for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Purpose {
    /// Training; what the accounting counts.
    #[default]
    Train,
    /// Validation.
    Validation,
    /// Anything else.
    #[serde(other)]
    Other,
}

/// A list of slots that iterations run through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// A name for people: `train`, `train tail`.
    pub name: String,
    /// What it is run for.
    #[serde(default)]
    pub purpose: Purpose,
    /// Samples an iteration.
    #[serde(default)]
    pub batch_size: u64,
    /// The slots, in the order of an iteration's times.
    pub slots: Vec<Slot>,
}

/// The number of a program within its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(u32);

impl ProgramId {
    /// The position among the file's programs.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The times of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// The program's position in [`TimelineReader::programs`].
    pub program: usize,
    /// The epoch, as in `iterations.csv`.
    pub epoch: u32,
    /// The iteration, as in `iterations.csv`.
    pub iteration: u64,
    /// The iteration's wall time in nanoseconds, from the end of the one before it.
    pub wall_ns: u64,
    /// The nanoseconds of each slot of the program.
    pub ns: Vec<u64>,
}

impl Iteration {
    /// The wall time that no slot accounts for; negative if the slots claim more than there was.
    #[must_use]
    pub fn unattributed_ns(&self) -> i128 {
        i128::from(self.wall_ns) - self.ns.iter().map(|&ns| i128::from(ns)).sum::<i128>()
    }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes an unsigned LEB128 off the front of `bytes`; none if it is cut or exceeds 64 bits.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (position, &byte) in bytes.iter().take(10).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if position == 9 && bits > 1 {
            return None;
        }
        value |= bits << (7 * position);
        if byte < 0x80 {
            *bytes = &bytes[position + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
