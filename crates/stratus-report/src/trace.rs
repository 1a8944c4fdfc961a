//! Traces of iterations for Perfetto (ui.perfetto.dev): every step is a slice within its phase, within its
//! iteration.
//!
//! ```text
//! iteration 12 ────────────────────────────────────────────────────────
//! data_wait   forward ───────────────  loss  backward ────────  …
//!             conv1  bn1+relu1  …             …
//! ```
//!
//! A timeline has the duration of each step, in order. If steps run tile by tile, each is shown as the sum
//! over its tiles, one step after the other. Unattributed time is at the end of an iteration, as
//! `unattributed`. Times are relative to the first iteration of the trace.
//!
//! The file is Perfetto's protobuf, compressed with gzip; field numbers are those of `perfetto_trace.proto`
//! of Perfetto 49.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use stratus_base::protobuf::Message;
use stratus_run::RunDir;
use stratus_run::timeline::{Iteration, Phase, Purpose, Slot, TimelineReader};

use crate::{Error, Result, accounting, default_skip};

/// Maximum number of iterations of a trace; the viewer handles a few million slices.
pub const MAX_ITERATIONS: u64 = 10_000;

/// The range of iterations to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationRange {
    /// The first iteration, from 1; `None` means the first one that reports do not skip.
    pub first: Option<u64>,
    /// The number of iterations, at most [`MAX_ITERATIONS`].
    pub count: u64,
}

/// Writes a trace of training iterations of a run to `path`, replacing it atomically; returns the number of
/// iterations.
///
/// # Errors
/// If the timeline of the run cannot be read, or the file cannot be written.
pub fn write(run: &RunDir, range: IterationRange, path: &Path) -> Result<u64> {
    let first = match range.first {
        Some(first) => first,
        None => default_skip(accounting::count(run)?) + 1,
    };
    let mut reader = TimelineReader::open(&run.timeline())?;
    let name = run.path().display().to_string();
    let mut written = 0;
    stratus_run::atomic::write_with(path, |out| {
        let packed = GzEncoder::new(out, Compression::default());
        let mut trace = Trace::new(packed, &name).map_err(Error::io("write", path))?;
        let mut iteration = Iteration::default();
        while written < range.count.min(MAX_ITERATIONS) && reader.read(&mut iteration)? {
            let program = &reader.programs()[iteration.program];
            if program.purpose == Purpose::Train && iteration.iteration >= first {
                trace.iteration(&iteration, &program.slots).map_err(Error::io("write", path))?;
                written += 1;
            }
        }
        trace.out.finish().map_err(Error::io("write", path))?;
        Ok::<(), Error>(())
    })?;
    Ok(written)
}

/// The id of the only track and the only sequence of packets.
const TRACK: u64 = 1;
/// The id of the process, which the viewer requires.
const PROCESS: u64 = 1;

/// Constants of `perfetto_trace.proto`.
mod number {
    /// `Trace.packet`.
    pub const PACKET: u32 = 1;
    /// Fields of `TracePacket`.
    pub mod packet {
        pub const TIMESTAMP: u32 = 8;
        pub const SEQUENCE: u32 = 10;
        pub const EVENT: u32 = 11;
        pub const INTERNED: u32 = 12;
        pub const FLAGS: u32 = 13;
        pub const TRACK: u32 = 60;
    }
    /// Fields of `TrackEvent`.
    pub mod event {
        pub const TYPE: u32 = 9;
        pub const NAME: u32 = 10;
        pub const TRACK: u32 = 11;
    }
    /// Fields of `TrackDescriptor`, `ProcessDescriptor` and `ThreadDescriptor`.
    pub mod track {
        pub const UUID: u32 = 1;
        pub const PROCESS: u32 = 3;
        pub const THREAD: u32 = 4;
        pub const ID: u32 = 1;
        pub const THREAD_ID: u32 = 2;
        pub const THREAD_NAME: u32 = 5;
        pub const PROCESS_NAME: u32 = 6;
    }
    /// `InternedData.event_names`, and the fields of an `EventName`.
    pub const EVENT_NAMES: u32 = 2;
    pub const NAME_ID: u32 = 1;
    pub const NAME: u32 = 2;
    /// `TrackEvent.Type`.
    pub const BEGIN: u64 = 1;
    pub const END: u64 = 2;
    /// `TracePacket.SequenceFlags`.
    pub const CLEARED: u64 = 1;
    pub const NEEDS_STATE: u64 = 2;
}

struct Trace<W: Write> {
    out: W,
    /// Ids of names that were written.
    names: HashMap<String, u64>,
    /// Nanoseconds since the start of the first iteration.
    now: u64,
}

impl<W: Write> Trace<W> {
    fn new(mut out: W, run: &str) -> io::Result<Self> {
        let process = Message::default()
            .unsigned(number::track::ID, PROCESS)
            .bytes(number::track::PROCESS_NAME, run.as_bytes());
        let thread = Message::default()
            .unsigned(number::track::ID, PROCESS)
            .unsigned(number::track::THREAD_ID, PROCESS)
            .bytes(number::track::THREAD_NAME, "training".as_bytes());
        for (uuid, of, descriptor) in
            [(TRACK + 1, number::track::PROCESS, process), (TRACK, number::track::THREAD, thread)]
        {
            let track = Message::default().unsigned(number::track::UUID, uuid).bytes(of, &descriptor.0);
            let first = Message::default()
                .unsigned(number::packet::SEQUENCE, TRACK)
                .unsigned(number::packet::FLAGS, number::CLEARED)
                .bytes(number::packet::TRACK, &track.0);
            out.write_all(&Message::default().bytes(number::PACKET, &first.0).0)?;
        }
        Ok(Self { out, names: HashMap::new(), now: 0 })
    }

    fn iteration(&mut self, iteration: &Iteration, slots: &[Slot]) -> io::Result<()> {
        let end = self.now + iteration.wall_ns;
        self.begin(&format!("iteration {}", iteration.iteration))?;
        let mut open: Option<&str> = None;
        for (slot, &ns) in slots.iter().zip(&iteration.ns) {
            let phase = group(slot.phase);
            if open != Some(phase) {
                if open.is_some() {
                    self.end()?;
                }
                self.begin(phase)?;
                open = Some(phase);
            }
            // An interval between steps has no layers and is shown as its phase.
            let is_step = !slot.layers.is_empty();
            if is_step {
                self.begin(&format!("{} {}", slot.layers.join("+"), slot.kind))?;
            }
            self.now += ns;
            if is_step {
                self.end()?;
            }
        }
        if open.is_some() {
            self.end()?;
        }
        if self.now < end {
            self.begin("unattributed")?;
            self.now = end;
            self.end()?;
        }
        self.end()
    }

    fn begin(&mut self, name: &str) -> io::Result<()> {
        let next = self.names.len() as u64 + 1;
        let known = self.names.get(name).copied();
        let id = known.unwrap_or(next);
        let event = Message::default()
            .unsigned(number::event::TYPE, number::BEGIN)
            .unsigned(number::event::NAME, id)
            .unsigned(number::event::TRACK, TRACK);
        let interned = known.is_none().then(|| {
            self.names.insert(name.to_owned(), next);
            let entry = Message::default().unsigned(number::NAME_ID, id).bytes(number::NAME, name.as_bytes());
            Message::default().bytes(number::EVENT_NAMES, &entry.0)
        });
        self.packet(&event, interned.as_ref())
    }

    fn end(&mut self) -> io::Result<()> {
        let event = Message::default()
            .unsigned(number::event::TYPE, number::END)
            .unsigned(number::event::TRACK, TRACK);
        self.packet(&event, None)
    }

    fn packet(&mut self, event: &Message, interned: Option<&Message>) -> io::Result<()> {
        let mut packet = Message::default()
            .unsigned(number::packet::TIMESTAMP, self.now)
            .unsigned(number::packet::SEQUENCE, TRACK)
            .bytes(number::packet::EVENT, &event.0);
        if let Some(interned) = interned {
            packet = packet.bytes(number::packet::INTERNED, &interned.0);
        }
        packet = packet.unsigned(number::packet::FLAGS, number::NEEDS_STATE);
        self.out.write_all(&Message::default().bytes(number::PACKET, &packet.0).0)
    }
}

/// The name of the slice that contains a slot.
fn group(phase: Phase) -> &'static str {
    match phase {
        Phase::BackwardData | Phase::BackwardWeights => "backward",
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a message: number, value, content.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let (first, rest) = bytes.split_first().unwrap();
                *bytes = rest;
                value |= u64::from(first & 0x7f) << shift;
                if first & 0x80 == 0 {
                    break;
                }
            }
            value
        }
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = varint(&mut bytes);
            let mut content = Vec::new();
            if tag & 7 == 2 {
                let (inner, rest) = bytes.split_at(value as usize);
                content = inner.to_vec();
                bytes = rest;
            }
            found.push((tag >> 3, value, content));
        }
        found
    }

    #[test]
    fn slices_nest_and_sum_to_the_iteration() {
        let slot = |layer: &str, phase| Slot {
            layers: if layer.is_empty() { Vec::new() } else { vec![layer.to_owned()] },
            kind: "conv2d".to_owned(),
            phase,
            device: "cpu".to_owned(),
        };
        let slots = [
            slot("", Phase::DataWait),
            slot("a", Phase::Forward),
            slot("b", Phase::Forward),
            slot("b", Phase::BackwardData),
            slot("a", Phase::BackwardWeights),
        ];
        let mut trace = Trace::new(Vec::new(), "runs/x").unwrap();
        for number in [7, 8] {
            let iteration = Iteration {
                iteration: number,
                epoch: 1,
                program: 0,
                wall_ns: 100,
                ns: vec![10, 20, 30, 15, 5],
            };
            trace.iteration(&iteration, &slots).unwrap();
        }
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut open: Vec<(String, u64)> = Vec::new();
        let mut closed: Vec<(String, u64, u64)> = Vec::new();
        for (_, _, packet) in fields(&trace.out) {
            let packet = fields(&packet);
            let field = |number: u32| packet.iter().find(|(field, ..)| *field == u64::from(number));
            let Some((_, _, event)) = field(number::packet::EVENT) else { continue };
            if let Some((_, _, interned)) = field(number::packet::INTERNED) {
                for (_, _, entry) in fields(interned) {
                    let entry = fields(&entry);
                    names.insert(entry[0].1, String::from_utf8(entry[1].2.clone()).unwrap());
                }
            }
            let (time, event) = (field(number::packet::TIMESTAMP).unwrap().1, fields(event));
            if event[0].1 == number::BEGIN {
                open.push((names[&event[1].1].clone(), time));
            } else {
                let (name, start) = open.pop().unwrap();
                closed.push((name, start, time));
            }
        }
        assert!(open.is_empty());
        let first: Vec<(&str, u64, u64)> =
            closed[..9].iter().map(|(name, start, ended)| (name.as_str(), *start, *ended)).collect();
        assert_eq!(
            first,
            [
                ("data_wait", 0, 10),
                ("a conv2d", 10, 30),
                ("b conv2d", 30, 60),
                ("forward", 10, 60),
                ("b conv2d", 60, 75),
                ("a conv2d", 75, 80),
                ("backward", 60, 80),
                ("unattributed", 80, 100),
                ("iteration 7", 0, 100),
            ]
        );
        assert_eq!(closed[17], ("iteration 8".to_owned(), 100, 200));
    }
}
