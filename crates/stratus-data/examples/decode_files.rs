//! Decodes files for `scripts/check-images.py`, which compares the result with other decoders. Prints a line
//! for each listed file: `ok HEIGHT WIDTH CHANNELS CRC32 ORIENTATION`, or `no` and the cause.

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use stratus_data::images::ImageFiles;
use stratus_data::{Dataset, Orientation, Scratch};

fn main() -> Result<(), Box<dyn Error>> {
    let list = std::env::args().nth(1).ok_or("name a list of files, one a line")?;
    let files: Vec<PathBuf> = std::fs::read_to_string(list)?.lines().map(PathBuf::from).collect();
    let set = ImageFiles::new(files, 1, false)?;
    let mut scratch = Scratch::default();
    let mut out = BufWriter::new(io::stdout().lock());
    for index in 0..set.len() {
        match set.read(index, &mut scratch) {
            Ok(sample) => {
                let [channels, height, width] = sample.shape;
                let sum = crc32fast::hash(sample.pixels);
                let orientation =
                    (1..=8).find(|&number| Orientation::from_exif(number) == sample.orientation).unwrap_or(1);
                writeln!(out, "ok {height} {width} {channels} {sum} {orientation}")?;
            }
            Err(error) => writeln!(out, "no {}", error.to_string().replace('\n', " "))?,
        }
    }
    Ok(out.flush()?)
}
