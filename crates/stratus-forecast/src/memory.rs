//! Memory that TensorFlow takes for a training step, estimated from a table of layers.
//!
//! ```text
//! bytes = 4 · (batch · (kept maps + gradients · largest map) + copies · parameters) + workspace
//! fits where bytes ≤ share · usable memory
//! ```
//!
//! Kept are the outputs of all layers but activations, sums and reshapes, which TensorFlow writes in the
//! place of their input where nothing else reads it.

use crate::catalogue::{Catalogue, Processor};
use crate::error::Result;
use crate::measured::{Measured, MeasuredStep};
use crate::work::layers::{LayerKind, LayerTable, Networks};
use stratus_engine::ops::Kernel;
use stratus_engine::{Phase, Program, Role};

/// What the estimate is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Gradients of the largest map that are alive at once.
    pub gradients: f64,
    /// Copies of the parameters: themselves, gradients.
    pub copies: f64,
    /// Scratch of convolutions, bytes.
    pub workspace: f64,
    /// Of the memory that the driver leaves.
    pub share: f64,
}

/// What a cell needed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Position of the machine in the list of machines.
    pub machine: usize,
    /// Elements of kept maps of one sample, and of the largest map; parameters.
    pub kept: [f64; 3],
    /// Samples.
    pub batch: f64,
    /// Bytes of memory.
    pub usable: f64,
    /// Whether it was measured; one that was not is taken for one that ran out of memory.
    pub ran: bool,
}

impl LayerTable {
    /// Elements of the maps of one sample that are kept for the backward pass, of the largest map, and
    /// parameters.
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

/// Elements of the maps of one sample that are kept for the backward pass, of the largest map, and
/// parameters, of a program that fuses nothing.
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

/// Every combination of machine, network, image size and batch of a table: those that it has ran, the others
/// are taken to have run out of memory.
///
/// # Errors
/// Where a machine is not in the catalogue.
pub fn cells(measured: &Measured, networks: &Networks, catalogue: &Catalogue) -> Result<Vec<Cell>> {
    let mut batches: Vec<u32> = measured.steps.iter().map(|step| step.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let mut cells = Vec::new();
    for (machine, name) in measured.machines.iter().enumerate() {
        let Processor::Gpu(gpu) = catalogue.find(name)?.processor else { continue };
        let usable = gpu.usable_bytes() as f64;
        for ((model, size), layers) in networks {
            let of_network =
                |step: &&MeasuredStep| measured.networks[step.network] == *model && step.image_size == *size;
            let steps: Vec<_> = measured.steps.iter().filter(of_network).collect();
            // A network that was measured nowhere was not tried.
            if steps.is_empty() {
                continue;
            }
            for &batch in &batches {
                let ran = steps.iter().any(|step| step.machine == machine && step.batch == batch);
                cells.push(Cell { machine, kept: layers.kept(), batch: f64::from(batch), usable, ran });
            }
        }
    }
    Ok(cells)
}

impl Constants {
    /// The most cautious of what could be.
    pub const CAUTIOUS: Self =
        Self { gradients: 2.0, copies: 3.0, workspace: 512.0 * 1_048_576.0, share: 0.9 };

    /// Bytes of a step.
    #[must_use]
    pub fn bytes(&self, [kept, largest, parameters]: [f64; 3], batch: f64) -> f64 {
        4.0 * (batch * (kept + self.gradients * largest) + self.copies * parameters) + self.workspace
    }

    /// Bytes needed over bytes there are: fits up to 1.
    #[must_use]
    pub fn load(&self, cell: &Cell) -> f64 {
        self.bytes(cell.kept, cell.batch) / (self.share * cell.usable)
    }

    /// The constants that are wrong least often about `cells`; one that does not fit and is said to counts as
    /// five that are refused and fit. Of equals the more cautious.
    #[must_use]
    pub fn choose(cells: &[Cell]) -> Self {
        let mut best = (Self::CAUTIOUS, usize::MAX);
        for share in [0.9, 0.95, 1.0] {
            for copies in [3.0, 2.0] {
                for gradients in [2.0, 1.0] {
                    for workspace in [512.0, 256.0, 0.0] {
                        let workspace = workspace * 1_048_576.0;
                        let tried = Self { gradients, copies, workspace, share };
                        let wrong = |cell: &Cell| match (tried.load(cell) <= 1.0, cell.ran) {
                            (true, false) => 5,
                            (false, true) => 1,
                            _ => 0,
                        };
                        let wrong = cells.iter().map(wrong).sum();
                        if wrong < best.1 {
                            best = (tried, wrong);
                        }
                    }
                }
            }
        }
        best.0
    }
}

/// What leaving out one machine after the other gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Cells.
    pub cells: usize,
    /// Those that were judged rightly.
    pub right: usize,
    /// Of those near the limit, which need between half and twice of what there is: how many, and rightly.
    pub near: [usize; 2],
    /// Said to fit, and were not measured.
    pub wrongly_fits: usize,
    /// Of these, those that need 20 % more than there is, by the smallest batch that was not measured being
    /// judged to leave 20 % free.
    pub wrongly_fits_by_far: usize,
    /// Refused, and were measured.
    pub wrongly_refused: usize,
}

/// Judges the cells of each machine by constants chosen from the other machines.
#[must_use]
pub fn leave_out(cells: &[Cell], machines: usize) -> Verdicts {
    let mut verdicts = Verdicts::default();
    for machine in 0..machines {
        let others: Vec<Cell> = cells.iter().filter(|cell| cell.machine != machine).copied().collect();
        let constants = Constants::choose(&others);
        for cell in cells.iter().filter(|cell| cell.machine == machine) {
            let load = constants.load(cell);
            let right = (load <= 1.0) == cell.ran;
            let near = (0.5..=2.0).contains(&load);
            verdicts.cells += 1;
            verdicts.right += usize::from(right);
            verdicts.near[0] += usize::from(near);
            verdicts.near[1] += usize::from(near && right);
            verdicts.wrongly_fits += usize::from(load <= 1.0 && !cell.ran);
            verdicts.wrongly_fits_by_far += usize::from(load <= 1.0 / 1.2 && !cell.ran);
            verdicts.wrongly_refused += usize::from(load > 1.0 && cell.ran);
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constants_that_made_the_cells_are_found() {
        let made = Constants { gradients: 1.0, copies: 2.0, workspace: 0.0, share: 0.95 };
        let mut cells = Vec::new();
        for machine in 0..3 {
            for step in 1..200 {
                let kept =
                    [1e7 + 1e5 * f64::from(step), 1e6 * f64::from(step % 7), 2e6 * f64::from(step % 11)];
                let mut cell = Cell { machine, kept, batch: 64.0, usable: 8e9, ran: false };
                cell.ran = made.load(&cell) <= 1.0;
                cells.push(cell);
            }
        }
        assert!(cells.iter().any(|cell| cell.ran) && cells.iter().any(|cell| !cell.ran));
        assert_eq!(Constants::choose(&cells), made);
        let verdicts = leave_out(&cells, 3);
        assert_eq!((verdicts.right, verdicts.wrongly_fits), (verdicts.cells, 0));
    }
}
