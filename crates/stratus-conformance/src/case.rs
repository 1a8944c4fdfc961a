//! A case: one kernel with its operands, and the program of one step that it becomes.

use stratus_engine::program::{Layer, Mode};
use stratus_engine::{DType, EngineError, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::MaxPool2d;

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
    /// Labels of mixed samples, see [`stratus_engine::ops::MIXED`]: one in four is -1, and of the others
    /// one in four is all its own class.
    Mixed {
        /// Classes.
        classes: u32,
    },
    /// Numbers of an iteration, as [`stratus_engine::ops::HYPER`] has them.
    Hyper,
    /// These four.
    Given([f32; 4]),
    /// Uniform in [-1, 1) but for the last, which is infinite.
    Overflow,
    /// Positions within the windows of a pooling, none of them on the padding; one in four is 255 where
    /// `cut`.
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
    /// What it is for. A parameter in the compute precision becomes a copy where the master precision is
    /// another.
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

/// The name of a guard begins with it: 16 numbers between two operands, which must stay as they are.
pub(crate) const GUARD: &str = "guard.";
const GUARD_ELEMENTS: usize = 16;

impl Case {
    /// A case without operands yet, of every precision.
    #[must_use]
    pub fn new(name: String, kernel: impl Into<Kernel>) -> Self {
        let precisions = vec![Precision::F32, Precision::Bf16, Precision::F16, Precision::F64];
        Self { name, kernel: kernel.into(), inputs: vec![], updates: vec![], outputs: vec![], precisions }
    }

    /// Adds an input with numbers in [-1, 1).
    #[must_use]
    pub fn input(self, name: &'static str, shape: &[usize], class: Class) -> Self {
        self.filled(name, shape, class, Fill::Uniform { low: -1.0, high: 1.0 })
    }

    /// Adds an input with given contents.
    #[must_use]
    pub fn filled(mut self, name: &'static str, shape: &[usize], class: Class, fill: Fill) -> Self {
        let role = if class == Class::Hyper { Role::Hyper } else { Role::Buffer };
        self.inputs.push(Operand { name, shape: shape.to_vec(), class, role, fill });
        self
    }

    /// Adds an input that is a trained parameter, with numbers in [-1, 1).
    #[must_use]
    pub fn parameter(mut self, name: &'static str, shape: &[usize], class: Class) -> Self {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        self.inputs.push(Operand { name, shape: shape.to_vec(), class, role: Role::Parameter, fill });
        self
    }

    /// Adds an operand that is read and changed.
    #[must_use]
    pub fn update(
        mut self,
        name: &'static str,
        shape: &[usize],
        role: Role,
        fill: Fill,
        class: Class,
    ) -> Self {
        self.updates.push(Operand { name, shape: shape.to_vec(), class, role, fill });
        self
    }

    /// Adds an output.
    #[must_use]
    pub fn output(mut self, name: &'static str, shape: &[usize], class: Class) -> Self {
        let role = if class == Class::Metrics { Role::Metrics } else { Role::Buffer };
        self.outputs.push(Operand { name, shape: shape.to_vec(), class, role, fill: Fill::Garbage });
        self
    }

    /// Restricts the case to the precisions that compute in another type than they keep weights in.
    pub(crate) fn mixed_only(mut self) -> Self {
        self.precisions.retain(|precision| precision.compute() != precision.master());
        self
    }

    /// Inputs, updates, outputs.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.inputs.iter().chain(&self.updates).chain(&self.outputs)
    }

    /// What a run is compared by, in the order in which [`Case::run`] gives it: updates, then outputs.
    pub fn results(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.updates.iter().chain(&self.outputs)
    }

    /// The case as a program of one step. All operands are persistent, each between two guards: nothing
    /// that a backend adds behind the step takes the memory of a result.
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
            parts: 1,
            stage: None,
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
