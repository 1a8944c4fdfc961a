//! `--workers N`: starts workers with the arguments of this process.

use crate::errors::{FAILED, Failure, INTERRUPTED, Result, USAGE};
use crate::output::Output;
use crate::signals;
use std::ffi::OsString;
use stratus_train::workers::{WorkersError, WorkersOutcome, run_workers};

/// Starts `count` workers with this process's arguments, and waits for them. If one fails, this process ends
/// with its exit code.
///
/// # Errors
/// If MPI is not found, or a worker was killed or hangs; workers print their own errors.
pub fn start(count: usize, output: &Output) -> Result {
    let stop = signals::stop_flag()?;
    let arguments = strip_workers_flag(std::env::args_os().skip(1));
    let stopping = || output.message("stopping after this iteration, with a checkpoint");
    match run_workers(count, arguments, &stop, &stopping)? {
        WorkersOutcome::Finished => Ok(()),
        WorkersOutcome::Failed(code) => std::process::exit(code.unwrap_or(i32::from(FAILED))),
    }
}

/// Returns the arguments without `--workers`.
fn strip_workers_flag(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.filter(move |argument| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        is_value = argument == "--workers";
        !is_value && !argument.as_encoded_bytes().starts_with(b"--workers=")
    })
}

impl From<WorkersError> for Failure {
    fn from(error: WorkersError) -> Self {
        let code = match error {
            WorkersError::Count(_) | WorkersError::Library(_) => USAGE,
            WorkersError::Lost { .. } => INTERRUPTED,
            _ => FAILED,
        };
        let hint = error.hint();
        Failure { code, error: Box::new(error), hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_flag_is_stripped_from_the_arguments() {
        let given = ["train", "digits", "--workers", "4", "--set", "train.epochs=1", "--workers=2"];
        let remaining: Vec<_> = strip_workers_flag(given.into_iter().map(Into::into)).collect();
        assert_eq!(remaining, ["train", "digits", "--set", "train.epochs=1"]);
    }
}
