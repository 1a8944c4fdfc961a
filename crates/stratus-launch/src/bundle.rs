//! The bundle of a launch: everything that is uploaded to a target, and the job that uses it.

use crate::uploads::{UploadCollector, UploadedPaths, UploadsByKey};
use crate::{Executable, FileSet, Job, LaunchSpec, Resources, Result, TargetSettings};
use std::path::PathBuf;

/// Everything to upload: the executable, MPI, and the files of the experiments.
pub struct LaunchBundle {
    /// The program, with its libraries.
    pub program: Executable,
    /// MPI, if there are several workers.
    mpi: Option<BundledMpi>,
    /// The files of each cell, then of cells that are drawn later.
    uploads: Vec<UploadsByKey>,
}

/// An installation of MPI that is uploaded.
pub struct BundledMpi {
    file_set: FileSet,
    /// The environment variable that names the library.
    variable: &'static str,
    /// The path of the library in the file set.
    library: String,
}

impl BundledMpi {
    /// The MPI that `make deps` installed, the first of `libraries` whose folder has it. `variable` is the
    /// environment variable that names the library. `None` if there is none, so that the target's own MPI is
    /// used.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn find(variable: &'static str, libraries: Vec<PathBuf>) -> Result<Option<Self>> {
        let with_launcher = |library: &PathBuf| {
            let folder = library.parent()?.parent()?;
            (library.is_file() && folder.join("bin/mpiexec").is_file()).then(|| folder.to_owned())
        };
        let found = libraries.into_iter().find_map(|library| Some((with_launcher(&library)?, library)));
        let Some((folder, library)) = found.filter(|(folder, _)| folder.join("installed").is_file()) else {
            return Ok(None);
        };
        let relative = library.strip_prefix(&folder).unwrap_or(&library).display().to_string();
        Ok(Some(Self { file_set: FileSet::from_path("mpi", &folder)?, variable, library: relative }))
    }
}

impl LaunchBundle {
    /// Collects the files of all cells of a launch. With `remote_data`, the data are on the target.
    ///
    /// # Errors
    /// If a file is not found, or cannot be read.
    pub fn new(
        spec: &LaunchSpec,
        remote_data: bool,
        program: Executable,
        mpi: Option<BundledMpi>,
    ) -> Result<Self> {
        let mut collector = UploadCollector::default();
        let cells = spec.cells.iter().chain(&spec.later_cells);
        let uploads = cells.map(|cell| collector.collect(cell, remote_data));
        Ok(Self { uploads: uploads.collect::<Result<_>>()?, program, mpi })
    }

    /// The file sets besides the program, without duplicates.
    #[must_use]
    pub fn file_sets(&self) -> Vec<FileSet> {
        let mut all: Vec<FileSet> = Vec::new();
        let uploads = self.uploads.iter().flatten().map(|(_, file_set)| file_set);
        for file_set in self.mpi.iter().map(|mpi| &mpi.file_set).chain(uploads) {
            if !all.contains(file_set) {
                all.push(file_set.clone());
            }
        }
        all
    }

    /// The paths of the files of all cells, uploaded to `root`.
    #[must_use]
    pub fn uploaded_paths(&self, spec: &LaunchSpec, root: &str) -> UploadedPaths {
        let mut paths = UploadedPaths::default();
        for (cell, uploads) in spec.cells.iter().chain(&spec.later_cells).zip(&self.uploads) {
            paths.add(cell, uploads, root);
        }
        paths
    }

    /// The job of a launch, with uploads in `root`.
    ///
    /// # Errors
    /// If a file of an experiment is not in the bundle.
    pub fn job(
        &self,
        settings: &TargetSettings,
        id: &str,
        spec: &LaunchSpec,
        resources: Resources,
        root: &str,
    ) -> Result<Job> {
        let mut environment = settings.environment.clone();
        let folder = format!("{root}/{}", self.program.file_set.remote_folder());
        let libraries = self
            .program
            .library_variables
            .iter()
            .map(|(variable, path)| (*variable, format!("{folder}/{path}")));
        let mpi = self
            .mpi
            .iter()
            .map(|mpi| (mpi.variable, format!("{root}/{}/{}", mpi.file_set.remote_folder(), mpi.library)));
        for (variable, path) in libraries.chain(mpi) {
            environment.entry(variable.to_owned()).or_insert(path);
        }
        let mut experiments = Vec::new();
        let paths = self.uploaded_paths(spec, root);
        for cell in &spec.cells {
            let remote = paths.remote_experiment(cell)?;
            experiments.extend((0..spec.repetitions).map(|number| {
                let mut experiment = remote.clone();
                experiment.train.seed = experiment.train.seed.wrapping_add(number);
                experiment.to_toml()
            }));
        }
        Ok(Job {
            id: id.to_owned(),
            program: format!("{folder}/stratus"),
            environment,
            experiments,
            resources,
            workers: None,
            stop_at: None,
            notify: settings.notify.clone(),
            host_by_repetition: Vec::new(),
            goals: Vec::new(),
            selected: None,
        })
    }
}
