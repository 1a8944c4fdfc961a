//! The pre-training stage: a run of its own in a folder of the run, whose weights the run starts from.
//!
//! ```text
//! runs/<experiment>/<n>/                experiment.toml: both stages
//! runs/<experiment>/<n>/first_stage/    a run: interrupted, resumed and reported as any other
//! ```
//!
//! The run has no checkpoint before its pre-training stage is complete, so resuming it resumes that stage.

use super::{RunOptions, RunOutcome, resume, start};
use crate::input::{data_record, open_datasets};
use crate::network::Network;
use crate::{Observer, TrainError};
use stratus_base::text::counted;
use stratus_experiment::Experiment;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::data::DataRecord;
use stratus_run::labels::RunLabels;
use stratus_run::machine::Machine;
use stratus_run::summary::{self, Summary};

/// The outcome of the pre-training stage.
pub(super) enum FirstStageOutcome {
    /// Complete: the experiment of the full network, which starts from its weights.
    Complete(Box<Experiment>),
    /// Interrupted: it can be resumed.
    Interrupted(Box<Summary>),
}

/// Checks, before any training, that both stages share parameters and can be trained on the data. Returns the
/// record of the data.
pub(super) fn check(experiment: &Experiment, first: &Experiment) -> Result<DataRecord, TrainError> {
    let datasets = open_datasets(experiment)?;
    let train = &datasets.train;
    let graphs =
        [first, experiment].map(|stage| Network::for_dataset(stage, train.as_ref()).map(|net| net.graph));
    let [first_graph, graph] = graphs;
    let (first_graph, graph) = (first_graph?, graph?);
    if shared_parameters(&first_graph, &graph) == 0 {
        return Err(TrainError::Configuration {
            problem: format!(
                "first_stage.network `{}` shares no layer with `{}`",
                first_graph.name, graph.name
            ),
            hint: "set it to a part of the network, such as erfnet_encoder for erfnet".to_owned(),
        });
    }
    Ok(data_record(experiment, &datasets))
}

/// The number of parameters that two networks share.
fn shared_parameters(first: &Graph, second: &Graph) -> usize {
    let is_shared = |parameter: &&stratus_graph::Parameter| {
        second.parameters.iter().any(|other| other.name == parameter.name && other.shape == parameter.shape)
    };
    first.parameters.iter().filter(is_shared).count()
}

/// Starts or resumes the pre-training stage, and trains it to its end.
pub(super) fn train(
    run: &RunDir,
    experiment: &Experiment,
    first: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<FirstStageOutcome, TrainError> {
    let path = run.first_stage();
    let options = &RunOptions { until_epoch: None, labels: RunLabels::default(), ..options.clone() };
    let RunOutcome { summary, interrupted, .. } = if RunDir::is_run(&path) {
        resume(&path, options, observer)?
    } else {
        observer.info(&format!(
            "pre-training stage: {}, {}",
            first.model.name,
            counted(first.train.epochs, "epoch")
        ));
        let options = RunOptions { out: Some(path.clone()), ..options.clone() };
        start(first, &options, Machine::read(&run.machine())?, observer)?
    };
    if interrupted {
        return Ok(FirstStageOutcome::Interrupted(Box::new(summary)));
    }
    observer.info(&format!(
        "pre-training stage complete; training {}, {}",
        experiment.model.name,
        counted(experiment.train.epochs, "epoch")
    ));
    let mut experiment = experiment.clone();
    experiment.model.weights = Some(path.display().to_string());
    Ok(FirstStageOutcome::Complete(Box::new(experiment)))
}

/// The summary of a run's pre-training stage, if it has one.
pub(super) fn read_summary(run: &RunDir) -> Option<summary::FirstStageSummary> {
    let Summary { model, epochs, time, .. } =
        Summary::read(&RunDir::open(&run.first_stage()).ok()?.summary()).ok()?;
    Some(summary::FirstStageSummary { model, epochs, total_s: time.total_s })
}
