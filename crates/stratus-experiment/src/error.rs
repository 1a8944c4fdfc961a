//! Errors in a configuration. Each message names the origin and the key; `hint` suggests a fix.

use std::fmt;
use std::io;
use std::path::PathBuf;
use stratus_base::did_you_mean;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, with the line if it is known.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: Option<usize>,
    },
    /// An override: `--set` on the command line.
    Override,
    /// The combination of file, overrides and defaults.
    Resolved,
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line: Some(line) } => write!(out, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(out, "{}", path.display()),
            Origin::Override => out.write_str("--set"),
            Origin::Resolved => out.write_str("configuration"),
        }
    }
}

/// An unknown key of an XML configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownXmlKey {
    /// Its line; `None` if it is not from a file.
    pub line: Option<usize>,
    /// The key as written.
    pub key: String,
    /// The most similar key.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownXmlKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(out, "line {line}: ")?;
        }
        write!(out, "unknown key `{}`{}", self.key, did_you_mean(self.nearest))
    }
}

fn listed(unknown: &[UnknownXmlKey]) -> String {
    unknown.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The file cannot be read.
    #[error("cannot read the experiment {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {message}")]
    Syntax {
        /// The origin of the value.
        origin: Origin,
        /// The parser's message.
        message: String,
    },
    /// The file is not an XML configuration.
    #[error("{origin}: {message}")]
    Xml {
        /// The origin of the value.
        origin: Origin,
        /// The problem.
        message: String,
    },
    /// An XML configuration has unknown keys.
    #[error("{origin}: {}", listed(unknown))]
    XmlKeys {
        /// The file.
        origin: Origin,
        /// The keys.
        unknown: Vec<UnknownXmlKey>,
    },
    /// The key is unknown.
    #[error("{origin}: unknown key `{key}`")]
    UnknownKey {
        /// The origin of the value.
        origin: Origin,
        /// The key as written.
        key: String,
        /// The most similar key.
        nearest: Option<&'static str>,
    },
    /// A section's name is used as a key.
    #[error("{origin}: `{section}` is a section, not a key")]
    SectionAsKey {
        /// The origin of the value.
        origin: Origin,
        /// The section.
        section: String,
        /// A key of the section.
        example: &'static str,
    },
    /// The value is of another type than the key.
    #[error("{origin}: `{key}` expects {expected}, but found {found}")]
    WrongType {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The accepted values.
        expected: String,
        /// The value that was given.
        found: String,
    },
    /// The value is not one of the words that the key accepts.
    #[error("{origin}: `{key}` must be {expected}, but is {found}")]
    UnknownChoice {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The accepted values.
        expected: String,
        /// The value that was given.
        found: String,
        /// The most similar word.
        nearest: Option<&'static str>,
    },
    /// The value violates the key's constraint.
    #[error("{origin}: `{key}` must be {allowed}, but is {found}")]
    OutOfRange {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The allowed values.
        allowed: String,
        /// The value that was given.
        found: String,
    },
    /// A key without a default has no value.
    #[error("{origin}: `{key}` is not set")]
    Missing {
        /// The origin of the value.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The suggested fix.
        hint: String,
    },
    /// The values of several keys conflict.
    #[error("{origin}: {problem}")]
    Conflict {
        /// The origin of the value.
        origin: Origin,
        /// The keys and the reason.
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// The settings do not fit the data set, the network or the device.
    #[error("{problem}")]
    Unsuitable {
        /// The problem.
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// No built-in experiment has this name.
    #[error("no built-in experiment is named `{name}`")]
    UnknownBuiltin {
        /// The requested name.
        name: String,
        /// The most similar name.
        nearest: Option<&'static str>,
        /// All names, separated by commas.
        known: String,
    },
}

impl ExperimentError {
    /// The suggested fix, if there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("check that the experiment file exists and is a text file".into()),
            Self::Syntax { .. } => None,
            Self::Xml { .. } => Some("see `stratus config convert --help`".into()),
            Self::XmlKeys { .. } => {
                Some("remove them, or use keys of Stratus: `stratus config keys` lists them".into())
            }
            Self::UnknownKey { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownKey { nearest: None, .. } => Some("`stratus config keys` lists every key".into()),
            Self::SectionAsKey { example, .. } => Some(format!("use a key of the section, like `{example}`")),
            Self::WrongType { key, .. } | Self::OutOfRange { key, .. } => {
                Some(format!("`stratus config keys {key}` explains the key"))
            }
            Self::UnknownChoice { nearest: Some(nearest), .. } => {
                Some(format!("did you mean \"{nearest}\"?"))
            }
            Self::UnknownChoice { key, nearest: None, .. } => {
                Some(format!("`stratus config keys {key}` explains the key"))
            }
            Self::Missing { hint, .. } | Self::Conflict { hint, .. } | Self::Unsuitable { hint, .. } => {
                Some(hint.clone())
            }
            Self::UnknownBuiltin { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownBuiltin { known, .. } => Some(format!("built-in experiments: {known}")),
        }
    }
}
