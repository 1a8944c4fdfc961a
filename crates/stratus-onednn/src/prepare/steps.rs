//! Helpers for steps of several operations: weights and gradients in the layouts of their kernels, and the
//! reorders and copies between them.

use super::builder::PlanBuilder;
use super::layouts::reshape_layout;
use super::measure::BenchCandidate;
use crate::ffi::DataType;
use crate::ops::{self, Candidate, NATIVE_PREFIX, NativeStep, REORDERED, StepOperands};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{Convert, Kernel, Reorder};
use stratus_engine::program::Origin;
use stratus_engine::{Layout, Phase, PreparedStep, Role, Step, ValueId};

impl PlanBuilder<'_> {
    /// Prepares a step and adds it, with the necessary layout changes.
    pub(crate) fn add(&mut self, step: &Step) -> Result<(), String> {
        let key = step_key(self.source, step);
        // A recomputed step runs on the implementation of the first time, regardless of the current layout of
        // its weights.
        let is_first = !self.choices.implementations.contains_key(&key);
        let required = self.request.choices.implementations.get(&key).filter(|_| is_first);
        self.kernel_builder.required = required.cloned();
        (self.ops)(&step.kernel).prepare(step, self)
    }

    /// Adds a step on its native kernel; with `measure`, its time counts.
    pub(crate) fn add_native(&mut self, step: Step, measure: bool) -> Result<(), String> {
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        let (mut values, mut layouts) = (Vec::new(), Vec::new());
        for id in step.operands() {
            let value = self.program.tile_view(id, self.tiles);
            layouts.push(self.tile_layout(id)?.unwrap_or_else(|| Layout::plain(&value.shape)));
            values.push(value);
        }
        let operands = StepOperands { values, layouts, counts };
        let cpu = &self.backend.cpu;
        let NativeStep { scratch_bytes, kernel } = (self.ops)(&step.kernel).build(&operands, cpu)?;
        if measure {
            let both = || operands.values.iter().zip(&operands.layouts);
            let sizes = both().map(|(value, layout)| layout.bytes(value.dtype));
            let sizes = sizes.chain([scratch_bytes]).collect();
            let described: Vec<_> =
                both().map(|(value, layout)| (&value.shape, value.dtype, layout)).collect();
            let key = self.bench.timing_key(&format!("{:?} {described:?}", step.kernel));
            // Built again, because measuring consumes the kernel.
            let kernel = (self.ops)(&step.kernel).build(&operands, cpu)?.kernel;
            let candidate = BenchCandidate { kernel, sizes };
            self.time += self.bench.time(&self.backend.timings, key, candidate)? * self.tiles as u32;
        }
        let implementation = format!("{NATIVE_PREFIX}{}", cpu.level.name());
        self.push(step, PreparedStep { implementation, scratch_bytes, kernel });
        Ok(())
    }

    /// Adds a step that reads weights, its second input, forward or backward. Undecided weights take the
    /// layout of the chosen candidate; decided ones are reordered for a [`REORDERED`] candidate.
    pub(crate) fn add_weight_reader(
        &mut self,
        step: &Step,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let weight = step.inputs[1];
        let dtype = self.data_type(weight)?;
        let decided = self.layout(weight).cloned().map(|layout| (layout, dtype));
        let chosen = self.choose(step, candidates, decided.as_ref())?;
        let (_, desc) = chosen.candidate.weights().ok_or("the implementation has no weights")?;
        let kernel_layout = self.backend.remember_desc(desc, dtype)?;
        let mut step = step.clone();
        if chosen.candidate.name.ends_with(REORDERED) {
            let forward = matches!(step.phase, Phase::Forward | Phase::Teacher);
            let label = if forward { "forward" } else { "backward_data" };
            step.inputs[1] = self.reordered(&step, weight, kernel_layout, label)?;
        } else {
            self.layout_or(weight, &kernel_layout);
        }
        self.push(step, chosen.kernel);
        Ok(())
    }

    /// Adds a step that computes the gradient of weights, its first output:
    ///
    /// ```text
    /// tiled, summed by `AddTiles`   the gradient keeps the layout of its kernel
    /// same layout as the parameter  the gradient and, if undecided, the parameter take it
    /// a REORDERED candidate         a temporary, which is reordered into the gradient
    /// ```
    pub(crate) fn add_weight_gradient(
        &mut self,
        step: &Step,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let parameter = self.parameter_of(gradient);
        let decided = parameter.and_then(|parameter| self.layout(parameter).cloned());
        let required = decided.clone().map(|layout| (layout, DataType::F32));
        let chosen = self.choose(step, candidates, required.as_ref())?;
        let (_, desc) = chosen.candidate.weights().ok_or("the implementation has no weight gradient")?;
        let kernel_layout = self.backend.remember_desc(desc, DataType::F32)?;
        let mut step = step.clone();
        // Joined weights have no sum over tiles: with micro-batches, their gradients are accumulated
        // separately.
        if self.tiles > 1 && self.program.is_partial_sum(gradient) {
            self.set_layout(gradient, kernel_layout);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        if !chosen.candidate.name.ends_with(REORDERED) {
            if let Some(parameter) = parameter {
                self.layout_or(parameter, &kernel_layout);
            }
            self.set_layout(gradient, kernel_layout);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        let required = decided.unwrap_or_else(|| Layout::plain(&kernel_layout.shape));
        self.set_layout(gradient, required);
        let temporary = self.add_reordered(gradient, "raw", kernel_layout);
        step.outputs[0] = temporary;
        let layers = step.layers.clone();
        self.push(step, chosen.kernel);
        let (step, kernel) = self.reorder(layers, temporary, gradient)?;
        self.push(step, kernel);
        Ok(())
    }

    /// Adds a step on a native kernel that computes the gradient of a parameter in the layout
    /// `kernel_layout`. If the parameter has another layout, the kernel writes a temporary, and `push` adds
    /// the reorder into the gradient.
    pub(crate) fn add_native_gradient(
        &mut self,
        step: &Step,
        kernel_layout: Layout,
        push: fn(&mut Self, Step, PreparedStep),
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let required = match self.parameter_of(gradient) {
            Some(parameter) => self.layout_or(parameter, &kernel_layout),
            None => kernel_layout.clone(),
        };
        self.set_layout(gradient, required.clone());
        let mut step = step.clone();
        if required.same_bytes(&kernel_layout) {
            return self.add_native(step, false);
        }
        let temporary = self.add_reordered(gradient, "raw", kernel_layout);
        step.outputs[0] = temporary;
        let layers = step.layers.clone();
        self.add_native(step, false)?;
        let (step, kernel) = self.reorder(layers, temporary, gradient)?;
        push(self, step, kernel);
        Ok(())
    }

    /// Adds an optimiser's step. Gradient and states take the parameter's layout; a copy in another layout is
    /// converted by a separate step.
    pub(crate) fn add_update(&mut self, step: &Step) -> Result<(), String> {
        let parameter = step.updates[0];
        let layout = self.layout_or(parameter, &Layout::plain(self.shape(parameter)));
        for beside in step.inputs[..1].iter().chain(&step.updates[1..]) {
            self.layout_or(*beside, &layout);
        }
        let separate = self.separate_copy(step.outputs.first().copied(), &layout);
        let mut updated = step.clone();
        if separate.is_some() {
            updated.outputs.clear();
        }
        self.add_native(updated, false)?;
        self.convert_copy(step, parameter, separate)
    }

    /// Adds a native step on `weights` and on `other`, which takes their layout.
    pub(crate) fn add_sharing_layout(
        &mut self,
        step: &Step,
        weights: ValueId,
        other: ValueId,
    ) -> Result<(), String> {
        let layout = self.layout_or(weights, &Layout::plain(self.shape(weights)));
        self.layout_or(other, &layout);
        self.add_native(step.clone(), false)
    }

    /// Gives the parameter of a gradient the layout of its copy, which kernels read, unless that is blocked:
    /// the update then writes both in one pass.
    pub(crate) fn adopt_layout_of_copy(&mut self, gradient: ValueId) {
        let Some(parameter) = self.parameter_of(gradient) else { return };
        let copy = self.source.steps.iter().find_map(|step| match step.kernel {
            Kernel::SgdUpdate(_) | Kernel::AdaptiveUpdate(_) if step.updates[0] == parameter => {
                step.outputs.first().copied()
            }
            _ => None,
        });
        self.adopt_layout(parameter, copy);
    }

    /// Gives an undecided parameter the layout of its copy, unless that is blocked.
    pub(crate) fn adopt_layout(&mut self, parameter: ValueId, copy: Option<ValueId>) {
        let copied = copy.and_then(|copy| self.layout(copy).cloned());
        if let Some(layout) = copied.filter(|layout| layout.blocks.is_empty()) {
            self.layout_or(parameter, &layout);
        }
    }

    /// The copy of a parameter if its layout differs from `layout`, that of the parameter; an undecided copy
    /// takes `layout`.
    pub(crate) fn separate_copy(&mut self, copy: Option<ValueId>, layout: &Layout) -> Option<ValueId> {
        let copy = copy?;
        (!self.layout_or(copy, layout).same_bytes(layout)).then_some(copy)
    }

    /// Adds a step that updates a separate copy, if there is one.
    pub(crate) fn convert_copy(
        &mut self,
        step: &Step,
        parameter: ValueId,
        copy: Option<ValueId>,
    ) -> Result<(), String> {
        let Some(copy) = copy else { return Ok(()) };
        let layers = step.layers.clone();
        let (inputs, outputs) = (vec![parameter], vec![copy]);
        let kernel = Convert.into();
        let step = Step { kernel, phase: Phase::Update, layers, inputs, updates: vec![], outputs };
        let candidate = self.conversion_candidate(parameter, copy)?;
        if self.request.measure {
            // Included in the time, because it depends on the map layout being compared: AlexNet's largest
            // layer needs it in one of them only, where it takes 58 ms.
            let times = self.time_candidates(&step, std::slice::from_ref(&candidate))?;
            self.time += times.into_iter().sum::<Duration>();
        }
        let kernel = self.kernel(&candidate)?;
        self.push(step, kernel);
        Ok(())
    }

    /// Adds a row-major value for the gradient of a parameter.
    pub(crate) fn add_gradient(&mut self, parameter: ValueId) -> ValueId {
        let value = self.program.value(parameter);
        let (dtype, plain) = (value.dtype, Layout::plain(&value.shape));
        self.layouts.push(Some(plain));
        self.program.add_derived(Origin::Gradient(parameter), dtype, Role::Transient)
    }

    /// Adds a value that holds `value` in another layout.
    fn add_reordered(&mut self, value: ValueId, label: &str, layout: Layout) -> ValueId {
        let dtype = self.program.value(value).dtype;
        self.layouts.push(Some(layout));
        self.program.add_derived_as(Origin::Reordered(value), label, dtype, Role::Transient)
    }

    /// Inserts a reorder of weights `id` into a new value, and returns that value. It precedes the current
    /// section, because weights are the same for all tiles.
    pub(crate) fn reordered(
        &mut self,
        step: &Step,
        id: ValueId,
        layout: Layout,
        label: &str,
    ) -> Result<ValueId, String> {
        let to = self.add_reordered(id, label, layout);
        let (step, kernel) = self.reorder(step.layers.clone(), id, to)?;
        self.push_before_section(step, kernel);
        Ok(to)
    }

    fn reorder(
        &self,
        layers: Vec<usize>,
        from: ValueId,
        to: ValueId,
    ) -> Result<(Step, PreparedStep), String> {
        let step = Step {
            kernel: Reorder.into(),
            phase: Phase::Layout,
            layers,
            inputs: vec![from],
            updates: vec![],
            outputs: vec![to],
        };
        let kernel = self.kernel(&self.conversion_candidate(from, to)?)?;
        Ok((step, kernel))
    }

    /// Adds a step that copies its input to its output, changing the layout, the type or both.
    pub(crate) fn add_conversion(&mut self, step: &Step) -> Result<(), String> {
        let kernel = self.kernel(&self.conversion_candidate(step.inputs[0], step.outputs[0])?)?;
        self.push(step.clone(), kernel);
        Ok(())
    }

    fn conversion_candidate(&self, from: ValueId, to: ValueId) -> Result<Candidate, String> {
        let [source, target] = [from, to].map(|id| self.layout(id));
        let (source, target) = source.zip(target).ok_or("the layout to convert is not decided")?;
        // Their dimensions may differ: the row-major one is viewed with the shape of the other.
        let source = reshape_layout(source, &target.shape).unwrap_or_else(|_| source.clone());
        let target = reshape_layout(target, &source.shape)?;
        let dtypes = [self.data_type(from)?, self.data_type(to)?];
        let source = self.backend.desc(&source, dtypes[0])?;
        let target = self.backend.desc(&target, dtypes[1])?;
        ops::conversion_candidate(&self.kernel_builder, [&source, &target], dtypes)
    }
}
