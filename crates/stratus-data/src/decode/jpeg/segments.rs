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

/// The segments before the entropy-coded data, up to SOS of the first scan: marker, the offset of its 0xff,
/// and the available payload (ITU-T T.81, annex B). Like in libjpeg (`next_marker` in `jdmarker.c`), bytes
/// between segments are skipped: some cameras and programs write them.
pub(super) fn segments(file: &[u8]) -> impl Iterator<Item = (u8, usize, &[u8])> {
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
            // The first scan's header is the last segment.
            at = if marker == SOS { file.len() } else { at + length };
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
