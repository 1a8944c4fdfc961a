//! TensorBoard event files: the scalars of a run.
//!
//! A file is a sequence of little-endian TFRecord records, each with a `tensorflow.Event` message in protobuf
//! wire format:
//!
//! ```text
//! length u64 | masked CRC-32C of the length u32 | event | masked CRC-32C of the event u32
//! ```
//!
//! Sources: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/util/event.proto`,
//! `tensorflow/core/framework/summary.proto`.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use stratus_base::checksum::crc32c;
use stratus_base::protobuf::Message;

use crate::Result;
use crate::append::AppendFile;

/// Bytes that a record adds to its event.
const FRAME_BYTES: usize = 16;
/// The version string in the first event of a file.
const VERSION: &[u8] = b"brain.Event:2";

/// Appends events. Writing an event allocates no memory once an event of the same length was written.
#[derive(Debug)]
pub struct EventWriter {
    file: AppendFile,
    /// Reused buffers of messages: an event, its summary, a value of the summary.
    scratch: [Vec<u8>; 3],
    /// Length of the first record, which has the version.
    start: u64,
}

impl EventWriter {
    /// Opens `path`, creating it if absent, truncated to the `position` that a checkpoint recorded. A shorter
    /// file is not an error.
    ///
    /// # Errors
    /// If the file cannot be opened or truncated.
    pub fn resume_at(path: &Path, position: u64) -> Result<Self> {
        let mut file = AppendFile::open(path)?;
        file.truncate_to(position.min(file.length()))?;
        let mut writer = Self { file, scratch: [const { Vec::new() }; 3], start: 0 };
        let event = writer.event(0).bytes(3, VERSION);
        writer.start = (event.0.len() + FRAME_BYTES) as u64;
        if writer.file.length() == 0 {
            writer.record(event)?;
        }
        Ok(writer)
    }

    /// Returns whether the file has only its first record.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.file.length() == self.start
    }

    /// Appends a network: a `GraphDef` message.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn graph(&mut self, definition: &[u8]) -> Result<()> {
        let event = self.event(0).bytes(4, definition);
        self.record(event)
    }

    /// Appends the values of a step by tag. Non-finite values are written unchanged, since TensorBoard can
    /// show them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn scalars<'a>(&mut self, step: u64, values: impl IntoIterator<Item = (&'a str, f64)>) -> Result<()> {
        let [_, summary, value] = &mut self.scratch;
        let (mut summary, mut value) = (reuse(summary), reuse(value));
        for (tag, number) in values {
            value.0.clear();
            value = value.bytes(1, tag.as_bytes()).float(2, number as f32);
            summary = summary.bytes(1, &value.0);
        }
        let event = self.event(step).bytes(5, &summary.0);
        (self.scratch[1], self.scratch[2]) = (summary.0, value.0);
        self.record(event)
    }

    /// Writes all events to the operating system, so that TensorBoard sees them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Writes all events to the disk; returns the length of the file, for a checkpoint to record.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn sync(&mut self) -> Result<u64> {
        self.file.sync()?;
        Ok(self.file.length())
    }

    /// An event with the current time.
    fn event(&mut self, step: u64) -> Message {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let event = reuse(&mut self.scratch[0]).double(1, now);
        if step == 0 { event } else { event.unsigned(2, step) }
    }

    fn record(&mut self, event: Message) -> Result<()> {
        let length = (event.0.len() as u64).to_le_bytes();
        let buffer = self.file.buffer();
        buffer.extend_from_slice(&length);
        buffer.extend_from_slice(&masked(&length).to_le_bytes());
        buffer.extend_from_slice(&event.0);
        buffer.extend_from_slice(&masked(&event.0).to_le_bytes());
        self.scratch[0] = event.0;
        self.file.finish_record()
    }
}

/// An empty message that reuses a buffer.
fn reuse(memory: &mut Vec<u8>) -> Message {
    let mut memory = std::mem::take(memory);
    memory.clear();
    Message(memory)
}

/// The checksum of TFRecord: CRC-32C, rotated and offset, so that it differs from a CRC over data that
/// contains CRCs.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn file_has_the_standard_header_and_is_truncated_on_resume() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.out.tfevents");
        let mut writer = EventWriter::resume_at(&path, 0).unwrap();
        let start = writer.sync().unwrap();
        assert!(writer.is_new());
        // A length of 24 with its masked checksum, as in files of TensorFlow and PyTorch.
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..12], *b"\x18\0\0\0\0\0\0\0\xa3\x7fK\"");
        assert!(bytes.windows(VERSION.len()).any(|window| window == VERSION));
        writer.scalars(1, [("loss", 0.5), ("rate", f64::NAN)]).unwrap();
        let first = writer.sync().unwrap();
        assert!(!writer.is_new());
        let event = &fs::read(&path).unwrap()[start as usize..];
        // Wall time, step 1, and two values, each with a tag and four bytes.
        assert_eq!(event.len() as u64, first - start);
        assert_eq!(event[21..25], [0x10, 1, 0x2a, 26]);
        assert_eq!(event[25..27], [0x0a, 11]);
        assert_eq!(event[27..33], *b"\x0a\x04loss");
        assert_eq!(event[33..38], [0x15, 0, 0, 0, 0x3f]);
        writer.scalars(2, [("loss", 0.25)]).unwrap();
        let second = writer.sync().unwrap();
        drop(writer);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len() as u64, second);
        // The checkpoint includes the first step; the torn record after it is discarded.
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut writer = EventWriter::resume_at(&path, first).unwrap();
        assert_eq!(writer.sync().unwrap(), first);
        writer.scalars(2, [("loss", 0.25)]).unwrap();
        assert_eq!(writer.sync().unwrap(), second);
        drop(writer);
        // A removed file is recreated, so that the run can resume.
        fs::remove_file(&path).unwrap();
        assert_eq!(EventWriter::resume_at(&path, second).unwrap().sync().unwrap(), start);
    }

    #[test]
    fn writing_an_event_does_not_allocate_after_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::resume_at(&folder.path().join("e"), 0).unwrap();
        let step = |writer: &mut EventWriter, step| {
            writer.scalars(step, [("iteration/loss", 1.0), ("iteration/top1", 0.5)]).unwrap();
            writer.scratch.each_ref().map(|memory| (memory.as_ptr(), memory.capacity()))
        };
        let before = step(&mut writer, 1);
        assert!(before.iter().all(|(_, capacity)| *capacity > 0));
        assert_eq!(step(&mut writer, 2), before);
    }
}
