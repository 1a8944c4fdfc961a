//! `timeline/records.bin`: the time of every slot in every iteration.
//!
//! An iteration runs a *program*: an ordered list of *slots*, each a step or an interval between steps
//! (waiting for data, bookkeeping, …). A full batch and the smaller last batch of an epoch are two programs.
//! An iteration is one record: its program, epoch, number, wall time and the nanoseconds of each slot.
//!
//! The file has the magic bytes `STRATUSL`, the version of the format (u32), and then frames, all
//! little-endian:
//!
//! ```text
//! length of payload u32 | CRC-32 of kind and payload u32 | kind u8 | payload
//! kind 1   a program as JSON; numbered from 0 in this order, each before its first iteration
//! kind 2   an iteration: program, epoch, iteration, wall ns, then ns of each slot, each an unsigned LEB128
//! ```
//!
//! A truncated frame or a wrong checksum ends the file: a reader returns everything before it and reports the
//! number of bytes that follow; a writer removes them. Frames of unknown kinds are skipped.

mod reader;
mod writer;

use serde::{Deserialize, Serialize};

pub use reader::TimelineReader;
pub use writer::TimelineWriter;

/// The version of the file format.
pub const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"STRATUSL";
const PREAMBLE_BYTES: u64 = 12;
const FRAME_HEADER_BYTES: usize = 9;
/// Maximum length of a frame; a longer one is an error when written and counts as damaged when read.
const MAX_FRAME_BYTES: u32 = 64 << 20;
const KIND_PROGRAM: u8 = 1;
const KIND_ITERATION: u8 = 2;

/// The purpose of the time of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// Computing the outputs of layers.
    Forward,
    /// Computing gradients of the inputs of layers.
    BackwardData,
    /// Computing gradients of the parameters of layers.
    BackwardWeights,
    /// Updating parameters.
    Update,
    /// The loss and its gradient.
    Loss,
    /// Changing the layout of a value.
    Layout,
    /// Copying between memories.
    Copy,
    /// The device was idle, or had finished and the process had not yet noticed.
    Idle,
    /// Waiting for the next batch.
    DataWait,
    /// Exchanging values with other devices or machines.
    Communication,
    /// Metrics, rows, progress.
    Bookkeeping,
    /// Saving checkpoints.
    Checkpoint,
    /// Anything else, including phases of later versions.
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
    /// The layers of the slot: one, several if their steps are fused, none for an interval between steps.
    #[serde(default)]
    pub layers: Vec<String>,
    /// The kind of step: `conv2d`, `batch_norm`, ….
    #[serde(default)]
    pub kind: String,
    /// The purpose of the time.
    pub phase: Phase,
    /// The device: `cpu`, `cuda:0`.
    #[serde(default)]
    pub device: String,
}

/// The purpose of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Purpose {
    /// Training; the only purpose that the accounting counts.
    #[default]
    Train,
    /// Validation.
    Validation,
    /// Anything else.
    #[serde(other)]
    Other,
}

/// The list of slots of an iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// The display name: `train`, `train tail`.
    pub name: String,
    /// The purpose.
    #[serde(default)]
    pub purpose: Purpose,
    /// Samples per iteration.
    #[serde(default)]
    pub batch_size: u64,
    /// The slots, in the order of an iteration's times.
    pub slots: Vec<Slot>,
}

/// The number of a program in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(u32);

impl ProgramId {
    /// The position among the programs of the file.
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
    /// The wall time in nanoseconds, from the end of the previous iteration.
    pub wall_ns: u64,
    /// The nanoseconds of each slot of the program.
    pub ns: Vec<u64>,
}

impl Iteration {
    /// The wall time not attributed to any slot; negative if the slots sum to more than the wall time.
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

fn write_leb128(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Removes an unsigned LEB128 from the front of `bytes`; `None` if it is truncated or exceeds 64 bits.
fn read_leb128(bytes: &mut &[u8]) -> Option<u64> {
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
