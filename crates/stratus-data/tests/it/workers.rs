//! Several workers together get the same batches as a single one.

use std::path::Path;
use std::sync::Arc;

use stratus_data::datasets::SyntheticOptions;
use stratus_data::{
    Augment, BatchBuffer, BatchSlice, BatchStride, Dataset, LastBatch, Loader, LoaderConfig, LoaderError,
    Mix, OpenOptions, Order, Split, open,
};

fn set(images: usize) -> Arc<dyn Dataset> {
    let synthetic = SyntheticOptions { images, classes: 5, ..SyntheticOptions::default() };
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
        mix: Mix { mixup: 0.8, cutmix: 1.0, probability: 0.9 },
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

/// The image rows and the labels of a batch.
fn rows(batch: &BatchBuffer) -> (&[u8], &[i32]) {
    let row_bytes = batch.images.len() / (batch.labels.len() / 3);
    (&batch.images[..batch.samples * row_bytes], &batch.labels[..batch.samples * 3])
}

/// Eight parts for one, two, four and eight workers. Samples are mixed within their part, so the result does
/// not depend on the assignment. The last batch of an epoch has 8 samples, one per part.
#[test]
fn slices_are_rows_of_the_same_batches() {
    let slice = |first, count| BatchSlice { parts: 8, first, count };
    let whole = all(40, LoaderConfig { slice: slice(0, 8), ..config() });
    assert_eq!(whole.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [16, 16, 8, 16, 16, 8]);
    for workers in [2, 4, 8] {
        let count = 8 / workers;
        let shares: Vec<_> = (0..workers)
            .map(|worker| all(40, LoaderConfig { slice: slice(worker * count, count), ..config() }))
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
    // With several parts, samples are mixed within them, not within the whole batch.
    let other = all(40, config());
    assert_ne!(rows(&other[0]).1, rows(&whole[0]).1);
}

#[test]
fn strides_are_batches_of_the_same_epoch() {
    let measuring = || LoaderConfig { order: Order::Sequential, epochs: Some(3), ..LoaderConfig::new(8) };
    let measuring = || LoaderConfig { last: LastBatch::Keep, ..measuring() };
    let whole = all(37, measuring());
    assert_eq!(whole.len(), 15);
    for step in [2, 3, 4] {
        let strides: Vec<_> = (0..step)
            .map(|first| all(37, LoaderConfig { stride: BatchStride { first, step }, ..measuring() }))
            .collect();
        assert_eq!(strides.iter().map(Vec::len).sum::<usize>(), 15);
        for expected in &whole {
            let stride = &strides[(expected.index % step) as usize];
            let same = |batch: &&BatchBuffer| (batch.epoch, batch.index) == (expected.epoch, expected.index);
            let found = stride.iter().find(same).unwrap();
            assert_eq!((&*found.images, &found.indices), (&*expected.images, &expected.indices));
        }
    }
}

#[test]
fn rejects_invalid_slices_and_strides() {
    let error = |config: LoaderConfig, images: usize| match Loader::new(set(images), config) {
        Err(LoaderError::Configuration { key, problem }) => format!("{key} {problem}"),
        other => panic!("{other:?}"),
    };
    let slice = |parts, first, count| LoaderConfig { slice: BatchSlice { parts, first, count }, ..config() };
    assert_eq!(error(slice(3, 0, 1), 32), "slice a batch of 16 samples cannot be divided into 3 equal parts");
    assert_eq!(error(slice(8, 0, 1), 36), "slice a batch of 4 samples cannot be divided into 8 equal parts");
    assert_eq!(error(slice(8, 6, 4), 32), "slice is 4 parts starting at 6, but there are 8");
    let stride = LoaderConfig { stride: BatchStride { first: 2, step: 2 }, ..config() };
    assert_eq!(
        error(stride, 32),
        "stride first batch 2 must be below the step 2; start must be epoch 0, batch 0"
    );
}
