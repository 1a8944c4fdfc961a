//! The failure of a command, with its hint and exit code.

use std::error::Error;
use std::fmt;
use stratus_base::library::LibraryNotFound;
use stratus_base::text::{is_printable, shell_path};
use stratus_engine::EngineError;
use stratus_experiment::ExperimentError;
use stratus_run::machine::host_name;
use stratus_train::TrainError;

/// Exit code: the command was valid, but failed.
pub const FAILED: u8 = 1;
/// Exit code: invalid usage or configuration; nothing was started.
pub const USAGE: u8 = 2;
/// Exit code: interrupted, can be resumed.
pub use stratus_base::exit_code::INTERRUPTED;

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// True if a launch started this process on its target. Its messages are read on the machine that launched
/// it, where the paths of the target do not exist.
#[must_use]
pub fn is_launched() -> bool {
    std::env::var_os("STRATUS_LAUNCH").is_some_and(|launch| !launch.is_empty())
}

/// The failure of a command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The error, with its causes.
    pub error: Box<dyn Error + Send + Sync>,
    /// Advice: the command, flag or key to use.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure that is not a usage error: exit code 1.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Failure { code: FAILED, error: error.into(), hint: None }
    }

    /// A usage or configuration error: exit code 2.
    pub fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Failure { code: USAGE, error: error.into(), hint: None }
    }

    /// An interruption after which the run directory can be resumed: exit code 75. The command is omitted
    /// where it would be read on another machine, see [`is_launched`].
    pub fn interrupted(run: &std::path::Path) -> Self {
        let resume = || format!("resume with `stratus train {}`", shell_path(run));
        Failure {
            code: INTERRUPTED,
            error: "interrupted; the run can be resumed".into(),
            hint: (!is_launched()).then(resume),
        }
    }

    /// Returns whether all workers end with this failure, none of them being waited for by another.
    #[must_use]
    pub fn ends_all_workers(&self) -> bool {
        let error = self.error.downcast_ref::<TrainError>();
        self.code == INTERRUPTED || matches!(error, Some(TrainError::AllWorkers(_)))
    }

    /// Returns whether a device failed while it ran a program.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        let error = self.error.downcast_ref::<TrainError>();
        matches!(error, Some(TrainError::Engine(EngineError::Device { .. })))
    }

    /// The failure of the device of a worker. It ends all workers, and the run can be resumed without that
    /// device: exit code 75.
    #[must_use]
    pub fn of_worker(self, rank: usize) -> Self {
        let host = host_name().map_or(String::new(), |host| format!(" on {host}"));
        let error = format!("worker {rank}{host}: {}", self.error).into();
        let hint = "resume the run from its last checkpoint, with the same or another number of workers";
        Failure { code: INTERRUPTED, error, hint: Some(hint.to_owned()) }
    }

    /// Adds a hint, which says what to type.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
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
        if matches!(error.reason(), TrainError::Engine(EngineError::Interrupted)) {
            let hint = Some("no iteration finished; run the same command again".to_owned());
            return Failure { code: INTERRUPTED, error: Box::new(error), hint };
        }
        if matches!(error.reason(), TrainError::Interrupted { .. }) {
            let hint = Some("run the same command again".to_owned());
            return Failure { code: INTERRUPTED, error: Box::new(error), hint };
        }
        if matches!(error, TrainError::Exchange(_) | TrainError::Engine(EngineError::Exchange(_))) {
            let hint = Some("resume the run, with any number of workers".to_owned());
            return Failure { code: INTERRUPTED, error: Box::new(error), hint };
        }
        let (hint, code) = (error.hint(), if error.is_usage() { USAGE } else { FAILED });
        Failure { code, error: Box::new(error), hint }
    }
}

impl From<LibraryNotFound> for Failure {
    fn from(error: LibraryNotFound) -> Self {
        let hint = error.hint();
        Failure { code: USAGE, error: Box::new(error), hint }
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

#[cfg(feature = "ui")]
impl From<stratus_ui::Error> for Failure {
    fn from(error: stratus_ui::Error) -> Self {
        let hint = match &error {
            stratus_ui::Error::Host { .. } => Some("name an address of this machine with --host"),
            stratus_ui::Error::Listen { .. } => Some("choose another one with --port and --host"),
            _ => None,
        };
        Failure { hint: hint.map(str::to_owned), ..Failure::failed(error) }
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

/// Renders `error:`, a `cause:` for each source of the error, and `hint:`.
impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.error.to_string();
        // An interruption is not an error.
        let kind = if self.code == INTERRUPTED { "" } else { "error: " };
        write!(out, "{kind}{}", escape_and_indent(&text))?;
        let mut cause = self.error.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Some errors already contain the text of their source.
            if !text.contains(&next) {
                write!(out, "\ncause: {}", escape_and_indent(&next))?;
            }
            text = next;
            cause = error.source();
        }
        if let Some(hint) = &self.hint {
            write!(out, "\nhint: {}", escape_and_indent(hint))?;
        }
        Ok(())
    }
}

/// Indents the second and later lines, and escapes characters that are not printable, which file names may
/// contain.
fn escape_and_indent(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.trim_end().chars() {
        match c {
            '\n' => clean.push_str("\n  "),
            '\t' => clean.push(' '),
            c if is_printable(c) => clean.push(c),
            c => clean.extend(c.escape_default()),
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
    fn every_cause_is_shown_with_control_characters_escaped() {
        let failure =
            Failure::failed(Outer(std::io::Error::other("disk\u{1b}[31m on\nfire"))).with_hint("put it out");
        let text = failure.to_string();
        assert_eq!(text, "error: cannot read a.toml\ncause: disk\\u{1b}[31m on\n  fire\nhint: put it out");
    }

    #[test]
    fn interruption_shows_the_command_that_resumes() {
        let failure = Failure::interrupted(Path::new("runs/digits/3"));
        assert_eq!(failure.code, INTERRUPTED);
        assert!(failure.to_string().ends_with("`stratus train runs/digits/3`"));
    }
}
