//! The first stage of a run of two: a run of its own in a folder of the run, which begins with its weights.
//!
//! ```text
//! runs/<experiment>/<n>/                experiment.toml: both stages
//! runs/<experiment>/<n>/first_stage/    a run: interrupted, continued and reported as any other
//! ```
//!
//! The run has no checkpoint before its first stage is complete, so continuing it continues that.

use super::{Options, RunOutcome, resume, start};
use crate::input::{data_record, open_datasets};
use crate::network::Network;
use crate::{Experiment, Observer, TrainError};
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::data::DataRecord;
use stratus_run::machine::Machine;
use stratus_run::summary::{self, Summary};

/// What became of the first stage.
pub(super) enum FirstStage {
    /// It is complete: the experiment as it goes on, with its weights.
    Complete(Box<Experiment>),
    /// It was stopped and can be continued.
    Interrupted(Box<Summary>),
}

/// Checks, before anything is trained, that the second stage has something of the first, and that both can
/// be trained on the data. Returns the record of the data.
pub(super) fn check(experiment: &Experiment, first: &Experiment) -> Result<DataRecord, TrainError> {
    let datasets = open_datasets(experiment)?;
    let train = &datasets.train;
    let graphs = [first, experiment].map(|stage| Network::of(stage, train.as_ref()).map(|net| net.graph));
    let [first_graph, graph] = graphs;
    let (first_graph, graph) = (first_graph?, graph?);
    if shared(&first_graph, &graph) == 0 {
        return Err(TrainError::Configuration {
            problem: format!(
                "first_stage.network is `{}`, of which no layer is in `{}`",
                first_graph.name, graph.name
            ),
            hint: "name a network that is a part of it, such as erfnet_encoder of erfnet".to_owned(),
        });
    }
    Ok(data_record(experiment, &datasets))
}

/// Parameters that two networks have in common.
fn shared(first: &Graph, second: &Graph) -> usize {
    let is_shared = |parameter: &&stratus_graph::Parameter| {
        second.parameters.iter().any(|other| other.name == parameter.name && other.shape == parameter.shape)
    };
    first.parameters.iter().filter(is_shared).count()
}

/// Trains the first stage to its end, from wherever it was.
pub(super) fn train(
    run: &RunDir,
    experiment: &Experiment,
    first: &Experiment,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<FirstStage, TrainError> {
    let path = run.first_stage();
    let options = &Options { until_epoch: None, ..options.clone() };
    let RunOutcome { summary, interrupted, .. } = if RunDir::is_run(&path) {
        resume(&path, options, observer)?
    } else {
        observer.say(&format!("first stage: {}, {} epochs", first.model.name, first.train.epochs));
        let options = Options { out: Some(path.clone()), ..options.clone() };
        start(first, &options, Machine::read(&run.machine())?, observer)?
    };
    if interrupted {
        return Ok(FirstStage::Interrupted(Box::new(summary)));
    }
    observer.say(&format!("second stage: {}, {} epochs", experiment.model.name, experiment.train.epochs));
    let mut experiment = experiment.clone();
    experiment.model.weights = Some(path.display().to_string());
    Ok(FirstStage::Complete(Box::new(experiment)))
}

/// What a run's summary says of its first stage, if it had one.
pub(super) fn summary_of(run: &RunDir) -> Option<summary::FirstStage> {
    let Summary { model, epochs, time, .. } =
        Summary::read(&RunDir::open(&run.first_stage()).ok()?.summary()).ok()?;
    Some(summary::FirstStage { model, epochs, total_s: time.total_s })
}
