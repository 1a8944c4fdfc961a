//! Reading a timeline, one iteration after another.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::{
    FRAME_HEAD, FRAME_LIMIT, Iteration, KIND_ITERATION, KIND_PROGRAM, MAGIC, PREAMBLE, Program, VERSION,
    checksum, take,
};
use crate::layout::TIMELINE_RECORDS;
use crate::{Error, Result};

const REMEDY: &str = "restore it from a copy";

/// Streams a run's timeline; memory stays that of one record. The file may be growing meanwhile.
#[derive(Debug)]
pub struct TimelineReader {
    input: BufReader<File>,
    path: PathBuf,
    programs: Vec<Program>,
    payload: Vec<u8>,
    /// The end of the last whole frame.
    whole: u64,
    ended: bool,
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
            whole: 0,
            ended: false,
        };
        let mut preamble = [0; PREAMBLE as usize];
        let read = reader.fill(&mut preamble)?;
        let (magic, version) = preamble.split_at(MAGIC.len());
        if read >= MAGIC.len() && magic != MAGIC
            || read < MAGIC.len() && !MAGIC.starts_with(&preamble[..read])
        {
            return Err(Error::damaged(&reader.path, "it is no timeline", REMEDY));
        }
        if read < preamble.len() {
            reader.ended = true;
            return Ok(reader);
        }
        if version != VERSION.to_le_bytes() {
            let version = version.iter().rev().fold(0u32, |v, &byte| v << 8 | u32::from(byte));
            let reason = format!("its format is version {version}, this program reads {VERSION}");
            return Err(Error::damaged(&reader.path, reason, "read it with the Stratus that wrote it"));
        }
        reader.whole = PREAMBLE;
        Ok(reader)
    }

    /// The programs met so far: those of every iteration that was read are among them.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Reads the next iteration into `iteration`, reusing its memory; false at the end of the whole records.
    pub fn read(&mut self, iteration: &mut Iteration) -> Result<bool> {
        self.next(iteration, Self::iteration)
    }

    /// As [`TimelineReader::read`], without the nanoseconds of the slots, which are none then: for counting.
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
                        let reason =
                            format!("the record that ends at byte {} does not fit its program", self.whole);
                        Error::damaged(&self.path, reason, REMEDY)
                    })?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// The bytes after the last whole record, once [`TimelineReader::read`] gave false: a torn write, or one
    /// under way.
    pub fn torn_bytes(&self) -> Result<u64> {
        let length = self.input.get_ref().metadata().map_err(Error::io("inspect", &self.path))?.len();
        Ok(length.saturating_sub(self.whole))
    }

    /// The programs of the timeline in `folder`, with the end of each one's frame, and the end of its whole
    /// records.
    pub(super) fn scan(folder: &Path) -> Result<(Vec<(Program, u64)>, u64)> {
        let mut reader = Self::open(folder)?;
        let mut ends = Vec::new();
        while let Some(kind) = reader.frame()? {
            if kind == KIND_PROGRAM {
                reader.program()?;
                ends.push(reader.whole);
            }
        }
        Ok((reader.programs.into_iter().zip(ends).collect(), reader.whole))
    }

    fn program(&mut self) -> Result<()> {
        let program = serde_json::from_slice(&self.payload).map_err(|e| {
            Error::damaged(&self.path, format!("the program that ends at byte {}: {e}", self.whole), REMEDY)
        })?;
        self.programs.push(program);
        Ok(())
    }

    /// What stands before the slots; gives the program's slots and the bytes of their times.
    fn head(&self, iteration: &mut Iteration) -> Option<(usize, &[u8])> {
        let mut bytes = self.payload.as_slice();
        iteration.program = usize::try_from(take(&mut bytes)?).ok()?;
        iteration.epoch = u32::try_from(take(&mut bytes)?).ok()?;
        iteration.iteration = take(&mut bytes)?;
        iteration.wall_ns = take(&mut bytes)?;
        iteration.ns.clear();
        Some((self.programs.get(iteration.program)?.slots.len(), bytes))
    }

    fn iteration(&self, iteration: &mut Iteration) -> Option<()> {
        let (slots, mut bytes) = self.head(iteration)?;
        for _ in 0..slots {
            iteration.ns.push(take(&mut bytes)?);
        }
        bytes.is_empty().then_some(())
    }

    /// Reads the next whole frame's payload and gives its kind.
    fn frame(&mut self) -> Result<Option<u8>> {
        if self.ended {
            return Ok(None);
        }
        self.ended = true;
        let mut head = [0; FRAME_HEAD];
        if self.fill(&mut head)? < FRAME_HEAD {
            return Ok(None);
        }
        let [a, b, c, d, e, f, g, h, kind] = head;
        let (length, sum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if length > FRAME_LIMIT {
            return Ok(None);
        }
        // Through `take`, memory grows with what is there, not with what a damaged length claims.
        self.payload.clear();
        let read = (&mut self.input).take(u64::from(length)).read_to_end(&mut self.payload);
        let read = read.map_err(Error::io("read", &self.path))?;
        if read < length as usize || checksum(kind, &self.payload) != sum {
            return Ok(None);
        }
        self.ended = false;
        self.whole += (FRAME_HEAD + read) as u64;
        Ok(Some(kind))
    }

    /// Reads until `out` is full or the file ends, and gives how much was read.
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
