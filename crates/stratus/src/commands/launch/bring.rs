//! What is brought to a target: the program with its libraries, and the files that experiments name.

use crate::errors::{Failure, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_data::store::is_address;
use stratus_exchange::mpi::SEARCH;
use stratus_launch::{Parcel, Program};
use stratus_train::Experiment;

const NETWORK: &str = "model.name";
const WEIGHTS: &str = "model.weights";
const DATA: &str = "data.path";
/// The kind of the parcel with MPI.
const MPI: &str = "mpi";

/// Files that an experiment names, by the key whose value there follows from what is brought.
pub(super) type Named = Vec<(&'static str, Parcel)>;

/// Finds the files that experiments name. Those that many name are read once.
#[derive(Default)]
pub(super) struct Files {
    found: BTreeMap<PathBuf, Parcel>,
}

impl Files {
    /// Files that the experiment names, to be brought.
    ///
    /// # Errors
    /// Where one is not there, or cannot be read.
    pub fn of(&mut self, experiment: &Experiment, data_there: bool) -> Result<Named> {
        let path = experiment.data_path();
        if data_there && !is_elsewhere(experiment) && !path.is_absolute() {
            let problem = format!("--data-there: {} is no path from the root", path.display());
            return Err(Failure::usage(problem).hint("name the folder there: --set data.path=/…"));
        }
        let mut named = Vec::new();
        if let Some(path) = experiment.layer_file() {
            named.push((NETWORK, self.at(NETWORK, path)?));
        }
        if let Some(weights) = experiment.model.weights.as_deref() {
            named.push((WEIGHTS, self.at(WEIGHTS, Path::new(weights))?));
        }
        if !data_there && !is_elsewhere(experiment) {
            named.push((DATA, self.at(DATA, &path)?));
        }
        Ok(named)
    }

    fn at(&mut self, key: &'static str, path: &Path) -> Result<Parcel> {
        if let Some(parcel) = self.found.get(path) {
            return Ok(parcel.clone());
        }
        if path.exists() {
            let parcel = Parcel::of_path("data", path)?;
            self.found.insert(path.to_owned(), parcel.clone());
            return Ok(parcel);
        }
        let hint = match key {
            DATA => "name the data with data.path; --data-there, where they lie on the target already",
            _ => "the file is brought from here: it must be there",
        };
        Err(Failure::usage(format!("{key}: there is nothing at {}", path.display())).hint(hint))
    }
}

/// Whether the data are made up, or behind an address.
fn is_elsewhere(experiment: &Experiment) -> bool {
    experiment.data.name == "synthetic" || experiment.data_path().to_str().is_some_and(is_address)
}

/// The experiment as it is trained there, where everything that is brought lies below `root`.
pub(super) fn there(experiment: &Experiment, named: &Named, root: &str) -> Experiment {
    let mut experiment = experiment.clone();
    for (key, parcel) in named {
        let here = match *key {
            NETWORK => experiment.layer_file().map(Path::to_owned),
            WEIGHTS => experiment.model.weights.as_ref().map(PathBuf::from),
            _ => Some(experiment.data_path()),
        };
        let folder = format!("{root}/{}", parcel.folder());
        let path = match &parcel.items[..] {
            [item] if here.is_some_and(|here| here.is_file()) => format!("{folder}/{}", item.path),
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

/// The program that this process is.
pub(super) fn program() -> Result<Program> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let libraries = [
        (stratus_onednn::ENVIRONMENT, stratus_onednn::candidates()),
        (stratus_jpeg::ENVIRONMENT, stratus_jpeg::candidates()),
    ];
    Ok(Program::new(&path, &libraries)?)
}

/// The MPI of this program, where it lies with its launcher in a folder of its own as `make deps` brings it;
/// with it the variable that names its library, and where that is in the folder. Without one the target's own
/// has to be found there.
pub(super) fn mpi() -> Result<Option<(Parcel, &'static str, String)>> {
    let with_launcher = |library: &PathBuf| {
        let folder = library.parent()?.parent()?;
        (library.is_file() && folder.join("bin/mpiexec").is_file()).then(|| folder.to_owned())
    };
    let found = SEARCH.candidates().into_iter().find_map(|library| Some((with_launcher(&library)?, library)));
    let Some((folder, library)) = found.filter(|(folder, _)| folder.join("installed").is_file()) else {
        return Ok(None);
    };
    let inside = library.strip_prefix(&folder).unwrap_or(&library).display().to_string();
    Ok(Some((Parcel::of_path(MPI, &folder)?, SEARCH.environment, inside)))
}
