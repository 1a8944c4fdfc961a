//! Errors of a configuration. Each message names the place and the key; `hint` says what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;
use stratus_base::did_you_mean;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a file, at a line counted from 1, if it is known.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: Option<usize>,
    },
    /// In an override: `--set` on the command line.
    Override,
    /// In the combination of what a file, overrides and defaults give.
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

/// A key of a configuration in XML that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownXmlKey {
    /// Its line, where it stands in a file.
    pub line: Option<usize>,
    /// What was written.
    pub key: String,
    /// The key that was probably meant.
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
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: not valid TOML: {message}")]
    Syntax {
        /// The place.
        origin: Origin,
        /// What the parser says.
        message: String,
    },
    /// The file is no configuration in XML.
    #[error("{origin}: {message}")]
    Xml {
        /// The place.
        origin: Origin,
        /// Why not.
        message: String,
    },
    /// A configuration in XML has keys that are not understood.
    #[error("{origin}: {}", listed(unknown))]
    XmlKeys {
        /// The file.
        origin: Origin,
        /// The keys.
        unknown: Vec<UnknownXmlKey>,
    },
    /// There is no such key.
    #[error("{origin}: unknown key `{key}`")]
    UnknownKey {
        /// The place.
        origin: Origin,
        /// What was written.
        key: String,
        /// The key that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A section's name is used as a key.
    #[error("{origin}: `{section}` is a section and holds no value itself")]
    SectionAsKey {
        /// The place.
        origin: Origin,
        /// The section.
        section: String,
        /// A key of the section.
        example: &'static str,
    },
    /// The value is of another type than the key.
    #[error("{origin}: `{key}` expects {expected}, but found {found}")]
    WrongType {
        /// The place.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What the key accepts.
        expected: String,
        /// What was there.
        found: String,
    },
    /// The value is none of the words that the key accepts.
    #[error("{origin}: `{key}` must be {expected}, but is {found}")]
    UnknownChoice {
        /// The place.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What the key accepts.
        expected: String,
        /// What was there.
        found: String,
        /// The word that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The value is outside the key's limit.
    #[error("{origin}: `{key}` must be {allowed}, but is {found}")]
    OutOfRange {
        /// The place.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What the key allows.
        allowed: String,
        /// What was there.
        found: String,
    },
    /// A key without a default has no value.
    #[error("{origin}: `{key}` is not set")]
    Missing {
        /// The place.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What to do.
        hint: String,
    },
    /// Two keys, each allowed, do not go together.
    #[error("{origin}: {problem}")]
    Conflict {
        /// The place.
        origin: Origin,
        /// Which keys and why.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// No built-in experiment has this name.
    #[error("no built-in experiment is named `{name}`")]
    UnknownBuiltin {
        /// What was asked for.
        name: String,
        /// The name that was probably meant.
        nearest: Option<&'static str>,
        /// Every name, joined by commas.
        known: String,
    },
}

impl ExperimentError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("give an experiment file that exists and can be read".into()),
            Self::Syntax { .. } => None,
            Self::Xml { .. } => Some("`stratus config convert` explains what it reads".into()),
            Self::XmlKeys { .. } => {
                Some("leave them out, or set a key of Stratus: `stratus config keys` lists them".into())
            }
            Self::UnknownKey { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownKey { nearest: None, .. } => Some("`stratus config keys` lists every key".into()),
            Self::SectionAsKey { example, .. } => {
                Some(format!("write a key of the section, like `{example}`"))
            }
            Self::WrongType { key, .. } | Self::OutOfRange { key, .. } => {
                Some(format!("`stratus config keys {key}` explains the key"))
            }
            Self::UnknownChoice { nearest: Some(nearest), .. } => {
                Some(format!("did you mean \"{nearest}\"?"))
            }
            Self::UnknownChoice { key, nearest: None, .. } => {
                Some(format!("`stratus config keys {key}` explains the key"))
            }
            Self::Missing { hint, .. } | Self::Conflict { hint, .. } => Some(hint.clone()),
            Self::UnknownBuiltin { nearest: Some(nearest), .. } => Some(format!("did you mean `{nearest}`?")),
            Self::UnknownBuiltin { known, .. } => Some(format!("built-in experiments: {known}")),
        }
    }
}
