//! Small networks with all programs of a training run, on any backend.

use stratus_engine::fusions::Fusions;
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::{fuse, fuse_with};
use stratus_engine::passes::lower::{lower, refresh_copies};
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::{Optimiser, update, update_with_threshold};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::{Mode, OptimiserState};
use stratus_engine::session::{IterationScalars, Metrics, StateValue};
use stratus_engine::{Backend, Choices, Clock, DType, EngineError, Precision, Program, Role, Session};
use stratus_graph::ops::{AdaptiveAvgPool2d, BatchNorm2d, Concat, Conv2d, Flatten, Linear, Relu};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, GraphBuilder, Shape, layer_file};

pub const CLASSES: usize = 10;

/// The optimiser.
const SGD: Optimiser = Optimiser::Sgd(SgdUpdate {
    momentum: 0.9,
    weight_decay: 1e-3,
    nesterov: false,
    rate_factor: 1.0,
    loss_scaled: false,
});

/// Whole batches, not tiled.
pub const WHOLE: usize = usize::MAX;

/// The digits network.
pub fn digits(input: [usize; 3], width: usize) -> Graph {
    let network = zoo::find("digits").unwrap();
    (network.build)(&ModelConfig { input, classes: CLASSES, width: Some(width) }).unwrap()
}

/// A network whose values have several readers, with dropout and an auxiliary loss.
pub fn branches() -> Graph {
    layer_file::parse(include_str!("../../../../stratus-engine/tests/it/branches.toml")).unwrap()
}

/// 1×1 convolutions of the same map. One does not fill its last cache line, one feeds another convolution,
/// the others are concatenated.
pub fn siblings() -> Graph {
    let (mut graph, images) = GraphBuilder::new("siblings", Shape(vec![3, 7, 6]));
    let mut block = |name: &str, conv: Conv2d, x| {
        let y = graph.add(&format!("{name}.conv"), conv, &[x]).unwrap();
        let y = graph.add(&format!("{name}.bn"), BatchNorm2d::new(conv.out_channels), &[y]).unwrap();
        graph.add(&format!("{name}.relu"), Relu, &[y]).unwrap()
    };
    let x = block("stem", Conv2d::new(3, 17, 3, 1, 1), images);
    let [a, b, c, d] = [32, 64, 96, 5]
        .map(|channels| block(&format!("branch{channels}"), Conv2d::new(17, channels, 1, 1, 0), x));
    let b = block("behind", Conv2d::new(64, 16, 3, 1, 1), b);
    let y = graph.add("concat", Concat, &[a, c, b, d]).unwrap();
    let y = graph.add("average", AdaptiveAvgPool2d::GLOBAL, &[y]).unwrap();
    let y = graph.add("flatten", Flatten, &[y]).unwrap();
    let fc = Linear { in_features: 32 + 96 + 16 + 5, out_features: CLASSES, bias: true };
    let y = graph.add("fc", fc, &[y]).unwrap();
    graph.finish(y).unwrap()
}

/// Numbers in [-1, 1), a function of the seed.
pub fn numbers(seed: usize) -> impl Iterator<Item = f64> {
    let mut state = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::from_fn(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((state >> 40) as f64 / f64::from(1 << 23) - 1.0)
    })
}

/// The program of a training iteration, in tiles of at most this many bytes.
pub fn training_program(graph: &Graph, precision: Precision, batch: usize, tile_bytes: usize) -> Program {
    training_within(usize::MAX, graph, precision, batch, tile_bytes)
}

/// The program of a training iteration that recomputes activations to keep within `bytes` of them alive.
pub fn training_within(
    live_bytes: usize,
    graph: &Graph,
    precision: Precision,
    batch: usize,
    tile_bytes: usize,
) -> Program {
    let whole = recompute(&differentiated(graph, precision, batch), live_bytes).unwrap();
    update(&tile(&whole, tile_bytes, 1).unwrap(), SGD).unwrap()
}

/// The program of a training iteration with this number of micro-batches.
pub fn training_in_micro_batches(graph: &Graph, precision: Precision, batch: usize, count: usize) -> Program {
    let micro_batch = differentiated(graph, precision, batch / count);
    update(&split_into_micro_batches(&micro_batch, count).unwrap(), SGD).unwrap()
}

/// The program of a training iteration with fused weight gradients and updates of fully connected layers.
pub fn training_joined(graph: &Graph, precision: Precision, batch: usize) -> Program {
    update_with_threshold(&differentiated(graph, precision, batch), SGD, 0).unwrap()
}

/// The program of a training iteration with another optimiser.
pub fn training_by(optimiser: Optimiser, graph: &Graph, precision: Precision, batch: usize) -> Program {
    update(&differentiated(graph, precision, batch), optimiser).unwrap()
}

fn differentiated(graph: &Graph, precision: Precision, batch: usize) -> Program {
    let fusions = Fusions { min_horizontal_bytes: 0, ..Fusions::default() };
    let forward = fuse_with(&lower(graph, Mode::Train, precision, batch).unwrap(), fusions).unwrap();
    differentiate(&forward).unwrap()
}

/// The implementations of a step, given the other choices; they are listed by the error for an unknown name.
pub fn offered(backend: &dyn Backend, program: &Program, choices: &Choices, key: &str) -> Vec<String> {
    let mut choices = choices.clone();
    choices.implementations.insert(key.to_owned(), "unknown".to_owned());
    let Err(error) = Plan::prepare(backend, program, choices, false, &mut Persistent::default()) else {
        return Vec::new();
    };
    let error = error.to_string();
    let list = error.split_once("offers ").map_or("", |(_, list)| list);
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The given layout for every feature map of a program.
pub fn choices(program: &Program, layout: &str) -> Choices {
    let maps = program.values.iter().filter(|value| value.shape.len() == 4 && !value.role.is_persistent());
    let layouts = maps.map(|value| (value.name.clone(), layout.to_owned())).collect();
    Choices { layouts, ..Choices::default() }
}

/// A value that outlives an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub is_velocity: bool,
    pub values: Vec<f32>,
}

/// A training run. Program 0 trains a batch, 1 a shorter last one, 2 evaluates, 3 refreshes copies.
pub struct Run {
    pub session: Session,
    graph: Graph,
    precision: Precision,
}

impl Run {
    /// Prepares all programs, in tiles of at most this many bytes, and sets the parameters. `layout` is that
    /// of the maps; without one the backend measures.
    pub fn new(
        backend: &dyn Backend,
        graph: &Graph,
        precision: Precision,
        batch: usize,
        layout: Option<&str>,
        tile_bytes: usize,
    ) -> Result<Self, EngineError> {
        let train = training_program(graph, precision, batch, tile_bytes);
        Self::with_choices(backend, graph, &train, layout, tile_bytes, &Choices::default())
    }

    /// [`Self::new`] with another training program, some of whose steps run on given implementations.
    pub fn with_choices(
        backend: &dyn Backend,
        graph: &Graph,
        train: &Program,
        layout: Option<&str>,
        tile_bytes: usize,
        chosen: &Choices,
    ) -> Result<Self, EngineError> {
        Self::preparing_first(0, backend, graph, train, layout, tile_bytes, chosen)
    }

    /// [`Self::with_choices`], with program `first` prepared before the others, which then adopt its
    /// parameter layouts.
    pub fn preparing_first(
        first: usize,
        backend: &dyn Backend,
        graph: &Graph,
        train: &Program,
        layout: Option<&str>,
        tile_bytes: usize,
        chosen: &Choices,
    ) -> Result<Self, EngineError> {
        let (precision, batch) = (train.precision, train.batch);
        let tail = training_program(graph, precision, batch.div_ceil(2), tile_bytes);
        let evaluate = fuse(&lower(graph, Mode::Evaluate, precision, batch).unwrap()).unwrap();
        let evaluate = tile(&evaluate, tile_bytes, 1).unwrap();
        let copies = refresh_copies(train).unwrap();
        let mut persistent = Persistent::default();
        let programs = [train, &tail, &evaluate, &copies];
        let mut plans: Vec<_> = programs.map(|_| None).into();
        for position in std::iter::once(first).chain((0..programs.len()).filter(|other| *other != first)) {
            let program = programs[position];
            let mut choices = layout.map(|layout| choices(program, layout)).unwrap_or_default();
            if position == 0 {
                choices.implementations.clone_from(&chosen.implementations);
            }
            let plan = Plan::prepare(backend, program, choices, layout.is_none(), &mut persistent)?;
            plans[position] = Some(plan);
        }
        let mut session = Session::new(plans.into_iter().flatten().collect(), persistent)?;
        // Uninitialised memory must not affect results.
        session.fill_arena(0xff).unwrap();
        for (index, parameter) in graph.parameters.iter().enumerate() {
            let (scale, offset) = match parameter.shape.len() {
                1 if parameter.name.ends_with("weight") || parameter.name.ends_with("var") => (0.2, 1.0),
                1 => (0.2, 0.0),
                _ => ((parameter.shape[1..].iter().product::<usize>() as f64).sqrt().recip(), 0.0),
            };
            let values: Vec<f32> = numbers(index + 1)
                .take(parameter.elements())
                .map(|number| (scale * number + offset) as f32)
                .collect();
            session.write(&parameter.name, &values)?;
        }
        let remembered: Vec<(String, usize)> = session
            .state()
            .filter(|value| value.role == Role::OptimiserState)
            .map(|value| (value.name.to_owned(), value.shape.iter().product()))
            .collect();
        for (name, elements) in remembered {
            session.write(&name, &vec![0.0; elements])?;
        }
        let mut run = Self { session, graph: graph.clone(), precision };
        run.execute(3, 0)?;
        Ok(run)
    }

    /// Runs a program on a batch that is a function of the seed.
    pub fn execute(&mut self, program: usize, seed: usize) -> Result<Metrics, EngineError> {
        let mut inputs = self.session.inputs(program)?;
        self.session
            .set_iteration_scalars(IterationScalars {
                learning_rate: 0.005,
                iteration: seed as u64,
                seed: 1 << 40,
            })
            .unwrap();
        let plan = self.session.plan(program);
        if let Some(place) = plan.external(0) {
            let (dtype, shape) = (self.precision.compute(), &place.layout.shape);
            let pixels: Vec<f64> = numbers(seed + 100).take(shape.iter().product()).collect();
            let bytes = inputs.images.as_mut_slice();
            place.layout.for_each(shape, |to, from| dtype.store(bytes, to, pixels[from]));
        }
        for (n, number) in (0..inputs.labels.len() / 4).zip(numbers(seed + 200)) {
            let class = ((number + 1.0) / 2.0 * CLASSES as f64).floor();
            DType::I32.store(inputs.labels.as_mut_slice(), n, class);
        }
        let mut clock = Clock::disabled(plan.steps.len());
        let (images, labels) = (inputs.images.as_mut_slice(), inputs.labels.as_mut_slice());
        self.session.run(program, images, labels, &mut clock, 0)?;
        Ok(self.session.metrics())
    }

    /// Everything that outlives an iteration.
    pub fn state(&self) -> Vec<Tensor> {
        let read = |value: StateValue<'_>| Tensor {
            name: value.name.to_owned(),
            is_velocity: matches!(value.optimiser_state, Some((_, OptimiserState::Momentum))),
            values: self.session.read(value.name).unwrap(),
        };
        let state: Vec<Tensor> = self.session.state().map(read).collect();
        assert!(state.len() > self.graph.parameters.len());
        state
    }
}
