//! Appending to a timeline.

use std::fs;
use std::path::Path;

use super::{
    FRAME_HEAD, FRAME_LIMIT, KIND_ITERATION, KIND_PROGRAM, MAGIC, PREAMBLE, Program, ProgramId,
    TimelineReader, VERSION, checksum, put,
};
use crate::append::AppendFile;
use crate::layout::TIMELINE_RECORDS;
use crate::{Error, Result};

/// Appends iterations to a run's timeline. Nothing is allocated for an iteration.
#[derive(Debug)]
pub struct TimelineWriter {
    file: AppendFile,
    /// The programs of the file, and where the frame of each ends.
    programs: Vec<(Program, u64)>,
}

impl TimelineWriter {
    /// Opens the timeline in `folder`, creating it if absent. A torn tail is removed.
    ///
    /// An existing timeline is read through once, to know its programs and its whole frames.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_to(folder, None)
    }

    /// Opens the timeline in `folder` cut back to the `position` that a checkpoint recorded. If fewer bytes
    /// of whole records are there, it is an error and the file stays as it is.
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
                format!("it has {whole} bytes of whole records where a checkpoint counted {position}"),
                "restore it from a copy, or move the timeline folder away and continue without its past",
            ));
        }
        let mut writer = Self { file: AppendFile::open(&path)?, programs };
        writer.truncate_to(position.unwrap_or(whole))?;
        Ok(writer)
    }

    /// Makes a program known. One that the file has already keeps its number.
    pub fn declare(&mut self, program: &Program) -> Result<ProgramId> {
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
                None => format!("iteration {iteration} is of an undeclared program"),
            };
            return Err(Error::invalid(self.file.path(), reason));
        }
        self.frame(KIND_ITERATION, |out| {
            put(out, u64::from(program.0));
            put(out, u64::from(epoch));
            put(out, iteration);
            put(out, wall_ns);
            for &ns in ns {
                put(out, ns);
            }
        })
    }

    /// Hands all records to the operating system: other processes see them.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Puts all records onto the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }

    /// The file's length in bytes with all records written; call [`TimelineWriter::sync`] before a checkpoint
    /// records it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.file.length()
    }

    /// Cuts the file back to `position`, a value that [`TimelineWriter::position`] gave. Programs declared
    /// after it are forgotten: declare them again.
    pub fn truncate_to(&mut self, position: u64) -> Result<()> {
        let position = if position < PREAMBLE { 0 } else { position };
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
        buffer.extend_from_slice(&[0; FRAME_HEAD]);
        payload(buffer);
        let body = start + FRAME_HEAD;
        let length = u32::try_from(buffer.len() - body).unwrap_or(u32::MAX);
        if length > FRAME_LIMIT {
            buffer.truncate(start);
            return Err(Error::invalid(self.file.path(), "a record exceeds 64 MiB"));
        }
        let sum = checksum(kind, &buffer[body..]);
        buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
        buffer[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
        buffer[start + 8] = kind;
        self.file.appended()
    }
}
