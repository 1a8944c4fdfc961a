//! The search for C libraries that are loaded at run time.

use crate::installation;
use std::error::Error;
use std::ffi::OsString;
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
    /// The folder in the checkout to which `make deps` installs the library, such as `.deps/onednn/lib`.
    pub dependency_folder: &'static str,
    /// The folder to which Homebrew installs the library on macOS.
    pub homebrew_folder: &'static str,
}

/// The value of a library's environment variable with which no library is used.
pub const NO_LIBRARY: &str = "none";

/// The error of a search without a usable library.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LibraryNotFound {
    /// No place of the search has a usable library.
    #[error("no usable {name} found: {}", tried.join("; "))]
    Nowhere {
        /// The name of the library.
        name: &'static str,
        /// Each path with the reason why it is unusable, then the folders without the library.
        tried: Vec<String>,
    },
    /// The library's environment variable is [`NO_LIBRARY`].
    #[error("{variable} is `{NO_LIBRARY}`")]
    Disabled {
        /// The variable.
        variable: &'static str,
    },
    /// The library's environment variable names a file or a folder that cannot be used.
    #[error("{variable} names {}, {problem}", path.display())]
    Named {
        /// The variable.
        variable: &'static str,
        /// The path in it.
        path: PathBuf,
        /// The problem, as a relative clause.
        problem: String,
        /// The path that the variable should have.
        expected: String,
    },
}

impl LibraryNotFound {
    /// True if the library's environment variable names something that cannot be used.
    #[must_use]
    pub fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
    }

    /// The suggested fix of a variable that names something that cannot be used.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Named { variable, expected, .. } => {
                Some(format!("set {variable} to {expected}, or unset it"))
            }
            _ => None,
        }
    }
}

/// The surroundings that the order of a search depends on.
struct SearchContext {
    /// The path in the library's environment variable.
    named: Option<PathBuf>,
    /// The path of the running program.
    program: Option<PathBuf>,
    /// The checkout in which it was built, see [`installation::checkout`].
    checkout: Option<PathBuf>,
    /// The folders of the active Python environments, see [`python_environments`].
    environments: Vec<PathBuf>,
}

impl LibrarySearch {
    /// The surroundings of this process. `variable` returns the value of an environment variable.
    fn context(&self, variable: impl Fn(&str) -> Option<OsString>) -> SearchContext {
        SearchContext {
            named: path_in(variable(self.environment)),
            program: installation::program(),
            checkout: installation::checkout(),
            environments: python_environments(variable),
        }
    }

    /// The existing files in the order of the search. If the environment variable is set, only its paths,
    /// which need not exist, and none for [`NO_LIBRARY`]; otherwise those in [`LibrarySearch::folders`],
    /// around the bare file names, which the system's search path resolves.
    #[must_use]
    pub fn candidates(&self) -> Vec<PathBuf> {
        self.candidates_in(&self.context(|name| std::env::var_os(name)))
    }

    /// The folders of the search, except those of the system's search path: with the environment variable,
    /// only the named one; otherwise beside the program, `lib` above it, `.deps` of the checkout in which it
    /// was built, `lib` of the active Python environments, and Homebrew.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let context = self.context(|name| std::env::var_os(name));
        match context.named {
            Some(named) if named.is_dir() => vec![named],
            Some(named) if named.as_os_str() == NO_LIBRARY => Vec::new(),
            Some(named) => named.parent().map(Path::to_owned).into_iter().collect(),
            None => {
                let mut folders = self.own_folders(&context);
                folders.extend(self.system_folders());
                folders
            }
        }
    }

    fn candidates_in(&self, context: &SearchContext) -> Vec<PathBuf> {
        let in_folder = |folder: &Path| self.files.iter().map(|file| folder.join(file)).collect::<Vec<_>>();
        if let Some(named) = &context.named {
            if named.as_os_str() == NO_LIBRARY {
                return Vec::new();
            }
            return if named.is_dir() { in_folder(named) } else { vec![named.clone()] };
        }
        let existing = |folders: Vec<PathBuf>| {
            let files = folders.into_iter().flat_map(|folder| in_folder(&folder)).collect::<Vec<_>>();
            files.into_iter().filter(|path| path.exists())
        };
        let mut paths: Vec<PathBuf> = existing(self.own_folders(context)).collect();
        paths.extend(self.files.iter().map(PathBuf::from));
        paths.extend(existing(self.system_folders()));
        paths
    }

    /// The folders before the system's search path.
    fn own_folders(&self, context: &SearchContext) -> Vec<PathBuf> {
        let program = context.program.as_deref();
        let mut folders: Vec<PathBuf> = program.map(installation::library_folders).unwrap_or_default();
        folders.extend(context.checkout.as_ref().map(|checkout| checkout.join(self.dependency_folder)));
        for lib in context.environments.iter().map(|environment| environment.join("lib")) {
            if !folders.contains(&lib) {
                folders.push(lib);
            }
        }
        folders
    }

    /// The folders after the system's search path.
    fn system_folders(&self) -> Vec<PathBuf> {
        let homebrew = cfg!(target_os = "macos").then(|| PathBuf::from(self.homebrew_folder));
        homebrew.into_iter().collect()
    }

    /// Checks that the path in the environment variable exists, and contains the library if it is a folder.
    ///
    /// # Errors
    /// [`LibraryNotFound::Named`].
    pub fn check_named(&self) -> Result<(), LibraryNotFound> {
        self.check_named_in(&self.context(|name| std::env::var_os(name)))
    }

    fn check_named_in(&self, context: &SearchContext) -> Result<(), LibraryNotFound> {
        let Some(named) = context.named.as_deref().filter(|named| named.as_os_str() != NO_LIBRARY) else {
            return Ok(());
        };
        let problem = match named.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "which does not exist".to_owned(),
            Err(error) => format!("which cannot be read: {error}"),
            Ok(metadata) if metadata.is_dir() && !self.files.iter().any(|file| named.join(file).exists()) => {
                format!("a folder without {}", self.files.join(" or "))
            }
            Ok(_) => return Ok(()),
        };
        Err(self.named_error(named, problem))
    }

    fn named_error(&self, path: &Path, problem: String) -> LibraryNotFound {
        let expected = format!("the file {} of {}, or to its folder", self.files.join(" or "), self.name);
        LibraryNotFound::Named { variable: self.environment, path: path.to_owned(), problem, expected }
    }

    /// Loads the first candidate that `load` accepts. `is_absent` returns whether an error means that the
    /// file does not exist.
    ///
    /// # Errors
    /// If no candidate is usable; the error lists every path with the reason, and the folders. If the
    /// environment variable names a path, [`LibraryNotFound::Named`].
    pub fn load_first<T, E: Display>(
        &self,
        load: impl Fn(&Path) -> Result<T, E>,
        is_absent: impl Fn(&E) -> bool,
    ) -> Result<T, LibraryNotFound> {
        let context = self.context(|name| std::env::var_os(name));
        self.check_named_in(&context)?;
        let mut tried = Vec::new();
        for path in self.candidates_in(&context) {
            match load(&path) {
                Ok(library) => return Ok(library),
                Err(error) if is_absent(&error) && path.components().count() == 1 => {
                    tried.push(format!("{} is not on the system's library path", path.display()));
                }
                Err(error) => tried.push(error.to_string()),
            }
        }
        match context.named {
            Some(named) if named.as_os_str() == NO_LIBRARY => {
                return Err(LibraryNotFound::Disabled { variable: self.environment });
            }
            Some(named) => {
                let problem = format!("which is not a usable {}: {}", self.name, tried.join("; "));
                return Err(self.named_error(&named, problem));
            }
            None => {}
        }
        let without: Vec<String> = self
            .folders()
            .into_iter()
            .filter(|folder| !self.files.iter().any(|file| folder.join(file).exists()))
            .map(|folder| folder.display().to_string())
            .collect();
        if !without.is_empty() {
            tried.push(format!("no {} in {}", self.files.join(" or "), without.join(", ")));
        }
        Err(LibraryNotFound::Nowhere { name: self.name, tried })
    }
}

/// The message of an error's innermost cause. For a library that cannot be loaded, it is that of the dynamic
/// linker; the error itself only says that loading failed.
#[must_use]
pub fn root_cause(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The folders of the active Python environments: `VIRTUAL_ENV`, then `CONDA_PREFIX`. `variable` returns the
/// value of an environment variable.
#[must_use]
pub fn python_environments(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| path_in(variable(name))).collect()
}

/// The path in an environment variable. An empty variable counts as not set, so that nothing is searched
/// relative to the working folder.
fn path_in(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SEARCH: LibrarySearch = LibrarySearch {
        name: "libnone",
        environment: "STRATUS_BASE_NO_SUCH_VARIABLE",
        files: &["libnone.so.1", "libnone.so.2"],
        dependency_folder: ".deps/none/lib",
        homebrew_folder: "/opt/homebrew/lib",
    };

    fn write(path: PathBuf) -> PathBuf {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        path
    }

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
        let beside = std::env::current_exe().unwrap().parent().unwrap().canonicalize().unwrap();
        let nowhere = format!("; no libnone.so.1 or libnone.so.2 in {}", beside.display());
        assert!(error.contains(&nowhere), "{error}");
        let second = |path: &Path| if path.ends_with("libnone.so.2") { Ok(2) } else { Err("damaged") };
        assert_eq!(SEARCH.load_first(second, |_| false).unwrap(), 2);
    }

    #[test]
    fn searches_beside_the_program_above_it_in_its_checkout_then_in_python_environments() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        write(at("crates/stratus/Cargo.toml"));
        write(at("scripts/deps.sh"));
        let expected = [
            "target/release/libnone.so.2",
            "target/lib/stratus/libnone.so.1",
            "target/lib/libnone.so.1",
            ".deps/none/lib/libnone.so.1",
            "venv/lib/libnone.so.1",
        ]
        .map(|path| write(at(path)));
        let bare: Vec<PathBuf> = SEARCH.files.iter().map(PathBuf::from).collect();
        let mut context = SearchContext {
            named: None,
            program: Some(at("target/release/stratus")),
            checkout: installation::checkout_of(&at("target/release/stratus")),
            environments: vec![at("venv"), at("without")],
        };
        let found = SEARCH.candidates_in(&context);
        assert_eq!(found[..expected.len()], expected);
        assert_eq!(found[expected.len()..][..bare.len()], bare);

        (context.program, context.checkout) = (None, None);
        assert_eq!(SEARCH.candidates_in(&context)[0], expected[4]);

        // The variable replaces all other places, and the file need not exist.
        context.named = Some(at("venv/lib"));
        assert_eq!(
            SEARCH.candidates_in(&context),
            [at("venv/lib/libnone.so.1"), at("venv/lib/libnone.so.2")]
        );
        context.named = Some(at("elsewhere/libnone.so.1"));
        assert_eq!(SEARCH.candidates_in(&context), [at("elsewhere/libnone.so.1")]);
        context.named = Some(NO_LIBRARY.into());
        assert!(SEARCH.candidates_in(&context).is_empty());
    }

    #[test]
    fn root_cause_is_that_of_the_dynamic_linker() {
        #[derive(Debug, thiserror::Error)]
        #[error("dlopen failed")]
        struct NotLoaded(#[source] std::num::ParseIntError);
        let cause = "x".parse::<u32>().unwrap_err();
        assert_eq!(root_cause(&cause), cause.to_string());
        assert_eq!(root_cause(&NotLoaded(cause.clone())), cause.to_string());
    }

    #[test]
    fn named_path_must_exist_and_hold_the_library() {
        let root = tempfile::tempdir().unwrap();
        let context = |named: &Path| SEARCH.context(|_| Some(named.into()));
        let error = |named: &Path| SEARCH.check_named_in(&context(named)).unwrap_err();
        let absent = error(&root.path().join("absent"));
        assert!(absent.is_named());
        assert_eq!(
            absent.to_string(),
            format!(
                "STRATUS_BASE_NO_SUCH_VARIABLE names {}/absent, which does not exist",
                root.path().display()
            )
        );
        assert_eq!(
            absent.hint().unwrap(),
            "set STRATUS_BASE_NO_SUCH_VARIABLE to the file libnone.so.1 or libnone.so.2 of libnone, or to \
             its folder, or unset it"
        );
        let empty = error(root.path()).to_string();
        assert!(empty.ends_with(", a folder without libnone.so.1 or libnone.so.2"), "{empty}");
        let file = write(root.path().join("libnone.so.2"));
        assert!(SEARCH.check_named_in(&context(root.path())).is_ok());
        assert!(SEARCH.check_named_in(&context(&file)).is_ok());
        assert!(SEARCH.check_named_in(&context(Path::new(NO_LIBRARY))).is_ok());
        assert!(SEARCH.check_named_in(&SEARCH.context(|_| None)).is_ok());
    }

    #[test]
    fn working_folder_is_not_searched() {
        let working = std::env::current_dir().unwrap();
        assert!(!SEARCH.folders().contains(&working));
        assert!(SEARCH.candidates().iter().all(|path| path.is_absolute() || path.components().count() == 1));
    }

    #[test]
    fn virtual_environment_precedes_conda() {
        let variables = |name: &str| (name != "OTHER").then(|| OsString::from(format!("/{name}")));
        assert_eq!(python_environments(variables), ["/VIRTUAL_ENV", "/CONDA_PREFIX"].map(Path::new));
        assert!(python_environments(|_| None).is_empty());
    }

    #[test]
    fn empty_variable_counts_as_not_set() {
        let context = |value: &str| SEARCH.context(|_| Some(OsString::from(value)));
        let set = context("/lib/none");
        assert_eq!(set.named.as_deref(), Some(Path::new("/lib/none")));
        assert_eq!(set.environments.len(), 2);
        let empty = context("");
        assert_eq!(empty.named, None);
        assert!(empty.environments.is_empty());
        assert_eq!(SEARCH.candidates_in(&empty), SEARCH.candidates_in(&SEARCH.context(|_| None)));
    }
}
