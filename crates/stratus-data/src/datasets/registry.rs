//! All data sets, by name.

use std::io;
use std::path::Path;

use stratus_base::nearest;

use super::{camvid, cifar, cityscapes, coco, folder, mnist, packed, shards, synthetic, table};
use crate::dataset::Dataset;
use crate::datasets::entry::{DatasetEntry, OpenOptions, TableOptions};
use crate::datasets::split::{Split, SplitMethod};
use crate::decode::JpegLibrary;
use crate::error::DataError;

/// Data sets that can be split by lists or a seed.
const SPLITTABLE_DATASETS: [&str; 3] = ["folder", "camvid", "table"];

/// Data sets whose root may be a file, such as an archive.
const MAY_BE_FILES: [&str; 3] = ["folder", "synthetic", "table"];

/// Data sets whose samples are pixels, without image files to decode.
const WITHOUT_IMAGE_FILES: [&str; 5] = ["mnist", "cifar10", "cifar100", "cifar100_coarse", "synthetic"];

/// Every data set, by name.
pub static REGISTRY: &[&DatasetEntry] = &[
    &mnist::ENTRY,
    &cifar::CIFAR10,
    &cifar::CIFAR100,
    &cifar::CIFAR100_COARSE,
    &folder::ENTRY,
    &table::ENTRY,
    &camvid::ENTRY,
    &cityscapes::ENTRY,
    &coco::ENTRY,
    &coco::LABELS,
    &coco::MULTILABEL,
    &shards::ENTRY,
    &synthetic::ENTRY,
];

/// The registry entry for `name`.
///
/// # Errors
///
/// [`DataError::UnknownDataset`], with the nearest known name.
pub fn entry(name: &str) -> Result<&'static DatasetEntry, DataError> {
    REGISTRY.iter().copied().find(|entry| entry.name == name).ok_or_else(|| DataError::UnknownDataset {
        name: name.to_owned(),
        nearest: nearest(name, REGISTRY.iter().map(|entry| entry.name)).map(str::to_owned),
        known: REGISTRY.iter().map(|entry| entry.name.to_owned()).collect(),
    })
}

/// Opens a split of the data set `name`, whose files are in the folder `root`.
///
/// # Errors
///
/// [`DataError`]: unknown name, missing or damaged files, and with `options.verify` content that differs from
/// the published one.
pub fn open(
    name: &str,
    root: &Path,
    split: Split,
    options: &OpenOptions,
) -> Result<Box<dyn Dataset>, DataError> {
    let entry = entry(name)?;
    if !WITHOUT_IMAGE_FILES.contains(&name) {
        JpegLibrary::check_named()?;
    }
    packed::reject_archive(root, name == folder::ENTRY.name)?;
    if !MAY_BE_FILES.contains(&name) && root.is_file() {
        return Err(packed::not_a_folder(name, root));
    }
    let key = match &options.split_method {
        SplitMethod::Published | SplitMethod::Unsplit => None,
        SplitMethod::Seeded(_) => Some("data.split_seed"),
        SplitMethod::Lists(_) => Some("data.lists"),
    };
    let TableOptions { columns, separator, group_by, .. } = &options.table;
    let table_keys = [
        ("data.columns", !columns.is_empty()),
        ("data.label_separator", separator.is_some()),
        ("data.group_by", group_by.is_some()),
    ];
    if let Some((key, _)) = table_keys.into_iter().find(|(_, is_set)| *is_set && name != table::ENTRY.name) {
        return Err(DataError::InvalidOption {
            key,
            problem: format!("`{name}` is not a table; remove this key"),
        });
    }
    match key {
        Some(key) if !SPLITTABLE_DATASETS.contains(&name) => Err(DataError::InvalidOption {
            key,
            problem: format!("`{name}` has published splits; remove this key"),
        }),
        _ => (entry.open)(root, split, options).map_err(|error| match error {
            DataError::Unreadable { path, cause }
                if path == root && cause.kind() == io::ErrorKind::NotFound =>
            {
                DataError::MissingRoot { root: path }
            }
            other => other,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_nearest_name() {
        let known = REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        let message = entry("minst").unwrap_err().to_string();
        assert_eq!(message, format!("unknown data set `minst`, did you mean `mnist`?; available: {known}"));
        let message = entry("zzz").unwrap_err().to_string();
        assert_eq!(message, format!("unknown data set `zzz`; available: {known}"));
        assert!(
            ["val", "valid", "validation"]
                .iter()
                .all(|name| name.parse::<Split>().is_ok_and(|split| split == Split::Validation))
        );
        let message = "trian".parse::<Split>().unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown split `trian`, did you mean `train`?; available: train, validation, test"
        );
    }

    #[test]
    fn registry_entries_are_well_formed() {
        let is_known = |name: &&str| REGISTRY.iter().any(|entry| entry.name == *name);
        assert!(WITHOUT_IMAGE_FILES.iter().chain(&MAY_BE_FILES).chain(&SPLITTABLE_DATASETS).all(is_known));
        for entry in REGISTRY {
            assert_eq!(REGISTRY.iter().filter(|other| other.name == entry.name).count(), 1);
            assert_eq!(entry.files.is_empty(), entry.mirrors.is_empty());
            for mirror in entry.mirrors {
                assert!(mirror.starts_with("https://") && mirror.ends_with('/'), "{mirror}");
            }
            for file in entry.files {
                let unpacked = file.unpacked.map(|unpacked| unpacked.sha256);
                let members = file.members.iter().map(|member| member.sha256);
                for sha256 in [Some(file.sha256), unpacked].into_iter().flatten().chain(members) {
                    assert!(sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit()), "{sha256}");
                }
            }
        }
    }
}
