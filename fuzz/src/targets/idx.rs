//! IDX files, also gzipped.

use std::path::Path;
use stratus_data::idx::{self, ExpectedFormat, IdxElement};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target { name: "idx", run, seeds: seeds::idx, dictionary: &[], max_bytes: 65536 };

fn run(data: &[u8]) {
    for (element, dimensions) in [(IdxElement::U8, 3), (IdxElement::U8, 1), (IdxElement::F32, 2)] {
        let _ = idx::parse(data, Path::new("file"), ExpectedFormat { element, dimensions });
    }
}
