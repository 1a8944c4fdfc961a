//! The files that the experiments of a launch name: layer files, weights, teachers and data.

use crate::{Error, FileSet, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_experiment::Experiment;
use stratus_store::is_address;

const NETWORK: &str = "model.name";
const WEIGHTS: &str = "model.weights";
const TEACHER: &str = "train.teacher";
const DATA: &str = "data.path";

/// The files that an experiment names, by the key that is set to their path on the target.
pub(crate) type UploadsByKey = Vec<(&'static str, FileSet)>;

/// Collects the files that experiments name; a file that several experiments name is read once.
#[derive(Default)]
pub(crate) struct UploadCollector {
    found: BTreeMap<PathBuf, FileSet>,
}

impl UploadCollector {
    /// Collects the files to upload for an experiment.
    ///
    /// # Errors
    /// If one is not found, or cannot be read.
    pub fn collect(&mut self, experiment: &Experiment, remote_data: bool) -> Result<UploadsByKey> {
        let path = experiment.data_path();
        if remote_data && !needs_no_upload(experiment) && !path.is_absolute() {
            let problem = format!("--remote-data: {} must be an absolute path", path.display());
            return Err(Error::usage(problem, "name the folder on the target: --set data.path=/…"));
        }
        let mut uploads = Vec::new();
        if let Some(path) = experiment.layer_file() {
            uploads.push((NETWORK, self.load(NETWORK, path)?));
        }
        if let Some(weights) = experiment.model.weights.as_deref() {
            uploads.push((WEIGHTS, self.load(WEIGHTS, Path::new(weights))?));
        }
        if let Some(teacher) = experiment.teacher() {
            uploads.push((TEACHER, self.load(TEACHER, teacher)?));
        }
        if !remote_data && !needs_no_upload(experiment) {
            uploads.push((DATA, self.load(DATA, &path)?));
        }
        Ok(uploads)
    }

    fn load(&mut self, key: &'static str, path: &Path) -> Result<FileSet> {
        if let Some(file_set) = self.found.get(path) {
            return Ok(file_set.clone());
        }
        if path.exists() {
            let file_set = FileSet::from_path("data", path)?;
            self.found.insert(path.to_owned(), file_set.clone());
            return Ok(file_set);
        }
        let hint = match key {
            DATA => "set data.path, or use --remote-data if the data are on the target",
            _ => "the file is uploaded from this machine",
        };
        Err(Error::usage(format!("{key}: {} not found", path.display()), hint))
    }
}

/// Returns whether the data are synthetic, or have an address that the target can open itself.
fn needs_no_upload(experiment: &Experiment) -> bool {
    experiment.data.name == "synthetic" || experiment.data_path().to_str().is_some_and(is_address)
}

/// The path on the target of every uploaded file and folder, by its local path.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct UploadedPaths(BTreeMap<String, String>);

impl UploadedPaths {
    /// Adds the files of an experiment, uploaded to `root`.
    pub(crate) fn add(&mut self, experiment: &Experiment, uploads: &UploadsByKey, root: &str) {
        for (key, file_set) in uploads {
            let Some(local) = local_path(experiment, key) else { continue };
            let folder = format!("{root}/{}", file_set.remote_folder());
            let path = match &file_set.files[..] {
                [file] if local.is_file() => format!("{folder}/{}", file.path),
                _ => folder,
            };
            self.0.insert(local.display().to_string(), path);
        }
    }

    /// The experiment with the paths of its files on the target.
    ///
    /// # Errors
    /// If a layer file, weights or a teacher were not uploaded.
    pub(crate) fn remote_experiment(&self, experiment: &Experiment) -> Result<Experiment> {
        let mut remote = experiment.clone();
        for key in [NETWORK, WEIGHTS, TEACHER, DATA] {
            let Some(local) = local_path(experiment, key) else { continue };
            let path = self.0.get(&local.display().to_string()).cloned();
            match (key, path) {
                (NETWORK, Some(path)) => remote.model.name = path,
                (WEIGHTS, Some(path)) => remote.model.weights = Some(path),
                (TEACHER, Some(path)) => remote.train.teacher = Some(path),
                (_, Some(path)) => remote.data.path = Some(path),
                // The data are on the target, synthetic, or opened by their address.
                (DATA, None) => {}
                (_, None) => {
                    let problem = format!("{key}: {} was not uploaded", local.display());
                    return Err(Error::usage(problem, "launch the sweep again with this file in it"));
                }
            }
        }
        Ok(remote)
    }
}

/// The local path that a key names; `None` if it names no file.
fn local_path(experiment: &Experiment, key: &str) -> Option<PathBuf> {
    match key {
        NETWORK => experiment.layer_file().map(Path::to_owned),
        WEIGHTS => experiment.model.weights.as_ref().map(PathBuf::from),
        TEACHER => experiment.teacher().map(Path::to_owned),
        _ => Some(experiment.data_path()),
    }
}
