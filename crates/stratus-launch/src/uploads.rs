//! The files that the experiments of a launch name: layer files, weights and data.

use crate::{Error, FileSet, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_experiment::Experiment;
use stratus_store::is_address;

const NETWORK: &str = "model.name";
const WEIGHTS: &str = "model.weights";
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

/// The experiment with the paths of its files on the target, where uploads are in `root`.
pub(crate) fn remote_experiment(experiment: &Experiment, uploads: &UploadsByKey, root: &str) -> Experiment {
    let mut experiment = experiment.clone();
    for (key, file_set) in uploads {
        let local = match *key {
            NETWORK => experiment.layer_file().map(Path::to_owned),
            WEIGHTS => experiment.model.weights.as_ref().map(PathBuf::from),
            _ => Some(experiment.data_path()),
        };
        let folder = format!("{root}/{}", file_set.remote_folder());
        let path = match &file_set.files[..] {
            [file] if local.is_some_and(|local| local.is_file()) => format!("{folder}/{}", file.path),
            _ => folder,
        };
        match *key {
            NETWORK => experiment.model.name = path,
            WEIGHTS => experiment.model.weights = Some(path),
            _ => experiment.data.path = Some(path),
        }
    }
    experiment
}
