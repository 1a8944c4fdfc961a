//! The search for C libraries that are loaded at run time.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A C library and the places of its search.
#[derive(Clone, Copy, Debug)]
pub struct LibrarySearch {
    /// The name of the library, for messages.
    pub name: &'static str,
    /// The environment variable with the library file, or with a folder that contains it.
    pub environment: &'static str,
    /// The possible file names on this system, the preferred one first.
    pub files: &'static [&'static str],
    /// The folder in the project to which `make deps` installs the library, such as `.deps/onednn/lib`.
    pub dependency_folder: &'static str,
    /// The folder to which Homebrew installs the library on macOS.
    pub homebrew_folder: &'static str,
}

/// The error of a search without a usable library.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no usable {name} found: {}", tried.join("; "))]
pub struct LibraryNotFound {
    /// The name of the library.
    pub name: &'static str,
    /// Each path with the reason why it is unusable.
    pub tried: Vec<String>,
}

impl LibrarySearch {
    /// The paths in the order of the search. If the environment variable is set, only its paths; otherwise
    /// the dependency folder (see [`find_in_ancestors`]), conda, the system's search path (a bare file name),
    /// Homebrew.
    #[must_use]
    pub fn candidates(&self) -> Vec<PathBuf> {
        let in_folder = |folder: &Path| self.files.iter().map(|file| folder.join(file)).collect::<Vec<_>>();
        if let Some(named) = std::env::var_os(self.environment).map(PathBuf::from) {
            return if named.is_dir() { in_folder(&named) } else { vec![named] };
        }
        let preferred = self.files.iter().take(1);
        let mut paths: Vec<PathBuf> = preferred
            .flat_map(|file| find_in_ancestors(&Path::new(self.dependency_folder).join(file)))
            .collect();
        if let Some(prefix) = std::env::var_os("CONDA_PREFIX") {
            paths.extend(in_folder(&Path::new(&prefix).join("lib")));
        }
        paths.extend(self.files.iter().map(PathBuf::from));
        if cfg!(target_os = "macos") {
            paths.extend(in_folder(Path::new(self.homebrew_folder)));
        }
        paths
    }

    /// Loads the first candidate that `load` accepts. `is_absent` returns whether an error means that the
    /// file does not exist.
    ///
    /// # Errors
    /// If no candidate is usable; the error lists every path with the reason.
    pub fn load_first<T, E: Display>(
        &self,
        load: impl Fn(&Path) -> Result<T, E>,
        is_absent: impl Fn(&E) -> bool,
    ) -> Result<T, LibraryNotFound> {
        let mut tried = Vec::new();
        for path in self.candidates() {
            match load(&path) {
                Ok(library) => return Ok(library),
                Err(error) if is_absent(&error) && path.components().count() == 1 => {
                    tried.push(format!("{} is not on the system's library path", path.display()));
                }
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(LibraryNotFound { name: self.name, tried })
    }
}

/// Searches for the path `relative` in the folders above the running program, in the working folder, and in
/// the folders above that. Returns every existing path once.
#[must_use]
pub fn find_in_ancestors(relative: &Path) -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let working = std::env::current_dir().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let mut found = Vec::new();
    for folder in above.chain(working.iter().flat_map(|path| path.ancestors())) {
        let path = folder.join(relative);
        if path.exists() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: LibrarySearch = LibrarySearch {
        name: "libnone",
        environment: "STRATUS_BASE_NO_SUCH_VARIABLE",
        files: &["libnone.so.1", "libnone.so.2"],
        dependency_folder: ".deps/none/lib",
        homebrew_folder: "/opt/homebrew/lib",
    };

    #[test]
    fn tries_the_system_search_path_and_lists_every_reason() {
        let paths = SEARCH.candidates();
        assert!(
            paths.contains(&PathBuf::from("libnone.so.1")) && paths.contains(&PathBuf::from("libnone.so.2"))
        );
        let error = SEARCH.load_first(|_| Err::<(), _>("absent"), |_| true).unwrap_err().to_string();
        assert!(error.starts_with("no usable libnone found: "), "{error}");
        assert!(
            error.contains("libnone.so.1 is not on the system's library path; libnone.so.2 is not on"),
            "{error}"
        );
        let second = |path: &Path| if path.ends_with("libnone.so.2") { Ok(2) } else { Err("damaged") };
        assert_eq!(SEARCH.load_first(second, |_| false).unwrap(), 2);
    }

    #[test]
    fn finds_files_above_the_program_once() {
        let program = std::env::current_exe().unwrap();
        let name = Path::new(program.file_name().unwrap());
        assert_eq!(find_in_ancestors(name), std::slice::from_ref(&program));
    }
}
