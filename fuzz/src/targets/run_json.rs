//! JSON files of a run.

use crate::scratch;
use stratus_run::{data::DataRecord, machine::Machine, sources::Sources, summary::Summary};

use super::Target;
use crate::seeds;

pub const TARGET: Target =
    Target { name: "run_json", run, seeds: seeds::run_json, dictionary: &[], max_bytes: 65536 };

fn run(data: &[u8]) {
    let path = scratch::file("run.json", data);
    let _ = Summary::read(&path);
    let _ = Machine::read(&path);
    let _ = Sources::read(&path);
    if let (Ok(Some(first)), Ok(Some(again))) = (DataRecord::read(&path), DataRecord::read(&path)) {
        assert!(first.differences(&again).is_empty());
    }
}
