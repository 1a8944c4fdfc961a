//! The segments of a JPEG file (ITU-T T.81, annex B).

/// Markers without a segment.
const TEM: u8 = 0x01;
const RST0: u8 = 0xd0;
const RST7: u8 = 0xd7;
const SOI: u8 = 0xd8;
const EOI: u8 = 0xd9;

/// Start of scan.
pub(super) const SOS: u8 = 0xda;
/// The application segment of EXIF.
const APP1: u8 = 0xe1;
/// Segments among the start-of-frame markers that start no frame: DHT, JPG, DAC.
const NO_FRAME: [u8; 3] = [0xc4, 0xc8, 0xcc];
/// Frames whose coefficients may be split among scans, with Huffman codes.
const PROGRESSIVE: u8 = 0xc2;
/// Frames whose coefficients are not split, with Huffman codes.
const BASELINE: u8 = 0xc0;
const EXTENDED_SEQUENTIAL: u8 = 0xc1;
/// The same with arithmetic codes, which only libjpeg-turbo supports.
const ARITHMETIC_SEQUENTIAL: u8 = 0xc9;

/// The segments up to SOS of the first scan, as [`all_segments`].
pub(super) fn segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut is_before_scan = true;
    all_segments(file).take_while(move |&(marker, ..)| std::mem::replace(&mut is_before_scan, marker != SOS))
}

/// The segments up to the end of the image: marker, the offset of its 0xff, and the available payload (ITU-T
/// T.81, annex B). Like in libjpeg (`next_marker` in `jdmarker.c`), bytes between segments are skipped:
/// entropy-coded data, which have a zero after each 0xff, and those that some cameras and programs write.
fn all_segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            at += file.get(at..)?.iter().position(|&byte| byte == 0xff)?;
            // Any number of fill bytes 0xff may precede a marker.
            at += file[at..].iter().position(|&byte| byte != 0xff)?;
            let (begin, marker) = (at - 1, file[at]);
            at += 1;
            match marker {
                // After a zero, the 0xff before it is one of the skipped bytes.
                0 | TEM | RST0..=RST7 => continue,
                EOI => return None,
                _ => {}
            }
            let length = file.get(at..at + 2)?;
            let length = usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            let content = &file[at + 2..];
            let content = &content[..content.len().min(length - 2)];
            at += length;
            return Some((marker, begin, content));
        }
    })
}

/// The payload of the EXIF segment.
pub(super) fn exif_segment(file: &[u8]) -> Option<&[u8]> {
    segments(file)
        .find_map(|(marker, _, content)| content.strip_prefix(b"Exif\0\0").filter(|_| marker == APP1))
}

/// A copy of the file without stray bytes between its header segments, if there are any, for a decoder that
/// rejects them.
pub(super) fn without_stray_bytes(file: &[u8]) -> Option<Vec<u8>> {
    let (mut clean, mut end, mut stray) = (vec![0xff, SOI], 2, false);
    for (marker, begin, content) in segments(file) {
        stray |= begin != end;
        end = begin + 4 + content.len();
        if marker == SOS {
            clean.extend_from_slice(&file[begin..]);
            return stray.then_some(clean);
        }
        clean.extend_from_slice(&file[begin..end]);
    }
    None
}

/// The offset of the first scan.
fn first_scan(file: &[u8]) -> Option<usize> {
    segments(file).find(|(marker, ..)| *marker == SOS).map(|(_, begin, _)| begin)
}

/// Returns whether `tail`, the end of a file of `bytes` bytes, has the end marker EOI after the start of the
/// first scan, which must be in `head`. An embedded thumbnail has an EOI too.
pub(in crate::decode) fn has_end_marker(head: &[u8], tail: &[u8], bytes: usize) -> bool {
    let Some(scan) = first_scan(head) else { return false };
    let after_scan = tail.get((scan + tail.len()).saturating_sub(bytes)..).unwrap_or_default();
    after_scan.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

/// The size of an image and what decoding it takes, by the headers before the first scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Height and width.
    pub size: [usize; 2],
    /// The channels of decoded pixels.
    pub channels: usize,
    /// The minimum length of the scans in bytes.
    pub min_bytes: usize,
    /// The bytes of the coefficients, if they are all kept until the last scan; else 0.
    pub coefficient_bytes: usize,
}

impl Frame {
    /// Reads the headers. `None` if no valid frame is before the first scan, or no scan follows it.
    pub(super) fn read(file: &[u8]) -> Option<Self> {
        let mut frame = None;
        for (marker, _, content) in segments(file) {
            match (marker, content) {
                (0xc0..=0xcf, [_, size @ ..]) if !NO_FRAME.contains(&marker) => {
                    // A second frame is an error of every decoder.
                    frame = frame.or(Some((marker, size)));
                }
                (SOS, [in_scan, ..]) => {
                    return frame.and_then(|(marker, content)| Self::new(marker, content, *in_scan));
                }
                _ => {}
            }
        }
        None
    }

    fn new(marker: u8, content: &[u8], in_scan: u8) -> Option<Self> {
        let [height_high, height_low, width_high, width_low, count, components @ ..] = content else {
            return None;
        };
        let [height, width] = [[*height_high, *height_low], [*width_high, *width_low]]
            .map(|bytes| usize::from(u16::from_be_bytes(bytes)));
        let factors = components.chunks_exact(3).take(usize::from(*count));
        let factors = factors.map(|component| [component[1] & 15, component[1] >> 4].map(usize::from));
        let max =
            factors.clone().reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])])?.map(|factor| factor.max(1));
        // Scans of several components, and buffers, have whole MCUs; those of one component need not.
        let mcus = height.div_ceil(8 * max[0]) * width.div_ceil(8 * max[1]);
        let (mut blocks, mut min_blocks) = (0, 0);
        for [vertical, horizontal] in factors {
            blocks += mcus * vertical * horizontal;
            min_blocks +=
                (height * vertical).div_ceil(8 * max[0]) * (width * horizontal).div_ceil(8 * max[1]);
        }
        // A block has a code of at least one bit for its first coefficient, and one for the rest, which many
        // blocks share in progressive scans. Arithmetic codes have no minimum.
        let min_bits = match marker {
            BASELINE | EXTENDED_SEQUENTIAL => 2 * min_blocks,
            PROGRESSIVE => min_blocks,
            _ => 0,
        };
        let is_buffered =
            ![BASELINE, EXTENDED_SEQUENTIAL, ARITHMETIC_SEQUENTIAL].contains(&marker) || in_scan < *count;
        Some(Self {
            size: [height, width],
            channels: if *count == 1 { 1 } else { 3 },
            min_bytes: min_bits / 8,
            coefficient_bytes: if is_buffered { blocks * 64 * size_of::<i16>() } else { 0 },
        })
    }
}

/// The number of scans.
pub(super) fn count_scans(file: &[u8]) -> usize {
    all_segments(file).filter(|(marker, ..)| *marker == SOS).count()
}
