//! `stratus plan`: what a training would do, step by step, without training.

use super::memory::MemoryLimit;
use super::target::Target;
use crate::cli::Globals;
use crate::errors::Result;
use crate::output::{Output, bytes};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::fmt::Write;
use stratus_engine::ops::KernelSpec;
use stratus_engine::{Plan, Program};
use stratus_graph::Graph;
use stratus_train::compile::{self, FittedRun, KernelSelection, Plans, Programs};
use stratus_train::input::{HostMemory, open_datasets};
use stratus_train::network::Network;
use stratus_train::{Resolved, device};

/// Arguments of `stratus plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// A built-in experiment, an experiment file or a run directory
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// What to print
    #[arg(long, value_enum, default_value_t = Dump::Plan, value_name = "WHAT")]
    pub dump: Dump,
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
    let mut experiment = Target::find(&arguments.target, globals)?.experiment(globals)?;
    arguments.memory.apply(&mut experiment);
    let datasets = open_datasets(&experiment)?;
    let dataset = &datasets.train;
    let graph = Network::of(&experiment, dataset.as_ref())?.graph;
    if arguments.dump == Dump::Graph {
        return output.result(&Report::Graph(&graph), || super::model::layers(&graph));
    }
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    let resolved = Resolved::new(&experiment, dataset.as_ref(), &graph, &device)?;
    if arguments.dump == Dump::Program && experiment.train.memory_limit_mib.is_none() {
        // Nothing has to be measured for it.
        return dump_programs(&compile::programs(&resolved, &graph, &device)?, output);
    }
    let selection = if arguments.remeasure { KernelSelection::Remeasure } else { KernelSelection::Cached };
    let mut warn = |text: &str| output.warning(text);
    let FittedRun { resolved, programs, planned } =
        compile::fit(resolved, &graph, &device, &selection, &mut warn)?;
    if arguments.dump == Dump::Program {
        return dump_programs(&programs, output);
    }
    let compiled = planned.allocate(device.backend.as_ref())?;
    let plans = &compiled.plans;
    let host_memory = HostMemory::of(&resolved, &datasets, &plans.train, &plans.evaluate)?;
    output.result(&Report::Plans { plans, host_memory }, || {
        let HostMemory { batches, batch_bytes, validation_bytes, dataset_bytes } = host_memory;
        format!(
            "{}\narena {} in all: {} persistent, {} transient (at least {} are alive at one step)\n\
             beside it {} of the process's memory: {batches} training batches of {} read ahead, {} of \
             validation, {} of data sets\n",
            steps(&plans.train),
            bytes(plans.arena_bytes as u64),
            bytes(plans.train.persistent_bytes as u64),
            bytes(plans.train.transient_bytes as u64),
            bytes(plans.train.transient_lower_bound as u64),
            bytes(host_memory.bytes()),
            bytes(batch_bytes),
            bytes(validation_bytes),
            bytes(dataset_bytes),
        )
    })
}

fn dump_programs(Programs { train, tail, evaluate, .. }: &Programs, output: &Output) -> Result {
    output.result(&Report::Programs { train, tail: tail.as_ref(), evaluate }, || {
        format!("{}\n{}", train.dump(), evaluate.dump())
    })
}

/// One step a line: phase, layer, kernel, output shape, layout, implementation, cost, place.
fn steps(plan: &Plan) -> String {
    let program = &plan.program;
    let mut text = format!(
        "{} {} batch {}, {}\n{:>3}  {:<16} {:<28} {:<31} {:<15} {:<9} {:>8} {:>8}  {}\n",
        program.network,
        program.precision,
        program.batch,
        plan.library,
        "#",
        "phase",
        "layer",
        "kernel",
        "makes",
        "layout",
        "MFLOP",
        "MB",
        "implementation"
    );
    for (position, step) in program.steps.iter().enumerate() {
        let made = step.outputs.first().or(step.updates.first());
        let shape = made.map_or(String::new(), |&id| {
            program.value(id).shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
        });
        let layout = made.map_or("", |&id| plan.placements[id.0].layout.tag.as_str());
        if let Some(section) = program.section_of(position).filter(|section| section.first == position) {
            let last = section.steps().end - 1;
            let _ = writeln!(text, "     {position} to {last} in {} tiles:", section.tiles);
        }
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{position:>3}  {:<16} {:<28} {:<31} {shape:<15} {layout:<9} {:>8.1} {:>8.2}  {}",
            step.phase.name(),
            program.layer_name(step),
            step.kernel.name(),
            program.step_flops(position) as f64 * 1e-6,
            plan.step_bytes(position) as f64 * 1e-6,
            plan.steps[position].implementation,
        );
    }
    text
}
