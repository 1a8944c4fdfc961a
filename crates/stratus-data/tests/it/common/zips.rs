//! Zip archives for tests.

use std::io::Write;

use flate2::{Compression, write::DeflateEncoder};
use rawzip::path::EntryPath;
use rawzip::{CompressionMethod, ZipArchiveWriter};

/// A zip archive of files, by their names.
pub fn pack(files: &[(impl AsRef<str>, &[u8])], deflated: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut archive = ZipArchiveWriter::new(&mut out);
    let method = if deflated { CompressionMethod::DEFLATE } else { CompressionMethod::STORE };
    for (name, content) in files {
        let file = archive.new_file(EntryPath::verbatim(name.as_ref().as_bytes())).compression_method(method);
        let (mut entry, config) = file.start().unwrap();
        let descriptor = if deflated {
            let mut writer = config.wrap(DeflateEncoder::new(&mut entry, Compression::default()));
            writer.write_all(content).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        } else {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(content).unwrap();
            writer.finish().unwrap().1
        };
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    out
}
