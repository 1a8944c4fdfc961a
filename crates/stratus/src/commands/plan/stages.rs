//! Where a network would be cut into stages, and what each of them takes.

use crate::output::{bytes, table};
use serde::Serialize;
use std::fmt;
use stratus_engine::{Kernel, Phase, Plan, Step};
use stratus_train::Resolved;
use stratus_train::compile::FittedRun;

/// The stages of a pipeline.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Stages {
    network: String,
    parts: usize,
    /// The share of the time that a stage waits, where all take equally long: (S - 1) / (V + S - 1).
    bubble: f64,
    stages: Vec<Stage>,
}

#[derive(Clone, Debug, Serialize)]
struct Stage {
    /// Its first layer, and its last.
    layers: [String; 2],
    /// Its share of the floating-point operations of a training step.
    flops_share: f64,
    /// Bytes of parameters and what the optimiser keeps of them.
    persistent_bytes: usize,
    /// Bytes allocated for all.
    arena_bytes: usize,
    /// Of how many parts it keeps activations at the same time.
    parts_at_once: usize,
    /// Bytes that it is handed of each part, forwards and backwards.
    received_bytes: usize,
}

impl Stages {
    pub fn of(resolved: &Resolved, stages: &[FittedRun]) -> Self {
        let flops = |plan: &Plan| -> u64 {
            (0..plan.program.steps.len()).map(|step| plan.program.step_flops(step)).sum()
        };
        let all: u64 = stages.iter().map(|run| flops(run.planned.plans()[0])).sum();
        let of = |run: &FittedRun| {
            let [plan, _] = run.planned.plans();
            let program = &plan.program;
            // Of samples, not of running statistics.
            let is_map = |step: &&Step| {
                let mut made = step.outputs.iter().map(|id| program.value(*id));
                step.phase == Phase::Forward && made.any(|value| value.per_sample)
            };
            let mut forward = program.steps.iter().filter(is_map);
            let name = |step: Option<&Step>| step.map(|step| program.layer_name(step)).unwrap_or_default();
            let received = program
                .steps
                .iter()
                .filter(|step| matches!(step.kernel, Kernel::Transfer(transfer) if !transfer.sends));
            Stage {
                layers: [name(forward.clone().next()), name(forward.next_back())],
                flops_share: flops(plan) as f64 / all.max(1) as f64,
                persistent_bytes: plan.persistent_bytes,
                arena_bytes: run.planned.arena_bytes(),
                parts_at_once: program.copies().into_iter().max().unwrap_or(1),
                received_bytes: received
                    .flat_map(|step| &step.outputs)
                    .map(|id| plan.placements[id.0].bytes)
                    .sum(),
            }
        };
        let (count, parts) = (stages.len() as f64, resolved.parts() as f64);
        Self {
            network: resolved.settings().model.name.clone(),
            parts: resolved.parts(),
            bubble: (count - 1.0) / (parts + count - 1.0),
            stages: stages.iter().map(of).collect(),
        }
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["stage", "layers", "operations", "parameters", "parts at once", "received", "memory"];
        let mut rows: Vec<[String; 7]> = vec![head.map(str::to_owned)];
        for (number, stage) in self.stages.iter().enumerate() {
            let [first, last] = &stage.layers;
            rows.push([
                number.to_string(),
                format!("{first} to {last}"),
                format!("{:.1} %", 100.0 * stage.flops_share),
                bytes(stage.persistent_bytes as u64),
                stage.parts_at_once.to_string(),
                bytes(stage.received_bytes as u64),
                bytes(stage.arena_bytes as u64),
            ]);
        }
        let Self { network, parts, bubble, .. } = self;
        writeln!(f, "{network} in {} stages, batches in {parts} parts\n", self.stages.len())?;
        write!(f, "{}", table(&rows))?;
        writeln!(
            f,
            "\nStages that take equally long wait {:.1} % of the time, while the first part comes and the \
             last one goes.",
            100.0 * bubble
        )
    }
}
