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

mod format;
mod reader;
mod writer;

pub use format::{Iteration, Phase, Program, ProgramId, Purpose, Slot};
pub use reader::TimelineReader;
pub use writer::TimelineWriter;

#[cfg(test)]
mod tests;
