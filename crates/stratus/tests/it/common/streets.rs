//! A small set of street scenes in the format of CamVid: the sky, a road and a car, in colours with some
//! noise.

use super::{CommandOutput, TestDir};
use png::{BitDepth, ColorType, Decoder, Encoder};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

pub const HEIGHT: usize = 24;
pub const WIDTH: usize = 32;
pub const TRAIN: usize = 8;
pub const VALIDATION: usize = 3;
/// The number of classes of CamVid.
pub const CLASSES: usize = 11;
/// The label of pixels without a class.
pub const VOID: u8 = 11;

pub fn write(path: &Path, colour: ColorType, pixels: &[u8]) {
    write_sized(path, colour, pixels, [HEIGHT, WIDTH]);
}

pub fn write_sized(path: &Path, colour: ColorType, pixels: &[u8], [height, width]: [usize; 2]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = Encoder::new(File::create(path).unwrap(), width as u32, height as u32);
    encoder.set_color(colour);
    encoder.set_depth(BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

/// The class of a pixel: sky above, road below, a car somewhere; the border has no class.
pub fn class(image: usize, row: usize, column: usize) -> u8 {
    let car = [8 + image % 5, 4 + 3 * image % 17];
    match () {
        () if row == 0 || column == 0 => VOID,
        () if (car[0]..car[0] + 8).contains(&row) && (car[1]..car[1] + 8).contains(&column) => 8,
        () if row < HEIGHT / 2 => 0,
        () => 3,
    }
}

pub fn labels(image: usize) -> Vec<u8> {
    (0..HEIGHT * WIDTH).map(|pixel| class(image, pixel / WIDTH, pixel % WIDTH)).collect()
}

/// The RGB pixels of an image. Classes have different colours, with some noise.
pub fn pixels(image: usize) -> Vec<u8> {
    let colour = |(pixel, &class): (usize, &u8)| {
        let noise = (pixel * 37 + image * 11) as u8 % 23;
        [class.wrapping_mul(23), 200 - class.wrapping_mul(15), 40 + class].map(|value| value / 2 + noise)
    };
    labels(image).iter().enumerate().flat_map(colour).collect()
}

/// Writes the set into the folder `set`.
pub fn write_streets(dir: &TestDir) {
    write_streets_with(dir, TRAIN, VALIDATION);
}

/// Writes a set with these numbers of training and validation images.
pub fn write_streets_with(dir: &TestDir, train: usize, validation: usize) {
    let mut lists = [String::new(), String::new()];
    for image in 0..train + validation {
        let part = usize::from(image >= train);
        let [images, annotations] = [["train", "trainannot"], ["val", "valannot"]][part];
        let classes = labels(image);
        write(&dir.path(&format!("set/{images}/{image}.png")), ColorType::Rgb, &pixels(image));
        write(&dir.path(&format!("set/{annotations}/{image}.png")), ColorType::Grayscale, &classes);
        lists[part].push_str(&format!("{images}/{image}.png {annotations}/{image}.png\n"));
    }
    fs::write(dir.path("set/train.txt"), &lists[0]).unwrap();
    fs::write(dir.path("set/val.txt"), &lists[1]).unwrap();
}

pub fn arguments(out: &str, network: &str, more: &[&str]) -> Vec<String> {
    let settings = [
        "data.name=camvid",
        "data.path=set",
        "data.shape=[3, 24, 32]",
        "model.width=4",
        "train.batch_size=4",
        "train.precision=f32",
        "validation.batch_size=2",
        "checkpoint.every_seconds=0.01",
    ];
    let mut arguments = ["train", network, "--out", out].map(str::to_owned).to_vec();
    arguments
        .extend(settings.iter().chain(more).flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
    arguments
}

pub fn train(dir: &TestDir, out: &str, network: &str, more: &[&str]) -> CommandOutput {
    let arguments = arguments(out, network, more);
    dir.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The values of a grey PNG file.
pub fn grey(path: &Path) -> Vec<u8> {
    let mut reader = Decoder::new(BufReader::new(File::open(path).unwrap())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    assert_eq!(reader.info().color_type, ColorType::Grayscale);
    pixels
}
