//! Tar archives that are written header by header, in every way that programs write them.

use tar::{EntryType, Header};

/// An entry that is written by hand: its path, and what it is.
pub enum Packed<'a> {
    File(&'a [u8], Way),
    Symlink(&'a str),
    HardLink(&'a str),
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// With `./` before its name.
    Dotted,
    /// From the root folder on.
    Absolute,
    /// With a name in an entry of its own, as GNU tar does with long ones.
    LongName,
    /// With name and size in records of the pax format.
    Pax,
    /// In the two fields of a ustar header.
    Ustar,
    /// With a size in base 256.
    Base256,
    /// With holes, as the formats of GNU tar have them.
    SparseGnu,
    SparsePax([u8; 2]),
}

pub const WAYS: [Way; 11] = [
    Way::Plain,
    Way::Dotted,
    Way::Absolute,
    Way::LongName,
    Way::Pax,
    Way::Ustar,
    Way::Base256,
    Way::SparseGnu,
    Way::SparsePax([0, 0]),
    Way::SparsePax([0, 1]),
    Way::SparsePax([1, 0]),
];

/// The ranges between runs of zeros, and their bytes one after the other. The file's end is marked by an
/// empty range where it is a hole.
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

/// Packs a file with a map of its holes.
pub fn put_sparse(archive: &mut Vec<u8>, path: &str, content: &[u8], way: Way) {
    let (ranges, stored) = ranges(content);
    let number = |number: usize| format!("{number:011o}\0");
    match way {
        Way::SparsePax(version) => {
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
            Packed::File(content, way) => {
                let plain = |path: &str| header(path, EntryType::Regular, content.len());
                match way {
                    Way::Plain => put(&mut archive, &plain(path), content),
                    Way::Dotted => put(&mut archive, &plain(&format!("././{path}")), content),
                    Way::Absolute => put(&mut archive, &plain(&format!("/{path}")), content),
                    Way::LongName => {
                        let name = header("././@LongLink", EntryType::GNULongName, path.len() + 1);
                        put(&mut archive, &name, format!("{path}\0").as_bytes());
                        put(&mut archive, &plain("train/cut"), content);
                    }
                    Way::Pax => {
                        let records = [("path", (*path).to_owned()), ("size", content.len().to_string())];
                        put_records(&mut archive, &records);
                        put(&mut archive, &header("train/cut", EntryType::Regular, 0), content);
                    }
                    Way::Ustar => {
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
                    Way::Base256 => {
                        let mut header = plain(path);
                        header.as_old_mut().size = [0; 12];
                        header.as_old_mut().size[0] = 0x80;
                        header.as_old_mut().size[8..].copy_from_slice(&(content.len() as u32).to_be_bytes());
                        header.set_cksum();
                        put(&mut archive, &header, content);
                    }
                    Way::SparseGnu | Way::SparsePax(_) => put_sparse(&mut archive, path, content, *way),
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
