//! PNG files with valid checksums, whose pixels need not be decodable.

/// A grey PNG file of a size (H, W) with `bytes` bytes instead of compressed pixels.
#[must_use]
pub fn undecodable_png([height, width]: [u32; 2], bytes: usize) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 0, 0, 0, 0]].concat();
    for (name, content) in [(b"IHDR", header), (b"IDAT", vec![7; bytes]), (b"IEND", Vec::new())] {
        let checked = [&name[..], &content].concat();
        file.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes());
        file.extend_from_slice(&checked);
        file.extend_from_slice(&crc32(&checked).to_be_bytes());
    }
    file
}

/// The checksum of chunks (PNG, third edition, annex D).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)))
}
