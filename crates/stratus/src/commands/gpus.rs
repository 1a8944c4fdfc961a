//! The GPUs of a run that heat or power throttled.

use crate::output::{Output, printable};
use stratus_report::report::{gpu_suggestions, read_gpus};
use stratus_run::RunDir;
use stratus_run::machine::Machine;

/// A sentence for each GPU that was throttled for more than a small share of the time, with a remedy.
/// A file that cannot be read is a warning.
pub fn throttled(run: &RunDir, output: &Output) -> Vec<String> {
    let mut missing = |what: &str, reason: String| {
        output.warning(&format!("{}: cannot show {what}: {reason}", run.path().display()));
    };
    let gpus = read_gpus(run, &mut missing);
    // Only the name of a GPU is missing without the description of the machine.
    let machine = Machine::read(&run.machine()).ok();
    let suggestions = gpu_suggestions(&gpus, machine.as_ref(), run.path());
    suggestions.iter().map(|suggestion| printable(&suggestion.line)).collect()
}
