//! The program under differentiation, to which each kernel adds the steps of its derivative.

use crate::ops::{Accumulate, AddForward, Convert, Kernel, KernelSpec};
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};

/// The program under differentiation, for the kernels' `differentiate` functions.
#[derive(Debug)]
pub struct Differentiator {
    program: Program,
    gradients: HashMap<ValueId, ValueId>,
    requires_grad: HashSet<ValueId>,
    /// Values whose producers are differentiated: their gradients are not read any more.
    finished: HashSet<ValueId>,
}

impl Differentiator {
    pub(crate) fn new(forward: &Program) -> Result<Self, EngineError> {
        let values = (0..forward.values.len()).map(ValueId);
        let mut requires_grad: HashSet<ValueId> = values.filter(|&id| forward.is_trained(id)).collect();
        let mut gradients = HashMap::new();
        for step in &forward.steps {
            if step.phase == Phase::Loss {
                // Without a gradient, the only output is the metrics.
                let gradient = step.outputs.last().filter(|&&id| forward.value(id).role != Role::Metrics);
                gradients.extend(gradient.map(|&gradient| (step.inputs[0], gradient)));
            } else if step.inputs.iter().any(|input| requires_grad.contains(input)) {
                // A concatenated map may be written in slices: the steps after the first update it.
                requires_grad.extend(step.outputs.iter().chain(&step.updates));
            }
        }
        if gradients.is_empty() {
            return Err(EngineError::InvalidRequest(format!(
                "the program of `{}` has no loss to differentiate",
                forward.network
            )));
        }
        Ok(Self { program: forward.clone(), gradients, requires_grad, finished: HashSet::new() })
    }

    /// Marks a forward step as differentiated: the gradients of its outputs are not read any more.
    pub(crate) fn mark_differentiated(&mut self, step: &Step) {
        self.finished.extend(&step.outputs);
    }

    pub(crate) fn into_program(self) -> Program {
        self.program
    }

    /// The gradient of a value, if any.
    #[must_use]
    pub fn gradient(&self, value: ValueId) -> Option<ValueId> {
        self.gradients.get(&value).copied()
    }

    /// Returns whether the gradient of a ReLU output is already masked: all readers of the value are poolings
    /// that pass no gradient where ReLU was inactive.
    #[must_use]
    pub fn gradient_is_masked(&self, value: ValueId) -> bool {
        let mut readers =
            self.program.readers(value).map(|reader| &self.program.steps[reader].kernel).peekable();
        readers.peek().is_some()
            && readers.all(|kernel| matches!(kernel, Kernel::MaxPoolForward(pool) if pool.mask_relu))
    }

    /// Returns whether a value depends on a trained parameter.
    #[must_use]
    pub fn requires_grad(&self, value: ValueId) -> bool {
        self.requires_grad.contains(&value)
    }

    /// The channels of a feature map.
    #[must_use]
    pub fn channels(&self, value: ValueId) -> usize {
        self.program.value(value).shape.get(1).copied().unwrap_or(1)
    }

    /// The filters of a weight.
    #[must_use]
    pub fn filters(&self, weight: ValueId) -> usize {
        self.program.value(weight).shape.first().copied().unwrap_or(1)
    }

    /// A new value for the gradient of `value`. Gradients of activations have the compute precision, even for
    /// values in the master precision, such as logits.
    fn gradient_value(&mut self, value: ValueId) -> ValueId {
        let dtype = self.program.precision.compute();
        self.program.add_derived(Origin::Gradient(value), dtype, Role::Transient)
    }

    /// A new value for a term of the gradient of `value`, or for an intermediate value of its computation.
    pub fn partial_gradient(&mut self, value: ValueId, label: &str) -> ValueId {
        let dtype = self.program.precision.compute();
        self.program.add_derived_as(Origin::PartialGradient(value), label, dtype, Role::Transient)
    }

    /// A new value for sums of a forward step's layer, in double precision.
    pub fn sums(&mut self, forward: &Step, shape: &[usize]) -> ValueId {
        let name = format!("{}:sums", self.program.layer_name(forward));
        self.program.add_value(name, shape, crate::DType::F64, Role::Transient)
    }

    /// The output at `position` of the step that writes `value`.
    #[must_use]
    pub fn output_beside(&self, value: ValueId, position: usize) -> Option<ValueId> {
        let producer = self.program.steps.iter().find(|step| step.outputs.contains(&value))?;
        producer.outputs.get(position).copied()
    }

    /// Calls `make` with a new value to write a gradient of `value` to. If `value` already has a gradient,
    /// the new one is added to it.
    pub fn add_gradient(&mut self, value: ValueId, make: impl FnOnce(&mut Self, ValueId)) {
        let Some(&sum) = self.gradients.get(&value) else {
            let gradient = self.gradient_value(value);
            make(self, gradient);
            self.gradients.insert(value, gradient);
            return;
        };
        let count = self.program.values.len();
        let part = self.partial_gradient(value, &format!("gradient.{count}"));
        make(self, part);
        if let Some(last) = self.program.steps.last() {
            let (layers, phase) = (last.layers.clone(), last.phase);
            self.sum_gradients(value, sum, part, layers, phase);
        }
    }

    /// Adds `gradient`, which may be shared with other values, to the gradient of an input of `forward`. If
    /// it is the first term, the input shares it without a copy.
    pub fn share_gradient(&mut self, forward: &Step, value: ValueId, gradient: ValueId) {
        let (layers, phase) = (forward.layers.clone(), Phase::BackwardData);
        match self.gradients.get(&value) {
            Some(&sum) => self.sum_gradients(value, sum, gradient, layers, phase),
            None if self.program.value(value).role == Role::Transient => {
                self.gradients.insert(value, gradient);
            }
            // Trained parameters need a separate gradient for the optimiser.
            None => self.add_gradient(value, |this, copy| {
                this.push(forward, Convert, phase, vec![gradient], vec![], vec![copy]);
            }),
        }
    }

    /// Returns whether `gradient` is also the gradient of another value that is still to be differentiated.
    fn gradient_is_shared(&self, value: ValueId, gradient: ValueId) -> bool {
        let is_read = |(other, other_gradient): (&ValueId, &ValueId)| {
            *other_gradient == gradient && !self.finished.contains(other) && *other != value
        };
        self.gradients.iter().any(is_read)
    }

    /// Returns whether the derivative of the step that wrote `value` may overwrite its gradient, because
    /// nothing else reads it.
    #[must_use]
    pub fn may_overwrite_gradient(&self, value: ValueId) -> bool {
        self.gradient(value).is_some_and(|gradient| !self.gradient_is_shared(value, gradient))
    }

    /// Removes the last addition to a gradient if no later step uses the gradient, and returns the term,
    /// which the caller adds itself.
    pub fn take_last_term(&mut self, gradient: ValueId) -> Option<ValueId> {
        let last = self.program.steps.iter().rposition(|step| step.operands().any(|id| id == gradient))?;
        let step = &self.program.steps[last];
        if !matches!(step.kernel, Kernel::Accumulate(_)) || step.updates[..] != [gradient] {
            return None;
        }
        self.program.steps.remove(last).inputs.first().copied()
    }

    /// Removes the step that computes the gradient of `value`, if it `matches`, is the gradient's only term,
    /// nothing else uses the gradient, and no later step changes its inputs. The caller adds a step that
    /// writes the gradient with a further term.
    pub fn take_only_term(&mut self, value: ValueId, matches: impl Fn(&Kernel) -> bool) -> Option<Step> {
        let gradient = self.gradient(value).filter(|_| self.may_overwrite_gradient(value))?;
        let last = self.program.steps.iter().rposition(|step| step.operands().any(|id| id == gradient))?;
        let step = &self.program.steps[last];
        let fits = step.outputs[..] == [gradient] && matches(&step.kernel);
        // The added step reads the inputs later.
        let mut updates = self.program.steps[last + 1..].iter().flat_map(|later| &later.updates);
        let fits = fits && !updates.any(|updated| step.inputs.contains(updated));
        fits.then(|| self.program.steps.remove(last))
    }

    /// Adds `part` to `sum`, the gradient of `value` so far: in place, or into a new value if `sum` is still
    /// needed as the gradient of another value.
    fn sum_gradients(
        &mut self,
        value: ValueId,
        sum: ValueId,
        part: ValueId,
        layers: Vec<usize>,
        phase: Phase,
    ) {
        let (kernel, inputs, updates, outputs): (Kernel, _, _, _) =
            if part != sum && !self.gradient_is_shared(value, sum) {
                (Accumulate.into(), vec![part], vec![sum], vec![])
            } else {
                let total = self.gradient_value(value);
                self.gradients.insert(value, total);
                let mut inputs = vec![sum, part];
                inputs.dedup();
                (AddForward { relu: false }.into(), inputs, vec![], vec![total])
            };
        self.program.steps.push(Step { kernel, phase, layers, inputs, updates, outputs });
    }

    /// A new value in the master precision for the gradient of a parameter or of a copy's master.
    pub fn parameter_gradient(&mut self, parameter: ValueId) -> ValueId {
        let origin = Origin::Gradient(self.program.master_of(parameter));
        let gradient = self.program.add_derived(origin, self.program.precision.master(), Role::Transient);
        self.gradients.insert(parameter, gradient);
        gradient
    }

    /// Adds a backward step of the layers of `forward`.
    pub fn push(
        &mut self,
        forward: &Step,
        kernel: impl Into<Kernel>,
        phase: Phase,
        inputs: Vec<ValueId>,
        updates: Vec<ValueId>,
        outputs: Vec<ValueId>,
    ) {
        let layers = forward.layers.clone();
        self.program.steps.push(Step { kernel: kernel.into(), phase, layers, inputs, updates, outputs });
    }

    /// The error for a kernel without derivative.
    #[must_use]
    pub fn no_derivative(&self, step: &Step) -> EngineError {
        EngineError::InvalidProgram {
            pass: "differentiate",
            step: self.program.steps.iter().position(|other| other == step).unwrap_or_default(),
            kernel: step.kernel.name().to_owned(),
            layer: self.program.layer_name(step),
            problem: "no derivative".to_owned(),
        }
    }
}
