//! The costs of steps, by which a network is cut into pipeline stages: measured layer by layer where that was
//! done, otherwise estimated from operations and bytes.
//!
//! All workers must cut alike, so they use the times that one of them measured. A run records them.

use crate::program::Origin;
use crate::{Kernel, Phase, Program, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Cost of moving one byte to or from memory, and of sending one to another stage, in operations.
const OPERATIONS_PER_BYTE: f64 = 5.0;
const OPERATIONS_PER_BYTE_SENT: f64 = 40.0;

/// Measured seconds per layer of one part of a batch, in the forward and backward pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerTimes(BTreeMap<String, f64>);

impl LayerTimes {
    /// Sums the `seconds` of the steps of a training program of one part. Updates run once for all `parts`,
    /// so their share of a part is counted. Steps of several layers count for the first.
    #[must_use]
    pub fn new(program: &Program, seconds: &[f64], parts: usize) -> Self {
        let mut layers = BTreeMap::new();
        for (step, seconds) in program.steps.iter().zip(seconds) {
            let share = match step.phase {
                Phase::Communication => continue,
                Phase::Update => 1.0 / parts.max(1) as f64,
                _ => 1.0,
            };
            if let Some(layer) = first_layer(program, step) {
                *layers.entry(layer.to_owned()).or_default() += share * seconds;
            }
        }
        Self(layers)
    }

    /// Times of layers by name.
    #[must_use]
    pub fn of_layers(layers: impl IntoIterator<Item = (String, f64)>) -> Self {
        Self(layers.into_iter().collect())
    }

    /// Returns whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The layers with their seconds, by name.
    pub fn layers(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(layer, seconds)| (layer.as_str(), *seconds))
    }

    /// The measured seconds of a layer; `None` if they are unknown, or no positive number.
    fn seconds(&self, layer: &str) -> Option<f64> {
        self.0.get(layer).copied().filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }
}

/// The name of the first layer that a step computes.
fn first_layer<'a>(program: &'a Program, step: &Step) -> Option<&'a str> {
    step.layers.first().map(|&layer| program.layers[layer].name.as_str())
}

/// The costs of the steps of a network, in operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCosts {
    /// The measured cost of a layer as a multiple of the estimate.
    factors: BTreeMap<String, f64>,
}

impl StepCosts {
    /// Costs by operations and bytes.
    #[must_use]
    pub fn estimated() -> Self {
        Self::default()
    }

    /// Costs by measured times, in the unit of the estimates: both have the same total over the layers that
    /// were measured. `program` is the differentiated program of the whole network.
    #[must_use]
    pub fn measured(program: &Program, times: &LayerTimes) -> Self {
        let mut estimates: BTreeMap<&str, f64> = BTreeMap::new();
        for (position, step) in program.steps.iter().enumerate() {
            if let Some(layer) = first_layer(program, step) {
                *estimates.entry(layer).or_default() += estimate(program, position);
            }
        }
        let known = estimates.into_iter().filter(|(_, estimate)| *estimate > 0.0);
        let known: Vec<(&str, f64, f64)> =
            known.filter_map(|(layer, estimate)| Some((layer, estimate, times.seconds(layer)?))).collect();
        let estimated: f64 = known.iter().map(|(_, estimate, _)| estimate).sum();
        let seconds: f64 = known.iter().map(|(.., seconds)| seconds).sum();
        let factor = |(layer, estimate, measured): (&str, f64, f64)| {
            (layer.to_owned(), measured / estimate * (estimated / seconds))
        };
        Self { factors: known.into_iter().map(factor).collect() }
    }

    /// Returns whether any cost was measured.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !self.factors.is_empty()
    }

    /// The cost of a step; for a transfer, that of sending its bytes.
    #[must_use]
    pub fn of_step(&self, program: &Program, position: usize) -> f64 {
        let step = &program.steps[position];
        if matches!(step.kernel, Kernel::StageTransfer(_)) {
            return Self::of_bytes_sent(operand_bytes(program, step));
        }
        let factor = first_layer(program, step).and_then(|layer| self.factors.get(layer));
        estimate(program, position) * factor.copied().unwrap_or(1.0)
    }

    /// The cost of sending a number of bytes to another stage.
    #[must_use]
    pub fn of_bytes_sent(bytes: usize) -> f64 {
        bytes as f64 * OPERATIONS_PER_BYTE_SENT
    }

    /// The cost of all steps of a program for one part, and, of that, the cost of recomputed activations.
    #[must_use]
    pub fn of_program(&self, program: &Program) -> ProgramCost {
        let is_recomputed = |step: &Step| {
            let mut written = step.outputs.iter().chain(&step.updates);
            written.any(|&id| matches!(program.value(id).origin, Some(Origin::Recomputed(_))))
        };
        let mut cost = ProgramCost::default();
        for (position, step) in program.steps.iter().enumerate() {
            let own = self.of_step(program, position);
            cost.total += own;
            if is_recomputed(step) {
                cost.recomputed += own;
            }
        }
        cost
    }
}

/// The cost of a program, in operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgramCost {
    /// The cost of all steps.
    pub total: f64,
    /// The cost of the steps that recompute activations.
    pub recomputed: f64,
}

/// The estimated cost of a step.
fn estimate(program: &Program, position: usize) -> f64 {
    let touched = operand_bytes(program, &program.steps[position]);
    program.step_flops(position) as f64 + touched as f64 * OPERATIONS_PER_BYTE
}

fn operand_bytes(program: &Program, step: &Step) -> usize {
    step.operands().map(|id| program.value(id).bytes()).sum()
}
