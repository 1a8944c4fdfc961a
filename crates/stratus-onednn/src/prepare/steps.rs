//! What steps of several operations share: weights and gradients in the layouts that kernels take or make,
//! and the reorders and copies between them.

use super::PlanBuilder;
use super::layouts::seen_as;
use super::measure::{BenchCandidate, key};
use crate::ffi::DataType;
use crate::ops::{self, Candidate, NATIVE_PREFIX, NativeStep, REORDERED, StepOperands, on_cpu};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{Convert, Kernel, Reorder};
use stratus_engine::program::Origin;
use stratus_engine::{Layout, Phase, PreparedStep, Role, Step, ValueId};

impl PlanBuilder<'_> {
    /// Prepares a step and adds it, with the layout changes it needs.
    pub(crate) fn add(&mut self, step: &Step) -> Result<(), String> {
        let key = step_key(self.source, step);
        // A recomputed step runs on the implementation of the first time, whatever layout its weights have by
        // then.
        let is_first = !self.choices.implementations.contains_key(&key);
        let wanted = self.request.choices.implementations.get(&key).filter(|_| is_first);
        self.kernel_builder.wanted = wanted.cloned();
        on_cpu(&step.kernel).prepare(step, self)
    }

    /// Adds a step on its native kernel; `measure` says whether its time counts.
    pub(crate) fn add_native(&mut self, step: Step, measure: bool) -> Result<(), String> {
        let counts = [step.inputs.len(), step.updates.len(), step.outputs.len()];
        let (mut values, mut layouts) = (Vec::new(), Vec::new());
        for id in step.operands() {
            let value = self.program.seen(id, self.tiles);
            layouts.push(self.seen_layout(id)?.unwrap_or_else(|| Layout::plain(&value.shape)));
            values.push(value);
        }
        let operands = StepOperands { values, layouts, counts };
        let cpu = &self.backend.cpu;
        let NativeStep { scratch_bytes, kernel } = on_cpu(&step.kernel).build(&operands, cpu)?;
        if measure {
            let both = || operands.values.iter().zip(&operands.layouts);
            let sizes = both().map(|(value, layout)| layout.bytes(value.dtype));
            let sizes = sizes.chain([scratch_bytes]).collect();
            let described: Vec<_> =
                both().map(|(value, layout)| (&value.shape, value.dtype, layout)).collect();
            let key = key(&format!("{:?} {described:?}", step.kernel));
            // A second one: measuring consumes it.
            let kernel = on_cpu(&step.kernel).build(&operands, cpu)?.kernel;
            let candidate = BenchCandidate { kernel, sizes };
            self.time += self.bench.time(&self.backend.timings, key, candidate)? * self.tiles as u32;
        }
        let implementation = format!("{NATIVE_PREFIX}{}", cpu.level.name());
        self.push(step, PreparedStep { implementation, scratch_bytes, kernel });
        Ok(())
    }

    /// Adds a step that reads weights, its second input, forward or backward. Undecided weights get the
    /// layout that the chosen candidate takes; decided ones are reordered for a [`REORDERED`] candidate.
    pub(crate) fn add_weight_reader(
        &mut self,
        step: &Step,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let weight = step.inputs[1];
        let dtype = self.data_type(weight)?;
        let decided = self.layout(weight).cloned().map(|layout| (layout, dtype));
        let chosen = self.choose(step, candidates, decided.as_ref())?;
        let (_, desc) = chosen.candidate.weights().ok_or("the implementation takes no weights")?;
        let taken = self.backend.learn(desc, dtype)?;
        let mut step = step.clone();
        if chosen.candidate.name.ends_with(REORDERED) {
            let forward = step.phase == Phase::Forward;
            let label = if forward { "forward" } else { "backward_data" };
            step.inputs[1] = self.reordered(&step, weight, taken, label)?;
        } else {
            self.layout_or(weight, &taken);
        }
        self.push(step, chosen.kernel);
        Ok(())
    }

    /// Adds a step that makes the gradient of weights, its first output:
    ///
    /// ```text
    /// tiled, summed by `AddTiles`   the gradient keeps the layout in which it is made
    /// made as the parameter is      so do the gradient and, where that is undecided, the parameter
    /// a REORDERED candidate         it makes a temporary, which is reordered into the gradient
    /// ```
    pub(crate) fn add_weight_gradient(
        &mut self,
        step: &Step,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let parameter = self.parameter_of(gradient);
        let decided = parameter.and_then(|parameter| self.layout(parameter).cloned());
        let wanted = decided.clone().map(|layout| (layout, DataType::F32));
        let chosen = self.choose(step, candidates, wanted.as_ref())?;
        let (_, desc) =
            chosen.candidate.weights().ok_or("the implementation makes no gradient of weights")?;
        let made = self.backend.learn(desc, DataType::F32)?;
        let mut step = step.clone();
        // Joined weights have no sum over tiles: in micro-batches, the gradients of each of them are added
        // up.
        if self.tiles > 1 && self.program.is_share(gradient) {
            self.set_layout(gradient, made);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        if !chosen.candidate.name.ends_with(REORDERED) {
            if let Some(parameter) = parameter {
                self.layout_or(parameter, &made);
            }
            self.set_layout(gradient, made);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        let wanted = decided.unwrap_or_else(|| Layout::plain(&made.shape));
        self.set_layout(gradient, wanted);
        let temporary = self.add_reordered(gradient, "raw", made);
        step.outputs[0] = temporary;
        let layers = step.layers.clone();
        self.push(step, chosen.kernel);
        let (step, kernel) = self.reorder(layers, temporary, gradient)?;
        self.push(step, kernel);
        Ok(())
    }

    /// Adds a step on a native kernel that makes the gradient of a parameter in the layout `made`. Where the
    /// parameter has another, it makes a temporary, and `push` adds the reorder into the gradient.
    pub(crate) fn add_native_gradient(
        &mut self,
        step: &Step,
        made: Layout,
        push: fn(&mut Self, Step, PreparedStep),
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let wanted = match self.parameter_of(gradient) {
            Some(parameter) => self.layout_or(parameter, &made),
            None => made.clone(),
        };
        self.set_layout(gradient, wanted.clone());
        let mut step = step.clone();
        if wanted.same_bytes(&made) {
            return self.add_native(step, false);
        }
        let temporary = self.add_reordered(gradient, "raw", made);
        step.outputs[0] = temporary;
        let layers = step.layers.clone();
        self.add_native(step, false)?;
        let (step, kernel) = self.reorder(layers, temporary, gradient)?;
        push(self, step, kernel);
        Ok(())
    }

    /// Adds an optimiser's step. Gradient and states get the parameter's layout; a copy in another layout is
    /// converted by a step of its own.
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

    /// Adds a native step on `weights` and on `beside`, which gets their layout.
    pub(crate) fn add_beside(
        &mut self,
        step: &Step,
        weights: ValueId,
        beside: ValueId,
    ) -> Result<(), String> {
        let layout = self.layout_or(weights, &Layout::plain(self.shape(weights)));
        self.layout_or(beside, &layout);
        self.add_native(step.clone(), false)
    }

    /// Gives the parameter of a gradient the layout of its copy, which kernels read, where that has no
    /// blocks: the update then writes both in one pass.
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

    /// Gives an undecided parameter the layout of its copy, where that has no blocks.
    pub(crate) fn adopt_layout(&mut self, parameter: ValueId, copy: Option<ValueId>) {
        let copied = copy.and_then(|copy| self.layout(copy).cloned());
        if let Some(layout) = copied.filter(|layout| layout.blocks.is_empty()) {
            self.layout_or(parameter, &layout);
        }
    }

    /// The copy of a parameter, where its layout is not `layout`, that of the parameter; an undecided copy
    /// gets it.
    pub(crate) fn separate_copy(&mut self, copy: Option<ValueId>, layout: &Layout) -> Option<ValueId> {
        let copy = copy?;
        (!self.layout_or(copy, layout).same_bytes(layout)).then_some(copy)
    }

    /// Adds a step that brings a separate copy up to date, if there is one.
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
        let candidate = self.transfer_candidate(parameter, copy)?;
        if self.request.measure {
            // It follows from the layout of the maps, so it counts when these are compared: for AlexNet's
            // largest layer it takes 58 ms with one of them, and is not needed with the other.
            let times = self.time_candidates(&step, std::slice::from_ref(&candidate))?;
            self.time += times.into_iter().sum::<Duration>();
        }
        let kernel = self.kernel(&candidate)?;
        self.push(step, kernel);
        Ok(())
    }

    /// Adds a value for the gradient of a parameter, row-major.
    pub(crate) fn add_gradient(&mut self, parameter: ValueId) -> ValueId {
        let value = self.program.value(parameter);
        let (dtype, plain) = (value.dtype, Layout::plain(&value.shape));
        self.layouts.push(Some(plain));
        self.program.add_derived(Origin::Gradient(parameter), dtype, Role::Transient)
    }

    /// Adds a value for the numbers of `of` in another layout.
    fn add_reordered(&mut self, of: ValueId, label: &str, layout: Layout) -> ValueId {
        let dtype = self.program.value(of).dtype;
        self.layouts.push(Some(layout));
        self.program.add_derived_as(Origin::Reordered(of), label, dtype, Role::Transient)
    }

    /// Inserts a reorder of `id`, which is weights, into a new value, and returns that. It stands before the
    /// section at hand: weights are the same for all tiles.
    pub(crate) fn reordered(
        &mut self,
        step: &Step,
        id: ValueId,
        layout: Layout,
        label: &str,
    ) -> Result<ValueId, String> {
        let to = self.add_reordered(id, label, layout);
        let (step, kernel) = self.reorder(step.layers.clone(), id, to)?;
        self.push_before(step, kernel);
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
        let kernel = self.kernel(&self.transfer_candidate(from, to)?)?;
        Ok((step, kernel))
    }

    /// Adds a step that copies its input into its output, between layouts, types or both.
    pub(crate) fn transfer(&mut self, step: &Step) -> Result<(), String> {
        let kernel = self.kernel(&self.transfer_candidate(step.inputs[0], step.outputs[0])?)?;
        self.push(step.clone(), kernel);
        Ok(())
    }

    fn transfer_candidate(&self, from: ValueId, to: ValueId) -> Result<Candidate, String> {
        let [source, target] = [from, to].map(|id| self.layout(id));
        let (source, target) = source.zip(target).ok_or("it changes a layout that is not decided")?;
        // The two may have other dimensions: the row-major one is seen with those of the other.
        let source = seen_as(source, &target.shape).unwrap_or_else(|_| source.clone());
        let target = seen_as(target, &source.shape)?;
        let dtypes = [self.data_type(from)?, self.data_type(to)?];
        let source = self.backend.desc(&source, dtypes[0])?;
        let target = self.backend.desc(&target, dtypes[1])?;
        ops::transfer(&self.kernel_builder, [&source, &target], dtypes)
    }
}
