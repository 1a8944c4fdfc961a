//! The record of an experiment's data set, which a run stores.

use super::Datasets;
use stratus_data::Fingerprint;
use stratus_data::fingerprint::{FileFingerprint, FolderFingerprint};
use stratus_experiment::Experiment;
use stratus_run::data::{DataRecord, FileRecord, FolderRecord, SplitRecord};

/// Creates the record of an experiment's open data set.
pub(crate) fn data_record(experiment: &Experiment, datasets: &Datasets) -> DataRecord {
    let training = Fingerprint::compute(datasets.train.as_ref());
    let validation = Fingerprint::compute(datasets.validation.as_ref());
    let (images, batch) = (training.samples, experiment.train.batch_size.max(1) as u64);
    let iterations = if experiment.data.drop_last { images / batch } else { images.div_ceil(batch) };
    let classes = training.classes.clone();
    DataRecord::new(&experiment.data.name, classes, iterations, [training, validation].map(split_record))
}

fn split_record(split: Fingerprint) -> SplitRecord {
    let folder =
        |FolderFingerprint { path, files, bytes, sha256 }| FolderRecord { path, files, bytes, sha256 };
    let file = |FileFingerprint { path, bytes, sha256 }| FileRecord { path, bytes, sha256 };
    SplitRecord {
        images: split.samples,
        labels_sha256: split.labels_sha256,
        memory_sha256: split.memory_sha256,
        folders: split.folders.into_iter().map(folder).collect(),
        files: split.files.into_iter().map(file).collect(),
    }
}
