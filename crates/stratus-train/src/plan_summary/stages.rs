//! The pipeline stages of a network, and the cost of each.

use super::workers::{GradientExchange, staged_bytes};
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
    /// The fraction of the time of a part of a batch, if the times of layers were measured.
    pub time_share: Option<f64>,
    /// The fraction of its own time that the stage spends on recomputing activations, by the same times or
    /// estimates.
    pub recomputed_share: f64,
    /// Bytes of parameters and optimiser state.
    pub persistent_bytes: usize,
    /// Bytes of the arena, and on GPUs of several pipelines those in which they may sum directly.
    pub arena_bytes: usize,
    /// The number of parts whose activations the stage keeps at the same time.
    #[serde(rename = "parts_at_once")]
    pub parts_in_flight: usize,
    /// Bytes received per part, in the forward and backward pass.
    pub received_bytes: usize,
    /// On a GPU, bytes of pinned host memory for values that are exchanged through host memory.
    pub pinned_bytes: u64,
    /// With several pipelines, the exchange of gradients with the same stage of the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<GradientExchange>,
}

impl PipelineStages {
    /// The stages of a fitted pipeline. On an accelerator, values that stages exchange pass through host
    /// memory.
    #[must_use]
    pub fn new(resolved: &ResolvedProcess, stages: &[FittedRun], is_accelerator: bool) -> Self {
        let pipelines = resolved.rank().world_size;
        let flops = |plan: &Plan| -> u64 {
            (0..plan.program.steps.len()).map(|step| plan.program.step_flops(step)).sum()
        };
        let all: u64 = stages.iter().map(|run| flops(run.planned.plans()[0])).sum();
        let total: f64 = stages.iter().filter_map(|run| run.stage_cost).map(|cost| cost.steps.total).sum();
        let stage = |run: &FittedRun| {
            let cost = run.stage_cost.map(|cost| cost.steps).unwrap_or_default();
            let is_measured = run.stage_cost.is_some_and(|cost| cost.is_measured);
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
                time_share: is_measured.then(|| cost.total / total.max(f64::MIN_POSITIVE)),
                recomputed_share: cost.recomputed / cost.total.max(f64::MIN_POSITIVE),
                persistent_bytes: plan.persistent_bytes,
                arena_bytes: run.planned.session_bytes(),
                parts_in_flight: program.live_copies().into_iter().max().unwrap_or(1),
                received_bytes: received
                    .flat_map(|step| &step.outputs)
                    .map(|id| plan.placements[id.0].bytes)
                    .sum(),
                pinned_bytes: match is_accelerator {
                    true => run.planned.all_plans().map(staged_bytes).sum(),
                    false => 0,
                },
                exchange: GradientExchange::new(plan, pipelines),
            }
        };
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
