//! Answers of Keystone, which signs in to Swift. The lists of objects are parsed by OpenDAL.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "swift",
    run,
    seeds: seeds::swift,
    dictionary: &[
        "{\"token\":{\"catalog\":[",
        "\"type\":\"object-store\"",
        "\"endpoints\":[",
        "\"interface\":\"public\"",
        "\"region\":\"region\"",
        "\"url\":\"http://a/v1\"",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_store::fuzzing::swift(data);
}
