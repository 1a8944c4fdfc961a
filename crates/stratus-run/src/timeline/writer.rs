//! Appends to a timeline.

use std::fs;
use std::path::Path;

use stratus_base::protobuf::write_varint;

use super::format::{
    FRAME_HEADER_BYTES, KIND_ITERATION, KIND_PROGRAM, MAGIC, MAX_FRAME_BYTES, PREAMBLE_BYTES, Program,
    ProgramId, VERSION, checksum,
};
use super::reader::TimelineReader;
use crate::append::AppendFile;
use crate::layout::TIMELINE_RECORDS;
use crate::{Error, Result};

/// Appends iterations to the timeline of a run. Appending does not allocate.
#[derive(Debug)]
pub struct TimelineWriter {
    file: AppendFile,
    /// The programs of the file, each with the end of its frame.
    programs: Vec<(Program, u64)>,
}

impl TimelineWriter {
    /// Opens the timeline in `folder`, creating it if absent. A torn tail is removed.
    ///
    /// An existing timeline is read once, to find its programs and complete frames.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_to(folder, None)
    }

    /// Opens the timeline in `folder`, truncated to the `position` that a checkpoint recorded. If it has
    /// fewer bytes of complete records, that is an error and the file stays unchanged.
    pub fn resume_at(folder: &Path, position: u64) -> Result<Self> {
        Self::open_to(folder, Some(position))
    }

    fn open_to(folder: &Path, position: Option<u64>) -> Result<Self> {
        fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
        let path = folder.join(TIMELINE_RECORDS);
        let length = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
            Err(e) => return Err(Error::io("inspect", &path)(e)),
        };
        let (programs, whole) = if length == 0 { (Vec::new(), 0) } else { TimelineReader::scan(folder)? };
        if let Some(position) = position.filter(|&position| position > whole) {
            return Err(Error::damaged(
                &path,
                format!("it has {whole} bytes of complete records, but the checkpoint recorded {position}"),
                "restore it from a copy, or move the timeline folder away and resume without it",
            ));
        }
        let mut writer = Self { file: AppendFile::open(&path)?, programs };
        writer.truncate_to(position.unwrap_or(whole))?;
        Ok(writer)
    }

    /// Registers a program. One that the file already has keeps its number.
    pub fn register(&mut self, program: &Program) -> Result<ProgramId> {
        if let Some(i) = self.programs.iter().position(|(known, _)| known == program) {
            return Ok(ProgramId(i as u32));
        }
        let json =
            serde_json::to_vec(program).map_err(|e| Error::invalid(self.file.path(), e.to_string()))?;
        self.frame(KIND_PROGRAM, |out| out.extend_from_slice(&json))?;
        self.programs.push((program.clone(), self.file.length()));
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    /// Appends an iteration: its wall time and the nanoseconds of each slot of its program.
    pub fn append(
        &mut self,
        program: ProgramId,
        epoch: u32,
        iteration: u64,
        wall_ns: u64,
        ns: &[u64],
    ) -> Result<()> {
        let slots = self.programs.get(program.index()).map(|(program, _)| program.slots.len());
        if slots != Some(ns.len()) {
            let reason = match slots {
                Some(slots) => format!("iteration {iteration} has {} times for {slots} slots", ns.len()),
                None => format!("iteration {iteration} belongs to an unregistered program"),
            };
            return Err(Error::invalid(self.file.path(), reason));
        }
        self.frame(KIND_ITERATION, |out| {
            write_varint(out, u64::from(program.0));
            write_varint(out, u64::from(epoch));
            write_varint(out, iteration);
            write_varint(out, wall_ns);
            for &ns in ns {
                write_varint(out, ns);
            }
        })
    }

    /// Writes all records to the operating system, so that other processes see them.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Writes all records to the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    /// The length of the file in bytes with all records written. Call [`TimelineWriter::sync`] before a
    /// checkpoint records it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.file.length()
    }

    /// Truncates the file to `position`, a value of [`TimelineWriter::position`]. Programs registered after
    /// it must be registered again.
    pub fn truncate_to(&mut self, position: u64) -> Result<()> {
        let position = if position < PREAMBLE_BYTES { 0 } else { position };
        self.file.truncate_to(position)?;
        self.programs.retain(|&(_, end)| end <= position);
        if position == 0 { self.preamble() } else { Ok(()) }
    }

    fn preamble(&mut self) -> Result<()> {
        let buffer = self.file.buffer();
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        self.file.flush()
    }

    fn frame(&mut self, kind: u8, payload: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let buffer = self.file.buffer();
        let start = buffer.len();
        buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        payload(buffer);
        let body = start + FRAME_HEADER_BYTES;
        let length = u32::try_from(buffer.len() - body).unwrap_or(u32::MAX);
        if length > MAX_FRAME_BYTES {
            buffer.truncate(start);
            return Err(Error::invalid(self.file.path(), "a record exceeds 64 MiB"));
        }
        let sum = checksum(kind, &buffer[body..]);
        buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        buffer[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
        buffer[start + 8] = kind;
        self.file.finish_record()
    }
}
