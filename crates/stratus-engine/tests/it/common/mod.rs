//! Shared by the integration tests: programs of the digits network, sessions on the reference backend, the
//! gradient check.

use stratus_engine::fusions::Fusions;
use stratus_engine::ops::{LOSS_SCALE_FIELDS, LOSS_SCALE_NAME, SgdUpdate};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan, PreparedPlan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, Clock, DType, Precision, Program, Role, Session, Value, ValueId};
use stratus_graph::{Graph, layer_file, zoo};
use stratus_random::{Purpose, Stream};

/// The digits network with a given input, class count and width.
pub fn digits(input: [usize; 3], classes: usize, width: usize) -> Graph {
    let network = zoo::find("digits").unwrap();
    (network.build)(&zoo::ModelConfig { input, classes, width: Some(width) }).unwrap()
}

/// The published digits network.
pub fn published_digits() -> Graph {
    digits([1, 28, 28], 10, 8)
}

/// A network whose values have several readers, with dropout and an auxiliary loss.
pub fn branches() -> Graph {
    layer_file::parse(include_str!("../branches.toml")).unwrap()
}

/// Residual blocks of every kind.
pub fn residual() -> Graph {
    layer_file::parse(include_str!("../residual.toml")).unwrap()
}

/// Transposed convolutions and spatial dropout.
pub fn decoder() -> Graph {
    layer_file::parse(include_str!("../decoder.toml")).unwrap()
}

/// Concatenated maps, written by batch norms and by other layers.
pub fn inception() -> Graph {
    layer_file::parse(include_str!("../inception.toml")).unwrap()
}

/// Scalars of the iteration of a test session: learning rate, iteration, and the halves of the seed.
pub const ITERATION_SCALARS: [f64; 4] = [0.1, 7.0, 123.0, 456.0];

/// SGD with the constants of the tests.
pub fn sgd() -> Optimiser {
    Optimiser::Sgd(SgdUpdate {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    })
}

/// Applies every fusion, also to small maps.
pub fn fuse(forward: &Program) -> Result<Program, stratus_engine::EngineError> {
    fuse_with(forward, Fusions { min_horizontal_bytes: 0, ..Fusions::default() })
}

/// The training program: forward, fused, backward, update.
pub fn training_program(graph: &Graph, precision: Precision, batch: usize) -> Program {
    let forward = fuse(&lower(graph, Mode::Train, precision, batch).unwrap()).unwrap();
    update(&differentiate(&forward).unwrap(), sgd()).unwrap()
}

/// A session of one program on the reference backend.
pub fn session(program: &Program) -> Session {
    let (plan, persistent) = prepared(program);
    Session::new(vec![plan], persistent).unwrap()
}

/// The plan of one program on the reference backend.
pub fn prepared(program: &Program) -> (PreparedPlan, Persistent) {
    let mut persistent = Persistent::default();
    let plan = Plan::prepare(&ReferenceBackend, program, Choices::default(), false, &mut persistent).unwrap();
    (plan, persistent)
}

/// A session of a program whose inputs are all in the arena and whose gradients can be read after a run.
pub struct TestSession {
    pub session: Session,
    pub program: Program,
}

impl TestSession {
    /// Makes images, labels and every gradient persistent.
    pub fn new(program: &Program) -> Self {
        let program = Self::visible(program);
        Self { session: session(&program), program }
    }

    /// The program with inputs and gradients in the persistent part of the arena.
    pub fn visible(program: &Program) -> Program {
        let mut visible = program.clone();
        for (id, value) in visible.values.iter_mut().enumerate() {
            if value.role.is_external() || program.is_gradient(ValueId(id)) {
                value.role = Role::Buffer;
            }
        }
        visible
    }

    fn position(&self, name: &str) -> usize {
        let found = self.program.values.iter().position(|value| value.name == name);
        found.unwrap_or_else(|| panic!("no value `{name}`"))
    }

    /// A session with values in everything that the program reads, determined by name and position; the rest
    /// is garbage, which must not matter.
    pub fn filled(program: &Program) -> Self {
        let mut test = Self::new(program);
        test.fill();
        test
    }

    /// Writes the values of [`Self::filled`].
    pub fn fill(&mut self) {
        self.session.fill_arena(0xff).unwrap();
        let values = self.program.values.clone();
        for (index, value) in values.iter().enumerate() {
            let elements = value.elements();
            let contents = match (value.role, value.name.as_str()) {
                _ if self.program.is_gradient(ValueId(index)) => continue,
                (_, "images") => numbers(elements, 5, 1.0),
                (_, "hyper") => ITERATION_SCALARS.to_vec(),
                (_, LOSS_SCALE_NAME) => vec![0.0; LOSS_SCALE_FIELDS.len()],
                (_, "labels") if value.dtype == DType::F32 => {
                    (0..elements).map(|n| (n % 4) as f64 / 3.0).collect()
                }
                (_, "labels") => (0..elements).map(|n| (n % 4) as f64).collect(),
                (role, _) if !role.is_persistent() => continue,
                (_, name) => {
                    let offset = if name.ends_with("running_var") { 1.0 } else { 0.0 };
                    numbers(elements, 10 + index as u64, 0.5).iter().map(|x| x + offset).collect()
                }
            };
            self.write(&value.name, &contents);
        }
    }

    /// Returns whether labels are targets: numbers, of which NaN is a missing one.
    pub fn has_targets(&self) -> bool {
        self.program.value(ValueId(self.position("labels"))).dtype == DType::F32
    }

    pub fn has(&self, name: &str) -> bool {
        self.program.values.iter().any(|value| value.name == name)
    }

    pub fn write(&mut self, name: &str, plain: &[f64]) {
        let position = self.position(name);
        self.session.write_value(0, position, plain).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<f64> {
        self.session.read_value(0, self.position(name)).unwrap()
    }

    /// The name of a value's gradient.
    pub fn gradient(&self, name: &str) -> Option<&str> {
        let gradient = self.program.gradient_of(ValueId(self.position(name)))?;
        Some(&self.program.value(gradient).name)
    }

    pub fn read_gradient(&self, name: &str) -> Vec<f64> {
        self.read(self.gradient(name).unwrap_or_else(|| panic!("`{name}` has no gradient")))
    }

    /// Runs all steps and returns the sum of all losses.
    pub fn loss(&mut self) -> f64 {
        let mut clock = Clock::disabled(self.program.steps.len());
        self.session.run(0, &mut [], &mut [], &mut clock, 0).unwrap();
        let values = self.program.values.iter().enumerate();
        values
            .filter(|(_, v)| v.role == Role::Metrics)
            .map(|(id, _)| self.session.read_value(0, id).unwrap()[0])
            .sum()
    }
}

/// Counts of a gradient check.
#[derive(Default, Debug)]
pub struct CheckCounts {
    /// Matching derivatives.
    pub agreed: usize,
    /// Elements at which the loss has a kink within the difference.
    pub kinks: usize,
    /// Tensors with an all-zero gradient.
    pub zero: usize,
}

/// The results of an iteration besides the loss: the names of parameter gradients and of running statistics.
pub fn results(program: &Program) -> Vec<String> {
    let is_result = |(id, value): &(usize, &Value)| {
        !value.per_sample && (value.role == Role::Buffer || program.is_gradient(ValueId(*id)))
    };
    let values = program.values.iter().enumerate().filter(is_result);
    values.map(|(_, value)| value.name.clone()).collect()
}

/// Compares a value's gradient with central differences of the loss, at up to `samples` elements.
pub fn check_gradient(test: &mut TestSession, value: &str, samples: usize, into: &mut CheckCounts) {
    let gradient = test.gradient(value).unwrap_or_else(|| panic!("`{value}` has no gradient")).to_owned();
    check_gradient_in(test, value, &gradient, samples, into);
}

/// [`check_gradient`] with a named gradient value.
pub fn check_gradient_in(
    test: &mut TestSession,
    value: &str,
    gradient: &str,
    samples: usize,
    into: &mut CheckCounts,
) {
    const STEP: f64 = 1e-6;
    let loss = test.loss();
    let (values, gradients) = (test.read(value), test.read(gradient));
    let largest = gradients.iter().fold(0.0, |largest: f64, g| largest.max(g.abs()));
    into.zero += usize::from(largest < 1e-12);
    let mut stream = Stream::new(1, Purpose::Test, values.len() as u64, 0);
    for sample in 0..samples.min(values.len()) {
        let element =
            if values.len() <= samples { sample } else { stream.below(values.len() as u32) as usize };
        let mut at = |offset: f64| {
            let mut moved = values.clone();
            moved[element] += offset;
            test.write(value, &moved);
            test.loss()
        };
        let (above, below) = (at(STEP), at(-STEP));
        let central = (above - below) / (2.0 * STEP);
        let difference = (central - gradients[element]).abs();
        let slope_change = ((above - loss) - (loss - below)).abs() / STEP;
        if difference <= 1e-6 * largest + 2e-9 {
            into.agreed += 1;
        } else {
            // If the slope changes by more than the gradient differs, there is a kink within the difference.
            assert!(
                slope_change > difference,
                "`{value}` element {element}: gradient {}, difference quotient {central}; \
                 slope changes by {slope_change}\n{}",
                gradients[element],
                test.program.dump()
            );
            into.kinks += 1;
        }
    }
    test.write(value, &values);
    test.loss();
}

/// Pseudo-random values in [-scale, scale).
pub fn numbers(count: usize, index: u64, scale: f64) -> Vec<f64> {
    let mut stream = Stream::new(2, Purpose::Test, index, 0);
    (0..count).map(|_| scale * f64::from(stream.uniform_between(-1.0, 1.0))).collect()
}
