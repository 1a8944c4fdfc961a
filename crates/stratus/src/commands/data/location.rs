//! The folder of a published data set that `data.path` does not name: `data/NAME` of the working folder, else
//! that of the installation or of the checkout in which the program was built, else a copy in the cache
//! folder, to which MNIST is fetched on first use.

use super::fetch;
use crate::errors::Result;
use crate::output::Output;
use std::path::{Path, PathBuf};
use stratus_base::installation::data_folder;
use stratus_data::datasets::mnist;
use stratus_experiment::Experiment;
use stratus_train::cache_folder;

/// Sets `data.path` to the data set of the installation, the checkout or the cache folder, if the key is
/// unset and there is no `data/NAME` in the working folder.
pub fn locate(experiment: &mut Experiment) {
    if needs_folder(experiment) {
        let name = &experiment.data.name;
        let found = data_folder(name).or_else(|| cached_folder(name).filter(|folder| is_complete(folder)));
        experiment.data.path = found.map(|folder| folder.display().to_string());
    }
}

/// Fetches MNIST to the cache folder and sets `data.path` to it, if [`locate`] found it nowhere. Other data
/// sets take longer to fetch: the error without them names the command.
///
/// # Errors
/// If the files cannot be fetched.
pub fn fetch_if_missing(experiment: &mut Experiment, output: &Output) -> Result {
    let name = &experiment.data.name;
    let Some(folder) = cached_folder(name).filter(|_| needs_folder(experiment)) else {
        return Ok(());
    };
    output.message(&format!(
        "data set `{name}` is not in {}: fetching it to {}",
        experiment.data_path().display(),
        folder.display()
    ));
    fetch::download(name, &folder, output).map_err(|failure| {
        failure.with_hint(format!(
            "where there is a network: `stratus data fetch {name}`, then copy data/{name} here; or set the \
             folder of the files with --set data.path=FOLDER"
        ))
    })?;
    experiment.data.path = Some(folder.display().to_string());
    Ok(())
}

/// True if `data.path` is unset, and its default does not exist.
fn needs_folder(experiment: &Experiment) -> bool {
    experiment.has_data_set() && experiment.data.path.is_none() && !experiment.data_path().exists()
}

/// The folder to which a data set is fetched on first use; `None` if it is not MNIST.
fn cached_folder(name: &str) -> Option<PathBuf> {
    let folder = cache_folder().filter(|_| name == mnist::ENTRY.name)?;
    Some(folder.join("data").join(name))
}

/// Returns whether a folder has all files of MNIST, which a fetch that failed left incomplete.
fn is_complete(folder: &Path) -> bool {
    mnist::ENTRY.files.iter().all(|file| {
        let unpacked = file.unpacked.is_some_and(|unpacked| folder.join(unpacked.name).is_file());
        unpacked || folder.join(file.name).is_file()
    })
}
