//! Parsers of bytes for `fuzz/`, which are otherwise called with files only.

use std::io;

use crate::archive::{Entries, Found, Kind, Tree};
use crate::decode::decode_labels;
use crate::geometry::{DctScale, Region};
use crate::{ImageDecoder, JpegLibrary};

/// Decodes an image whole and in part.
pub fn image(file: &[u8], library: &JpegLibrary) {
    let mut decoder = ImageDecoder::new(library);
    let mut pixels = Vec::new();
    let whole = decoder.decode(file, &mut pixels);
    if let Ok(decoded) = &whole {
        let [channels, height, width] = decoded.shape;
        assert_eq!(pixels.len(), channels * height * width, "pixels of {:?}", decoded.shape);
    }
    let mut copy = file.to_vec();
    let upper_half = |image: &crate::decode::Decoded| {
        let [_, height, width] = image.shape;
        Region { rows: 0..height.div_ceil(2), columns: 0..width, scale: DctScale::Full }
    };
    let part = decoder.decode_region(&mut copy, &mut pixels, &upper_half);
    assert!(whole.is_err() || part.is_ok(), "a part is an error of an image that can be decoded: {part:?}");
    assert_eq!(copy, file, "the file is restored");
}

/// Decodes a file of labels.
pub fn labels(file: &[u8]) {
    let mut out = Vec::new();
    let _ = decode_labels(file, &mut out);
}

/// Reads a zip archive as a folder, and files of it.
pub fn zip(archive: &[u8]) {
    let Ok(tree) = Tree::read_zip(archive, archive.len() as u64) else { return };
    let mut read_at = |offset: u64, out: &mut [u8]| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = archive.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let mut out = [0; 512];
    for folder in tree.folders() {
        let names: Vec<Vec<u8>> = tree.children(folder).map(|(name, _)| name.to_vec()).collect();
        for name in names.iter().take(64) {
            let Ok(Some(Found::File(content))) = tree.find(folder, name) else { continue };
            let _ = content.check_proportion();
            // Longer files are read up to their end only if they are in proportion.
            for at in [0, content.bytes.min(1 << 20) / 2] {
                let count = (content.bytes - at).min(out.len() as u64) as usize;
                let _ = content.read_at(&mut read_at, at, &mut out[..count]);
            }
        }
    }
}

/// Reads an archive as its entries and as a folder, and every file of it.
pub fn tar(archive: &[u8]) {
    let mut read_at = |offset: u64, out: &mut [u8]| {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = archive.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    let length = archive.len() as u64;
    let mut contents = Vec::new();
    let mut entries = Entries::new(&mut read_at, 0, length);
    while let Ok(Some(entry)) = entries.next() {
        assert!(
            !entry.path.split(|&byte| byte == b'/').any(|part| part == b".."),
            "a path leaves the folder"
        );
        if let Kind::File(content) = entry.kind {
            contents.push(content);
        }
    }
    let mut out = [0; 512];
    for content in contents.iter().take(64) {
        for at in [0, content.bytes / 2] {
            let count = (content.bytes - at).min(out.len() as u64) as usize;
            let _ = content.read_at(&mut read_at, at, &mut out[..count]);
        }
    }
    if let Ok(tree) = Tree::read(&mut read_at, length) {
        for folder in tree.folders() {
            let names: Vec<Vec<u8>> = tree.children(folder).map(|(name, _)| name.to_vec()).collect();
            for name in names.iter().take(64) {
                let _: Result<Option<Found>, String> = tree.find(folder, name);
            }
        }
    }
}
