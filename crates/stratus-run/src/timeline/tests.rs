use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::format::{PREAMBLE_BYTES, read_leb128};
use super::*;
use crate::layout::TIMELINE_RECORDS;

fn program(name: &str, slots: usize) -> Program {
    let slot = |i: usize| Slot {
        layers: if i == 0 { Vec::new() } else { vec![format!("conv{i}")] },
        kind: "conv2d".into(),
        phase: if i == 0 { Phase::DataWait } else { Phase::Forward },
        device: "cpu".into(),
    };
    Program {
        name: name.into(),
        purpose: Purpose::Train,
        batch_size: 8,
        slots: (0..slots).map(slot).collect(),
    }
}

fn read_all(folder: &Path) -> (Vec<Iteration>, u64) {
    let mut reader = TimelineReader::open(folder).unwrap();
    let (mut iteration, mut all) = (Iteration::default(), Vec::new());
    let mut heads = TimelineReader::open(folder).unwrap();
    let mut head = Iteration::default();
    while reader.read(&mut iteration).unwrap() {
        assert!(heads.read_head(&mut head).unwrap());
        assert_eq!(head, Iteration { ns: Vec::new(), ..iteration.clone() });
        all.push(iteration.clone());
    }
    assert!(!heads.read_head(&mut head).unwrap());
    (all, reader.torn_bytes().unwrap())
}

/// Writes two programs, the second registered late; returns the position after each iteration.
fn sample(folder: &Path, from: u64, to: u64) -> Vec<u64> {
    let mut writer = TimelineWriter::open(folder).unwrap();
    let full = writer.register(&program("train", 3)).unwrap();
    let mut ends = vec![writer.position()];
    for i in from..=to {
        if i % 3 == 0 {
            let tail = writer.register(&program("tail", 2)).unwrap();
            writer.append(tail, 1, i, 1000 * i, &[i, 1 << (i + 30)]).unwrap();
        } else {
            writer.append(full, 1, i, 1000 * i, &[i, 300, u64::MAX]).unwrap();
        }
        ends.push(writer.position());
    }
    ends
}

#[test]
fn truncated_file_keeps_complete_records_and_can_be_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let ends = sample(folder.path(), 1, 4);
    let path = folder.path().join(TIMELINE_RECORDS);
    let bytes = fs::read(&path).unwrap();
    let (all, torn) = read_all(folder.path());
    assert_eq!((all.len(), torn), (4, 0));
    assert_eq!(all[2], Iteration { program: 1, epoch: 1, iteration: 3, wall_ns: 3000, ns: vec![3, 1 << 33] });
    for length in 0..=bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let whole = ends.iter().skip(1).filter(|&&end| end <= length as u64).count();
        assert_eq!(read_all(folder.path()).0, all[..whole], "cut to {length}");
        sample(folder.path(), 7, 7);
        let (again, torn) = read_all(folder.path());
        assert_eq!((again.len(), torn), (whole + 1, 0), "appended after a cut to {length}");
    }
}

#[test]
fn invalid_tail_counts_as_torn() {
    let folder = tempfile::tempdir().unwrap();
    sample(folder.path(), 1, 4);
    let path = folder.path().join(TIMELINE_RECORDS);
    let bytes = fs::read(&path).unwrap();
    for tail in [vec![0; 40], vec![0xff; 40], vec![3; 9]] {
        fs::write(&path, [bytes.as_slice(), &tail].concat()).unwrap();
        let (all, torn) = read_all(folder.path());
        assert_eq!((all.len(), torn), (4, tail.len() as u64));
    }
}

#[test]
fn rewriting_after_truncation_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let ends = sample(folder.path(), 1, 7);
    let path = folder.path().join(TIMELINE_RECORDS);
    let bytes = fs::read(&path).unwrap();
    for (kept, &end) in ends.iter().enumerate() {
        TimelineWriter::resume_at(folder.path(), end).unwrap();
        sample(folder.path(), kept as u64 + 1, 7);
        assert_eq!(fs::read(&path).unwrap(), bytes, "from iteration {kept}");
    }
    let error = TimelineWriter::resume_at(folder.path(), 1 << 40).unwrap_err().to_string();
    assert!(error.contains("checkpoint recorded"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert!(TimelineWriter::resume_at(folder.path(), 0).unwrap().position() == PREAMBLE_BYTES);
}

#[test]
fn refuses_invalid_calls_and_foreign_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TimelineWriter::open(folder.path()).unwrap();
    let id = writer.register(&program("train", 3)).unwrap();
    let error = writer.append(id, 1, 5, 0, &[1]).unwrap_err().to_string();
    assert!(error.contains("iteration 5 has 1 times for 3 slots"), "{error}");
    writer.truncate_to(0).unwrap();
    let error = writer.append(id, 1, 5, 0, &[1]).unwrap_err().to_string();
    assert!(error.contains("unregistered program"), "{error}");
    drop(writer);
    let path = folder.path().join(TIMELINE_RECORDS);
    fs::write(&path, b"something else").unwrap();
    assert!(TimelineReader::open(folder.path()).unwrap_err().to_string().contains("not a timeline"));
    TimelineWriter::open(folder.path()).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), b"something else", "a foreign file is left alone");
    fs::write(&path, b"STRATUSL\x09\0\0\0").unwrap();
    assert!(TimelineReader::open(folder.path()).unwrap_err().to_string().contains("version 9"));
}

#[test]
fn phases_of_later_versions_are_read_as_other() {
    let later = r#"{"layers": [], "kind": "", "phase": "teleportation", "device": "cpu"}"#;
    let slot: Slot = serde_json::from_str(later).unwrap();
    assert_eq!(slot.phase, Phase::Other);
    for phase in [Phase::BackwardData, Phase::DataWait, Phase::Other] {
        assert_eq!(serde_json::to_string(&phase).unwrap(), format!("\"{}\"", phase.name()));
    }
}

proptest! {
    #[test]
    fn leb128_survives_a_round_trip(value: u64) {
        let mut bytes = Vec::new();
        stratus_base::protobuf::write_varint(&mut bytes, value);
        let mut rest = bytes.as_slice();
        prop_assert_eq!(read_leb128(&mut rest), Some(value));
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn reader_never_panics(at in 0usize..2000, byte: u8, noise: Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        sample(folder.path(), 1, 4);
        let path = folder.path().join(TIMELINE_RECORDS);
        let mut bytes = fs::read(&path).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.extend_from_slice(&noise);
        fs::write(&path, &bytes).unwrap();
        if let Ok(mut reader) = TimelineReader::open(folder.path()) {
            let mut iteration = Iteration::default();
            while let Ok(true) = reader.read(&mut iteration) {}
        }
        let _ = TimelineWriter::open(folder.path());
    }
}
