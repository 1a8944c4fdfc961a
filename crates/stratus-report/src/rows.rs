//! Which row and column of a table each slot of a timeline belongs to.

use std::collections::HashMap;

use stratus_run::timeline::{Phase, Program, Slot};

/// A row of a table by layer: a layer, or several whose steps are fused, on a device.
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

/// The columns of a table by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Forward,
    BackwardData,
    BackwardWeights,
    Update,
}

impl Column {
    pub(crate) const COUNT: usize = 4;

    pub(crate) fn is_forward(self) -> bool {
        self == Self::Forward
    }
}

/// Where a slot's time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A row by layer, and its column.
    Layer(usize, Column),
    /// A row by phase.
    Phase(usize),
}

/// The rows of all programs of a timeline, in the order in which their slots appear.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) layers: Vec<LayerRow>,
    pub(crate) phases: Vec<Phase>,
    /// The place of every slot, by program.
    pub(crate) places: Vec<Vec<Place>>,
    known: HashMap<(Vec<String>, String), usize>,
}

impl Rows {
    /// Takes in the programs that were not there yet.
    pub(crate) fn update(&mut self, programs: &[Program]) {
        for program in &programs[self.places.len().min(programs.len())..] {
            let places = program.slots.iter().map(|slot| self.place(slot)).collect();
            self.places.push(places);
        }
    }

    fn place(&mut self, slot: &Slot) -> Place {
        let column = match slot.phase {
            Phase::Forward => Some(Column::Forward),
            Phase::BackwardData => Some(Column::BackwardData),
            Phase::BackwardWeights => Some(Column::BackwardWeights),
            Phase::Update => Some(Column::Update),
            _ => None,
        };
        match column {
            Some(column) if !slot.layers.is_empty() => Place::Layer(self.layer(slot), column),
            _ => Place::Phase(self.phase(slot.phase)),
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
