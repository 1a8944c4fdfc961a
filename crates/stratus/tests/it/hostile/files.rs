//! Files that claim or unpack to far more than they contain.

use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::{Compression, Crc};
use std::io::Write;

/// Writes zeros in blocks: a bomb must not be in the memory of the test as a whole.
fn write_zeros(to: &mut impl Write, mut count: usize) {
    let block = vec![0; 1 << 20];
    while count > 0 {
        let part = count.min(block.len());
        to.write_all(&block[..part]).unwrap();
        count -= part;
    }
}

/// The colour types of a PNG file.
#[derive(Clone, Copy)]
pub enum PngColour {
    Rgb,
    /// Palette indices of one bit, with transparency: 32 times larger when they are decoded to colours.
    Palette,
}

/// A PNG file of a side; `whole` files have all their pixels, which are zero.
pub fn png(side: usize, colour: PngColour, whole: bool) -> Vec<u8> {
    let (depth, kind, row_bytes) = match colour {
        PngColour::Rgb => (8, 2, 3 * side),
        PngColour::Palette => (1, 3, side.div_ceil(8)),
    };
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let length = (side as u32).to_be_bytes();
    chunk(&mut file, b"IHDR", &[&length[..], &length, &[depth, kind, 0, 0, 0]].concat());
    if let PngColour::Palette = colour {
        chunk(&mut file, b"PLTE", &[0; 6]);
        chunk(&mut file, b"tRNS", &[0, 1]);
    }
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::best());
    write_zeros(&mut pixels, if whole { side * (row_bytes + 1) } else { 0 });
    chunk(&mut file, b"IDAT", &pixels.finish().unwrap());
    chunk(&mut file, b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], content: &[u8]) {
    let mut crc = Crc::new();
    crc.update(kind);
    crc.update(content);
    file.extend((content.len() as u32).to_be_bytes());
    file.extend(kind);
    file.extend(content);
    file.extend(crc.sum().to_be_bytes());
}

/// The kinds of JPEG files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jpeg {
    /// One scan of all components.
    Baseline,
    /// A scan of all first coefficients.
    Progressive,
    /// The same, and scans of the other coefficients, all of which are zero: 32,767 blocks in three bytes.
    ManyScans(usize),
}

/// A JPEG file of a side in colour without subsampling; `whole` files have all their pixels, which are grey:
/// two bits per block, or one if it is progressive.
pub fn jpeg(side: usize, kind: Jpeg, whole: bool) -> Vec<u8> {
    let mut file = vec![0xff, 0xd8];
    let mut segment = |marker: u8, content: &[u8]| {
        let length = (content.len() as u16 + 2).to_be_bytes();
        file.extend([&[0xff, marker], &length[..], content].concat());
    };
    segment(0xdb, &[&[0], [16; 64].as_slice()].concat());
    let length = (side as u16).to_be_bytes();
    let components = [1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0];
    let frame = if kind == Jpeg::Baseline { 0xc0 } else { 0xc2 };
    segment(frame, &[&[8], &length[..], &length, &[3], &components].concat());
    // Difference 0 has the code 0; the end of a block the code 0, and that of a run of blocks the code 10.
    let mut dc = [0; 18];
    dc[1] = 1;
    segment(0xc4, &dc);
    let mut ac = [0; 19];
    (ac[0], ac[1], ac[2], ac[18]) = (0x10, 1, 1, 0xe0);
    segment(0xc4, &ac);
    let blocks = side.div_ceil(8).pow(2);
    let (last, bits) = if kind == Jpeg::Baseline { (63, 2) } else { (0, 1) };
    segment(0xda, &[3, 1, 0, 2, 0, 3, 0, 0, last, 0]);
    file.resize(file.len() + if whole { (3 * blocks * bits).div_ceil(8) } else { 0 }, 0);
    if let Jpeg::ManyScans(count) = kind {
        for _ in 0..count {
            // A code of two bits, and 14 bits that are one less than the length beyond 16,384.
            file.extend([0xff, 0xda, 0, 8, 1, 1, 0, 1, 63, 0]);
            (0..blocks.div_ceil(1 << 14)).for_each(|_| file.extend([0x80, 0]));
        }
    }
    file.extend([0xff, 0xd9]);
    file
}

/// A header of a tar archive.
fn tar_header(name: &str, bytes: usize, sparse_bytes: Option<usize>) -> Vec<u8> {
    let mut header = vec![0; 512];
    let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(0, name);
    field(100, "0000644");
    field(124, &format!("{bytes:011o}"));
    field(136, "00000000000");
    match sparse_bytes {
        None => field(156, "0"),
        Some(all) => {
            // One piece at the beginning.
            field(156, "S");
            field(386, &format!("{:011o}", 0));
            field(398, &format!("{bytes:011o}"));
            field(483, &format!("{all:011o}"));
        }
    }
    field(257, "ustar  ");
    field(148, "        ");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// An archive with one file; of a sparse one, only the beginning is stored.
pub fn tar(name: &str, content: &[u8], sparse_bytes: Option<usize>) -> Vec<u8> {
    let mut archive = tar_header(name, content.len(), sparse_bytes);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

/// A lossless WebP image of one colour. Its codes have one symbol each, so pixels take no bits.
pub fn webp(side: usize) -> Vec<u8> {
    let side = side as u32 - 1;
    let mut content = vec![0x2f];
    content.extend_from_slice(&(side | side << 14).to_le_bytes());
    // From the lowest bit: no transform, no cache, one group of codes; five codes of one symbol, 0.
    content.extend_from_slice(&[0x88, 0x88, 0x08]);
    let length = content.len() as u32;
    let file = [b"WEBPVP8L", &length.to_le_bytes()[..], &content].concat();
    [b"RIFF", &(file.len() as u32).to_le_bytes()[..], &file].concat()
}

/// A zip archive with one deflated file, whose length in the directory may be another one.
pub fn zip(name: &str, content: &[u8], claimed_bytes: Option<u32>) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut writer = rawzip::ZipArchiveWriter::new(&mut archive);
    let file = writer.new_file(name).compression_method(rawzip::CompressionMethod::DEFLATE);
    let (mut entry, config) = file.start().unwrap();
    let mut encoder = config.wrap(flate2::write::DeflateEncoder::new(&mut entry, Compression::default()));
    encoder.write_all(content).unwrap();
    let (encoder, descriptor) = encoder.finish().unwrap();
    encoder.finish().unwrap();
    entry.finish(descriptor).unwrap();
    writer.finish().unwrap();
    if let Some(bytes) = claimed_bytes {
        let at = archive.windows(4).position(|window| window == b"PK\x01\x02").unwrap() + 24;
        archive[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
    }
    archive
}

/// A gzipped IDX file of square images of zeros.
pub fn idx_gz(images: usize, side: usize) -> Vec<u8> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    file.write_all(&[0, 0, 8, 3]).unwrap();
    for length in [images, side, side] {
        file.write_all(&(length as u32).to_be_bytes()).unwrap();
    }
    write_zeros(&mut file, images * side * side);
    file.finish().unwrap()
}

/// A safetensors file of a header.
pub fn safetensors(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

/// A PyTorch file of a pickle: an uncompressed zip archive with one file.
pub fn pth(pickle: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"a/data.pkl";
    let mut crc = Crc::new();
    crc.update(pickle);
    let length = (pickle.len() as u32).to_le_bytes();
    // Method 0 and no date; checksum, lengths, length of the name.
    let common =
        [&[0; 6][..], &crc.sum().to_le_bytes(), &length, &length, &[NAME.len() as u8, 0, 0, 0]].concat();
    let mut file = [b"PK\x03\x04\x0a\0\0\0", &common[..], NAME, pickle].concat();
    let directory = file.len() as u32;
    file.extend([b"PK\x01\x02\x0a\0\x0a\0\0\0", &common[..], &[0; 14], NAME].concat());
    let bytes = (file.len() as u32 - directory).to_le_bytes();
    file.extend([b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &bytes[..], &directory.to_le_bytes(), &[0; 2]].concat());
    file
}

/// A protobuf field of bytes.
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(content.len()), content].concat()
}

/// A protobuf field of a number.
pub fn number(number: u8, value: usize) -> Vec<u8> {
    [&[number << 3][..], &varint(value)].concat()
}

/// A number of variable length.
pub fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// An ONNX model of a graph's nodes and initialisers, with images of a number of channels.
pub fn onnx(graph: &[u8], channels: usize, output: &str) -> Vec<u8> {
    let value = |name: &str| {
        let shape: Vec<u8> = [1, channels, 8, 8].iter().flat_map(|&dim| field(1, &number(1, dim))).collect();
        let kind = field(1, &[number(1, 1), field(2, &shape)].concat());
        [field(1, name.as_bytes()), field(2, &kind)].concat()
    };
    let graph = [graph, &field(11, &value("x")), &field(12, &value(output))].concat();
    [number(1, 8), field(8, &number(2, 17)), field(7, &graph)].concat()
}

/// A node with one output.
pub fn node(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
    field(1, &[inputs, field(2, output.as_bytes()), field(4, operator.as_bytes())].concat())
}
