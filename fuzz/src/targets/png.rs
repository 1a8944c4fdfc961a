//! PNG images, whole and in part.

use stratus_data::JpegLibrary;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "png",
    run,
    seeds: || seeds::fixtures("stratus-data", "png", 64 << 10),
    dictionary: &["IHDR", "PLTE", "IDAT", "IEND", "tRNS", "eXIf", "acTL", "fcTL", "fdAT"],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_data::fuzzing::image(&super::with_magic(b"\x89PNG\r\n\x1a\n", data), &JpegLibrary::Zune);
}
