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
    wanted: HashSet<ValueId>,
    /// Values whose producers are differentiated: nothing reads their gradients any more.
    finished: HashSet<ValueId>,
}

impl Differentiator {
    pub(crate) fn new(forward: &Program) -> Result<Self, EngineError> {
        let values = (0..forward.values.len()).map(ValueId);
        let mut wanted: HashSet<ValueId> = values.filter(|&id| forward.is_trained(id)).collect();
        let mut gradients = HashMap::new();
        for step in &forward.steps {
            if step.phase == Phase::Loss {
                // Without a gradient, its only output is the metrics.
                let gradient = step.outputs.last().filter(|&&id| forward.value(id).role != Role::Metrics);
                gradients.extend(gradient.map(|&gradient| (step.inputs[0], gradient)));
            } else if step.inputs.iter().any(|input| wanted.contains(input)) {
                // A concatenated map may be written in parts: the steps after the first update it.
                wanted.extend(step.outputs.iter().chain(&step.updates));
            }
        }
        if gradients.is_empty() {
            return Err(EngineError::Mismatch(format!(
                "the program of `{}` has no loss to start from",
                forward.network
            )));
        }
        Ok(Self { program: forward.clone(), gradients, wanted, finished: HashSet::new() })
    }

    /// Notes that a forward step is differentiated: nothing reads the gradients of its outputs any more.
    pub(crate) fn finish(&mut self, step: &Step) {
        self.finished.extend(&step.outputs);
    }

    pub(crate) fn into_program(self) -> Program {
        self.program
    }

    /// The gradient of a value, where one flows into it.
    #[must_use]
    pub fn gradient(&self, value: ValueId) -> Option<ValueId> {
        self.gradients.get(&value).copied()
    }

    /// Whether the gradient of a rectified value is already zero where ReLU was inactive: all readers of the
    /// value are poolings that pass no gradient there.
    #[must_use]
    pub fn gradient_is_masked(&self, value: ValueId) -> bool {
        let mut readers =
            self.program.readers(value).map(|reader| &self.program.steps[reader].kernel).peekable();
        readers.peek().is_some()
            && readers.all(|kernel| matches!(kernel, Kernel::MaxPoolForward(pool) if pool.cut))
    }

    /// Whether a value depends on something that is trained.
    #[must_use]
    pub fn wants_gradient(&self, value: ValueId) -> bool {
        self.wanted.contains(&value)
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

    /// A new value for the gradient of `value`. Gradients of activations have the compute precision, also
    /// where these have the master precision, as logits do.
    fn gradient_value(&mut self, value: ValueId) -> ValueId {
        let dtype = self.program.precision.compute();
        self.program.add_derived(Origin::Gradient(value), dtype, Role::Transient)
    }

    /// A new value for a term of the gradient of `value`, or for what the gradient is computed from.
    pub fn partial_gradient(&mut self, value: ValueId, label: &str) -> ValueId {
        let dtype = self.program.precision.compute();
        self.program.add_derived_as(Origin::PartialGradient(value), label, dtype, Role::Transient)
    }

    /// A new value for sums of a forward step's layer, in double precision.
    pub fn sums(&mut self, forward: &Step, shape: &[usize]) -> ValueId {
        let name = format!("{}:sums", self.program.layer_name(forward));
        self.program.add_value(name, shape, crate::DType::F64, Role::Transient)
    }

    /// The output at `position` of the step that also writes `value`.
    #[must_use]
    pub fn output_beside(&self, value: ValueId, position: usize) -> Option<ValueId> {
        let producer = self.program.steps.iter().find(|step| step.outputs.contains(&value))?;
        producer.outputs.get(position).copied()
    }

    /// Calls `make` with a new value to write a gradient of `value` to. Where `value` has a gradient already,
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

    /// Adds `gradient`, which may be the gradient of other values too, to the gradient of an input of
    /// `forward`. Where it is the first one, the input shares it and nothing is copied.
    pub fn share_gradient(&mut self, forward: &Step, value: ValueId, gradient: ValueId) {
        let (layers, phase) = (forward.layers.clone(), Phase::BackwardData);
        match self.gradients.get(&value) {
            Some(&sum) => self.sum_gradients(value, sum, gradient, layers, phase),
            None if self.program.value(value).role == Role::Transient => {
                self.gradients.insert(value, gradient);
            }
            // What is trained has a gradient of its own: the optimiser updates by it.
            None => self.add_gradient(value, |to, copy| {
                to.push(forward, Convert, phase, vec![gradient], vec![], vec![copy]);
            }),
        }
    }

    /// Whether `gradient` is the gradient of another value too, and still to be read as such.
    fn gradient_is_shared(&self, value: ValueId, gradient: ValueId) -> bool {
        let is_read = |(other, of_other): (&ValueId, &ValueId)| {
            *of_other == gradient && !self.finished.contains(other) && *other != value
        };
        self.gradients.iter().any(is_read)
    }

    /// Whether the derivative of the step that wrote `value` may overwrite its gradient, because nothing else
    /// reads it.
    #[must_use]
    pub fn may_overwrite_gradient(&self, value: ValueId) -> bool {
        self.gradient(value).is_some_and(|gradient| !self.gradient_is_shared(value, gradient))
    }

    /// Removes the last addition to a gradient, where no later step uses the gradient, and returns the term.
    /// The caller adds it itself.
    pub fn take_addition(&mut self, gradient: ValueId) -> Option<ValueId> {
        let last = self.program.steps.iter().rposition(|step| step.operands().any(|id| id == gradient))?;
        let step = &self.program.steps[last];
        if !matches!(step.kernel, Kernel::Accumulate(_)) || step.updates[..] != [gradient] {
            return None;
        }
        self.program.steps.remove(last).inputs.first().copied()
    }

    /// Adds `part` to `sum`, the gradient of `value` so far: in place, or into a new value where `sum` is
    /// still to be read as the gradient of another value.
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

    /// A new value for the gradient of a parameter or, for a copy, of its master, in the master precision.
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

    /// The error of a kernel that no gradient can pass.
    #[must_use]
    pub fn no_derivative(&self, step: &Step) -> EngineError {
        EngineError::Invalid {
            pass: "differentiate",
            step: self.program.steps.iter().position(|other| other == step).unwrap_or_default(),
            kernel: step.kernel.name().to_owned(),
            layer: self.program.layer_name(step),
            problem: "it has no derivative".to_owned(),
        }
    }
}
