//! What a command failed with, and the exit code that says so.

use std::error::Error;
use std::fmt::{self, Write};
use stratus_engine::EngineError;
use stratus_train::{ExperimentError, TrainError};

/// Exit code: the command was used properly and failed.
pub const FAILED: u8 = 1;
/// Exit code: wrong usage or configuration; nothing was begun.
pub const USAGE: u8 = 2;
/// Exit code: interrupted, and can be continued.
pub const INTERRUPTED: u8 = 75;

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// What a command failed with.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What went wrong, where.
    pub error: Box<dyn Error + Send + Sync>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// The command was used properly and failed.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Failure { code: FAILED, error: error.into(), hint: None }
    }

    /// Wrong usage or configuration.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Failure { code: USAGE, error: error.into(), hint: None }
    }

    /// Interrupted after the state was saved in a run directory.
    pub fn interrupted(run: &std::path::Path) -> Self {
        Failure {
            code: INTERRUPTED,
            error: "interrupted; the run can be continued".into(),
            hint: Some(format!("continue it with `stratus train {}`", run.display())),
        }
    }

    /// With what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<ExperimentError> for Failure {
    fn from(error: ExperimentError) -> Self {
        let hint = error.hint();
        Failure { code: USAGE, error: Box::new(error), hint }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        if matches!(error, TrainError::Engine(EngineError::Interrupted)) {
            let hint = Some("nothing was trained yet: the same command begins again".to_owned());
            return Failure { code: INTERRUPTED, error: Box::new(error), hint };
        }
        if matches!(error, TrainError::Exchange(_)) {
            let hint = Some("a run that has begun can be continued, with any number of workers".to_owned());
            return Failure { code: INTERRUPTED, error: Box::new(error), hint };
        }
        let (hint, code) = (error.hint(), if error.is_usage() { USAGE } else { FAILED });
        Failure { code, error: Box::new(error), hint }
    }
}

impl From<stratus_run::Error> for Failure {
    fn from(error: stratus_run::Error) -> Self {
        Failure::failed(error)
    }
}

impl From<stratus_report::Error> for Failure {
    fn from(error: stratus_report::Error) -> Self {
        Failure::failed(error)
    }
}

impl From<stratus_sweep::Error> for Failure {
    fn from(error: stratus_sweep::Error) -> Self {
        let (hint, code) = (error.hint(), if error.is_usage() { USAGE } else { FAILED });
        Failure { code, error: Box::new(error), hint }
    }
}

impl From<stratus_launch::Error> for Failure {
    fn from(error: stratus_launch::Error) -> Self {
        let (hint, code) = (error.hint(), if error.is_usage() { USAGE } else { FAILED });
        Failure { code, error: Box::new(error), hint }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Failure::failed(error)
    }
}

impl From<stratus_onnx::Error> for Failure {
    fn from(error: stratus_onnx::Error) -> Self {
        Failure::failed(error)
    }
}

impl From<stratus_onnx::WriteError> for Failure {
    fn from(error: stratus_onnx::WriteError) -> Self {
        Failure::failed(error)
    }
}

impl From<stratus_weights::Error> for Failure {
    fn from(error: stratus_weights::Error) -> Self {
        Failure::failed(error)
    }
}

/// The one rendering of errors: `error:`, a `cause:` for each error beneath, `hint:`.
impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.error.to_string();
        // Who interrupts a command has not made an error.
        let kind = if self.code == INTERRUPTED { "" } else { "error: " };
        write!(out, "{kind}{}", indented(&text))?;
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Errors that already print their source would say it twice.
            if !text.contains(&next) {
                write!(out, "\ncause: {}", indented(&next))?;
            }
            text = next;
            cause = error.source();
        }
        if let Some(hint) = &self.hint {
            write!(out, "\nhint: {}", indented(hint))?;
        }
        Ok(())
    }
}

/// Later lines are aligned under the first. Control characters, which may come from file names, are escaped.
fn indented(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => clean.push_str("\n  "),
            '\t' => clean.push(' '),
            c if c.is_control() => {
                // Writing into a String cannot fail.
                let _ = write!(clean, "{}", c.escape_default());
            }
            c => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::{Failure, INTERRUPTED};
    use std::path::Path;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read a.toml")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_chain_of_causes_is_shown() {
        let failure =
            Failure::failed(Outer(std::io::Error::other("disk\u{1b}[31m on\nfire"))).hint("put it out");
        let text = failure.to_string();
        assert_eq!(text, "error: cannot read a.toml\ncause: disk\\u{1b}[31m on\n  fire\nhint: put it out");
    }

    #[test]
    fn an_interruption_says_how_to_continue() {
        let failure = Failure::interrupted(Path::new("runs/digits/3"));
        assert_eq!(failure.code, INTERRUPTED);
        assert!(failure.to_string().ends_with("`stratus train runs/digits/3`"));
    }
}
