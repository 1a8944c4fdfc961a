//! Small image files for tests.

pub mod tars;
pub mod zips;

use std::fs;
use std::path::Path;

use png::{BitDepth, ColorType, Encoder};
use stratus_data::{OpenOptions, Split, open};

/// Writes a PNG file with 8 bits per channel.
pub fn write_png(path: &Path, colour: ColorType, [height, width]: [u32; 2], pixels: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width, height);
    encoder.set_color(colour);
    encoder.set_depth(BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    fs::write(path, file).unwrap();
}

/// Writes a colour image that encodes its number.
pub fn write_picture(path: &Path, size: [u32; 2], number: u8) {
    let pixels: Vec<u8> = (0..size[0] * size[1]).flat_map(|at| [number, at as u8, 255 - number]).collect();
    write_png(path, ColorType::Rgb, size, &pixels);
}

/// Writes a grey image of these values.
pub fn write_labels(path: &Path, size: [u32; 2], values: &[u8]) {
    write_png(path, ColorType::Grayscale, size, values);
}

/// The error message of opening a data set, with its folder replaced by ROOT.
pub fn open_error(name: &str, root: &Path, split: Split, options: &OpenOptions) -> String {
    let message = open(name, root, split, options).map(|_| ()).unwrap_err().to_string();
    message.replace(&root.display().to_string(), "ROOT")
}
