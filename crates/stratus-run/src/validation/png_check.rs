//! A check that a file is a whole PNG file, without decoding it.

/// The bytes that a PNG file starts with (PNG, third edition, 5.2).
const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];
/// Bytes of a chunk beside its content: length, name, checksum.
const CHUNK_OVERHEAD_BYTES: usize = 12;

/// Height and width of a PNG file whose chunks have valid checksums.
///
/// # Errors
/// The reason, if a byte of it was changed or is missing.
pub(super) fn png_size(file: &[u8]) -> Result<[u32; 2], &'static str> {
    let Some(mut rest) = file.strip_prefix(&SIGNATURE) else { return Err("it is not a PNG file") };
    let mut size = None;
    while !rest.is_empty() {
        let torn = "it is incomplete";
        let length = rest.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize).ok_or(torn)?;
        let (chunk, after) = length
            .checked_add(CHUNK_OVERHEAD_BYTES)
            .and_then(|bytes| rest.split_at_checked(bytes))
            .ok_or(torn)?;
        let (checked, sum) = chunk[4..].split_last_chunk::<4>().ok_or(torn)?;
        if crc32fast::hash(checked) != u32::from_be_bytes(*sum) {
            return Err("a checksum in it is wrong");
        }
        match (&checked[..4], size) {
            (b"IHDR", None) => {
                let side = |at: usize| checked[at..].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
                size = Some((checked.len() >= 12).then(|| Some([side(8)?, side(4)?])).flatten().ok_or(torn)?);
            }
            (_, None) => return Err("it does not start with its size"),
            (b"IEND", Some(size)) if after.is_empty() => return Ok(size),
            (b"IEND", _) => return Err("bytes follow its end"),
            _ => {}
        }
        rest = after;
    }
    Err("it is incomplete")
}
