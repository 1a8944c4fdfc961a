//! Agreement of all workers on the outcome of a step before training: if it fails on some of them, all end
//! with the reason, instead of waiting for a worker that has ended.

use crate::TrainError;
use serde::{Deserialize, Serialize};
use std::error::Error;
use stratus_engine::EngineError;
use stratus_exchange::WorkerGroup;
use stratus_run::machine::host_name;

/// The maximum length in bytes of each text of a failure that other workers receive.
const MAX_TEXT_BYTES: usize = 4096;

/// The failure of a step on one worker, as the others receive it.
#[derive(Debug, Serialize, Deserialize)]
struct SharedFailure {
    host: Option<String>,
    problem: String,
    hint: Option<String>,
    is_usage: bool,
    is_interruption: bool,
}

impl SharedFailure {
    fn new(error: &TrainError) -> Self {
        Self {
            host: host_name().map(shortened),
            problem: shortened(with_causes(error)),
            hint: error.hint().map(shortened),
            is_usage: error.is_usage(),
            is_interruption: matches!(error.reason(), TrainError::Engine(EngineError::Interrupted)),
        }
    }

    /// The error of the other workers. `None` is a failure that cannot be read.
    fn into_error(failure: Option<Self>, rank: usize) -> TrainError {
        let Some(Self { host, problem, hint, is_usage, is_interruption }) = failure else {
            let problem = "failed for an unknown reason".to_owned();
            return TrainError::Worker {
                worker: format!("worker {rank}"),
                problem,
                hint: None,
                is_usage: false,
            };
        };
        if is_interruption {
            return TrainError::Engine(EngineError::Interrupted);
        }
        let host = host.map_or(String::new(), |host| format!(" on {host}"));
        TrainError::Worker { worker: format!("worker {rank}{host}"), problem, hint, is_usage }
    }
}

/// An error with those that it was caused by, unless it contains their texts.
fn with_causes(error: &TrainError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let next = cause.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = cause.source();
    }
    text
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
    text
}

/// The outcome of a step before training that every worker takes; without `workers`, this process trains
/// alone. If it failed on any worker, the error of all is [`TrainError::AllWorkers`]: they then end together
/// instead of being killed by their launcher. A worker that did not fail has the error of the first that did.
///
/// A step may agree itself: an error on which all workers have agreed, or a lost connection, is returned as
/// it is.
///
/// # Errors
/// If the step failed on a worker, or a worker has disconnected.
pub(crate) fn agree<T>(
    workers: Option<&WorkerGroup>,
    outcome: Result<T, TrainError>,
) -> Result<T, TrainError> {
    let Some(workers) = workers else { return outcome };
    let own = match &outcome {
        Err(TrainError::AllWorkers(_) | TrainError::Exchange(_)) => return outcome,
        // An empty text is a success.
        Err(error) => serde_json::to_vec(&SharedFailure::new(error)).unwrap_or_else(|_| vec![b' ']),
        Ok(_) => Vec::new(),
    };
    let failures = match workers.all_gatherv(own) {
        Ok(failures) => failures,
        Err(lost) => return outcome.and_then(|_| Err(lost.into())),
    };
    let Some(rank) = failures.iter().position(|failure| !failure.is_empty()) else { return outcome };
    let error = match outcome {
        Err(error) => error,
        Ok(_) => SharedFailure::into_error(serde_json::from_slice(&failures[rank]).ok(), rank),
    };
    Err(TrainError::AllWorkers(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_exchange::in_process::transports;

    /// The outcomes of workers that each took a step with these outcomes.
    fn agreed(outcomes: Vec<Result<usize, TrainError>>) -> Vec<Result<usize, TrainError>> {
        let groups = transports(outcomes.len()).into_iter();
        let groups: Vec<_> = groups.map(|transport| WorkerGroup::open(|| Ok(transport)).unwrap()).collect();
        std::thread::scope(|scope| {
            let workers: Vec<_> = groups
                .iter()
                .zip(outcomes)
                .map(|(group, outcome)| scope.spawn(move || agree(Some(group), outcome)))
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        })
    }

    fn out_of_memory() -> TrainError {
        EngineError::Device { device: "cuda".to_owned(), reason: "out of memory\u{1b}[2J".to_owned() }.into()
    }

    #[test]
    fn all_workers_end_with_the_reason_of_one() {
        let outcomes = agreed(vec![Ok(0), Ok(1), Ok(2), Err(out_of_memory())]);
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let Err(TrainError::AllWorkers(error)) = outcome else { panic!("worker {rank} has no error") };
            assert!(error.to_string().contains("out of memory"), "{error}");
            assert_eq!(error.to_string().starts_with("worker 3"), rank < 3, "{error}");
            assert!(!error.is_usage());
        }
    }

    #[test]
    fn usage_errors_and_interruptions_stay_what_they_are() {
        let usage = || TrainError::Configuration { problem: "no".to_owned(), hint: "do".to_owned() };
        let outcomes = agreed(vec![Ok(0), Err(usage())]);
        let error = outcomes[0].as_ref().unwrap_err();
        assert!(error.is_usage() && error.hint().as_deref() == Some("do"), "{error}");
        let outcomes = agreed(vec![Ok(0), Err(EngineError::Interrupted.into())]);
        let error = outcomes[0].as_ref().unwrap_err();
        assert!(matches!(error.reason(), TrainError::Engine(EngineError::Interrupted)), "{error}");
    }

    #[test]
    fn successes_and_agreed_errors_are_returned() {
        assert!(agreed(vec![Ok(5), Ok(6)]).into_iter().map(Result::unwrap).eq([5, 6]));
        let common = || Err(TrainError::AllWorkers(Box::new(out_of_memory())));
        for outcome in agreed(vec![common(), common()]) {
            let Err(TrainError::AllWorkers(error)) = outcome else { panic!("no error") };
            assert!(!matches!(*error, TrainError::AllWorkers(_)));
        }
        assert!(SharedFailure::into_error(None, 2).to_string().starts_with("worker 2"));
    }
}
