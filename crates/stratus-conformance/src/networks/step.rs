//! Runs an evaluation, a training step and another evaluation of a network on a backend.

use super::{Data, Settings};
use stratus_engine::fusions::Fusions;
use stratus_engine::ops::{CLASS_WEIGHTS, SgdUpdate};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::{
    lower, refresh_copies, with_class_weights, with_label_smoothing, with_loss,
};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::{Mode, OptimiserState, Origin};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::session::IterationScalars;
use stratus_engine::{
    Backend, Choices, Clock, DType, EngineError, Phase, Precision, Program, Role, Session, Value,
};
use stratus_graph::Graph;

const LEARNING_RATE: f32 = 0.05;
const SMOOTHING: f32 = 0.1;
/// A byte whose repetition is NaN in every float type: no result may depend on uninitialised memory.
const GARBAGE: u8 = 0xff;

/// The optimiser. Its momentum after the first step is the gradient.
const SGD: Optimiser = Optimiser::Sgd(SgdUpdate {
    momentum: 0.9,
    weight_decay: 0.0,
    nesterov: false,
    rate_factor: 1.0,
    loss_scaled: false,
});

/// A result of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub name: String,
    pub is_gradient: bool,
    pub values: Vec<f64>,
}

/// The passes between a graph and its plan.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compilation<'a> {
    /// Every layer by itself, the whole batch at once.
    Plain,
    /// With fusions, and the passes of the network's settings. Feature maps have this layout; without one the
    /// backend chooses.
    Optimised(Option<&'a str>),
}

/// The losses and outputs of evaluation before and after a training step, those of the step, all gradients,
/// and everything that the step changed.
pub(super) fn run_step(
    backend: &dyn Backend,
    graph: &Graph,
    settings: &Settings,
    way: (Precision, Compilation<'_>),
    data: &Data,
) -> Result<Vec<Tensor>, EngineError> {
    let compile = |mode| compiled(backend, graph, settings, way, mode);
    let train = compile(Mode::Train)?;
    let copies = refresh_copies(&train)?;
    let mut persistent = Persistent::default();
    let programs = [train, compile(Mode::Evaluate)?, copies];
    let mut plans = Vec::new();
    for program in &programs {
        let choices = choices(program, way.1);
        plans.push(Plan::prepare(backend, program, choices, false, &mut persistent)?);
    }
    let mut session = Session::on_backend(backend, plans, persistent)?;
    fill(&mut session, graph, data)?;
    let mut results = Vec::new();
    for (moment, program) in [("before", EVALUATE), ("training", TRAIN), ("after", EVALUATE)] {
        execute(&mut session, COPIES, data)?;
        execute(&mut session, program, data)?;
        let loss = session.metrics().loss;
        let name = format!("loss {moment}");
        results.push(Tensor { name, is_gradient: false, values: vec![loss] });
        for (position, value) in session.plan(program).program.values.iter().enumerate() {
            if value.role == Role::Buffer && value.per_sample {
                let name = format!("output {moment} {}", value.name);
                let values = session.read_value(program, position)?;
                results.push(Tensor { name, is_gradient: false, values });
            }
        }
    }
    let state = session.plan(TRAIN).program.values.iter().enumerate();
    for (position, value) in state {
        let is_gradient =
            matches!(value.origin, Some(Origin::OptimiserState { state: OptimiserState::Momentum, .. }));
        if matches!(value.role, Role::Parameter | Role::Buffer | Role::OptimiserState) && !value.per_sample {
            let values = session.read_value(TRAIN, position)?;
            results.push(Tensor { name: value.name.clone(), is_gradient, values });
        }
    }
    results.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(results)
}

/// The outputs of a network in evaluation, by the reference in double precision.
pub(super) fn evaluate(graph: &Graph, settings: &Settings, data: &Data) -> Result<Vec<f64>, EngineError> {
    let backend = ReferenceBackend;
    let plain = (Precision::F64, Compilation::Plain);
    let program = compiled(&backend, graph, settings, plain, Mode::Evaluate)?;
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(&backend, &program, Choices::default(), false, &mut persistent)?;
    let mut session = Session::on_backend(&backend, vec![plan], persistent)?;
    fill(&mut session, graph, data)?;
    execute(&mut session, 0, data)?;
    let is_output = |value: &Value| value.role == Role::Buffer && value.per_sample;
    let output = session.plan(0).program.values.iter().position(is_output);
    session.read_value(0, output.unwrap_or_default())
}

/// Sets parameters, class weights, and the optimiser's state.
fn fill(session: &mut Session, graph: &Graph, data: &Data) -> Result<(), EngineError> {
    session.fill_arena(GARBAGE)?;
    for (parameter, values) in graph.parameters.iter().zip(&data.parameters) {
        write(session, &parameter.name, values)?;
    }
    if let Some(weights) = &data.class_weights {
        write(session, CLASS_WEIGHTS, weights)?;
    }
    let states: Vec<(String, usize)> = session
        .state()
        .filter(|value| value.role == Role::OptimiserState)
        .map(|value| (value.name.to_owned(), value.shape.iter().product()))
        .collect();
    states.iter().try_for_each(|(name, elements)| write(session, name, &vec![0.0; *elements]))
}

/// The positions of the programs of a session.
const TRAIN: usize = 0;
const EVALUATE: usize = 1;
const COPIES: usize = 2;

fn compiled(
    backend: &dyn Backend,
    graph: &Graph,
    settings: &Settings,
    (precision, compilation): (Precision, Compilation<'_>),
    mode: Mode,
) -> Result<Program, EngineError> {
    let loss = settings.loss(graph.shape(graph.output));
    let mut program = with_loss(lower(graph, mode, precision, settings.batch)?, loss)?;
    if settings.class_weights {
        program = with_class_weights(program)?;
    }
    if settings.smoothing && mode == Mode::Train {
        program = with_label_smoothing(program, SMOOTHING)?;
    }
    let is_optimised = matches!(compilation, Compilation::Optimised(_));
    if is_optimised {
        let fusions = Fusions { min_horizontal_bytes: 0, ..backend.fusions() };
        program = fuse_with(&program, fusions)?;
    }
    if mode == Mode::Train {
        program = differentiate(&program)?;
        if is_optimised && settings.recompute {
            program = recompute(&program, 0)?;
        }
    }
    if is_optimised && settings.tiles {
        program = tile(&program, 1, 1)?;
    }
    // Only persistent values can be read after a run.
    let losses = program.steps.iter().filter(|step| step.phase == Phase::Loss);
    let logits: Vec<_> = losses.map(|step| step.inputs[0]).collect();
    for id in logits {
        program.values[id.0].role = Role::Buffer;
    }
    if mode == Mode::Train { update(&program, SGD) } else { Ok(program) }
}

/// The layout of every feature map.
fn choices(program: &Program, compilation: Compilation<'_>) -> Choices {
    let Compilation::Optimised(Some(layout)) = compilation else { return Choices::default() };
    let is_map = |value: &Value| value.shape.len() == 4 && (value.per_sample || !value.role.is_persistent());
    let maps = program.values.iter().filter(|value| is_map(value));
    let layouts = maps.map(|value| (value.name.clone(), layout.to_owned())).collect();
    Choices { layouts, ..Choices::default() }
}

/// Sets a persistent value, if a program has it.
fn write(session: &mut Session, name: &str, values: &[f64]) -> Result<(), EngineError> {
    let find = |program: usize| {
        let values = &session.plan(program).program.values;
        values.iter().position(|value| value.name == name).map(|value| (program, value))
    };
    match (0..session.programs()).find_map(find) {
        Some((program, value)) => session.write_value(program, value, values),
        None => Ok(()),
    }
}

fn execute(session: &mut Session, program: usize, data: &Data) -> Result<(), EngineError> {
    let mut inputs = session.inputs(program)?;
    let scalars = IterationScalars { learning_rate: LEARNING_RATE, iteration: 3, seed: 1 << 40 };
    session.set_iteration_scalars(scalars)?;
    let plan = session.plan(program);
    if let Some(images) = plan.external(0) {
        let value = plan.program.values.iter().find(|value| value.role == Role::Images);
        let dtype = value.map_or(DType::F32, |value| value.dtype);
        let bytes = inputs.images.as_mut_slice();
        let layout = &images.layout;
        layout.for_each(&layout.shape, |to, from| dtype.store(bytes, to, data.images[from]));
        let labels = inputs.labels.as_mut_slice();
        for (position, &label) in data.labels.iter().enumerate() {
            DType::I32.store(labels, position, f64::from(label));
        }
        for (position, &target) in data.targets.iter().enumerate() {
            DType::F32.store(labels, position, target);
        }
    }
    let mut clock = Clock::disabled(session.slots(program));
    let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
    session.run(program, images, labels, &mut clock, 0)
}
