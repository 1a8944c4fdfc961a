//! The cache of measured kernel choices, per CPU, library, build of the native kernels and program. It makes
//! repeated runs of an experiment use the same plan, so that they are bit-identical.

use crate::cache::cache_folder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use stratus_base::checksum::hex;
use stratus_engine::{Backend, Choices, Program};

/// One program's entry.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The network, for human readers.
    network: String,
    library: String,
    cpu: String,
    choices: Choices,
}

/// The cache of this machine; without a folder it stores nothing.
pub(super) struct PlanCache {
    folder: Option<PathBuf>,
    cpu: String,
}

impl PlanCache {
    pub fn for_this_machine() -> Self {
        let machine = stratus_run::machine::Machine::probe();
        Self { folder: cache_folder().map(|folder| folder.join("plans")), cpu: machine.cpu.model }
    }

    /// A cache that stores nothing.
    #[cfg(test)]
    pub fn disabled() -> Self {
        Self { folder: None, cpu: "none".to_owned() }
    }

    /// A cache in a folder.
    #[cfg(test)]
    pub fn in_folder(folder: &std::path::Path) -> Self {
        Self { folder: Some(folder.to_owned()), ..Self::disabled() }
    }

    fn path(&self, backend: &dyn Backend, program: &Program) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        let (library, program_text) = (backend.describe(), program.dump());
        for part in [&self.cpu, &library, &program_text, backend.revision(), env!("CARGO_PKG_VERSION")] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let name = hex(&hash.finalize()[..16]);
        Some(self.folder.as_ref()?.join(format!("{}-{name}.json", program.network)))
    }

    /// Loads the choices for a program, if it was measured before.
    pub fn load(&self, backend: &dyn Backend, program: &Program) -> Option<Choices> {
        let text = std::fs::read(self.path(backend, program)?).ok()?;
        serde_json::from_slice::<Entry>(&text).ok().map(|entry| entry.choices)
    }

    /// Stores choices.
    ///
    /// # Errors
    /// If the cache cannot be written: the text of a warning, since planning only takes longer without it.
    pub fn store(&self, backend: &dyn Backend, program: &Program, choices: &Choices) -> Result<(), String> {
        let Some(path) = self.path(backend, program) else { return Ok(()) };
        let entry = Entry {
            network: program.network.clone(),
            library: backend.describe(),
            cpu: self.cpu.clone(),
            choices: choices.clone(),
        };
        let write = || -> Result<(), String> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            }
            stratus_run::atomic::write_json(&path, &entry).map_err(|error| error.to_string())
        };
        write().map_err(|error| format!("cannot cache the kernel choices for later runs: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_engine::program::Mode;
    use stratus_engine::reference::ReferenceBackend;
    use stratus_engine::{EngineError, Precision, PrepareRequest, PreparedProgram};

    /// A backend with a build revision.
    struct Build(&'static str);

    impl Backend for Build {
        fn name(&self) -> &'static str {
            "built"
        }
        fn describe(&self) -> String {
            "the same in every build".to_owned()
        }
        fn revision(&self) -> &'static str {
            self.0
        }
        fn threads(&self) -> usize {
            1
        }
        fn precisions(&self) -> Vec<Precision> {
            ReferenceBackend.precisions()
        }
        fn prepare(
            &self,
            program: &Program,
            request: &PrepareRequest,
        ) -> Result<PreparedProgram, EngineError> {
            ReferenceBackend.prepare(program, request)
        }
    }

    #[test]
    fn choices_of_another_build_or_cpu_are_not_reused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PlanCache { folder: Some(folder.path().to_owned()), cpu: "one".to_owned() };
        let program = Program {
            network: "nothing".to_owned(),
            mode: Mode::Train,
            precision: Precision::F32,
            batch: 1,
            batch_parts: 1,
            stage: None,
            layers: Vec::new(),
            values: Vec::new(),
            steps: Vec::new(),
            sections: Vec::new(),
        };
        let mut choices = Choices::default();
        choices.layouts.insert("x".to_owned(), "plain".to_owned());
        cache.store(&Build("1"), &program, &choices).unwrap();
        assert_eq!(cache.load(&Build("1"), &program), Some(choices));
        assert_eq!(cache.load(&Build("2"), &program), None);
        let elsewhere = PlanCache { cpu: "another".to_owned(), ..cache };
        assert_eq!(elsewhere.load(&Build("1"), &program), None);
    }
}
