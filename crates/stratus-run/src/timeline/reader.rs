//! Reads a timeline, one iteration after another.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::format::{
    FRAME_HEADER_BYTES, Iteration, KIND_ITERATION, KIND_PROGRAM, MAGIC, MAX_FRAME_BYTES, PREAMBLE_BYTES,
    Program, VERSION, checksum, read_leb128,
};
use crate::atomic::json_problem;
use crate::layout::TIMELINE_RECORDS;
use crate::{Error, Result};

const REMEDY: &str = "restore it from a copy";

/// Streams the timeline of a run with the memory of a single record. The file may be growing meanwhile.
#[derive(Debug)]
pub struct TimelineReader {
    input: BufReader<File>,
    path: PathBuf,
    programs: Vec<Program>,
    payload: Vec<u8>,
    /// The end of the last complete frame.
    complete_bytes: u64,
    at_end: bool,
}

impl TimelineReader {
    /// Opens the timeline in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(TIMELINE_RECORDS);
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let mut reader = Self {
            input: BufReader::with_capacity(1 << 16, file),
            path,
            programs: Vec::new(),
            payload: Vec::new(),
            complete_bytes: 0,
            at_end: false,
        };
        let mut preamble = [0; PREAMBLE_BYTES as usize];
        let read = reader.fill(&mut preamble)?;
        let (magic, version) = preamble.split_at(MAGIC.len());
        if read >= MAGIC.len() && magic != MAGIC
            || read < MAGIC.len() && !MAGIC.starts_with(&preamble[..read])
        {
            return Err(Error::damaged(&reader.path, "not a timeline", REMEDY));
        }
        if read < preamble.len() {
            reader.at_end = true;
            return Ok(reader);
        }
        if version != VERSION.to_le_bytes() {
            let version = version.iter().rev().fold(0u32, |v, &byte| v << 8 | u32::from(byte));
            let reason = format!("unsupported format version {version}; expected {VERSION}");
            return Err(Error::damaged(&reader.path, reason, "read it with the Stratus that wrote it"));
        }
        reader.complete_bytes = PREAMBLE_BYTES;
        Ok(reader)
    }

    /// The programs read so far; they include the program of every iteration that was read.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Reads the next iteration into `iteration`, reusing its memory; false after the last complete record.
    pub fn read(&mut self, iteration: &mut Iteration) -> Result<bool> {
        self.next(iteration, Self::iteration)
    }

    /// Like [`TimelineReader::read`], but leaves the nanoseconds of the slots empty; for counting.
    pub fn read_head(&mut self, iteration: &mut Iteration) -> Result<bool> {
        self.next(iteration, |reader, iteration| reader.head(iteration).map(|_| ()))
    }

    fn next(
        &mut self,
        iteration: &mut Iteration,
        decode: impl FnOnce(&Self, &mut Iteration) -> Option<()>,
    ) -> Result<bool> {
        while let Some(kind) = self.frame()? {
            match kind {
                KIND_PROGRAM => self.program()?,
                KIND_ITERATION => {
                    decode(self, iteration).ok_or_else(|| {
                        let reason = format!(
                            "the record that ends at byte {} does not match its program",
                            self.complete_bytes
                        );
                        Error::damaged(&self.path, reason, REMEDY)
                    })?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// The number of bytes after the last complete record, once [`TimelineReader::read`] has returned false:
    /// a torn write, or one in progress.
    pub fn torn_bytes(&self) -> Result<u64> {
        let length = self.input.get_ref().metadata().map_err(Error::io("inspect", &self.path))?.len();
        Ok(length.saturating_sub(self.complete_bytes))
    }

    /// The programs of the timeline in `folder`, each with the end of its frame, and the end of the complete
    /// records.
    pub(super) fn scan(folder: &Path) -> Result<(Vec<(Program, u64)>, u64)> {
        let mut reader = Self::open(folder)?;
        let mut ends = Vec::new();
        while let Some(kind) = reader.frame()? {
            if kind == KIND_PROGRAM {
                reader.program()?;
                ends.push(reader.complete_bytes);
            }
        }
        Ok((reader.programs.into_iter().zip(ends).collect(), reader.complete_bytes))
    }

    fn program(&mut self) -> Result<()> {
        let program = serde_json::from_slice(&self.payload).map_err(|error| {
            let problem = json_problem(&error);
            let reason =
                format!("the program that ends at byte {} is damaged: {problem}", self.complete_bytes);
            Error::damaged(&self.path, reason, REMEDY)
        })?;
        self.programs.push(program);
        Ok(())
    }

    /// Reads the fields before the slots; returns the number of slots and the bytes of their times.
    fn head(&self, iteration: &mut Iteration) -> Option<(usize, &[u8])> {
        let mut bytes = self.payload.as_slice();
        iteration.program = usize::try_from(read_leb128(&mut bytes)?).ok()?;
        iteration.epoch = u32::try_from(read_leb128(&mut bytes)?).ok()?;
        iteration.iteration = read_leb128(&mut bytes)?;
        iteration.wall_ns = read_leb128(&mut bytes)?;
        iteration.ns.clear();
        Some((self.programs.get(iteration.program)?.slots.len(), bytes))
    }

    fn iteration(&self, iteration: &mut Iteration) -> Option<()> {
        let (slots, mut bytes) = self.head(iteration)?;
        for _ in 0..slots {
            iteration.ns.push(read_leb128(&mut bytes)?);
        }
        bytes.is_empty().then_some(())
    }

    /// Reads the payload of the next complete frame and returns its kind.
    fn frame(&mut self) -> Result<Option<u8>> {
        if self.at_end {
            return Ok(None);
        }
        self.at_end = true;
        let mut head = [0; FRAME_HEADER_BYTES];
        if self.fill(&mut head)? < FRAME_HEADER_BYTES {
            return Ok(None);
        }
        let [a, b, c, d, e, f, g, h, kind] = head;
        let (length, sum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if length > MAX_FRAME_BYTES {
            return Ok(None);
        }
        // `take` limits memory to the bytes that exist, even if the length is damaged.
        self.payload.clear();
        let read = (&mut self.input).take(u64::from(length)).read_to_end(&mut self.payload);
        let read = read.map_err(Error::io("read", &self.path))?;
        if read < length as usize || checksum(kind, &self.payload) != sum {
            return Ok(None);
        }
        self.at_end = false;
        self.complete_bytes += (FRAME_HEADER_BYTES + read) as u64;
        Ok(Some(kind))
    }

    /// Reads until `out` is full or the file ends; returns the number of bytes read.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut read = 0;
        while read < out.len() {
            match self.input.read(&mut out[read..]) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &self.path)(e)),
            }
        }
        Ok(read)
    }
}
