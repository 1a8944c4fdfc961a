//! What several workers get of the same batches: together, what one gets.

use std::path::Path;
use std::sync::Arc;

use stratus_data::datasets::synthetic::Size;
use stratus_data::{
    Augment, BatchBuffer, Dataset, LastBatch, Loader, LoaderConfig, LoaderError, Mix, OpenOptions, Order,
    Share, Split, Turn, open,
};

fn set(images: usize) -> Arc<dyn Dataset> {
    let synthetic = Size { images, classes: 5, ..Size::default() };
    let options = OpenOptions { synthetic, shape: [3, 8, 9], ..OpenOptions::default() };
    Arc::from(open("synthetic", Path::new(""), Split::Train, &options).unwrap())
}

fn config() -> LoaderConfig {
    LoaderConfig {
        seed: 11,
        workers: 2,
        epochs: Some(2),
        last: LastBatch::Keep,
        augment: Augment { shift: 2, flip: true, ..Augment::default() },
        mix: Mix { mixup: 0.8, cutmix: 1.0, of_samples: 0.9 },
        ..LoaderConfig::new(16)
    }
}

fn all(images: usize, config: LoaderConfig) -> Vec<BatchBuffer> {
    let mut loader = Loader::new(set(images), config).unwrap();
    let mut batches = Vec::new();
    while let Some(buffer) = loader.next().unwrap() {
        batches.push(buffer.clone());
        loader.recycle(buffer);
    }
    batches
}

/// Rows of a batch, and labels of a row.
fn rows(batch: &BatchBuffer) -> (&[u8], &[i32]) {
    let whole = batch.images.len() / (batch.labels.len() / 3);
    (&batch.images[..batch.samples * whole], &batch.labels[..batch.samples * 3])
}

/// Eight parts: for one worker, for two, four, eight. Samples are mixed with those of their part, so that
/// nothing depends on who has it; the last batch of an epoch has 8 samples, one for each part.
#[test]
fn shares_are_rows_of_the_same_batches() {
    let share = |first, count| Share { parts: 8, first, count };
    let whole = all(40, LoaderConfig { share: share(0, 8), ..config() });
    assert_eq!(whole.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [16, 16, 8, 16, 16, 8]);
    for workers in [2, 4, 8] {
        let count = 8 / workers;
        let shares: Vec<_> = (0..workers)
            .map(|worker| all(40, LoaderConfig { share: share(worker * count, count), ..config() }))
            .collect();
        for (number, whole) in whole.iter().enumerate() {
            let (mut images, mut labels, mut indices) = (Vec::new(), Vec::new(), Vec::new());
            for share in &shares {
                let batch = &share[number];
                assert_eq!(
                    (batch.epoch, batch.index, batch.samples),
                    (whole.epoch, whole.index, whole.samples / workers)
                );
                images.extend_from_slice(rows(batch).0);
                labels.extend_from_slice(rows(batch).1);
                indices.extend_from_slice(&batch.indices);
            }
            assert_eq!((&images[..], &labels[..]), rows(whole), "batch {number} of {workers} workers");
            assert_eq!(indices, whole.indices);
        }
    }
    // Parts are not the whole batch: pairs are made within them.
    let other = all(40, config());
    assert_ne!(rows(&other[0]).1, rows(&whole[0]).1);
}

#[test]
fn turns_are_batches_of_the_same_epoch() {
    let measuring = || LoaderConfig { order: Order::Sequential, epochs: Some(3), ..LoaderConfig::new(8) };
    let measuring = || LoaderConfig { last: LastBatch::Keep, ..measuring() };
    let whole = all(37, measuring());
    assert_eq!(whole.len(), 15);
    for of in [2, 3, 4] {
        let turns: Vec<_> =
            (0..of).map(|first| all(37, LoaderConfig { turn: Turn { first, of }, ..measuring() })).collect();
        assert_eq!(turns.iter().map(Vec::len).sum::<usize>(), 15);
        for expected in &whole {
            let turn = &turns[(expected.index % of) as usize];
            let same = |batch: &&BatchBuffer| (batch.epoch, batch.index) == (expected.epoch, expected.index);
            let found = turn.iter().find(same).unwrap();
            assert_eq!((&*found.images, &found.indices), (&*expected.images, &expected.indices));
        }
    }
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let wrong = |config: LoaderConfig, images: usize| match Loader::new(set(images), config) {
        Err(LoaderError::Configuration { key, problem }) => format!("{key} {problem}"),
        other => panic!("{other:?}"),
    };
    let share = |parts, first, count| LoaderConfig { share: Share { parts, first, count }, ..config() };
    assert_eq!(wrong(share(3, 0, 1), 32), "share cuts batches into 3 equal parts, and one has 16 samples");
    assert_eq!(wrong(share(8, 0, 1), 36), "share cuts batches into 8 equal parts, and one has 4 samples");
    assert_eq!(wrong(share(8, 6, 4), 32), "share is 4 parts from 6 on, of 8");
    let turn = LoaderConfig { turn: Turn { first: 2, of: 2 }, ..config() };
    assert_eq!(
        wrong(turn, 32),
        "turn is number 2 of 2 that take turns; it is below 2, from the start of an epoch"
    );
}
