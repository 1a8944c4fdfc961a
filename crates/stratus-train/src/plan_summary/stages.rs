//! The pipeline stages of a network, and the cost of each.

use crate::compile::FittedRun;
use crate::resolve::ResolvedProcess;
use serde::Serialize;
use stratus_engine::{Kernel, Phase, Plan, Step};

/// The stages of a pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineStages {
    /// The network's name.
    pub network: String,
    /// The parts of a batch.
    pub parts: usize,
    /// The number of pipelines, which divide the parts.
    pub pipelines: usize,
    /// The fraction of its time that a stage waits: (S - 1) / (V + S - 1), with V parts of a pipeline and S
    /// equally long stages.
    pub bubble: f64,
    /// The stages, in order.
    pub stages: Vec<PipelineStage>,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineStage {
    /// The first and the last layer.
    pub layers: [String; 2],
    /// The fraction of the floating-point operations of a training step.
    pub flops_share: f64,
    /// Bytes of parameters and optimiser state.
    pub persistent_bytes: usize,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// The number of parts whose activations the stage keeps at the same time.
    #[serde(rename = "parts_at_once")]
    pub parts_in_flight: usize,
    /// Bytes received per part, in the forward and backward pass.
    pub received_bytes: usize,
}

impl PipelineStages {
    /// The stages of a fitted pipeline.
    #[must_use]
    pub fn new(resolved: &ResolvedProcess, stages: &[FittedRun]) -> Self {
        let flops = |plan: &Plan| -> u64 {
            (0..plan.program.steps.len()).map(|step| plan.program.step_flops(step)).sum()
        };
        let all: u64 = stages.iter().map(|run| flops(run.planned.plans()[0])).sum();
        let stage = |run: &FittedRun| {
            let [plan, _] = run.planned.plans();
            let program = &plan.program;
            // Layers are named by steps that write feature maps; running statistics do not count.
            let writes_feature_map = |step: &&Step| {
                let mut outputs = step.outputs.iter().map(|id| program.value(*id));
                step.phase == Phase::Forward && outputs.any(|value| value.per_sample)
            };
            let mut forward = program.steps.iter().filter(writes_feature_map);
            let name = |step: Option<&Step>| step.map(|step| program.layer_name(step)).unwrap_or_default();
            let received = program
                .steps
                .iter()
                .filter(|step| matches!(step.kernel, Kernel::StageTransfer(transfer) if !transfer.sends));
            PipelineStage {
                layers: [name(forward.clone().next()), name(forward.next_back())],
                flops_share: flops(plan) as f64 / all.max(1) as f64,
                persistent_bytes: plan.persistent_bytes,
                arena_bytes: run.planned.arena_bytes(),
                parts_in_flight: program.live_copies().into_iter().max().unwrap_or(1),
                received_bytes: received
                    .flat_map(|step| &step.outputs)
                    .map(|id| plan.placements[id.0].bytes)
                    .sum(),
            }
        };
        let pipelines = resolved.rank().world_size;
        let (count, parts) = (stages.len() as f64, (resolved.parts() / pipelines) as f64);
        Self {
            network: resolved.settings().model.name.clone(),
            parts: resolved.parts(),
            pipelines,
            bubble: (count - 1.0) / (parts + count - 1.0),
            stages: stages.iter().map(stage).collect(),
        }
    }
}
