//! `stratus plan`: shows the plan and memory of a training run without running it.

mod stages;
mod steps;
mod summary;
mod workers;

use super::common_keys::{CommonKeyArguments, KeyFlags};
use super::memory::MemoryLimitArgument;
use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use crate::progress::Progress;
use clap::{Args, ValueEnum};
use serde::Serialize;
use stratus_base::text::{bytes, shell_word};
use stratus_engine::Program;
use stratus_exchange::ExchangeError;
use stratus_graph::Graph;
use stratus_train::compile::{
    self, FittedRun, KernelSelection, Plans, Programs, batch_divisor, check_batch_norm_samples,
};
use stratus_train::input::{HostMemory, open_datasets, open_datasets_or_placeholders};
use stratus_train::network::Network;
use stratus_train::plan_summary::{PipelineStages, PlanSummary};
use stratus_train::resolve::Rank;
use stratus_train::sizing::{LargestBatch, LargestBatchSearch};
use stratus_train::{Observer, ResolvedProcess, device, exchange, run};

/// Arguments of `stratus plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// Built-in experiment, experiment file or run directory
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// Common configuration keys.
    #[command(flatten)]
    pub common: CommonKeyArguments,
    /// Print one planning stage in full [default: summary]
    #[arg(long, value_enum, value_name = "STAGE")]
    pub dump: Option<Dump>,
    /// Find the largest batch that fits in this machine's memory, or in --memory-limit, without recomputing
    /// activations
    #[arg(long, conflicts_with = "dump")]
    pub largest_batch: bool,
    /// Plan one of N data-parallel workers; N is a power of two (see `train.parts`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
          conflicts_with = "largest_batch")]
    pub workers: Option<u16>,
    /// Re-measure kernels and cache the new selection
    #[arg(long)]
    pub remeasure: bool,
    /// Memory limit.
    #[command(flatten)]
    pub memory: MemoryLimitArgument,
}

/// A planning stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dump {
    /// Layers with shapes, parameters and cost
    Graph,
    /// Steps after lowering, fusion and differentiation
    Program,
    /// Steps with kernels, layouts and memory offsets
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
/// If the experiment, its data or its device is invalid.
pub fn run(arguments: &PlanArguments, globals: &Globals, output: &Output) -> Result {
    let globals = &arguments.common.prepend_to(globals)?;
    let target = RunOrExperiment::resolve(&arguments.target, globals)?;
    let mut experiment = target.experiment(globals)?;
    if arguments.largest_batch {
        // The configured batch is irrelevant here, but could exceed the data set; use the smallest one that
        // the micro-batches or parts allow.
        experiment.train.batch_size = experiment.train.micro_batches.max(experiment.train.parts);
    } else {
        arguments.memory.apply(&mut experiment);
    }
    let workers = usize::from(arguments.workers.unwrap_or(1));
    if !workers.is_power_of_two() {
        return Err(Failure::usage(ExchangeError::NotPowerOfTwo(workers)));
    }
    let mut pipelines = 1;
    // Without workers, the plan is that of all stages of one pipeline.
    if workers > 1 || experiment.train.stages <= 1 {
        (experiment, pipelines) = run::for_workers(&experiment, workers, false)?;
    }
    let (datasets, are_placeholders) = match arguments.largest_batch {
        true => open_datasets_or_placeholders(&experiment)?,
        false => (open_datasets(&experiment)?, false),
    };
    let dataset = &datasets.train;
    if let (true, Some([channels, height, width])) = (are_placeholders, dataset.sample_shape()) {
        let missing = match experiment.has_data_set() {
            true => {
                format!("data set `{}` is not at {}", experiment.data.name, experiment.data_path().display())
            }
            false => "no data set is set".to_owned(),
        };
        let classes = dataset.classes();
        output.message(&format!(
            "{missing}: assuming images of {channels}×{height}×{width} and {classes} classes"
        ));
    }
    let graph = Network::for_dataset(&experiment, dataset.as_ref())?.graph;
    if arguments.dump == Some(Dump::Graph) {
        return output.print_verbatim(&Report::Graph(&graph), || super::model::layer_table(&graph, None));
    }
    // Shows the phase of the measurement on a terminal.
    let mut progress = Progress::new(*output);
    let device = device::open_monitored(&experiment.train, 0, &progress.startup_monitor())?;
    device.warnings.iter().for_each(|warning| progress.warn(warning));
    let resolved = ResolvedProcess::for_training(&experiment, dataset.as_ref(), &graph, &device)?
        .with_rank(Rank { rank: 0, world_size: pipelines });
    if !arguments.largest_batch {
        run::check_parts(&resolved)?;
        exchange::unused_keys(&resolved).iter().for_each(|text| progress.warn(text));
    }
    if let (false, Err(problem)) = (arguments.largest_batch, check_batch_norm_samples(&resolved, &graph)) {
        let hint = problem.hint().unwrap_or_default();
        progress.warn(&format!("training will reject this plan: {problem}; {hint}"));
    }
    if let Err(problem) = exchange::check_exchange(&resolved, &device) {
        let hint = problem.hint().unwrap_or_default();
        progress.warn(&format!("training will reject this plan: {problem}; {hint}"));
    }
    if arguments.dump == Some(Dump::Program) && experiment.train.memory_limit_mib.is_none() {
        // The program does not depend on measurements.
        drop(progress);
        return dump_programs(&compile::programs(&resolved, &graph, &device)?, output);
    }
    let selection = if arguments.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
    let mut warn = |text: &str| progress.warn(text);
    if arguments.largest_batch {
        let limit = arguments.memory.memory_limit.map(|mib| mib << 20);
        let search = LargestBatchSearch { resolved: &resolved, graph: &graph, device: &device, limit };
        let found = search.find(&datasets, &mut warn)?;
        let is_whole_data_set = found.is_whole_data_set && !are_placeholders;
        let found = LargestBatch { is_whole_data_set, ..found };
        drop(progress);
        let batches = batches_to_compare(found.batch_size, batch_divisor(&resolved));
        return output.print_wrapped(&found, || {
            render_largest(&found, &batches, &forecast_arguments(arguments, globals))
        });
    }
    if arguments.dump.is_none() && experiment.train.stages > 1 {
        let stages = compile::fit_stages(&resolved, &graph, &device, &selection, &mut warn)?;
        drop(progress);
        let stages = PipelineStages::new(&resolved, &stages, device.is_accelerator);
        return output.print_wrapped(&stages, || stages::render(&stages));
    }
    let FittedRun { resolved, programs, planned, .. } =
        compile::fit(&resolved, &graph, &device, &selection, None, &mut warn)?;
    drop(progress);
    if arguments.dump == Some(Dump::Program) {
        return dump_programs(&programs, output);
    }
    let compiled = planned.allocate(device.backend.as_ref())?;
    let plans = &compiled.plans;
    let host_memory = HostMemory::for_run(&resolved, &datasets, &plans.train, &plans.evaluate)?;
    if arguments.dump.is_none() {
        let summary = PlanSummary::new(&resolved, plans, &device, host_memory);
        return output.print_wrapped(&summary, || {
            summary::render(&summary) + &summary::next_steps(&forecast_arguments(arguments, globals))
        });
    }
    output.print_verbatim(&Report::Plans { plans, host_memory }, || {
        format!(
            "{}\narena {}, other memory of the process {}\n",
            steps::render_steps(&plans.train),
            bytes(plans.arena_bytes as u64),
            bytes(host_memory.bytes()),
        )
    })
}

/// The experiment and its settings, as arguments of `stratus forecast`.
fn forecast_arguments(arguments: &PlanArguments, globals: &Globals) -> String {
    shell_word(&arguments.target) + &globals.as_set_flags(&["train.batch_size"])
}

fn dump_programs(Programs { train, tail, evaluate, .. }: &Programs, output: &Output) -> Result {
    output.print_verbatim(&Report::Programs { train, tail: tail.as_ref(), evaluate }, || {
        format!("{}\n{}", train.dump(), evaluate.dump())
    })
}

/// Up to three batches to compare: the largest one, after smaller ones that are a power of two times
/// `divisor`, the number that must divide a batch.
fn batches_to_compare(largest: usize, divisor: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(divisor.max(1)), |batch| batch.checked_mul(2));
    let smaller: Vec<usize> = doubled.take_while(|batch| *batch < largest).collect();
    let compared = smaller[smaller.len().saturating_sub(2)..].iter().chain([&largest]);
    compared.copied().collect()
}

/// Renders the largest batch. `batches` are those to compare; `command` is the experiment and its settings,
/// for the hint.
fn render_largest(found: &LargestBatch, batches: &[usize], command: &str) -> String {
    let LargestBatch { batch_size, arena_bytes, host_memory, limit_bytes, is_whole_data_set } = *found;
    let whole = if is_whole_data_set { ", the whole data set" } else { "" };
    let comparison = if batches.len() < 2 {
        String::new()
    } else {
        let batches: Vec<String> = batches.iter().map(usize::to_string).collect();
        format!(
            "The fastest batch is often smaller: compare with `stratus forecast {command} --batch {} \
             --on here`. ",
            batches.join(",")
        )
    };
    format!(
        "largest batch  {batch_size} images{whole}\nmemory         {} for the network, {} for data; \
         limit for the network {}\n\nTo train with it, use --batch {batch_size}. {comparison}Kernels were \
         not measured; those of the training run may need a few per cent more or less memory.\n",
        bytes(arena_bytes as u64),
        bytes(host_memory.bytes()),
        bytes(limit_bytes as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::batches_to_compare;

    #[test]
    fn compared_batches_fit_and_are_multiples_of_the_divisor() {
        assert_eq!(batches_to_compare(36, 1), [16, 32, 36]);
        assert_eq!(batches_to_compare(256, 1), [64, 128, 256]);
        assert_eq!(batches_to_compare(2, 1), [1, 2]);
        assert_eq!(batches_to_compare(1, 1), [1]);
        assert_eq!(batches_to_compare(35, 7), [14, 28, 35]);
        assert_eq!(batches_to_compare(7, 7), [7]);
    }
}
