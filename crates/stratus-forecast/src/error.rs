//! What can be wrong with a request, a catalogue, a profile or a table of measurements.

use crate::catalogue::NameHint;

/// Why there is no forecast.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A machine that the catalogue does not have.
    #[error("machine `{name}` is not in the catalogue")]
    UnknownMachine {
        /// What was asked for.
        name: String,
        /// Names that come near, or some that there are.
        hint: NameHint,
    },
    /// A catalogue with a row that cannot be.
    #[error("{file}: {row}: {problem}")]
    Catalogue {
        /// The file.
        file: String,
        /// The row's kind and name, or its position.
        row: String,
        /// What is wrong.
        problem: String,
    },
    /// A file that is too long, or no TOML of this form.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A profile of another version.
    #[error("{file}: the profile has format {found}, this version reads format {known}")]
    ProfileFormat {
        /// The file.
        file: String,
        /// The format that it names.
        found: u32,
        /// The format that is read.
        known: u32,
    },
    /// A table of measurements with a line that cannot be.
    #[error("{file}, line {line}: {problem}")]
    Table {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// Too little to fit a profile to.
    #[error("{problem}")]
    TooFew {
        /// What is missing.
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
    /// A machine whose data sheet says too little.
    #[error("the catalogue has no {figure} of {machine}")]
    Figure {
        /// The machine.
        machine: String,
        /// What is missing.
        figure: &'static str,
    },
    /// A wish that cannot be read.
    #[error("--want {text}: {problem}")]
    Wish {
        /// What was asked for.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// A rate or a size that cannot be read.
    #[error("--{flag} {text}: {problem}")]
    Quantity {
        /// Of which argument.
        flag: &'static str,
        /// What was given.
        text: String,
        /// What is wrong.
        problem: &'static str,
        /// What would be right.
        example: &'static str,
    },
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::UnknownMachine { hint, .. } => hint.to_string(),
            Self::Catalogue { .. } => "docs/forecast.md says what a row has".to_owned(),
            Self::File { .. } | Self::Table { .. } => return None,
            Self::ProfileFormat { .. } => {
                "make it again, with `stratus calibrate` or `stratus forecast fit`".to_owned()
            }
            Self::TooFew { .. } => {
                "docs/forecast.md says what was measured; more step times make more profiles, with \
                 `stratus forecast fit`"
                    .to_owned()
            }
            Self::Precision { .. } => {
                "choose another with --set train.precision=, or another machine".to_owned()
            }
            Self::Figure { .. } => "give the row in a file with --machines FILE".to_owned(),
            Self::Wish { .. } => {
                "ask for fastest, cheapest, deadline=6h (s, m, h or d) or budget=20".to_owned()
            }
            Self::Quantity { example, .. } => format!("like {example}"),
        })
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
