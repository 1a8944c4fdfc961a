//! Fixtures and hand-written archives.

use std::path::PathBuf;

use stratus_weights::{Result, WeightsFile};

/// The path of a file written by `scripts/fixtures/weights.py`.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

pub fn open(name: &str) -> Result<WeightsFile> {
    WeightsFile::open(path(name))
}

/// The values of the script: element i of n is (i - n / 3) / 4.
pub fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 - (n / 3) as f32) / 4.0).collect()
}

/// A zip archive of stored entries.
pub fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut out);
    for (name, data) in entries {
        let (mut entry, config) = archive.new_file(*name).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        std::io::Write::write_all(&mut writer, data).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    out
}

/// A PyTorch file with one tensor, `t`, of float32.
pub fn one_tensor(storage: &[f32], elements: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}".to_vec();
    text(&mut pickle, "t");
    pickle.extend_from_slice(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text(&mut pickle, "storage");
    pickle.extend_from_slice(b"ctorch\nFloatStorage\n");
    text(&mut pickle, "0");
    text(&mut pickle, "cpu");
    int(&mut pickle, elements);
    pickle.extend_from_slice(b"tQ");
    int(&mut pickle, offset);
    for numbers in [shape, strides] {
        pickle.push(b'(');
        numbers.iter().for_each(|&n| int(&mut pickle, n));
        pickle.push(b't');
    }
    pickle.extend_from_slice(b"\x89NtRs.");
    let data: Vec<u8> = storage.iter().flat_map(|v| v.to_le_bytes()).collect();
    archive(&[("a/data.pkl", &pickle), ("a/byteorder", b"little"), ("a/data/0", &data)])
}

fn text(pickle: &mut Vec<u8>, text: &str) {
    pickle.push(b'X');
    pickle.extend_from_slice(&(text.len() as u32).to_le_bytes());
    pickle.extend_from_slice(text.as_bytes());
}

fn int(pickle: &mut Vec<u8>, value: i64) {
    pickle.extend_from_slice(b"\x8a\x08");
    pickle.extend_from_slice(&value.to_le_bytes());
}
