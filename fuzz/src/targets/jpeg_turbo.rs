//! JPEG images, whole and in part, by libjpeg-turbo where it is installed.

use stratus_data::JpegLibrary;

use super::{Target, jpeg};

pub const TARGET: Target = Target { name: "jpeg_turbo", run, ..jpeg::TARGET };

fn run(data: &[u8]) {
    let library = JpegLibrary::for_process();
    if matches!(library, JpegLibrary::Turbo(_)) {
        jpeg::decode(data, library);
    }
}
