//! The format of the timeline: its types, constants and integers.

use serde::{Deserialize, Serialize};

/// The version of the file format.
pub(super) const VERSION: u32 = 1;

pub(super) const MAGIC: &[u8; 8] = b"STRATUSL";
pub(super) const PREAMBLE_BYTES: u64 = 12;
pub(super) const FRAME_HEADER_BYTES: usize = 9;
/// Maximum length of a frame; a longer one is an error when written and counts as damaged when read.
pub(super) const MAX_FRAME_BYTES: u32 = 64 << 20;
pub(super) const KIND_PROGRAM: u8 = 1;
pub(super) const KIND_ITERATION: u8 = 2;

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
    /// Computing the outputs of the teacher.
    Teacher,
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
            Self::Teacher => "teacher",
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
    pub layers: Vec<String>,
    /// The kind of step: `conv2d`, `batch_norm`, ….
    pub kind: String,
    /// The purpose of the time.
    pub phase: Phase,
    /// The device: `cpu`, `cuda:0`.
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
    pub purpose: Purpose,
    /// Samples per iteration.
    pub batch_size: u64,
    /// The slots, in the order of an iteration's times.
    pub slots: Vec<Slot>,
}

/// The number of a program in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub(super) u32);

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
    /// The program's position in [`TimelineReader::programs`](super::TimelineReader::programs).
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

pub(super) fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind]);
    hasher.update(payload);
    hasher.finalize()
}

/// Removes an unsigned LEB128 from the front of `bytes`; `None` if it is truncated or exceeds 64 bits.
pub(super) fn read_leb128(bytes: &mut &[u8]) -> Option<u64> {
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
