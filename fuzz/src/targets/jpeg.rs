//! JPEG images, whole and in part, with the decoder in Rust.

use stratus_data::JpegLibrary;

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "jpeg",
    run,
    seeds: || seeds::fixtures("stratus-data", "jpg", 64 << 10),
    dictionary: &[
        "\\xff\\xc0",
        "\\xff\\xc2",
        "\\xff\\xc4",
        "\\xff\\xda",
        "\\xff\\xdb",
        "\\xff\\xdd",
        "\\xff\\xe1",
        "\\xff\\xd9",
        "Exif\\x00\\x00",
        "Adobe",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    decode(data, &JpegLibrary::Zune);
}

/// Decodes an image with a library.
pub fn decode(data: &[u8], library: &JpegLibrary) {
    stratus_data::fuzzing::image(&super::with_magic(b"\xff\xd8\xff", data), library);
}
