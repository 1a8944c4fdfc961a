//! `--workers N`: starts workers with the arguments of this process.

use crate::errors::{FAILED, Failure, INTERRUPTED, Result, USAGE};
use crate::output::Output;
use crate::signals;
use std::ffi::OsString;
use stratus_train::workers::{WorkerHosts, WorkersError, WorkersOutcome, run_workers};

/// The options of the starting process that workers do not get.
const STARTING_OPTIONS: [&str; 2] = ["--workers", "--hosts"];

/// Starts `count` workers with this process's arguments, on `hosts` or on this machine, and waits for them.
/// If one fails, this process ends with its exit code.
///
/// # Errors
/// If MPI is not found, a host cannot run workers, or a worker was killed or hangs; workers print their own
/// errors.
pub fn start(count: usize, hosts: Option<&WorkerHosts>, output: &Output) -> Result {
    let stop = signals::stop_flag()?;
    let arguments = strip_starting_options(std::env::args_os().skip(1));
    let stopping = || output.message("stopping after this iteration, with a checkpoint");
    match run_workers(count, hosts, arguments, &stop, &stopping)? {
        WorkersOutcome::Finished => Ok(()),
        WorkersOutcome::Failed(code) => std::process::exit(code.unwrap_or(i32::from(FAILED))),
    }
}

/// Returns the arguments without `--workers` and `--hosts`.
fn strip_starting_options(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.filter(move |argument| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        is_value = STARTING_OPTIONS.iter().any(|option| argument == *option);
        let has_value = |option: &&str| {
            let rest = argument.as_encoded_bytes().strip_prefix(option.as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b"="))
        };
        !is_value && !STARTING_OPTIONS.iter().any(has_value)
    })
}

impl From<WorkersError> for Failure {
    fn from(error: WorkersError) -> Self {
        let code = match error {
            WorkersError::Count(_)
            | WorkersError::Library(_)
            | WorkersError::HostList { .. }
            | WorkersError::ConnectTimeout { .. } => USAGE,
            WorkersError::Lost { .. } | WorkersError::NotConnected { .. } => INTERRUPTED,
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
    fn options_of_the_starting_process_are_stripped_from_the_arguments() {
        let given = ["train", "digits", "--workers", "4", "--set", "train.epochs=1", "--workers=2"];
        let remaining: Vec<_> = strip_starting_options(given.into_iter().map(Into::into)).collect();
        assert_eq!(remaining, ["train", "digits", "--set", "train.epochs=1"]);
        let given = ["train", "--hosts", "a,b", "digits", "--hosts=a", "--hostsx", "--out", "hosts"];
        let remaining: Vec<_> = strip_starting_options(given.into_iter().map(Into::into)).collect();
        assert_eq!(remaining, ["train", "digits", "--hostsx", "--out", "hosts"]);
    }
}
