//! Steps, one after another: kernels chosen or made, values laid out, changes of layout inserted.

use super::layouts::seen_as;
use super::measure::{Contender, key};
use super::{Builder, Terms};
use crate::ffi::DataType;
use crate::ops::{self, Candidate, ConvAround, LinearAround, REORDERED};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{Convert, Kernel, LinearBackwardWeights, LinearUpdate, Reorder};
use stratus_engine::program::{Mode, Origin};
use stratus_engine::{Layout, Phase, PreparedStep, Role, Step, ValueId};

impl Builder<'_> {
    /// Prepares a step and adds it, with the changes of layout it needs.
    pub(super) fn step(&mut self, step: &Step, terms: Terms) -> Result<(), String> {
        let key = step_key(self.source, step);
        // A step that is run once more runs as the first time, but for its weights.
        let first = !self.choices.implementations.contains_key(&key);
        self.maker.wanted = self.request.choices.implementations.get(&key).filter(|_| first).cloned();
        match step.kernel.clone() {
            Kernel::Conv2dForward(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let weight = step.inputs[1];
                let lies = self.weight_desc(weight, &ops::conv_weight_shape(&k.conv))?;
                let around = ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(weight)? };
                let training = self.source.mode == Mode::Train;
                let candidates = ops::conv_forward(&self.maker, &around, k.relu, training, lies.as_ref())?;
                self.reads_weights(step, terms, weight, candidates)
            }
            Kernel::Conv2dBackwardData(k) => {
                let (y, x) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let weight = step.inputs[1];
                let lies = self.weight_desc(weight, &ops::conv_weight_shape(&k.conv))?;
                let around = ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(weight)? };
                let candidates = ops::conv_backward_data(&self.maker, &around, lies.as_ref())?;
                self.reads_weights(step, terms, weight, candidates)
            }
            Kernel::Conv2dBackwardWeights(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.inputs[1])?);
                let wanted = self.gradient_desc(step.outputs[0], &ops::conv_weight_shape(&k.conv))?;
                let around =
                    ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(step.inputs[0])? };
                let candidates = ops::conv_backward_weights(&self.maker, &around, wanted.as_ref())?;
                self.backward_weights(step, terms, candidates)
            }
            Kernel::LinearForward(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let (weight, shape) = (step.inputs[1], self.linear_shape(&k.linear, step.inputs[0]));
                let lies = self.weight_desc(weight, &shape)?;
                let compute = self.data_type(weight)?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let training = self.source.mode == Mode::Train;
                let candidates = ops::linear_forward(&self.maker, &around, training, lies.as_ref())?;
                self.reads_weights(step, terms, weight, candidates)
            }
            Kernel::LinearBackwardData(k) => {
                let (y, x) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let (weight, shape) = (step.inputs[1], self.linear_shape(&k.linear, step.outputs[0]));
                let lies = self.weight_desc(weight, &shape)?;
                let compute = self.data_type(weight)?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let candidates = ops::linear_backward_data(&self.maker, &around, lies.as_ref())?;
                self.reads_weights(step, terms, weight, candidates)
            }
            Kernel::LinearBackwardWeights(k) => {
                self.lie_as_copied(step.outputs[0]);
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.inputs[1])?);
                let shape = self.linear_shape(&k.linear, step.inputs[0]);
                let wanted = self.gradient_desc(step.outputs[0], &shape)?;
                let compute = self.data_type(step.inputs[0])?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let candidates = ops::linear_backward_weights(&self.maker, &around, wanted.as_ref())?;
                self.backward_weights(step, terms, candidates)
            }
            Kernel::LinearUpdate(k) => self.linear_update(step, terms, k),
            Kernel::AddTiles(_) => self.add_tiles(step),
            Kernel::SgdUpdate(_) | Kernel::AdaptiveUpdate(_) => self.update(step),
            Kernel::JoinWeights(_) => self.join_weights(step),
            Kernel::SplitGradient(_) => self.split_gradient(step),
            Kernel::Convert(_) => self.convert(step, step.inputs[0], step.outputs[0]),
            Kernel::Reorder(_) => self.transfer(step, step.inputs[0], step.outputs[0]),
            Kernel::StemInference(_) => self.stem_inference(step, terms),
            Kernel::SoftmaxCrossEntropy(_) => self.native(step.clone(), false),
            _ => self.native(step.clone(), terms.measure_maps && self.request.measure),
        }
    }

    /// A step that reads weights, forward or backward: they lie as it takes them where nothing is decided, else they are brought there.
    fn reads_weights(
        &mut self,
        step: &Step,
        terms: Terms,
        weight: ValueId,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let dtype = self.data_type(weight)?;
        let lies = self.layouts[weight.0].clone().map(|layout| (layout, dtype));
        let chosen = self.choose(step, terms, candidates, lies.as_ref())?;
        let (_, desc) = chosen.candidate.weights().ok_or("the implementation takes no weights")?;
        let taken = self.backend.learn(desc, dtype)?;
        let mut step = step.clone();
        if chosen.candidate.name.ends_with(REORDERED) {
            let forward = step.phase == Phase::Forward;
            let label = if forward { "forward" } else { "backward_data" };
            step.inputs[1] = self.reordered(&step, weight, taken, label)?;
        } else {
            self.layouts[weight.0].get_or_insert(taken);
        }
        self.push(step, chosen.kernel);
        Ok(())
    }

    /// Where the copy of a matrix that kernels read lies without blocks, the parameter may lie so too: the update then writes both as it goes.
    fn lie_as_copied(&mut self, gradient: ValueId) {
        let Some(parameter) = self.parameter_of(gradient) else { return };
        let copy = self.source.steps.iter().find_map(|step| match step.kernel {
            Kernel::SgdUpdate(_) | Kernel::AdaptiveUpdate(_) if step.updates[0] == parameter => {
                step.outputs.first().copied()
            }
            _ => None,
        });
        self.lie_as(parameter, copy);
    }

    /// Makes a parameter lie as its copy, where that lies without blocks.
    fn lie_as(&mut self, parameter: ValueId, copy: Option<ValueId>) {
        let copied = copy.and_then(|copy| self.layouts[copy.0].clone());
        if let Some(layout) = copied.filter(|layout| layout.blocks.is_empty()) {
            self.layouts[parameter.0].get_or_insert(layout);
        }
    }

    fn backward_weights(
        &mut self,
        step: &Step,
        terms: Terms,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let parameter = self.parameter_of(gradient);
        let decided = parameter.and_then(|parameter| self.layouts[parameter.0].clone());
        let lies = decided.clone().map(|layout| (layout, DataType::F32));
        let chosen = self.choose(step, terms, candidates, lies.as_ref())?;
        let (_, desc) =
            chosen.candidate.weights().ok_or("the implementation makes no gradient of weights")?;
        let made = self.backend.learn(desc, DataType::F32)?;
        let mut step = step.clone();
        // Joined weights have no sum: in micro-batches, those of each of them are added up.
        if self.tiles > 1 && self.program.is_share(gradient) {
            // The tiles are added up as they are made; the sum is brought where it is wanted.
            self.layouts[gradient.0] = Some(made);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        if !chosen.candidate.name.ends_with(REORDERED) {
            // The parameter, and all that goes with it, lies as its gradient is made.
            if let Some(parameter) = parameter {
                self.layouts[parameter.0].get_or_insert_with(|| made.clone());
            }
            self.layouts[gradient.0] = Some(made);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        let wanted = decided.unwrap_or_else(|| Layout::plain(&made.shape));
        self.layouts[gradient.0] = Some(wanted);
        let raw = self.reordered_value(gradient, "raw", made);
        step.outputs[0] = raw;
        let layers = step.layers.clone();
        self.push(step, chosen.kernel);
        let (step, kernel) = self.reorder(layers, raw, gradient)?;
        self.push(step, kernel);
        Ok(())
    }

    /// Joined weights lie in row-major order, in which one behind the other is how they lie; so do those that are joined, where nothing is decided.
    fn join_weights(&mut self, step: &Step) -> Result<(), String> {
        let mut joined = step.clone();
        for id in &mut joined.inputs {
            let plain = Layout::plain(&self.program.value(*id).shape);
            let lies = self.layouts[id.0].get_or_insert_with(|| plain.clone());
            if !lies.same_bytes(&plain) {
                *id = self.reordered(step, *id, plain, "joined")?;
            }
        }
        let output = joined.outputs[0];
        self.layouts[output.0] = Some(Layout::plain(&self.program.value(output).shape));
        self.native(joined, false)
    }

    /// The gradient of one of several joined weights: in row-major order, as all of them lie.
    fn split_gradient(&mut self, step: &Step) -> Result<(), String> {
        let (joined, own) = (step.inputs[0], step.outputs[0]);
        let [joined_lies, plain] = [joined, own].map(|id| Layout::plain(&self.program.value(id).shape));
        let lies = self.layouts[joined.0].get_or_insert(joined_lies);
        if !lies.is_row_major() {
            return Err(format!("the gradient of joined weights lies as {}", lies.tag));
        }
        self.make_gradient(step, plain, Self::push)
    }

    /// A sum over tiles lies as its tiles do; where the parameter lies otherwise, it is brought there when all were added.
    fn add_tiles(&mut self, step: &Step) -> Result<(), String> {
        let part = step.inputs[0];
        let made =
            self.layouts[part.0].clone().unwrap_or_else(|| Layout::plain(&self.program.value(part).shape));
        self.layouts[part.0] = Some(made.clone());
        self.make_gradient(step, made, Self::push_behind)
    }

    /// Adds a step on our own kernels that makes the gradient of a parameter in the layout `made`; where the parameter lies otherwise, `push` adds what
    /// brings it there.
    fn make_gradient(
        &mut self,
        step: &Step,
        made: Layout,
        push: fn(&mut Self, Step, PreparedStep),
    ) -> Result<(), String> {
        let gradient = step.outputs[0];
        let wanted = match self.parameter_of(gradient) {
            Some(parameter) => self.layouts[parameter.0].get_or_insert_with(|| made.clone()).clone(),
            None => made.clone(),
        };
        self.layouts[gradient.0] = Some(wanted.clone());
        let mut step = step.clone();
        if wanted.same_bytes(&made) {
            return self.native(step, false);
        }
        let raw = self.reordered_value(gradient, "raw", made);
        step.outputs[0] = raw;
        let layers = step.layers.clone();
        self.native(step, false)?;
        let (step, kernel) = self.reorder(layers, raw, gradient)?;
        push(self, step, kernel);
        Ok(())
    }

    /// Adds a value for the numbers of `of` in another layout.
    fn reordered_value(&mut self, of: ValueId, label: &str, layout: Layout) -> ValueId {
        let dtype = self.program.value(of).dtype;
        self.layouts.push(Some(layout));
        self.program.add_derived_as(Origin::Reordered(of), label, dtype, Role::Transient)
    }

    /// Inserts a reorder of `id`, a weight, into a new value, which it returns; before the section at hand: weights are the same for all tiles.
    fn reordered(
        &mut self,
        step: &Step,
        id: ValueId,
        layout: Layout,
        label: &str,
    ) -> Result<ValueId, String> {
        let to = self.reordered_value(id, label, layout);
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
        let kernel = self.transfer_kernel(from, to)?;
        Ok((step, kernel))
    }

    fn transfer(&mut self, step: &Step, from: ValueId, to: ValueId) -> Result<(), String> {
        let kernel = self.transfer_kernel(from, to)?;
        self.push(step.clone(), kernel);
        Ok(())
    }

    fn transfer_kernel(&self, from: ValueId, to: ValueId) -> Result<PreparedStep, String> {
        self.kernel(&self.transfer_candidate(from, to)?)
    }

    fn transfer_candidate(&self, from: ValueId, to: ValueId) -> Result<Candidate, String> {
        let [source, target] = [from, to].map(|id| self.layouts[id.0].clone());
        let (source, target) = source.zip(target).ok_or("it changes a layout that is not decided")?;
        // The two may be seen with other dimensions: what is in row-major order follows the other.
        let source = seen_as(&source, &target.shape).unwrap_or(source);
        let target = seen_as(&target, &source.shape)?;
        let dtypes = [self.data_type(from)?, self.data_type(to)?];
        let source = self.backend.desc(&source, dtypes[0])?;
        let target = self.backend.desc(&target, dtypes[1])?;
        ops::transfer(&self.maker, [&source, &target], dtypes)
    }

    /// The gradient of a large layer and its update: in one step where the weights lie as a matrix, else in two, with the gradient between them.
    fn linear_update(&mut self, step: &Step, terms: Terms, k: LinearUpdate) -> Result<(), String> {
        let (parameter, velocity) = (step.updates[0], step.updates[1]);
        let copy = (step.outputs.len() > usize::from(k.linear.bias)).then(|| step.outputs[0]);
        self.lie_as(parameter, copy);
        let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.inputs[1])?);
        let shape = self.linear_shape(&k.linear, step.inputs[0]);
        let compute = self.data_type(step.inputs[0])?;
        let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
        let lies = self.layouts[parameter.0].get_or_insert_with(|| around.rows_first()).clone();
        let apart = self.apart(copy, &lies);
        let seen = seen_as(&lies, &around.weight_shape);
        let copied = copy.is_some() && apart.is_none();
        let way = match seen {
            Ok(seen) => ops::linear_update(&self.maker, &around, k.sgd, &seen, copied)?,
            Err(_) => None,
        };
        let Some(way) = way else { return self.update_apart(step, terms, k) };
        self.layouts[velocity.0].get_or_insert_with(|| lies.clone());
        let chosen = self.choose(step, terms, vec![way], None)?;
        let mut joined = step.clone();
        if apart.is_some() {
            joined.outputs.remove(0);
        }
        self.push(joined, chosen.kernel);
        self.convert_apart(step, parameter, apart)
    }

    /// The two steps that were joined.
    fn update_apart(&mut self, step: &Step, terms: Terms, k: LinearUpdate) -> Result<(), String> {
        let parameter = step.updates[0];
        let shape = self.program.value(parameter).shape.clone();
        let dtype = self.program.value(parameter).dtype;
        let gradient = self.program.add_derived(Origin::Gradient(parameter), dtype, Role::Transient);
        self.layouts.push(Some(Layout::plain(&shape)));
        let copies = step.outputs.len() - usize::from(k.linear.bias);
        let (copies, bias) = step.outputs.split_at(copies);
        let made = Step {
            kernel: LinearBackwardWeights { linear: k.linear }.into(),
            phase: Phase::BackwardWeights,
            layers: step.layers.clone(),
            inputs: step.inputs[..2].to_vec(),
            updates: vec![],
            outputs: std::iter::once(gradient).chain(bias.iter().copied()).collect(),
        };
        self.step(&made, terms)?;
        let used = Step {
            kernel: k.sgd.into(),
            inputs: vec![gradient, step.inputs[2]],
            outputs: copies.to_vec(),
            ..step.clone()
        };
        self.step(&used, terms)
    }

    /// The copy of a parameter, where it lies otherwise; where nothing says how it lies, it lies as the parameter.
    fn apart(&mut self, copy: Option<ValueId>, lies: &Layout) -> Option<ValueId> {
        let copy = copy?;
        let layout = self.layouts[copy.0].get_or_insert_with(|| lies.clone());
        (!layout.same_bytes(lies)).then_some(copy)
    }

    fn update(&mut self, step: &Step) -> Result<(), String> {
        let parameter = step.updates[0];
        let shape = self.program.value(parameter).shape.clone();
        let lies = self.layouts[parameter.0].get_or_insert_with(|| Layout::plain(&shape)).clone();
        for beside in step.inputs[..1].iter().chain(&step.updates[1..]) {
            self.layouts[beside.0].get_or_insert_with(|| lies.clone());
        }
        let apart = self.apart(step.outputs.first().copied(), &lies);
        let mut updated = step.clone();
        if apart.is_some() {
            updated.outputs.clear();
        }
        self.native(updated, false)?;
        self.convert_apart(step, parameter, apart)
    }

    /// The kernel takes weights in row-major order; those that are not trained lie as the convolution takes them that trains in its place.
    fn stem_inference(&mut self, step: &Step, terms: Terms) -> Result<(), String> {
        let weight = step.inputs[1];
        let plain = Layout::plain(&self.program.value(weight).shape);
        let mut step = step.clone();
        if self.layouts[weight.0].as_ref().is_some_and(|lies| !lies.same_bytes(&plain)) {
            step.inputs[1] = self.reordered(&step, weight, plain, "forward")?;
        }
        self.native(step, terms.measure_maps && self.request.measure)
    }

    /// Brings the copy up to date that lies otherwise than its parameter.
    fn convert_apart(
        &mut self,
        step: &Step,
        parameter: ValueId,
        apart: Option<ValueId>,
    ) -> Result<(), String> {
        let Some(copy) = apart else { return Ok(()) };
        let layers = step.layers.clone();
        let (inputs, outputs) = (vec![parameter], vec![copy]);
        let kernel = Convert.into();
        let step = Step { kernel, phase: Phase::Update, layers, inputs, updates: vec![], outputs };
        let candidate = self.transfer_candidate(parameter, copy)?;
        if self.request.measure {
            // It comes with the layouts of the maps: AlexNet's largest layer takes 58 ms with one, where it takes none with the other.
            let times = self.time_candidates(&step, std::slice::from_ref(&candidate))?;
            self.time += times.into_iter().sum::<Duration>();
        }
        let kernel = self.kernel(&candidate)?;
        self.push(step, kernel);
        Ok(())
    }

    fn convert(&mut self, step: &Step, from: ValueId, to: ValueId) -> Result<(), String> {
        let decided = self.layouts[to.0].clone().or_else(|| self.layouts[from.0].clone());
        let layout = decided.unwrap_or_else(|| Layout::plain(&self.program.value(from).shape));
        let lies = self.layouts[from.0].get_or_insert_with(|| layout.clone()).clone();
        let layout = self.layouts[to.0].get_or_insert(layout).clone();
        if lies.same_bytes(&layout) {
            self.native(step.clone(), false)
        } else {
            self.transfer(step, from, to)
        }
    }

    fn native(&mut self, step: Step, measure: bool) -> Result<(), String> {
        let mut operands = Vec::new();
        for id in step.operands() {
            let value = self.program.seen(id, self.tiles);
            let layout = self.seen_layout(id)?.unwrap_or_else(|| Layout::plain(&value.shape));
            operands.push((value, layout));
        }
        let mut sizes: Vec<usize> =
            operands.iter().map(|(value, layout)| layout.bytes(value.dtype)).collect();
        let around: Vec<_> =
            operands.iter().map(|(value, layout)| (&value.shape, value.dtype, layout)).collect();
        let key = key(&format!("{:?} {around:?}", step.kernel));
        let kernel = ops::native(&self.backend.cpu, &step, operands.clone())?;
        if measure {
            sizes.push(kernel.scratch_bytes);
            let measured = ops::native(&self.backend.cpu, &step, operands)?.kernel;
            self.time +=
                self.bench.time(&self.backend.measured, key, Contender { kernel: measured, sizes })?
                    * self.tiles as u32;
        }
        self.push(step, kernel);
        Ok(())
    }
}
