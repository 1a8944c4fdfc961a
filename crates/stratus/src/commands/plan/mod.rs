//! `stratus plan`: what a training would do, step by step, without training.

mod largest;
mod stages;
mod steps;
mod summary;
mod workers;

use super::memory::MemoryLimit;
use super::often::Often;
use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use crate::progress::Progress;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stratus_base::text::shell_word;
use stratus_engine::Program;
use stratus_exchange::ExchangeError;
use stratus_graph::Graph;
use stratus_train::compile::{self, FittedRun, KernelSelection, Plans, Programs, expect_statistics};
use stratus_train::input::{HostMemory, open_datasets};
use stratus_train::network::{Network, expect_layer_file};
use stratus_train::resolve::Place;
use stratus_train::{Observer, Resolved, device, run};

/// Arguments of `stratus plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// A built-in experiment, an experiment file or a run directory
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// The keys that everybody sets.
    #[command(flatten)]
    pub often: Often,
    /// Print a stage of planning as a whole; without it, a summary
    #[arg(long, value_enum, value_name = "WHAT")]
    pub dump: Option<Dump>,
    /// Find the largest batch that fits this machine's memory, or --memory-limit, with all activations kept
    #[arg(long, conflicts_with = "dump")]
    pub largest_batch: bool,
    /// What one of so many workers does and holds, a power of two; see `train.parts`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
          conflicts_with = "largest_batch")]
    pub workers: Option<u16>,
    /// Measure kernels anew and keep the new choices for this machine and network
    #[arg(long)]
    pub remeasure: bool,
    /// The most memory.
    #[command(flatten)]
    pub memory: MemoryLimit,
}

/// The stage to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dump {
    /// Layers with shapes, parameters and cost
    Graph,
    /// Steps after lowering, fusion and differentiation
    Program,
    /// Steps with kernels, layouts and places in memory
    Plan,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Report<'a> {
    Graph(&'a Graph),
    Programs {
        train: &'a Program,
        tail: Option<&'a Program>,
        evaluate: &'a Program,
    },
    Plans {
        #[serde(flatten)]
        plans: &'a Plans,
        host_memory: HostMemory,
    },
}

/// Runs `stratus plan`.
///
/// # Errors
/// Where the experiment, its data or its device are not in order.
pub fn run(arguments: &PlanArguments, globals: &Globals, output: &Output) -> Result {
    let globals = &arguments.often.before(globals);
    let target = Target::find(&arguments.target, globals)?;
    let mut experiment = target.experiment(globals)?;
    if arguments.largest_batch {
        // The answer does not depend on the batch that is set, which there may not be enough images for: the
        // smallest that its parts allow.
        experiment.train.batch_size = experiment.train.micro_batches.max(1);
    } else {
        arguments.memory.apply(&mut experiment);
    }
    let workers = usize::from(arguments.workers.unwrap_or(1));
    if !workers.is_power_of_two() {
        return Err(Failure::usage(ExchangeError::Size(workers)));
    }
    if workers > 1 {
        experiment = run::parts_among(&experiment, workers)?;
    }
    expect_layer_file(&experiment)?;
    let datasets = open_datasets(&experiment)?;
    let dataset = &datasets.train;
    let graph = Network::of(&experiment, dataset.as_ref())?.graph;
    if arguments.dump == Some(Dump::Graph) {
        return output.document(&Report::Graph(&graph), || super::model::layers(&graph, None));
    }
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    let resolved =
        Resolved::new(&experiment, dataset.as_ref(), &graph, &device)?.with_place(Place { rank: 0, workers });
    if !arguments.largest_batch {
        run::expect_parts(&resolved)?;
    }
    if let (false, Err(problem)) = (arguments.largest_batch, expect_statistics(&resolved, &graph)) {
        let hint = problem.hint().unwrap_or_default();
        output.warning(&format!("this is planned and will not be trained: {problem}; {hint}"));
    }
    if arguments.dump == Some(Dump::Program) && experiment.train.memory_limit_mib.is_none() {
        // Nothing has to be measured for it.
        return dump_programs(&compile::programs(&resolved, &graph, &device)?, output);
    }
    // Shows on a terminal what is measured.
    let mut progress = Progress::new(*output);
    let selection = if arguments.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
    let mut warn = |text: &str| progress.warn(text);
    if arguments.largest_batch {
        let limit = arguments.memory.memory_limit.map(|mib| mib << 20);
        let search = largest::Search { resolved: &resolved, graph: &graph, device: &device, limit };
        let found = search.find(&datasets, &mut warn)?;
        drop(progress);
        return output.result(&found, || found.text(&command_of(arguments, globals)));
    }
    if arguments.dump.is_none() && experiment.train.stages > 1 {
        let stages = compile::fit_stages(&resolved, &graph, &device, &selection, &mut warn)?;
        drop(progress);
        let stages = stages::Stages::of(&resolved, &stages);
        return output.result(&stages, || stages.to_string());
    }
    let FittedRun { resolved, programs, planned } =
        compile::fit(resolved, &graph, &device, &selection, None, &mut warn)?;
    drop(progress);
    if arguments.dump == Some(Dump::Program) {
        return dump_programs(&programs, output);
    }
    let compiled = planned.allocate(device.backend.as_ref())?;
    let plans = &compiled.plans;
    let host_memory = HostMemory::of(&resolved, &datasets, &plans.train, &plans.evaluate)?;
    if arguments.dump.is_none() {
        let summary = summary::Summary::of(&resolved, plans, &device, host_memory);
        return output
            .result(&summary, || format!("{summary}{}", summary::next(&command_of(arguments, globals))));
    }
    output.document(&Report::Plans { plans, host_memory }, || {
        format!(
            "{}\narena {}, beside it {} of the process's memory\n",
            steps::steps(&plans.train),
            bytes(plans.arena_bytes as u64),
            bytes(host_memory.bytes()),
        )
    })
}

/// What was said of the training, as other commands take it.
fn command_of(arguments: &PlanArguments, globals: &Globals) -> String {
    shell_word(&arguments.target) + &globals.settings(&["train.batch_size"])
}

fn dump_programs(Programs { train, tail, evaluate, .. }: &Programs, output: &Output) -> Result {
    output.document(&Report::Programs { train, tail: tail.as_ref(), evaluate }, || {
        format!("{}\n{}", train.dump(), evaluate.dump())
    })
}
