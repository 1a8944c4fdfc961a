//! The operation case tables: one table per operation serves the comparison of a backend with the reference, the gradient checks and
//! the micro-benchmarks. A new operation is a file here and a line in `TABLES`.
//!
//! [`run`] runs one case on a backend and checks on the way that the kernel wrote all of its outputs, zeroed their padding, and left
//! its inputs and everything around its operands alone; [`Case::compare`] compares two runs.

mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod bench;
mod concat;
mod conv2d;
mod convert;
mod draw;
mod dropout;
mod gelu;
mod joined;
mod linear;
mod local_response_norm;
mod loss;
mod loss_scale;
mod max_pool2d;
mod pixels;
mod relu;
mod run;
mod scale;
mod sgd;
mod stem;

pub use bench::{Measurement, bench};
pub use run::{compare, run};

use crate::program::{Layer, Mode};
use crate::{DType, EngineError, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::MaxPool2d;

/// An operation's cases: small ones of every kind for tests, real ones for benchmarks.
struct Table {
    tests: fn() -> Vec<Case>,
    benchmarks: fn() -> Vec<Case>,
}

const TABLES: &[Table] = &[
    adaptive::TABLE,
    add::TABLE,
    avg_pool2d::TABLE,
    batch_norm::TABLE,
    batch_norm_add::TABLE,
    concat::TABLE,
    conv2d::TABLE,
    convert::TABLE,
    dropout::TABLE,
    gelu::TABLE,
    joined::TABLE,
    linear::TABLE,
    local_response_norm::TABLE,
    loss::TABLE,
    loss_scale::TABLE,
    max_pool2d::TABLE,
    pixels::TABLE,
    relu::TABLE,
    scale::TABLE,
    sgd::TABLE,
    stem::TABLE,
];

/// Every test case. Not all run in every precision: see [`Case::precisions`] and [`of`].
#[must_use]
pub fn all() -> Vec<Case> {
    TABLES.iter().flat_map(|table| (table.tests)()).collect()
}

/// Every test case of a precision.
#[must_use]
pub fn of(precision: Precision) -> Vec<Case> {
    all().into_iter().filter(|case| case.precisions.contains(&precision)).collect()
}

/// Kernels at the sizes of real networks, for micro-benchmarks, in a precision.
#[must_use]
pub fn benchmarks(precision: Precision) -> Vec<Case> {
    let cases = TABLES.iter().flat_map(|table| (table.benchmarks)());
    cases.filter(|case| case.precisions.contains(&precision)).collect()
}

/// Which type an operand has in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Activations, their gradients, and the weights that kernels read: [`Precision::compute`].
    Compute,
    /// Parameters, statistics, logits, parameter gradients: [`Precision::master`].
    Master,
    /// Positions in a pooling window: u8.
    Index,
    /// Pixels as they are stored: u8.
    Pixel,
    /// Labels: i32.
    Label,
    /// Loss and counts: f64.
    Metrics,
    /// Sums over the batch: f64.
    Sums,
    /// Numbers of the iteration: f64.
    Hyper,
}

impl Class {
    /// The type in a precision.
    #[must_use]
    pub fn dtype(self, precision: Precision) -> DType {
        match self {
            Self::Compute => precision.compute(),
            Self::Master => precision.master(),
            Self::Index | Self::Pixel => DType::U8,
            Self::Label => DType::I32,
            Self::Metrics | Self::Sums | Self::Hyper => DType::F64,
        }
    }
}

/// What an operand holds before the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Nothing: the kernel writes it.
    Garbage,
    /// Uniform in `[low, high)`.
    Uniform {
        /// The least value.
        low: f32,
        /// The value that is not reached.
        high: f32,
    },
    /// Whole numbers from `low` to `high`, both included: many are equal, and all are exact in every type.
    Whole {
        /// The least value.
        low: i32,
        /// The largest value.
        high: i32,
    },
    /// Labels below `classes`; one in four is -1, which counts nowhere.
    Labels {
        /// Classes.
        classes: u32,
    },
    /// Labels of mixed samples, see [`crate::ops::MIXED`]: one in four is -1, and of the others one in four is all its own class.
    Mixed {
        /// Classes.
        classes: u32,
    },
    /// Numbers of an iteration, as [`crate::ops::HYPER`] has them.
    Hyper,
    /// These four.
    Given([f32; 4]),
    /// Uniform in [-1, 1) but for the last, which is infinite.
    Overflow,
    /// Positions within the windows of a pooling, none of them on the padding; one in four is 255 where `cut`.
    Window {
        /// The pooling.
        pool: MaxPool2d,
        /// Height and width of its input.
        size: [usize; 2],
        /// Whether the rectifier may have cut an output off.
        cut: bool,
    },
}

/// An operand of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Its value's name in the program.
    pub name: &'static str,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub class: Class,
    /// What it is for. A parameter in the compute precision becomes a copy where the master precision is another.
    pub role: Role,
    /// What it holds before the run.
    pub fill: Fill,
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Unique: the kernel and what is special about its operands.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it reads and changes.
    pub updates: Vec<Operand>,
    /// What it writes.
    pub outputs: Vec<Operand>,
    /// The precisions in which programs have such steps.
    pub precisions: Vec<Precision>,
}

/// What an operand's name begins with that only guards a border between operands: 16 numbers that must stay as they are.
const GUARD: &str = "guard.";
const GUARD_ELEMENTS: usize = 16;

impl Case {
    fn new(name: String, kernel: impl Into<Kernel>) -> Self {
        let precisions = vec![Precision::F32, Precision::Bf16, Precision::F16, Precision::F64];
        Self { name, kernel: kernel.into(), inputs: vec![], updates: vec![], outputs: vec![], precisions }
    }

    /// Adds an input with numbers in [-1, 1).
    fn input(self, name: &'static str, shape: &[usize], class: Class) -> Self {
        self.filled(name, shape, class, Fill::Uniform { low: -1.0, high: 1.0 })
    }

    /// Adds an input with given contents.
    fn filled(mut self, name: &'static str, shape: &[usize], class: Class, fill: Fill) -> Self {
        let role = if class == Class::Hyper { Role::Hyper } else { Role::Buffer };
        self.inputs.push(Operand { name, shape: shape.to_vec(), class, role, fill });
        self
    }

    /// Adds an input that is a trained parameter, with numbers in [-1, 1).
    fn parameter(mut self, name: &'static str, shape: &[usize], class: Class) -> Self {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        self.inputs.push(Operand { name, shape: shape.to_vec(), class, role: Role::Parameter, fill });
        self
    }

    /// Adds an operand that is read and changed.
    fn update(mut self, name: &'static str, shape: &[usize], role: Role, fill: Fill, class: Class) -> Self {
        self.updates.push(Operand { name, shape: shape.to_vec(), class, role, fill });
        self
    }

    /// Adds an output.
    fn output(mut self, name: &'static str, shape: &[usize], class: Class) -> Self {
        let role = if class == Class::Metrics { Role::Metrics } else { Role::Buffer };
        self.outputs.push(Operand { name, shape: shape.to_vec(), class, role, fill: Fill::Garbage });
        self
    }

    /// Restricts the case to the precisions that compute in another type than they keep weights in.
    fn mixed_only(mut self) -> Self {
        self.precisions.retain(|precision| precision.compute() != precision.master());
        self
    }

    /// Inputs, updates, outputs.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.inputs.iter().chain(&self.updates).chain(&self.outputs)
    }

    /// What a run is compared by, in the order in which [`run`] gives it: updates, then outputs.
    pub fn results(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.updates.iter().chain(&self.outputs)
    }

    /// The case as a program of one step. All operands are persistent, each between two guards: nothing that a backend adds behind the step
    /// takes the memory of a result.
    ///
    /// # Errors
    /// Where the case is not one of the precision, or does not verify.
    pub fn program(&self, precision: Precision) -> Result<Program, EngineError> {
        if !self.precisions.contains(&precision) {
            return Err(EngineError::Mismatch(format!("case `{}` is not one of {precision}", self.name)));
        }
        let mut program = Program {
            network: "case".to_owned(),
            mode: Mode::Train,
            precision,
            batch: self.inputs.first().and_then(|operand| operand.shape.first()).copied().unwrap_or(1),
            layers: vec![Layer { name: self.name.clone(), kind: "case".to_owned() }],
            values: Vec::new(),
            steps: Vec::new(),
            sections: Vec::new(),
        };
        let mut ids = Vec::new();
        for operand in self.operands() {
            let guard = format!("{GUARD}{}", ids.len());
            program.add_value(guard, &[GUARD_ELEMENTS], DType::F32, Role::Buffer);
            let dtype = operand.class.dtype(precision);
            let role = match operand.role {
                Role::Parameter if dtype != precision.master() => Role::Copy,
                role => role,
            };
            ids.push(program.add_value(operand.name, &operand.shape, dtype, role));
        }
        program.add_value(format!("{GUARD}{}", ids.len()), &[GUARD_ELEMENTS], DType::F32, Role::Buffer);
        let outputs = ids.split_off(self.inputs.len() + self.updates.len());
        let updates: Vec<ValueId> = ids.split_off(self.inputs.len());
        program.steps.push(Step {
            kernel: self.kernel.clone(),
            phase: Phase::Forward,
            layers: vec![0],
            inputs: ids,
            updates,
            outputs,
        });
        program.verify("case")?;
        Ok(program)
    }
}

/// `4x3x5x5` of a shape, for names.
fn extents(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
