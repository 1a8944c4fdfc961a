//! From steps to kernels: layouts and implementations chosen by measuring, layout changes inserted where kernels disagree.
//!
//! Feature maps of a program share one layout (channels last, or channels in blocks of 16): each is tried as a whole and the faster kept. Within it,
//! every convolution and fully connected layer takes its fastest implementation; the forward pass decides how the weights that it reads lie,
//! the backward passes take them as they lie or pay for a reorder, whichever was faster.

use crate::backend::OneDnn;
use crate::ffi::{DataType, Desc};
use crate::measure::Bench;
use crate::ops::{self, Candidate, ConvAround, LinearAround, Maker, REORDERED};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{Kernel, KernelSpec, Reorder};
use stratus_engine::program::Mode;
use stratus_engine::{
    Choices, DType, EngineError, Layout, Phase, PrepareRequest, Prepared, PreparedStep, Program, Role, Step,
    ValueId,
};
use stratus_graph::ops::Linear;

/// The layouts of feature maps that are tried.
const MAP_LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

pub(crate) fn prepare(
    backend: &OneDnn,
    program: &Program,
    request: &PrepareRequest,
) -> Result<Prepared, EngineError> {
    let named = !request.choices.layouts.is_empty();
    let candidates: Vec<Option<&str>> = match (named, request.measure) {
        (true, _) => vec![None],
        (false, true) => MAP_LAYOUTS.iter().copied().map(Some).collect(),
        (false, false) => vec![Some(MAP_LAYOUTS[0])],
    };
    let alone = candidates.len() == 1;
    let mut best: Option<(Duration, Prepared)> = None;
    for layout in candidates {
        let result =
            Builder::new(backend, program, request, layout).and_then(|builder| builder.build(!alone));
        match (result, &best) {
            (Ok((time, _)), Some((shortest, _))) if time >= *shortest => {}
            (Ok(found), _) => best = Some(found),
            // A layout that some step cannot take is no candidate; it is an error where nothing else is left.
            (Err(error), _) if alone => return Err(error),
            (Err(_), _) => {}
        }
    }
    match best {
        Some((_, prepared)) => Ok(prepared),
        None => Builder::new(backend, program, request, Some(MAP_LAYOUTS[0]))?
            .build(false)
            .map(|(_, prepared)| prepared),
    }
}

struct Builder<'a> {
    backend: &'a OneDnn,
    maker: Maker<'a>,
    request: &'a PrepareRequest,
    source: &'a Program,
    program: Program,
    layouts: Vec<Option<Layout>>,
    steps: Vec<PreparedStep>,
    choices: Choices,
    bench: Bench,
    time: Duration,
}

/// How the weights of a step lie and what is to be done about it.
struct Chosen {
    candidate: Candidate,
    kernel: PreparedStep,
}

impl<'a> Builder<'a> {
    fn new(
        backend: &'a OneDnn,
        source: &'a Program,
        request: &'a PrepareRequest,
        map_layout: Option<&str>,
    ) -> Result<Self, EngineError> {
        let start = || -> Result<(Maker<'a>, Bench), String> {
            let context = &backend.context;
            let maker = Maker { context, plain: context.attributes(false)?, relu: context.attributes(true)? };
            Ok((maker, Bench::new()?))
        };
        let (maker, bench) = start().map_err(|reason| EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: "attributes".to_owned(),
            layer: "any".to_owned(),
            reason,
        })?;
        let mut program = source.clone();
        program.steps.clear();
        let mut builder = Self {
            backend,
            maker,
            request,
            source,
            layouts: vec![None; program.values.len()],
            program,
            steps: Vec::new(),
            choices: Choices::default(),
            bench,
            time: Duration::ZERO,
        };
        builder.lay_out_maps(map_layout)?;
        Ok(builder)
    }

    /// Gives feature maps, vectors and everything fixed its layout; weights wait for their kernels.
    fn lay_out_maps(&mut self, map_layout: Option<&str>) -> Result<(), EngineError> {
        let mut weights = vec![false; self.source.values.len()];
        for step in &self.source.steps {
            match &step.kernel {
                Kernel::Conv2dForward(_)
                | Kernel::LinearForward(_)
                | Kernel::Conv2dBackwardData(_)
                | Kernel::LinearBackwardData(_) => {
                    weights[step.inputs[1].0] = true;
                }
                Kernel::Conv2dBackwardWeights(_) | Kernel::LinearBackwardWeights(_) => {
                    weights[step.outputs[0].0] = true;
                }
                Kernel::SgdUpdate(_) => {
                    for id in [step.inputs[0], step.updates[0], step.updates[1]].iter().chain(&step.outputs) {
                        weights[id.0] = true;
                    }
                }
                _ => {}
            }
        }
        for (id, value) in self.source.values.iter().enumerate() {
            if let Some(fixed) = self.request.fixed.get(&value.name).filter(|_| value.role.is_persistent()) {
                self.layouts[id] = Some(fixed.clone());
            } else if matches!(value.role, Role::Parameter | Role::Copy | Role::Momentum) || weights[id] {
                // Vectors can only lie one way; matrices and kernels are laid out by the step that needs them first.
                if value.shape.len() < 2 {
                    self.layouts[id] = Some(Layout::plain(&value.shape));
                }
            } else if value.shape.len() == 4 {
                let named = self.request.choices.layouts.get(&value.name).map(String::as_str);
                let tag = named.or(map_layout).unwrap_or(MAP_LAYOUTS[0]);
                let layout = self.map_layout(tag, &value.shape, value.role)?;
                self.choices.layouts.insert(value.name.clone(), layout.tag.clone());
                self.layouts[id] = Some(layout);
            } else {
                self.layouts[id] = Some(Layout::plain(&value.shape));
            }
        }
        Ok(())
    }

    fn map_layout(&self, tag: &str, shape: &[usize], role: Role) -> Result<Layout, EngineError> {
        let unknown =
            |reason: String| EngineError::Mismatch(format!("layout `{tag}` of a feature map: {reason}"));
        match tag {
            "nhwc" => Ok(Layout::channels_last(shape)),
            "plain" => Ok(Layout::plain(shape)),
            // Images come from the loader, which knows the two orders of pixels and no blocks.
            "nChw16c" if role == Role::Images => Ok(Layout::plain(shape)),
            "nChw16c" => {
                let desc = self.backend.context.blocked16(shape, DataType::F32).map_err(unknown)?;
                for dtype in [DataType::F32, DataType::Bf16] {
                    let desc = self.backend.context.blocked16(shape, dtype).map_err(unknown)?;
                    self.backend.learn(&desc, dtype).map_err(unknown)?;
                }
                desc.layout().map_err(unknown)
            }
            "aBcd16b" => self.map_layout("nChw16c", shape, role),
            _ => Err(unknown("it is not known here; plan again with --remeasure".to_owned())),
        }
    }

    fn build(mut self, measure_all: bool) -> Result<(Duration, Prepared), EngineError> {
        for position in 0..self.source.steps.len() {
            let step = self.source.steps[position].clone();
            self.step(&step, measure_all).map_err(|reason| EngineError::Unsupported {
                backend: "onednn".to_owned(),
                kernel: step.kernel.name().to_owned(),
                layer: self.source.layer_name(&step),
                reason,
            })?;
        }
        let layouts = self
            .layouts
            .into_iter()
            .zip(&self.program.values)
            .map(|(layout, value)| layout.unwrap_or_else(|| Layout::plain(&value.shape)))
            .collect();
        let prepared = Prepared { program: self.program, layouts, steps: self.steps, choices: self.choices };
        Ok((self.time, prepared))
    }

    fn step(&mut self, step: &Step, measure_all: bool) -> Result<(), String> {
        match step.kernel.clone() {
            Kernel::Conv2dForward(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let weight = step.inputs[1];
                let lies = self.weight_desc(weight, &ops::conv_weight_shape(&k.conv))?;
                let around = ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(weight)? };
                let training = self.source.mode == Mode::Train;
                let candidates = ops::conv_forward(&self.maker, &around, k.relu, training, lies.as_ref())?;
                self.forward(step, weight, candidates)
            }
            Kernel::Conv2dBackwardData(k) => {
                let (y, x) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let weight = step.inputs[1];
                let lies = self
                    .weight_desc(weight, &ops::conv_weight_shape(&k.conv))?
                    .ok_or("its weights lie nowhere")?;
                let around = ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(weight)? };
                let candidates = ops::conv_backward_data(&self.maker, &around, &lies)?;
                self.backward_data(step, weight, candidates)
            }
            Kernel::Conv2dBackwardWeights(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.inputs[1])?);
                let wanted = self.gradient_desc(step.outputs[0], &ops::conv_weight_shape(&k.conv))?;
                let around =
                    ConvAround { conv: &k.conv, x: &x, y: &y, compute: self.data_type(step.inputs[0])? };
                let mut candidates = ops::conv_backward_weights(&self.maker, &around, wanted.as_ref())?;
                if is_hazardous(&k.conv, self.dtype(step.inputs[0])) {
                    candidates.retain(|candidate| !candidate.name.contains("brg"));
                }
                self.backward_weights(step, candidates)
            }
            Kernel::LinearForward(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let (weight, shape) = (step.inputs[1], self.linear_shape(&k.linear, step.inputs[0]));
                let lies = self.weight_desc(weight, &shape)?;
                let compute = self.data_type(weight)?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let training = self.source.mode == Mode::Train;
                let candidates = ops::linear_forward(&self.maker, &around, training, lies.as_ref())?;
                self.forward(step, weight, candidates)
            }
            Kernel::LinearBackwardData(k) => {
                let (y, x) = (self.map_desc(step.inputs[0])?, self.map_desc(step.outputs[0])?);
                let (weight, shape) = (step.inputs[1], self.linear_shape(&k.linear, step.outputs[0]));
                let lies = self.weight_desc(weight, &shape)?.ok_or("its weights lie nowhere")?;
                let compute = self.data_type(weight)?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let candidates = ops::linear_backward_data(&self.maker, &around, &lies)?;
                self.backward_data(step, weight, candidates)
            }
            Kernel::LinearBackwardWeights(k) => {
                let (x, y) = (self.map_desc(step.inputs[0])?, self.map_desc(step.inputs[1])?);
                let shape = self.linear_shape(&k.linear, step.inputs[0]);
                let wanted = self.gradient_desc(step.outputs[0], &shape)?;
                let compute = self.data_type(step.inputs[0])?;
                let around = LinearAround { weight_shape: shape, bias: k.linear.bias, x: &x, y: &y, compute };
                let candidates = ops::linear_backward_weights(&self.maker, &around, wanted.as_ref())?;
                self.backward_weights(step, candidates)
            }
            Kernel::SgdUpdate(_) => self.update(step, measure_all),
            Kernel::Convert(_) => self.convert(step, step.inputs[0], step.outputs[0], measure_all),
            Kernel::Reorder(_) => self.transfer(step, step.inputs[0], step.outputs[0]),
            _ => self.native(step.clone(), measure_all),
        }
    }

    // ---- layouts ----

    fn dtype(&self, id: ValueId) -> DType {
        self.program.value(id).dtype
    }

    fn data_type(&self, id: ValueId) -> Result<DataType, String> {
        ops::data_type(self.dtype(id))
    }

    fn map_desc(&self, id: ValueId) -> Result<Desc, String> {
        let layout = self.layouts[id.0].as_ref().ok_or("a feature map has no layout")?;
        self.backend.desc(layout, self.data_type(id)?)
    }

    /// How a weight lies, where that is decided; a layout that an earlier program fixed may see it with other dimensions.
    fn weight_desc(&self, id: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        self.layouts[id.0]
            .as_ref()
            .map(|layout| {
                let layout = if layout.shape == shape || !layout.blocks.is_empty() {
                    layout.clone()
                } else {
                    Layout::plain(shape)
                };
                self.backend.desc(&layout, self.data_type(id)?)
            })
            .transpose()
    }

    /// How the gradient of a weight should lie: as the parameter does, where that is decided.
    fn gradient_desc(&self, gradient: ValueId, shape: &[usize]) -> Result<Option<Desc>, String> {
        let parameter = self.parameter_of(gradient).ok_or("it is the gradient of no parameter");
        match parameter {
            Ok(parameter) => self.weight_desc(parameter, shape),
            // A step on its own, as in a test: row-major.
            Err(_) => Ok(Some(self.backend.desc(&Layout::plain(shape), DataType::F32)?)),
        }
    }

    fn parameter_of(&self, gradient: ValueId) -> Option<ValueId> {
        let name =
            self.program.value(gradient).name.strip_suffix(stratus_engine::differentiate::GRADIENT_SUFFIX)?;
        self.find(name)
    }

    fn find(&self, name: &str) -> Option<ValueId> {
        self.source.values.iter().position(|value| value.name == name).map(ValueId)
    }

    fn linear_shape(&self, linear: &Linear, x: ValueId) -> Vec<usize> {
        let mut shape = self.program.value(x).shape.clone();
        shape[0] = linear.out_features;
        shape
    }

    // ---- choosing ----

    /// Takes the requested candidate, or the fastest; `extra` is what a `+reorder` candidate costs besides.
    fn choose(
        &mut self,
        step: &Step,
        candidates: Vec<Candidate>,
        reorder: Option<&(Layout, DataType)>,
    ) -> Result<Chosen, String> {
        let key = step_key(self.source, step);
        if let Some(wanted) = self.request.choices.implementations.get(&key) {
            let offered: Vec<String> = candidates.iter().map(|c| c.name.clone()).collect();
            let candidate = candidates.into_iter().find(|c| c.name == *wanted).ok_or_else(|| {
                format!("the plan has `{wanted}`, this library offers {offered:?}; another machine or version cannot repeat it")
            })?;
            return self.settle(key, candidate);
        }
        let mut best: Option<(Duration, Candidate)> = None;
        for candidate in candidates {
            if !self.request.measure {
                return self.settle(key, candidate);
            }
            let mut time = self.time_candidate(&candidate)?;
            if let (true, Some((layout, dtype))) = (candidate.name.ends_with(REORDERED), reorder) {
                time += self.time_reorder(&candidate, layout, *dtype)?;
            }
            if best.as_ref().is_none_or(|(shortest, _)| time < *shortest) {
                best = Some((time, candidate));
            }
        }
        let (time, candidate) = best.ok_or("the library offers no implementation")?;
        self.time += time;
        self.settle(key, candidate)
    }

    fn settle(&mut self, key: String, candidate: Candidate) -> Result<Chosen, String> {
        self.choices.implementations.insert(key, candidate.name.clone());
        let kernel = PreparedStep {
            implementation: candidate.name.clone(),
            scratch_bytes: candidate.scratch_bytes(),
            kernel: Box::new(candidate.build(&self.backend.machine.team)?),
        };
        Ok(Chosen { candidate, kernel })
    }

    fn time_candidate(&mut self, candidate: &Candidate) -> Result<Duration, String> {
        let mut sizes: Vec<usize> = candidate.operands.iter().map(|(_, desc)| desc.bytes()).collect();
        sizes.push(candidate.scratch_bytes());
        self.bench.time(&mut candidate.build(&self.backend.machine.team)?, &sizes)
    }

    /// What it costs to bring weights from `layout` into the one that `candidate` takes.
    fn time_reorder(
        &mut self,
        candidate: &Candidate,
        layout: &Layout,
        dtype: DataType,
    ) -> Result<Duration, String> {
        let Some((_, weights)) = candidate.weights() else { return Ok(Duration::ZERO) };
        let transfer = ops::transfer(&self.maker, &self.backend.desc(layout, dtype)?, weights)?;
        self.time_candidate(&transfer)
    }

    // ---- steps on oneDNN ----

    fn forward(&mut self, step: &Step, weight: ValueId, candidates: Vec<Candidate>) -> Result<(), String> {
        let chosen = self.choose(step, candidates, None)?;
        if self.layouts[weight.0].is_none() {
            let (_, desc) = chosen.candidate.weights().ok_or("the implementation takes no weights")?;
            self.layouts[weight.0] = Some(self.backend.learn(desc, self.data_type(weight)?)?);
        }
        self.push(step.clone(), chosen.kernel);
        Ok(())
    }

    fn backward_data(
        &mut self,
        step: &Step,
        weight: ValueId,
        candidates: Vec<Candidate>,
    ) -> Result<(), String> {
        let lies = self.layouts[weight.0].clone().ok_or("its weights lie nowhere")?;
        let dtype = self.data_type(weight)?;
        let chosen = self.choose(step, candidates, Some(&(lies, dtype)))?;
        let mut step = step.clone();
        if chosen.candidate.name.ends_with(REORDERED) {
            let (_, desc) = chosen.candidate.weights().ok_or("the implementation takes no weights")?;
            let layout = self.backend.learn(desc, dtype)?;
            step.inputs[1] = self.reordered(&step, weight, layout, ":backward_data")?;
        }
        self.push(step, chosen.kernel);
        Ok(())
    }

    fn backward_weights(&mut self, step: &Step, candidates: Vec<Candidate>) -> Result<(), String> {
        let gradient = step.outputs[0];
        let parameter = self.parameter_of(gradient);
        let lies = match parameter {
            Some(parameter) => self.layouts[parameter.0].clone(),
            None => None,
        };
        let chosen =
            self.choose(step, candidates, lies.clone().map(|layout| (layout, DataType::F32)).as_ref())?;
        let (_, desc) =
            chosen.candidate.weights().ok_or("the implementation makes no gradient of weights")?;
        let made = self.backend.learn(desc, DataType::F32)?;
        let mut step = step.clone();
        if !chosen.candidate.name.ends_with(REORDERED) {
            // The parameter, and all that goes with it, lies as its gradient is made.
            if let Some(parameter) = parameter {
                self.layouts[parameter.0].get_or_insert_with(|| made.clone());
            }
            self.layouts[gradient.0] = Some(made);
            self.push(step, chosen.kernel);
            return Ok(());
        }
        let wanted = lies.unwrap_or_else(|| Layout::plain(&made.shape));
        self.layouts[gradient.0] = Some(wanted);
        let raw = self.temporary(gradient, ":raw", made);
        step.outputs[0] = raw;
        let layers = step.layers.clone();
        self.push(step, chosen.kernel);
        self.insert_reorder(layers, raw, gradient)
    }

    /// Adds a value like `like` in another layout.
    fn temporary(&mut self, like: ValueId, suffix: &str, layout: Layout) -> ValueId {
        let value = self.program.value(like).clone();
        let id = self.program.add_value(
            format!("{}{suffix}", value.name),
            &value.shape,
            value.dtype,
            Role::Transient,
        );
        self.layouts.push(Some(layout));
        id
    }

    /// Inserts a reorder of `id` into a new value, which it returns.
    fn reordered(
        &mut self,
        step: &Step,
        id: ValueId,
        layout: Layout,
        suffix: &str,
    ) -> Result<ValueId, String> {
        let to = self.temporary(id, suffix, layout);
        self.insert_reorder(step.layers.clone(), id, to)?;
        Ok(to)
    }

    fn insert_reorder(&mut self, layers: Vec<usize>, from: ValueId, to: ValueId) -> Result<(), String> {
        let step = Step {
            kernel: Reorder.into(),
            phase: Phase::Layout,
            layers,
            inputs: vec![from],
            updates: vec![],
            outputs: vec![to],
        };
        self.transfer(&step, from, to)
    }

    fn transfer(&mut self, step: &Step, from: ValueId, to: ValueId) -> Result<(), String> {
        let candidate = ops::transfer(&self.maker, &self.map_desc(from)?, &self.map_desc(to)?)?;
        let kernel = PreparedStep {
            implementation: candidate.name.clone(),
            scratch_bytes: candidate.scratch_bytes(),
            kernel: Box::new(candidate.build(&self.backend.machine.team)?),
        };
        self.push(step.clone(), kernel);
        Ok(())
    }

    // ---- other steps ----

    fn update(&mut self, step: &Step, measure_all: bool) -> Result<(), String> {
        let (gradient, parameter, velocity) = (step.inputs[0], step.updates[0], step.updates[1]);
        let shape = self.program.value(parameter).shape.clone();
        let lies = self.layouts[parameter.0].get_or_insert_with(|| Layout::plain(&shape)).clone();
        self.layouts[velocity.0].get_or_insert_with(|| lies.clone());
        self.layouts[gradient.0].get_or_insert_with(|| lies.clone());
        let mut step = step.clone();
        let copy = step.outputs.first().copied();
        if let Some(copy) = copy {
            self.layouts[copy.0].get_or_insert_with(|| lies.clone());
        }
        let apart =
            copy.filter(|copy| self.layouts[copy.0].as_ref().is_some_and(|layout| !layout.same_bytes(&lies)));
        if apart.is_some() {
            step.outputs.clear();
        }
        let layers = step.layers.clone();
        self.native(step, measure_all)?;
        match apart {
            Some(copy) => {
                let kernel = stratus_engine::ops::Convert.into();
                let (inputs, outputs) = (vec![parameter], vec![copy]);
                let step = Step { kernel, phase: Phase::Update, layers, inputs, updates: vec![], outputs };
                self.transfer(&step, parameter, copy)
            }
            None => Ok(()),
        }
    }

    fn convert(&mut self, step: &Step, from: ValueId, to: ValueId, measure_all: bool) -> Result<(), String> {
        let shape = self.program.value(from).shape.clone();
        let layout = self.layouts[to.0].clone().unwrap_or_else(|| Layout::plain(&shape));
        let lies = self.layouts[from.0].get_or_insert_with(|| layout.clone()).clone();
        self.layouts[to.0].get_or_insert(layout.clone());
        if lies.same_bytes(&layout) {
            self.native(step.clone(), measure_all)
        } else {
            self.transfer(step, from, to)
        }
    }

    fn native(&mut self, step: Step, measure: bool) -> Result<(), String> {
        let layouts: Vec<Layout> = self
            .layouts
            .iter()
            .zip(&self.program.values)
            .map(|(layout, value)| layout.clone().unwrap_or_else(|| Layout::plain(&value.shape)))
            .collect();
        let mut kernel = ops::native(&self.backend.machine, &self.program, &step, &layouts)?;
        if measure && self.request.measure {
            let mut sizes: Vec<usize> =
                step.operands().map(|id| layouts[id.0].bytes(self.program.value(id).dtype)).collect();
            sizes.push(kernel.scratch_bytes);
            self.time += self.bench.time(kernel.kernel.as_mut(), &sizes)?;
        }
        self.push(step, kernel);
        Ok(())
    }

    fn push(&mut self, step: Step, kernel: PreparedStep) {
        self.program.steps.push(step);
        self.steps.push(kernel);
    }
}

/// Strided 1×1 f32 convolutions with fewer than 16 input channels: some releases write out of bounds in their gradient of the weights (oneDNN issue
/// 6035).
fn is_hazardous(conv: &stratus_graph::ops::Conv2d, dtype: DType) -> bool {
    dtype == DType::F32
        && conv.kernel == [1, 1]
        && conv.stride != [1, 1]
        && conv.in_channels / conv.groups.max(1) < 16
}
