//! Indices of shards.

use crate::scratch;
use stratus_data::shards::ShardIndex;

use super::Target;
use crate::seeds;

pub const TARGET: Target =
    Target { name: "shard_index", run, seeds: seeds::nested_json, dictionary: &[], max_bytes: 65536 };

fn run(data: &[u8]) {
    scratch::file("index/index.json", data);
    let _ = ShardIndex::read(&scratch::folder().join("index"));
}
