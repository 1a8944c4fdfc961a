//! Errors in requests, catalogues, profiles and tables of measurements.

use std::fmt;

/// A similar name for an unknown one, or all known names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameHint {
    pub(crate) similar: Option<String>,
    pub(crate) known: Vec<String>,
}

impl fmt::Display for NameHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.similar {
            Some(similar) => write!(f, "did you mean `{similar}`?"),
            None => {
                write!(f, "use one of these, or add a row with --machines FILE: {}", self.known.join(", "))
            }
        }
    }
}

/// An error of a forecast.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine is not in the catalogue.
    #[error("machine `{name}` is not in the catalogue")]
    UnknownMachine {
        /// The requested name.
        name: String,
        /// Similar or known names.
        hint: NameHint,
    },
    /// A catalogue row is invalid.
    #[error("{file}: {row}: {problem}")]
    Catalogue {
        /// The file.
        file: String,
        /// The kind and name of the row, or its position.
        row: String,
        /// The problem.
        problem: String,
    },
    /// The file cannot be read.
    #[error("cannot read {file}: {problem}")]
    Read {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The file is too large or malformed.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The format version of the profile is not supported.
    #[error("{file}: unsupported profile format {found}; expected format {known}")]
    ProfileFormat {
        /// The file.
        file: String,
        /// The format of the file.
        found: u32,
        /// The supported format.
        known: u32,
    },
    /// A line of a table of measurements is invalid.
    #[error("{file}, line {line}: {problem}")]
    Table {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// There are not enough measurements.
    #[error("{problem}")]
    TooFew {
        /// The problem.
        problem: String,
    },
    /// A machine that cannot compute in the number format.
    #[error("{machine} does not compute in {precision}")]
    Precision {
        /// The machine.
        machine: String,
        /// The number format.
        precision: String,
    },
    /// The catalogue lacks a value of the machine.
    #[error("the catalogue has no {figure} of {machine}")]
    Figure {
        /// The machine.
        machine: String,
        /// The missing value.
        figure: &'static str,
    },
    /// The catalogue has no price of the machine.
    #[error("the catalogue has no price for {machine}")]
    NoPrice {
        /// The machine.
        machine: String,
    },
    /// The objective is invalid.
    #[error("--objective {text}: {problem}")]
    Objective {
        /// The given objective.
        text: String,
        /// The problem.
        problem: String,
    },
    /// A rate or size is invalid.
    #[error("--{flag} {text}: {problem}")]
    Quantity {
        /// The name of the argument.
        flag: &'static str,
        /// The given text.
        text: String,
        /// The problem.
        problem: &'static str,
        /// A valid example.
        example: &'static str,
    },
}

impl Error {
    /// A hint on how to fix the error.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownMachine { hint, .. } => hint.to_string(),
            Self::Catalogue { .. } => "see docs/forecast-model.md for the keys of a row".to_owned(),
            Self::Read { .. } | Self::File { .. } | Self::Table { .. } => return None,
            Self::ProfileFormat { .. } => {
                "recreate it with `stratus calibrate` or `stratus forecast fit`".to_owned()
            }
            Self::TooFew { .. } => {
                "see docs/forecast-model.md for the available measurements; `stratus forecast fit` adds \
                 profiles from more step times"
                    .to_owned()
            }
            Self::Precision { .. } => {
                "use another precision with --set train.precision=, or another machine".to_owned()
            }
            Self::NoPrice { .. } => {
                "`stratus forecast machines` lists them; or set train.price_per_hour".to_owned()
            }
            Self::Figure { .. } => "add a row in a file with --machines FILE".to_owned(),
            Self::Objective { .. } => {
                "use value, fastest, cheapest, deadline=6h (s, m, h or d) or budget=20".to_owned()
            }
            Self::Quantity { example, .. } => format!("for example {example}"),
        })
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
