//! The files of a tar archive, header by header, without reading what they hold.
//!
//! Archives come from anywhere: names and extensions have limits, and nothing is allocated that a header
//! alone asks for.

use std::io;

use tar::{EntryType, Header, PaxExtensions};

/// Archives are made of blocks of this many bytes.
pub(super) const BLOCK: u64 = 512;
/// The most bytes of a long name, or of a header's extensions.
const LARGEST_EXTENSION: u64 = 1 << 20;
/// The most bytes of a path.
const LARGEST_NAME: usize = 4096;

/// Reads at an offset of an archive, exactly as much as there is room for.
pub(super) type ReadAt<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// A file in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member<'a> {
    /// Its path in the archive.
    pub path: &'a str,
    /// Bytes of the archive before its content; a whole number of blocks.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Calls for each file of an archive of `length` bytes, in its order. Folders and links are passed over.
///
/// What is wrong with the archive ends it: what was called for before is whole.
pub(super) fn each_file(
    read_at: ReadAt<'_>,
    length: u64,
    visit: &mut dyn FnMut(Member<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let unread = |error: io::Error| format!("the archive cannot be read: {error}");
    let (mut at, mut header) = (0, Header::new_old());
    // Said before the header that they belong to.
    let (mut long_name, mut long_size): (Option<Vec<u8>>, Option<u64>) = (None, None);
    while at < length {
        if length - at < BLOCK {
            return Err(format!("the archive ends within a header, at {length} bytes"));
        }
        read_at(at, header.as_mut_bytes()).map_err(unread)?;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        let wrong = |error: io::Error| format!("the header at byte {at} is none of a tar archive: {error}");
        if header.cksum().map_err(wrong)? != checksum(&header) {
            return Err(format!("the header at byte {at} is none of a tar archive, or damaged"));
        }
        let kind = header.entry_type();
        let bytes = match long_size.take() {
            Some(bytes) if !is_extension(kind) => bytes,
            _ => header.entry_size().map_err(wrong)?,
        };
        let offset = at + BLOCK;
        let end = offset.checked_add(bytes);
        let next = end.and_then(|end| end.checked_next_multiple_of(BLOCK));
        let name = long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
        let (Some(end), Some(next)) = (end.filter(|&end| end <= length), next) else {
            return Err(format!("the archive ends within {}", String::from_utf8_lossy(&name)));
        };
        if is_extension(kind) {
            if bytes > LARGEST_EXTENSION {
                return Err(format!("the header at byte {at} has {bytes} bytes of extensions"));
            }
            let mut content = vec![0; bytes as usize];
            read_at(offset, &mut content).map_err(unread)?;
            if kind == EntryType::GNULongName {
                long_name = Some(content.split(|&byte| byte == 0).next().unwrap_or_default().to_vec());
            } else if kind == EntryType::XHeader {
                for extension in PaxExtensions::new(&content) {
                    let extension = extension.map_err(wrong)?;
                    match extension.key_bytes() {
                        b"path" => long_name = Some(extension.value_bytes().to_vec()),
                        b"size" => {
                            let size = extension.value().ok().and_then(|size| size.parse().ok());
                            let size = size.ok_or_else(|| {
                                format!("the header at byte {at} has a size that is no number")
                            })?;
                            long_size = Some(size);
                        }
                        _ => {}
                    }
                }
            }
        } else if kind.is_file() || kind.is_contiguous() {
            let path = std::str::from_utf8(&name).ok().filter(|path| path.len() <= LARGEST_NAME);
            let path = path.ok_or_else(|| {
                format!("the name at byte {at} is not UTF-8, or longer than {LARGEST_NAME} bytes")
            })?;
            visit(Member { path, offset, bytes: end - offset })?;
        }
        at = next;
    }
    Ok(())
}

/// The path that stands in the header at a block; `None` where there is no header.
pub(super) fn path_at(read_at: ReadAt<'_>, offset: u64) -> Option<String> {
    let mut header = Header::new_old();
    read_at(offset, header.as_mut_bytes()).ok()?;
    let is_header = header.cksum().ok()? == checksum(&header);
    is_header.then(|| String::from_utf8_lossy(&header.path_bytes()).into_owned())
}

fn is_extension(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
    )
}

/// The sum of a header's bytes, those of the sum itself taken for spaces.
fn checksum(header: &Header) -> u32 {
    let bytes = header.as_bytes().iter().enumerate();
    bytes.map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { u32::from(byte) }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's path, where it lies, and its length.
    type File = (String, u64, u64);

    fn files(archive: &[u8]) -> (Vec<File>, Result<(), String>) {
        let mut found = Vec::new();
        let mut read_at = |offset: u64, out: &mut [u8]| {
            let at = offset as usize;
            out.copy_from_slice(archive.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let outcome = each_file(&mut read_at, archive.len() as u64, &mut |member| {
            found.push((member.path.to_owned(), member.offset, member.bytes));
            Ok(())
        });
        (found, outcome)
    }

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut put = |path: &str, content: &[u8]| {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, content).unwrap();
        };
        put("a.jpg", &[7; 600]);
        put(&format!("{}/b.cls", "long".repeat(60)), b"3");
        put("c.cls", b"");
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_are_found_where_they_lie() {
        let archive = archive();
        let (found, outcome) = files(&archive);
        assert_eq!(outcome, Ok(()));
        assert_eq!(found[0], ("a.jpg".to_owned(), 512, 600));
        assert_eq!(found[1], (format!("{}/b.cls", "long".repeat(60)), 3072, 1));
        assert_eq!(found[2], ("c.cls".to_owned(), 4096, 0));
        assert_eq!(archive[3072], b'3');
        // An archive may end without its mark.
        assert_eq!(files(&archive[..4096]), (found, Ok(())));
    }

    #[test]
    fn extensions_of_the_posix_kind_are_read() {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions([("path", b"deep/inside.png".as_slice()), ("size", b"5")]).unwrap();
        let mut header = Header::new_ustar();
        header.set_path("short.png").unwrap();
        header.set_size(5);
        header.set_cksum();
        builder.append(&header, b"12345".as_slice()).unwrap();
        let (found, outcome) = files(&builder.into_inner().unwrap());
        assert_eq!((found, outcome), (vec![("deep/inside.png".to_owned(), 1536, 5)], Ok(())));
    }

    #[test]
    fn what_is_no_archive_or_ends_too_early_is_refused() {
        let archive = archive();
        let (found, outcome) = files(&archive[..1000]);
        assert_eq!((found.len(), outcome), (0, Err("the archive ends within a.jpg".to_owned())));
        let (found, outcome) = files(&archive[..1700]);
        assert_eq!(
            (found.len(), outcome),
            (1, Err("the archive ends within a header, at 1700 bytes".to_owned()))
        );
        assert!(files(&[b'x'; 2048]).1.unwrap_err().contains("none of a tar archive"));
        // A name that asks for more memory than any name needs.
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(2 << 20);
        header.set_cksum();
        let hostile = [header.as_bytes().as_slice(), &vec![b'x'; 2 << 20]].concat();
        assert!(files(&hostile).1.unwrap_err().contains("bytes of extensions"));
    }
}
