//! The layouts that steps need, before kernels are chosen.

use stratus_engine::{Step, ValueId};

/// The values that do not simply take the plan's layout of feature maps.
pub(crate) struct LayoutNeeds {
    /// Weights, their gradients and optimiser states: laid out by the first step that needs them.
    pub(super) weights: Vec<bool>,
    /// Maps that must be channels last.
    pub(super) channels_last: Vec<bool>,
    /// Images in bytes, and the values computed from them.
    normalised: Vec<[ValueId; 2]>,
}

impl LayoutNeeds {
    pub(super) fn new(values: usize) -> Self {
        Self { weights: vec![false; values], channels_last: vec![false; values], normalised: Vec::new() }
    }

    /// Completes the needs of images in bytes: they have the layout of the images computed from them, whose
    /// readers follow.
    pub(super) fn finish(&mut self) {
        for [bytes, images] in &self.normalised {
            self.channels_last[bytes.0] = self.channels_last[images.0];
        }
    }

    /// Marks values as weights.
    pub fn weights(&mut self, ids: impl IntoIterator<Item = ValueId>) {
        ids.into_iter().for_each(|id| self.weights[id.0] = true);
    }

    /// Marks the values of an optimiser's step as weights: the gradient, the parameter, its states and
    /// copies.
    pub fn updated_weights(&mut self, step: &Step) {
        self.weights(step.inputs[..1].iter().chain(&step.updates).chain(&step.outputs).copied());
    }

    /// Requires a map to be channels last.
    pub fn channels_last(&mut self, id: ValueId) {
        self.channels_last[id.0] = true;
    }

    /// Records that `images` are computed from `bytes`, pixel by pixel.
    pub fn normalised_images(&mut self, bytes: ValueId, images: ValueId) {
        self.normalised.push([bytes, images]);
    }

    pub(super) fn are_pixels(&self, id: ValueId) -> bool {
        self.normalised.iter().flatten().any(|&pixels| pixels == id)
    }
}
