//! WebP images, whole and in part.

use stratus_data::JpegLibrary;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "webp",
    run,
    seeds: || seeds::fixtures("stratus-data", "webp", 64 << 10),
    dictionary: &[
        "VP8 ",
        "VP8L",
        "VP8X",
        "ALPH",
        "ANIM",
        "ANMF",
        "EXIF",
        "ICCP",
        "\\x9d\\x01\\x2a",
        "\\x2f",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    let mut file = super::with_magic(b"RIFF\0\0\0\0WEBP", data);
    // The length of the rest, which mutations would mostly make wrong.
    let length = (file.len() - 8).min(u32::MAX as usize) as u32;
    file[4..8].copy_from_slice(&length.to_le_bytes());
    stratus_data::fuzzing::image(&file, &JpegLibrary::Zune);
    stratus_data::fuzzing::labels(&file);
}
