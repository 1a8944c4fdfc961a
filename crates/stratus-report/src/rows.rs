//! Assignment of the slots of a timeline to rows and columns of a table.

use std::collections::HashMap;

use stratus_run::timeline::{Phase, Program, Slot};

/// A layer row of a table: a layer, or several fused layers, on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerRow {
    pub(crate) layers: Vec<String>,
    pub(crate) kind: String,
    pub(crate) device: String,
}

impl LayerRow {
    pub(crate) fn name(&self) -> String {
        self.layers.join("+")
    }
}

/// The columns of a layer row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseColumn {
    Forward,
    BackwardData,
    BackwardWeights,
    Update,
}

impl PhaseColumn {
    pub(crate) const COUNT: usize = 4;

    pub(crate) fn is_forward(self) -> bool {
        self == Self::Forward
    }
}

/// The cell that the time of a slot is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotTarget {
    /// A layer row, and its column.
    Layer(usize, PhaseColumn),
    /// A phase row.
    Phase(usize),
}

/// The rows of all programs of a timeline, in the order of their slots.
#[derive(Debug, Default)]
pub(crate) struct SlotIndex {
    pub(crate) layers: Vec<LayerRow>,
    pub(crate) phases: Vec<Phase>,
    /// The target of every slot, by program.
    pub(crate) targets: Vec<Vec<SlotTarget>>,
    known: HashMap<(Vec<String>, String), usize>,
}

impl SlotIndex {
    /// Adds the programs that are not indexed yet.
    pub(crate) fn update(&mut self, programs: &[Program]) {
        for program in &programs[self.targets.len().min(programs.len())..] {
            let targets = program.slots.iter().map(|slot| self.target(slot)).collect();
            self.targets.push(targets);
        }
    }

    fn target(&mut self, slot: &Slot) -> SlotTarget {
        let column = match slot.phase {
            Phase::Forward => Some(PhaseColumn::Forward),
            Phase::BackwardData => Some(PhaseColumn::BackwardData),
            Phase::BackwardWeights => Some(PhaseColumn::BackwardWeights),
            Phase::Update => Some(PhaseColumn::Update),
            _ => None,
        };
        match column {
            Some(column) if !slot.layers.is_empty() => SlotTarget::Layer(self.layer(slot), column),
            _ => SlotTarget::Phase(self.phase(slot.phase)),
        }
    }

    fn layer(&mut self, slot: &Slot) -> usize {
        let next = self.layers.len();
        let row = *self.known.entry((slot.layers.clone(), slot.device.clone())).or_insert(next);
        if row == next {
            let (layers, device) = (slot.layers.clone(), slot.device.clone());
            self.layers.push(LayerRow { layers, kind: slot.kind.clone(), device });
        }
        row
    }

    fn phase(&mut self, phase: Phase) -> usize {
        self.phases.iter().position(|&known| known == phase).unwrap_or_else(|| {
            self.phases.push(phase);
            self.phases.len() - 1
        })
    }
}
