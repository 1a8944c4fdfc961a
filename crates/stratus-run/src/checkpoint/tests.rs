use proptest::prelude::*;

use super::*;
use crate::atomic::fault;

const FILES: [&str; 4] = [WEIGHTS, OPTIMIZER, STATE, MANIFEST];

fn tensors() -> Vec<Tensor> {
    vec![
        Tensor {
            name: "fc.weight".into(),
            shape: vec![2, 3],
            values: Values::F32(vec![0.0, -0.0, 1.5, f32::NAN, 1e-40, 3.0]),
        },
        Tensor { name: "bn1.num_batches_tracked".into(), shape: vec![], values: Values::I64(vec![-7]) },
        Tensor { name: "conv1.weight".into(), shape: vec![1, 0, 3], values: Values::F32(vec![]) },
    ]
}

fn save(checkpoints: &Checkpoints, iteration: u64, retention: &Retention) -> Result<SavedCheckpoint> {
    let owned = tensors();
    let refs: Vec<TensorRef<'_>> = owned.iter().map(Tensor::as_ref).collect();
    let state = State {
        epoch: 3,
        iteration,
        seed: u64::MAX,
        best: Some(BestCheckpoint { metric: "val_top1".into(), value: 0.1 + 0.2, epoch: 2, iteration: 1 }),
        positions: BTreeMap::from([("iterations.csv".into(), 123)]),
        ..Default::default()
    };
    let optimizer = refs[..1].to_vec();
    checkpoints.save(&state, &Tensors { weights: refs, optimizer, averaged: None }, retention)
}

fn folder() -> (tempfile::TempDir, Checkpoints) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
    (folder, checkpoints)
}

fn bits(tensors: &[Tensor]) -> Vec<u8> {
    let refs: Vec<TensorRef<'_>> = tensors.iter().map(Tensor::as_ref).collect();
    let mut out = Vec::new();
    write_safetensors(&mut out, &refs, &BTreeMap::new()).unwrap();
    out
}

#[test]
fn loaded_checkpoint_is_bit_identical() {
    let (_keep, checkpoints) = folder();
    assert!(checkpoints.load_latest().unwrap().checkpoint.is_none());
    let saved = save(&checkpoints, 42, &Retention::default()).unwrap();
    assert!(saved.path.ends_with("0000000042") && saved.prune_error.is_none());
    let loaded = checkpoints.load_latest().unwrap();
    assert!(loaded.skipped.is_empty());
    let loaded = loaded.checkpoint.unwrap();
    assert_eq!(bits(&loaded.weights), bits(&tensors()));
    assert_eq!(loaded.state.weights_sha256, saved.weights_sha256);
    assert_eq!(loaded.state.best.unwrap().value.to_bits(), (0.1f64 + 0.2).to_bits());
    assert_eq!((loaded.state.seed, loaded.state.positions["iterations.csv"]), (u64::MAX, 123));
    assert_eq!(loaded.weights[0].name, "bn1.num_batches_tracked");
    assert_eq!(loaded.optimizer.len(), 1);
}

#[test]
fn weights_checksum_covers_the_documented_bytes() {
    let tensor = TensorRef::f32("a", &[1], &[1.0]);
    let mut bytes = Vec::new();
    let mut word = |value: u64, rest: &[u8]| {
        bytes.extend_from_slice(&value.to_le_bytes());
        bytes.extend_from_slice(rest);
    };
    word(1, b"a");
    word(3, b"F32");
    word(1, &[]);
    word(1, &[]);
    word(4, &1.0f32.to_le_bytes());
    assert_eq!(weights_sha256(&[tensor]).unwrap(), hex(&Sha256::digest(&bytes)));
    let other = TensorRef::i64("b", &[], &[2]);
    let checksum = |tensors: &[TensorRef<'_>]| weights_sha256(tensors).unwrap();
    assert_eq!(checksum(&[tensor, other]), checksum(&[other, tensor]));
    assert_ne!(checksum(&[tensor]), checksum(&[TensorRef::f32("a", &[1, 1], &[1.0])]));
}

#[test]
fn keeps_the_newest_and_the_pinned_checkpoints() {
    let (_keep, checkpoints) = folder();
    let pinned = Retention { last: 2, pinned: Some(20) };
    for i in [10, 20, 30, 40, 50] {
        save(&checkpoints, i, &pinned).unwrap();
    }
    assert_eq!(checkpoints.list().unwrap(), [20, 40, 50]);
    save(&checkpoints, 45, &Retention { last: 0, pinned: None }).unwrap();
    assert_eq!(checkpoints.list().unwrap(), [45], "a restarted run removes later checkpoints");
    save(&checkpoints, 45, &Retention::default()).unwrap();
    assert_eq!(fs::read_dir(checkpoints.path(45).parent().unwrap()).unwrap().count(), 1);
}

/// The removal of an old checkpoint fails without free descriptors; the next save removes what it left.
#[test]
fn saving_removes_what_a_failed_removal_left() {
    let (_keep, checkpoints) = folder();
    save(&checkpoints, 1, &Retention::default()).unwrap();
    let left = atomic::temporary_path(&checkpoints.path(1)).unwrap();
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join(WEIGHTS), "part").unwrap();
    save(&checkpoints, 2, &Retention::default()).unwrap();
    assert!(!left.exists());
    assert_eq!(checkpoints.list().unwrap(), [1, 2]);
}

#[test]
fn skips_and_names_a_damaged_checkpoint() {
    for name in FILES {
        let (_keep, checkpoints) = folder();
        for i in [1, 2] {
            save(&checkpoints, i, &Retention::default()).unwrap();
        }
        let path = checkpoints.path(2).join(name);
        let bytes = fs::read(&path).unwrap();
        for length in (0..bytes.len()).step_by(13) {
            fs::write(&path, &bytes[..length]).unwrap();
            let recovery = checkpoints.load_latest().unwrap();
            assert_eq!(recovery.checkpoint.unwrap().state.iteration, 1, "{name} cut to {length}");
            assert_eq!(recovery.skipped[0].path, checkpoints.path(2));
            assert!(recovery.skipped[0].reason.contains(name), "{}", recovery.skipped[0].reason);
        }
        fs::remove_file(&path).unwrap();
        let recovery = checkpoints.load_latest().unwrap();
        assert!(recovery.checkpoint.is_some() && recovery.skipped[0].reason.contains(name));
        fs::remove_dir_all(checkpoints.path(1)).unwrap();
        let recovery = checkpoints.load_latest().unwrap();
        assert!(recovery.checkpoint.is_none() && recovery.skipped.len() == 1);
    }
}

/// Restarting would lose the work of checkpoints that another attempt may be able to read.
#[cfg(target_os = "linux")]
#[test]
fn checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged() {
    use std::os::unix::fs::symlink;
    let (_keep, checkpoints) = folder();
    for i in [1, 2] {
        save(&checkpoints, i, &Retention::default()).unwrap();
    }
    let replace = |iteration: u64, target: &Path| {
        let path = checkpoints.path(iteration).join(WEIGHTS);
        fs::remove_file(&path).unwrap();
        symlink(target, path).unwrap();
    };
    // A link to itself cannot be opened: another error than that of a missing file.
    replace(2, &checkpoints.path(2).join(WEIGHTS));
    let error = checkpoints.load_latest().unwrap_err().to_string();
    assert!(error.contains("0000000002/weights.safetensors"), "{error}");

    // Reading the first byte of a process's memory fails like a bad sector.
    let unreadable = Path::new("/proc/self/mem");
    replace(2, unreadable);
    let recovery = checkpoints.load_latest().unwrap();
    assert_eq!((recovery.checkpoint.unwrap().state.iteration, recovery.skipped.len()), (1, 1));
    replace(1, unreadable);
    let error = checkpoints.load_latest().unwrap_err().to_string();
    assert!(error.contains("0000000002/weights.safetensors: Input/output error"), "{error}");
}

#[test]
fn missing_key_of_the_state_is_named() {
    let (_keep, checkpoints) = folder();
    save(&checkpoints, 1, &Retention::default()).unwrap();
    let folder = checkpoints.path(1);
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let mut state: serde_json::Value = serde_json::from_slice(&read(STATE)).unwrap();
    state.as_object_mut().unwrap().remove("positions").unwrap();
    let state = serde_json::to_vec(&state).unwrap();
    let mut manifest: Manifest = serde_json::from_slice(&read(MANIFEST)).unwrap();
    let entry = FileEntry { bytes: state.len() as u64, sha256: sha256_hex([state.as_slice()]) };
    manifest.files.insert(STATE.to_owned(), entry);
    fs::write(folder.join(STATE), &state).unwrap();
    fs::write(folder.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let reason = &checkpoints.load_latest().unwrap().skipped[0].reason;
    assert!(
        reason.starts_with("state.json: ") && reason.contains("the key `positions` is missing"),
        "{reason}"
    );
}

#[test]
fn full_disk_keeps_the_last_checkpoint_and_leaves_no_temporaries() {
    let (_keep, checkpoints) = folder();
    let bytes = save(&checkpoints, 1, &Retention::default()).unwrap().bytes as usize;
    let mut failures = 0;
    for space in (0..bytes + 1000).step_by(7) {
        let Err(error) = fault::with_free_bytes(space, || save(&checkpoints, 2, &Retention::default()))
        else {
            break;
        };
        failures += 1;
        let error = error.to_string();
        assert!(error.contains(".tmp") && error.contains("free space"), "{error}");
        assert_eq!(checkpoints.list().unwrap(), [1]);
        assert_eq!(fs::read_dir(checkpoints.path(1).parent().unwrap()).unwrap().count(), 1);
        assert!(checkpoints.load(1).is_ok());
    }
    assert!(failures > bytes / 7, "{failures}");
    assert_eq!(checkpoints.list().unwrap(), [1, 2]);
}

#[test]
fn folder_of_a_killed_save_is_ignored_and_removed() {
    let (keep, checkpoints) = folder();
    save(&checkpoints, 1, &Retention::default()).unwrap();
    // The four files appear one after another in a temporary folder: stop in the middle of each.
    for killed_at in 0..FILES.len() {
        let leftover = atomic::temporary_path(&checkpoints.path(2)).unwrap();
        fs::create_dir(&leftover).unwrap();
        for (i, name) in FILES[..=killed_at].iter().enumerate() {
            let bytes = fs::read(checkpoints.path(1).join(name)).unwrap();
            let end = if i == killed_at { bytes.len() / 2 } else { bytes.len() };
            fs::write(leftover.join(name), &bytes[..end]).unwrap();
        }
        let recovery = checkpoints.load_latest().unwrap();
        assert!(recovery.checkpoint.is_some() && recovery.skipped.is_empty());
        let run = crate::RunDir::create_at(&keep.path().join(killed_at.to_string())).unwrap();
        fs::rename(keep.path().join("checkpoints"), run.checkpoints()).unwrap();
        drop(run.lock().unwrap());
        fs::rename(run.checkpoints(), keep.path().join("checkpoints")).unwrap();
        assert!(!leftover.exists());
        assert_eq!(checkpoints.list().unwrap(), [1]);
    }
}

#[test]
fn explains_a_file_in_place_of_the_folder() {
    let (keep, checkpoints) = folder();
    fs::write(keep.path().join("checkpoints"), b"").unwrap();
    let error = save(&checkpoints, 1, &Retention::default()).unwrap_err().to_string();
    assert!(error.contains("checkpoints") && error.contains("--out DIR"), "{error}");
}

#[test]
fn refuses_invalid_tensors_by_name() {
    let (_keep, checkpoints) = folder();
    let refuse = |tensors: &[TensorRef<'_>]| {
        let tensors = Tensors { weights: tensors.to_vec(), ..Tensors::default() };
        checkpoints.save(&State::default(), &tensors, &Retention::default()).unwrap_err().to_string()
    };
    let short = refuse(&[TensorRef::f32("w", &[2], &[1.0])]);
    assert!(short.contains("tensor w has 1 values for the shape [2]"), "{short}");
    let twice = refuse(&[TensorRef::f32("w", &[1], &[1.0]), TensorRef::i64("w", &[1], &[1])]);
    assert!(twice.contains("duplicate tensor name w"), "{twice}");
    let reserved = refuse(&[TensorRef::f32("__metadata__", &[1], &[1.0])]);
    assert!(reserved.contains("duplicate tensor name __metadata__"), "{reserved}");
    let huge = refuse(&[TensorRef::f32("w", &[usize::MAX, 2], &[])]);
    assert!(huge.contains("0 values"), "{huge}");
}

proptest! {
    #[test]
    fn changed_byte_neither_panics_nor_loads(
        file in 0usize..4, at: prop::sample::Index, flip in 1u8..,
    ) {
        let (_keep, checkpoints) = folder();
        save(&checkpoints, 1, &Retention::default()).unwrap();
        let path = checkpoints.path(1).join(FILES[file]);
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(&path, &bytes).unwrap();
        let loaded = checkpoints.load(1);
        // Only insignificant bytes of the manifest, such as white space, may change unnoticed.
        prop_assert!(loaded.is_err() || FILES[file] == MANIFEST);
    }

    #[test]
    fn safetensors_reader_never_panics(
        header: Vec<u8>, data: Vec<u8>, at: prop::sample::Index, byte: u8,
    ) {
        let _ = read_safetensors(&header);
        let framed = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        let _ = read_safetensors(&framed);
        let mut good = bits(&tensors());
        let at = at.index(good.len());
        good[at] = byte;
        let _ = read_safetensors(&good);
        good.truncate(at);
        let _ = read_safetensors(&good);
    }
}

#[test]
fn remove_all_removes_every_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
    checkpoints.remove_all().unwrap();
    for iteration in [0, 7] {
        let state = State { iteration, ..State::default() };
        checkpoints.save(&state, &Tensors::default(), &Retention::default()).unwrap();
    }
    assert_eq!(checkpoints.list().unwrap(), [0, 7]);
    checkpoints.remove_all().unwrap();
    assert!(checkpoints.load_latest().unwrap().checkpoint.is_none());
    assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 0);
}
