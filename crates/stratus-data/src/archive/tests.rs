use proptest::prelude::*;

use std::io;

use super::entries::NOT_AN_ARCHIVE;
use super::*;

/// A file's path, offset and length.
type File = (String, u64, u64);

fn read_at(archive: &[u8], offset: u64, out: &mut [u8]) -> io::Result<()> {
    let from = archive.get(offset as usize..).ok_or(io::ErrorKind::UnexpectedEof)?;
    out.copy_from_slice(from.get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// The files of an archive, and the final error.
fn files(archive: &[u8]) -> (Vec<File>, Result<(), String>) {
    let mut found = Vec::new();
    let mut read = |offset: u64, out: &mut [u8]| read_at(archive, offset, out);
    let mut entries = Entries::new(&mut read, 0, archive.len() as u64);
    loop {
        match entries.next() {
            Ok(Some(Entry { path, kind: Kind::File(content) })) => {
                found.push((String::from_utf8_lossy(path).into_owned(), content.offset, content.bytes));
            }
            Ok(Some(_)) => {}
            Ok(None) => return (found, Ok(())),
            Err(problem) => return (found, Err(problem)),
        }
    }
}

fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut put = |path: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, content).unwrap();
    };
    put("a.jpg", &[7; 600]);
    put(&format!("{}/b.cls", "long".repeat(60)), b"3");
    put("c.cls", b"");
    builder.into_inner().unwrap()
}

/// A header of this type, for a file of `bytes` bytes.
fn header(path: &str, kind: u8, bytes: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(bytes);
    header.set_cksum();
    header.as_bytes().to_vec()
}

fn padded(content: &[u8]) -> Vec<u8> {
    let mut blocks = content.to_vec();
    blocks.resize(content.len().next_multiple_of(BLOCK as usize), 0);
    blocks
}

#[test]
fn finds_files_and_names_at_their_offsets() {
    let archive = archive();
    let (found, outcome) = files(&archive);
    assert_eq!(outcome, Ok(()));
    assert_eq!(found[0], ("a.jpg".to_owned(), 512, 600));
    assert_eq!(found[1], (format!("{}/b.cls", "long".repeat(60)), 3072, 1));
    assert_eq!(found[2], ("c.cls".to_owned(), 4096, 0));
    assert_eq!(archive[3072], b'3');
    // An archive may lack the end marker.
    assert_eq!(files(&archive[..4096]), (found.clone(), Ok(())));
    for (path, offset, _) in found {
        let mut read = |at: u64, out: &mut [u8]| read_at(&archive, at, out);
        assert_eq!(find_path(&mut read, archive.len() as u64, offset), Some(path));
    }
    let mut read = |at: u64, out: &mut [u8]| read_at(&archive, at, out);
    assert_eq!(find_path(&mut read, archive.len() as u64, 1024), None);
}

#[test]
fn applies_pax_records_to_one_or_all_entries() {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions([("path", b"deep/in\nside.png".as_slice()), ("size", b"5")]).unwrap();
    let mut archive = builder.into_inner().unwrap();
    archive.truncate(1024);
    archive.extend([header("short.png", b'0', 7), padded(b"12345")].concat());
    archive.extend([header("next.png", b'0', 1), padded(b"6")].concat());
    let (found, outcome) = files(&archive);
    let expected = [("deep/in\nside.png".to_owned(), 1536, 5), ("next.png".to_owned(), 2560, 1)];
    assert_eq!((found, outcome), (expected.to_vec(), Ok(())));

    // A record without a value removes a global one.
    let archive = [
        header("global", b'g', 9),
        padded(b"9 size=3\n"),
        header("a", b'0', 0),
        padded(b"abc"),
        header("local", b'x', 8),
        padded(b"8 size=\n"),
        header("b", b'0', 1),
        padded(b"d"),
    ];
    let (found, outcome) = files(&archive.concat());
    assert_eq!((found, outcome), (vec![("a".to_owned(), 1536, 3), ("b".to_owned(), 3584, 1)], Ok(())));
}

/// Some programs write the size of the file in the header of a hard link, others repeat the file.
#[test]
fn reads_hard_links_with_and_without_content() {
    let mut link = tar::Header::new_gnu();
    link.set_path("b").unwrap();
    link.set_link_name("a").unwrap();
    link.set_entry_type(tar::EntryType::Link);
    link.set_size(3);
    link.set_cksum();
    let (file, link) = ([header("a", b'0', 3), padded(b"abc")].concat(), link.as_bytes().to_vec());
    let last = [header("c", b'0', 1), padded(b"d")].concat();
    let (found, outcome) = files(&[file.clone(), link.clone(), last.clone()].concat());
    assert_eq!((found.len(), outcome), (2, Ok(())));
    let (found, outcome) = files(&[file, link, padded(b"abc"), last].concat());
    assert_eq!((&found[1], found.len(), outcome), (&("b".to_owned(), 1536, 3), 3, Ok(())));
}

#[test]
fn rejects_truncated_archives_and_other_files() {
    let archive = archive();
    for (end, before, problem) in [
        (300, 0, NOT_AN_ARCHIVE),
        (1000, 0, "the archive ends at byte 1000, inside a.jpg"),
        (1200, 0, "the archive ends at byte 1200, inside a.jpg"),
        (1700, 1, "the archive ends at byte 1700, inside a header"),
        (2100, 1, "the archive ends at byte 2100, inside a header's extensions"),
        (2560, 1, "the archive ends at byte 2560, before the entry of the last header"),
    ] {
        let (found, outcome) = files(&archive[..end]);
        assert_eq!((found.len(), outcome), (before, Err(problem.to_owned())), "{end}");
    }
    assert_eq!(files(&[b'x'; 2048]).1, Err(NOT_AN_ARCHIVE.to_owned()));
    for at in [0, 3584] {
        let mut damaged = archive.clone();
        damaged[at + 3] ^= 1;
        let problem = format!("invalid tar header at byte {at}");
        assert_eq!(files(&damaged).1, Err(problem));
    }
    // A name that requests more memory than any name needs.
    let hostile = [header("@", b'L', 2 << 20), vec![b'x'; 2 << 20]].concat();
    assert!(files(&hostile).1.unwrap_err().contains("bytes of extensions"));
    assert!(files(&header("a", b'M', 0)).1.unwrap_err().contains("multi-volume"));
    let twice = [archive.clone(), archive].concat();
    let problem = files(&twice).1.unwrap_err();
    assert!(problem.starts_with("another archive begins at byte 5120"), "{problem}");
}

/// Headers with signed checksums, and names with bytes beyond ASCII.
#[test]
fn accepts_signed_checksums() {
    let mut signed = header("n\u{e4}", b'0', 0);
    signed[148..156].fill(b' ');
    let sum: i64 = signed.iter().map(|&byte| i64::from(byte.cast_signed())).sum();
    signed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert_eq!(files(&signed), (vec![("n\u{e4}".to_owned(), 512, 0)], Ok(())));
}

#[test]
fn later_entries_replace_earlier_ones_but_not_their_hard_links() {
    let mut link = tar::Header::new_gnu();
    link.set_path("b").unwrap();
    link.set_link_name("a").unwrap();
    link.set_entry_type(tar::EntryType::Link);
    link.set_size(0);
    link.set_cksum();
    let one = [header("a", b'0', 1), padded(b"1")].concat();
    let two = [header("./a", b'0', 1), padded(b"2")].concat();
    let archive = [one.clone(), link.as_bytes().to_vec(), two].concat();
    let mut read = |offset: u64, out: &mut [u8]| read_at(&archive, offset, out);
    let tree = Tree::read(&mut read, archive.len() as u64).unwrap();
    let offset = |path: &[u8]| match tree.find(Tree::ROOT, path) {
        Ok(Some(Found::File(content))) => content.offset,
        other => panic!("{other:?}"),
    };
    assert_eq!((offset(b"a"), offset(b"b")), (2048, 512));

    let archive = [one, header("a/b", b'0', 0)].concat();
    let mut read = |offset: u64, out: &mut [u8]| read_at(&archive, offset, out);
    let problem = Tree::read(&mut read, archive.len() as u64).unwrap_err();
    assert!(problem.starts_with("a is both a folder and a file or link in the archive"), "{problem}");
}

/// Archives that are much smaller than their maps and names claim.
#[test]
fn memory_is_proportional_to_the_archive() {
    let deep = "a/".repeat(129);
    let archive =
        [header("@", b'L', deep.len() as u64), padded(deep.as_bytes()), header("", b'0', 0)].concat();
    let mut read = |offset: u64, out: &mut [u8]| read_at(&archive, offset, out);
    let problem = Tree::read(&mut read, archive.len() as u64).unwrap_err();
    assert!(problem.ends_with("is nested in more than 128 folders"), "{problem}");

    let map = format!("{}\n", u64::MAX / 4);
    let records = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n26 GNU.sparse.realsize=99\n";
    let archive = [
        header("x", b'x', records.len() as u64),
        padded(records),
        header("s", b'0', 512),
        padded(map.as_bytes()),
    ];
    let problem = files(&archive.concat()).1.unwrap_err();
    assert!(problem.starts_with("s is an unsupported sparse file: "), "{problem}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reads damaged archives whose headers have valid checksums.
    #[test]
    fn reading_any_archive_terminates(
        damage in prop::collection::vec((0..9 * 512_usize, any::<u8>()), 0..20),
        length in 0..=9 * 512_usize,
    ) {
        let records = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n26 GNU.sparse.realsize=99\n";
        let mut archive = [
            header("x", b'x', records.len() as u64),
            padded(records),
            header("train/a", b'0', 515),
            padded(b"2\n0\n2\n98\n1\n"),
            padded(b"abc"),
            header("b", b'S', 512),
            vec![0; 512],
            header("c", b'2', 0),
            header("train/a", b'1', 0),
        ]
        .concat();
        archive[5 * 512 + 386..][..24].copy_from_slice(b"00000000010 00000001000 ");
        archive[5 * 512 + 483..][..12].copy_from_slice(b"00000001750 ");
        for (at, byte) in damage {
            archive[at] = byte;
        }
        for block in archive.chunks_exact_mut(512) {
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            let stored: u32 = block[148..156].iter().map(|&byte| u32::from(byte)).sum();
            if block[148..156].iter().any(|&byte| byte != 0) {
                let sum = format!("{:06o}\0 ", sum - stored + 8 * 32);
                block[148..156].copy_from_slice(sum.as_bytes());
            }
        }
        archive.truncate(length);
        let _ = files(&archive);
        let mut read = |offset: u64, out: &mut [u8]| read_at(&archive, offset, out);
        if let Ok(tree) = Tree::read(&mut read, length as u64) {
            for folder in tree.folders() {
                for (name, _) in tree.children(folder) {
                    if let Ok(Some(Found::File(content))) = tree.find(folder, name) {
                        let mut out = vec![1; content.bytes.min(2000) as usize];
                        content.read_at(&mut read, 0, &mut out).unwrap();
                    }
                }
            }
        }
    }
}
