//! TensorBoard event files: their content, and no duplicate steps after a resume.

#![cfg(unix)]

use crate::common::{PER_EPOCH, TestDir};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The values of a file by tag: steps and numbers.
type Scalars = BTreeMap<String, Vec<(u64, f32)>>;

/// CRC-32C by its definition, bit by bit, masked as in TFRecord.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let crc = !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The fields of a message: numbers, and the bytes of fields with a length or a fixed size.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (value, length) = match key & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (0, 8),
            2 => (0, varint(&mut bytes) as usize),
            5 => (0, 4),
            kind => panic!("fields of kind {kind} are not written"),
        };
        found.push((key >> 3, value, &bytes[..length]));
        bytes = &bytes[length..];
    }
    found
}

/// Reads a complete event file.
fn read(path: &Path) -> Scalars {
    let bytes = fs::read(path).unwrap();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (mut rest, mut scalars, mut events) = (&bytes[..], Scalars::new(), 0);
    while !rest.is_empty() {
        let (length, after) = rest.split_at(8);
        assert_eq!(u64::from(masked_crc32c(length)), number(&after[..4]));
        let (event, after) = after[4..].split_at(number(length) as usize);
        assert_eq!(u64::from(masked_crc32c(event)), number(&after[..4]));
        rest = &after[4..];
        let all = fields(event);
        let wall = f64::from_le_bytes(all.iter().find(|field| field.0 == 1).unwrap().2.try_into().unwrap());
        assert!(wall > 1.7e9, "{wall}");
        let step = all.iter().find(|field| field.0 == 2).map_or(0, |field| field.1);
        if events == 0 {
            assert_eq!((all.last().unwrap().0, all.last().unwrap().2), (3, &b"brain.Event:2"[..]));
        }
        for (_, _, summary) in all.iter().filter(|field| field.0 == 5) {
            for (_, _, value) in fields(summary) {
                let value = fields(value);
                let tag = String::from_utf8(value[0].2.to_vec()).unwrap();
                let number = f32::from_le_bytes(value[1].2.try_into().unwrap());
                scalars.entry(tag).or_default().push((step, number));
            }
        }
        events += 1;
    }
    scalars
}

#[test]
fn tensorboard_events_match_the_tables_without_duplicates() {
    let dir = TestDir::new();
    let board = ["--set", "train.tensorboard=true"];
    dir.train("whole", 2, &board).expect(0);
    let whole = read(&dir.path("whole/tensorboard/events.out.tfevents.stratus"));
    let steps: Vec<u64> = whole["iteration/loss"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, (1..=2 * PER_EPOCH as u64).collect::<Vec<_>>());
    let table = fs::read_to_string(dir.path("whole/iterations.csv")).unwrap();
    let of_table = |column: usize| -> Vec<f32> {
        table.lines().skip(1).map(|line| line.split(',').nth(column).unwrap().parse().unwrap()).collect()
    };
    let of_events = |tag: &str| whole[tag].iter().map(|(_, value)| *value).collect::<Vec<f32>>();
    assert_eq!(of_events("iteration/loss"), of_table(2));
    assert_eq!(of_events("iteration/top1"), of_table(3));
    assert_eq!(of_events("iteration/learning_rate"), of_table(5));
    assert!(of_events("iteration/images_per_second").iter().all(|rate| *rate > 0.0));
    let ends = [PER_EPOCH as u64, 2 * PER_EPOCH as u64];
    for tag in ["epoch/train_loss", "epoch/val_loss", "epoch/val_top1", "share/fc", "share/data_wait"] {
        assert_eq!(whole[tag].iter().map(|(step, _)| *step).collect::<Vec<_>>(), ends, "{tag}");
    }
    // Fractions add up to one.
    for end in 0..2 {
        let shares = whole.iter().filter(|(tag, _)| tag.starts_with("share/"));
        let sum: f32 = shares.map(|(_, values)| values[end].1).sum();
        assert!((90.0..=100.1).contains(&sum), "{sum}");
    }

    // A run that was stopped after an epoch and resumed, with events written after the checkpoint.
    dir.train("stopped", 2, &[&board[..], &["--until-epoch", "1"]].concat()).expect(0);
    let path = dir.path("stopped/tensorboard/events.out.tfevents.stratus");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 300;
    bytes.extend_from_within(last..);
    fs::write(&path, bytes).unwrap();
    dir.run(&["train", "stopped"]).expect(0);
    let stopped = read(&path);
    for tag in ["iteration/loss", "iteration/top1", "iteration/learning_rate", "epoch/val_loss"] {
        assert_eq!(stopped[tag], whole[tag], "{tag}");
    }
    assert_eq!(
        stopped["iteration/images_per_second"].len(),
        whole["iteration/images_per_second"].len(),
        "times are others, steps the same"
    );
    // Off by default.
    dir.train("without", 1, &[]).expect(0);
    assert!(!dir.path("without/tensorboard").exists());
}
