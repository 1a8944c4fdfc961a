//! Tar archives, written header by header in the variants of various programs.

use tar::{EntryType, Header};

/// An entry to write: its path and content.
pub enum Packed<'a> {
    File(&'a [u8], FileEncoding),
    Symlink(&'a str),
    HardLink(&'a str),
}

/// The encoding of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEncoding {
    Plain,
    /// With `./` before its name.
    Dotted,
    /// With an absolute path.
    Absolute,
    /// With the name in a separate entry, like GNU tar for long names.
    LongName,
    /// With name and size in pax records.
    Pax,
    /// With the name in both fields of a ustar header.
    Ustar,
    /// With the size in base 256.
    Base256,
    /// As a sparse file in a format of GNU tar.
    SparseGnu,
    SparsePax([u8; 2]),
}

pub const FILE_ENCODINGS: [FileEncoding; 11] = [
    FileEncoding::Plain,
    FileEncoding::Dotted,
    FileEncoding::Absolute,
    FileEncoding::LongName,
    FileEncoding::Pax,
    FileEncoding::Ustar,
    FileEncoding::Base256,
    FileEncoding::SparseGnu,
    FileEncoding::SparsePax([0, 0]),
    FileEncoding::SparsePax([0, 1]),
    FileEncoding::SparsePax([1, 0]),
];

/// The ranges between runs of zeros, and their bytes concatenated. If the file ends with a hole, an empty
/// range marks its end.
pub fn ranges(content: &[u8]) -> (Vec<[usize; 2]>, Vec<u8>) {
    let (mut ranges, mut stored): (Vec<[usize; 2]>, Vec<u8>) = (Vec::new(), Vec::new());
    for (at, &byte) in content.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match ranges.last_mut() {
            Some([from, bytes]) if *from + *bytes == at => *bytes += 1,
            _ => ranges.push([at, 1]),
        }
        stored.push(byte);
    }
    if content.last() == Some(&0) {
        ranges.push([content.len(), 0]);
    }
    (ranges, stored)
}

pub fn header(path: &str, kind: EntryType, bytes: usize) -> Header {
    let mut header = if kind == EntryType::XHeader { Header::new_ustar() } else { Header::new_gnu() };
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(bytes as u64);
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    header
}

pub fn put(archive: &mut Vec<u8>, header: &Header, content: &[u8]) {
    archive.extend(header.as_bytes());
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

pub fn put_records(archive: &mut Vec<u8>, records: &[(&str, String)]) {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (1..).find(|length| (rest + length.to_string().len()) == *length).unwrap();
        content.extend(format!("{length} {key}={value}\n").bytes());
    }
    let header = header("PaxHeaders/x", EntryType::XHeader, content.len());
    put(archive, &header, &content);
}

/// Packs a sparse file.
pub fn put_sparse(archive: &mut Vec<u8>, path: &str, content: &[u8], encoding: FileEncoding) {
    let (ranges, stored) = ranges(content);
    let number = |number: usize| format!("{number:011o}\0");
    match encoding {
        FileEncoding::SparsePax(version) => {
            let size = content.len().to_string();
            let (made_up, mut map) = ("GNUSparseFile.7/0.png", Vec::new());
            match version {
                [0, 0] => {
                    let mut records =
                        vec![("GNU.sparse.size", size), ("GNU.sparse.numblocks", ranges.len().to_string())];
                    for [at, bytes] in &ranges {
                        records.push(("GNU.sparse.offset", at.to_string()));
                        records.push(("GNU.sparse.numbytes", bytes.to_string()));
                    }
                    records.push(("path", path.to_owned()));
                    put_records(archive, &records);
                }
                [0, 1] => {
                    let numbers: Vec<String> = ranges.iter().flatten().map(usize::to_string).collect();
                    put_records(
                        archive,
                        &[
                            ("GNU.sparse.size", size),
                            ("GNU.sparse.numblocks", ranges.len().to_string()),
                            ("GNU.sparse.name", path.to_owned()),
                            ("GNU.sparse.map", numbers.join(",")),
                        ],
                    );
                }
                [major, minor] => {
                    put_records(
                        archive,
                        &[
                            ("GNU.sparse.major", major.to_string()),
                            ("GNU.sparse.minor", minor.to_string()),
                            ("GNU.sparse.name", path.to_owned()),
                            ("GNU.sparse.realsize", size),
                        ],
                    );
                    map.extend(format!("{}\n", ranges.len()).bytes());
                    ranges.iter().flatten().for_each(|number| map.extend(format!("{number}\n").bytes()));
                    map.resize(map.len().next_multiple_of(512), 0);
                }
            }
            map.extend(stored);
            let header = header(made_up, EntryType::Regular, map.len());
            put(archive, &header, &map);
        }
        _ => {
            let mut header = header(path, EntryType::GNUSparse, stored.len());
            let table = |field: &mut [u8], [at, bytes]: &[usize; 2]| {
                field[..12].copy_from_slice(number(*at).as_bytes());
                field[12..24].copy_from_slice(number(*bytes).as_bytes());
            };
            let bytes = header.as_mut_bytes();
            bytes[483..495].copy_from_slice(number(content.len()).as_bytes());
            let (first, rest) = ranges.split_at(ranges.len().min(4));
            bytes[386..482].chunks_exact_mut(24).zip(first).for_each(|(field, range)| table(field, range));
            bytes[482] = u8::from(!rest.is_empty());
            header.set_cksum();
            archive.extend(header.as_bytes());
            let blocks = rest.chunks(21);
            let last = blocks.len();
            for (at, ranges) in blocks.enumerate() {
                let mut block = [0; 512];
                block.chunks_exact_mut(24).zip(ranges).for_each(|(field, range)| table(field, range));
                block[504] = u8::from(at + 1 < last);
                archive.extend(block);
            }
            archive.extend(stored);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
    }
}

pub fn pack(entries: &[(&str, Packed<'_>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, packed) in entries {
        match packed {
            Packed::File(content, encoding) => {
                let plain = |path: &str| header(path, EntryType::Regular, content.len());
                match encoding {
                    FileEncoding::Plain => put(&mut archive, &plain(path), content),
                    FileEncoding::Dotted => put(&mut archive, &plain(&format!("././{path}")), content),
                    FileEncoding::Absolute => put(&mut archive, &plain(&format!("/{path}")), content),
                    FileEncoding::LongName => {
                        let name = header("././@LongLink", EntryType::GNULongName, path.len() + 1);
                        put(&mut archive, &name, format!("{path}\0").as_bytes());
                        put(&mut archive, &plain("train/cut"), content);
                    }
                    FileEncoding::Pax => {
                        let records = [("path", (*path).to_owned()), ("size", content.len().to_string())];
                        put_records(&mut archive, &records);
                        put(&mut archive, &header("train/cut", EntryType::Regular, 0), content);
                    }
                    FileEncoding::Ustar => {
                        let (folder, name) = path.rsplit_once('/').unwrap();
                        let mut header = Header::new_ustar();
                        header.set_size(content.len() as u64);
                        header.set_entry_type(EntryType::Regular);
                        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                        header.as_ustar_mut().unwrap().prefix[..folder.len()]
                            .copy_from_slice(folder.as_bytes());
                        header.set_cksum();
                        put(&mut archive, &header, content);
                    }
                    FileEncoding::Base256 => {
                        let mut header = plain(path);
                        header.as_old_mut().size = [0; 12];
                        header.as_old_mut().size[0] = 0x80;
                        header.as_old_mut().size[8..].copy_from_slice(&(content.len() as u32).to_be_bytes());
                        header.set_cksum();
                        put(&mut archive, &header, content);
                    }
                    FileEncoding::SparseGnu | FileEncoding::SparsePax(_) => {
                        put_sparse(&mut archive, path, content, *encoding);
                    }
                }
            }
            Packed::Symlink(target) | Packed::HardLink(target) => {
                let is_hard = matches!(packed, Packed::HardLink(_));
                let kind = if is_hard { EntryType::Link } else { EntryType::Symlink };
                let mut header = header(path, kind, 0);
                header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
                header.set_cksum();
                put(&mut archive, &header, b"");
            }
        }
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}
