//! Timelines.

use crate::scratch;
use stratus_run::timeline::{Iteration, TimelineReader};

use super::Target;
use crate::seeds;

pub const TARGET: Target =
    Target { name: "timeline", run, seeds: seeds::timeline, dictionary: &[], max_bytes: 65536 };

fn run(data: &[u8]) {
    scratch::file("timeline/records.bin", data);
    let Ok(mut reader) = TimelineReader::open(&scratch::folder().join("timeline")) else { return };
    let mut iteration = Iteration::default();
    while let Ok(true) = reader.read(&mut iteration) {}
}
