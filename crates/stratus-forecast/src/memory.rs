//! The memory of a training step of TensorFlow, estimated from a table of layers.
//!
//! ```text
//! bytes = 4 · (batch · (saved maps + gradients · largest map) + copies · parameters) + workspace
//! fits if bytes ≤ fraction · usable memory
//! ```
//!
//! Saved are the outputs of all layers except activations, sums and reshapes, which TensorFlow computes in
//! place if nothing else reads their input.

use crate::catalogue::{Catalogue, Processor};
use crate::error::Result;
use crate::measured::{StepRecord, StepRecords};
use crate::work::layers::{LayerKind, LayerTable, Networks};
use stratus_engine::ops::Kernel;
use stratus_engine::{Phase, Program, Role};

/// The constants of the estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryModel {
    /// Number of gradients of the largest map that are alive at the same time.
    pub gradients: f64,
    /// Number of copies of the parameters, including themselves and gradients.
    pub copies: f64,
    /// Workspace of convolutions, bytes.
    pub workspace: f64,
    /// Fraction of the memory available to programs.
    pub usable_fraction: f64,
}

/// A network, batch and machine, with its memory, and whether it ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryCase {
    /// Position in the list of machines.
    pub machine: usize,
    /// Elements per sample of saved maps, and of the largest map; parameters.
    pub kept: [f64; 3],
    /// Batch size.
    pub batch: f64,
    /// Bytes of memory available to programs.
    pub usable: f64,
    /// True if it was measured; a missing measurement counts as out of memory.
    pub ran: bool,
}

impl LayerTable {
    /// Elements per sample of maps saved for the backward pass, and of the largest map; parameters.
    #[must_use]
    pub fn kept(&self) -> [f64; 3] {
        let elements = |map: [f64; 3]| map.iter().product::<f64>();
        let (mut kept, mut largest) = (0.0, 0.0_f64);
        for layer in &self.layers {
            let made = elements(layer.output);
            largest = largest.max(made);
            let in_place = matches!(layer.kind, LayerKind::Activation | LayerKind::Add | LayerKind::Flatten);
            kept += if in_place { 0.0 } else { made };
        }
        [kept, largest, self.parameters()]
    }
}

/// Elements per sample of maps saved for the backward pass, and of the largest map; parameters; of a program
/// without fusion.
#[must_use]
pub fn kept(program: &Program) -> [f64; 3] {
    let (mut kept, mut largest) = (0.0, 0.0_f64);
    let forward = program.steps.iter().filter(|step| step.phase == Phase::Forward);
    for step in forward {
        let Some(made) = step.outputs.first().map(|&id| program.value(id)) else { continue };
        if !(made.per_sample && made.role == Role::Transient) {
            continue;
        }
        let elements = made.elements() as f64 / program.batch.max(1) as f64;
        largest = largest.max(elements);
        let in_place = matches!(step.kernel, Kernel::ReluForward(_) | Kernel::AddForward(_));
        kept += if in_place { 0.0 } else { elements };
    }
    let is_parameter = |role: Role| matches!(role, Role::Parameter | Role::Frozen | Role::Buffer);
    let parameters = program.values.iter().filter(|value| is_parameter(value.role));
    [kept, largest, parameters.map(|value| value.elements() as f64).sum()]
}

/// Every combination of machine, network, image size and batch of a table; missing combinations count as out
/// of memory.
///
/// # Errors
/// If a machine is not in the catalogue.
pub fn memory_cases(
    measured: &StepRecords,
    networks: &Networks,
    catalogue: &Catalogue,
) -> Result<Vec<MemoryCase>> {
    let mut batches: Vec<u32> = measured.steps.iter().map(|step| step.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let mut cases = Vec::new();
    for (machine, name) in measured.machines.iter().enumerate() {
        let Processor::Gpu(gpu) = catalogue.find(name)?.processor else { continue };
        let usable = gpu.usable_bytes() as f64;
        for ((model, size), layers) in networks {
            let of_network =
                |step: &&StepRecord| measured.networks[step.network] == *model && step.image_size == *size;
            let steps: Vec<_> = measured.steps.iter().filter(of_network).collect();
            // A network without any measurement was not tried.
            if steps.is_empty() {
                continue;
            }
            for &batch in &batches {
                let ran = steps.iter().any(|step| step.machine == machine && step.batch == batch);
                cases.push(MemoryCase { machine, kept: layers.kept(), batch: f64::from(batch), usable, ran });
            }
        }
    }
    Ok(cases)
}

impl MemoryModel {
    /// The most conservative candidate.
    pub const CONSERVATIVE: Self =
        Self { gradients: 2.0, copies: 3.0, workspace: 512.0 * 1_048_576.0, usable_fraction: 0.9 };

    /// Bytes of a step.
    #[must_use]
    pub fn bytes(&self, [kept, largest, parameters]: [f64; 3], batch: f64) -> f64 {
        4.0 * (batch * (kept + self.gradients * largest) + self.copies * parameters) + self.workspace
    }

    /// Needed over available bytes; fits up to 1.
    #[must_use]
    pub fn load(&self, case: &MemoryCase) -> f64 {
        self.bytes(case.kept, case.batch) / (self.usable_fraction * case.usable)
    }

    /// The constants with the fewest misjudged cases. A false "fits" counts five times; of equal ones, the
    /// more conservative are chosen.
    #[must_use]
    pub fn choose(cases: &[MemoryCase]) -> Self {
        let mut best = (Self::CONSERVATIVE, usize::MAX);
        for usable_fraction in [0.9, 0.95, 1.0] {
            for copies in [3.0, 2.0] {
                for gradients in [2.0, 1.0] {
                    for workspace in [512.0, 256.0, 0.0] {
                        let workspace = workspace * 1_048_576.0;
                        let tried = Self { gradients, copies, workspace, usable_fraction };
                        let penalty = |case: &MemoryCase| match (tried.load(case) <= 1.0, case.ran) {
                            (true, false) => 5,
                            (false, true) => 1,
                            _ => 0,
                        };
                        let penalties = cases.iter().map(penalty).sum();
                        if penalties < best.1 {
                            best = (tried, penalties);
                        }
                    }
                }
            }
        }
        best.0
    }
}

/// The result of leave-one-machine-out cross-validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryScores {
    /// Number of cases.
    pub cases: usize,
    /// Correct predictions.
    pub correct: usize,
    /// Cases near the limit, which need between half and twice the available memory: their number, and
    /// correct predictions.
    pub near_limit: [usize; 2],
    /// Predicted to fit, but not measured.
    pub false_fits: usize,
    /// False fits that are predicted to leave at least 20 % free.
    pub clear_false_fits: usize,
    /// Predicted not to fit, but measured.
    pub false_rejections: usize,
}

/// Predicts the cases of each machine with constants chosen on the other machines.
#[must_use]
pub fn leave_one_machine_out(cases: &[MemoryCase], machines: usize) -> MemoryScores {
    let mut scores = MemoryScores::default();
    for machine in 0..machines {
        let others: Vec<MemoryCase> = cases.iter().filter(|case| case.machine != machine).copied().collect();
        let constants = MemoryModel::choose(&others);
        for case in cases.iter().filter(|case| case.machine == machine) {
            let load = constants.load(case);
            let correct = (load <= 1.0) == case.ran;
            let near = (0.5..=2.0).contains(&load);
            scores.cases += 1;
            scores.correct += usize::from(correct);
            scores.near_limit[0] += usize::from(near);
            scores.near_limit[1] += usize::from(near && correct);
            scores.false_fits += usize::from(load <= 1.0 && !case.ran);
            scores.clear_false_fits += usize::from(load <= 1.0 / 1.2 && !case.ran);
            scores.false_rejections += usize::from(load > 1.0 && case.ran);
        }
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovers_the_constants_that_generated_the_cases() {
        let made = MemoryModel { gradients: 1.0, copies: 2.0, workspace: 0.0, usable_fraction: 0.95 };
        let mut cases = Vec::new();
        for machine in 0..3 {
            for step in 1..200 {
                let kept =
                    [1e7 + 1e5 * f64::from(step), 1e6 * f64::from(step % 7), 2e6 * f64::from(step % 11)];
                let mut case = MemoryCase { machine, kept, batch: 64.0, usable: 8e9, ran: false };
                case.ran = made.load(&case) <= 1.0;
                cases.push(case);
            }
        }
        assert!(cases.iter().any(|case| case.ran) && cases.iter().any(|case| !case.ran));
        assert_eq!(MemoryModel::choose(&cases), made);
        let scores = leave_one_machine_out(&cases, 3);
        assert_eq!((scores.correct, scores.false_fits), (scores.cases, 0));
    }
}
