//! The record of an experiment's data set, which a run keeps.

use super::Datasets;
use crate::Experiment;
use stratus_data::Fingerprint;
use stratus_data::fingerprint::{FileFingerprint, FolderFingerprint};
use stratus_run::data::{DataRecord, FileRecord, FolderRecord, PartRecord};

/// The record of an experiment's open data set.
pub(crate) fn data_record(experiment: &Experiment, datasets: &Datasets) -> DataRecord {
    let training = Fingerprint::of(datasets.train.as_ref());
    let validation = Fingerprint::of(datasets.validation.as_ref());
    let (images, batch) = (training.samples, experiment.train.batch_size.max(1) as u64);
    let iterations = if experiment.data.drop_last { images / batch } else { images.div_ceil(batch) };
    let classes = training.classes.clone();
    DataRecord::new(&experiment.data.name, classes, iterations, [training, validation].map(part_record))
}

fn part_record(part: Fingerprint) -> PartRecord {
    let folder =
        |FolderFingerprint { path, files, bytes, sha256 }| FolderRecord { path, files, bytes, sha256 };
    let file = |FileFingerprint { path, bytes, sha256 }| FileRecord { path, bytes, sha256 };
    PartRecord {
        images: part.samples,
        labels_sha256: part.labels_sha256,
        memory_sha256: part.memory_sha256,
        folders: part.folders.into_iter().map(folder).collect(),
        files: part.files.into_iter().map(file).collect(),
    }
}
