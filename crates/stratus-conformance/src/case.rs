//! Cases: one kernel with its operands, as a program of one step.

use stratus_engine::program::{Layer, Mode};
use stratus_engine::{DType, EngineError, Kernel, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::ops::MaxPool2d;

/// The class of an operand, which determines its type in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeClass {
    /// Activations, their gradients, and the weights that kernels read: [`Precision::compute`].
    Compute,
    /// Parameters, statistics, logits, parameter gradients: [`Precision::master`].
    Master,
    /// Positions in a pooling window: u8.
    Index,
    /// Stored pixels: u8.
    Pixel,
    /// Quantised feature maps: u8.
    Bytes,
    /// Quantised weights: i8.
    SignedBytes,
    /// Scales and biases of quantised weights, and targets of a loss: f32.
    Single,
    /// Labels: i32.
    Label,
    /// Loss and counts: f64.
    Metrics,
    /// Sums over the batch: f64.
    Sums,
    /// Scalars of the iteration: f64.
    IterationScalars,
}

impl DTypeClass {
    /// The type in a precision.
    #[must_use]
    pub fn dtype(self, precision: Precision) -> DType {
        match self {
            Self::Compute => precision.compute(),
            Self::Master => precision.master(),
            Self::Index | Self::Pixel | Self::Bytes => DType::U8,
            Self::SignedBytes => DType::I8,
            Self::Single => DType::F32,
            Self::Label => DType::I32,
            Self::Metrics | Self::Sums | Self::IterationScalars => DType::F64,
        }
    }
}

/// The initial contents of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Uninitialised: the kernel writes it.
    Garbage,
    /// Uniform in `[low, high)`.
    Uniform {
        /// The minimum.
        low: f32,
        /// The exclusive upper bound.
        high: f32,
    },
    /// Integers from `low` to `high`, inclusive: many are equal, and all are exact in every type.
    Integers {
        /// The minimum.
        low: i32,
        /// The maximum.
        high: i32,
    },
    /// Labels below `classes`; one in four is -1, which is ignored.
    Labels {
        /// Classes.
        classes: u32,
    },
    /// Labels of mixed samples, see [`stratus_engine::ops::MIXED_LABEL_LEN`]: one in four is -1, and of the
    /// others one in four is unmixed.
    Mixed {
        /// Classes.
        classes: u32,
    },
    /// Targets of a loss: one in four is NaN, which is missing; of the others, half are `low` or `high`, and
    /// half are uniform between.
    Targets {
        /// The minimum.
        low: f32,
        /// The maximum.
        high: f32,
    },
    /// NaN: targets that are all missing.
    Missing,
    /// Scalars of an iteration, see [`stratus_engine::ops::ITERATION_SCALAR_FIELDS`].
    IterationScalars,
    /// These four values.
    Exact([f32; 4]),
    /// Uniform in [-1, 1), except for the last, which is infinite.
    WithInfinity,
    /// Positions within the windows of a pooling, none of them in the padding; with `mask_relu` one in four
    /// is 255.
    PoolIndices {
        /// The pooling.
        pool: MaxPool2d,
        /// Height and width of its input.
        size: [usize; 2],
        /// True if outputs may be masked by ReLU.
        mask_relu: bool,
    },
}

/// An operand of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// Its value's name in the program.
    pub name: &'static str,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// The class of its type.
    pub dtype_class: DTypeClass,
    /// Its role. A parameter in the compute precision becomes a copy if the master precision differs.
    pub role: Role,
    /// Its initial contents.
    pub fill: Fill,
}

/// One kernel with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// A unique name: the kernel and the properties of its operands.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The inputs.
    pub inputs: Vec<Operand>,
    /// The operands that it reads and modifies.
    pub updates: Vec<Operand>,
    /// The outputs.
    pub outputs: Vec<Operand>,
    /// The precisions in which programs contain such steps.
    pub precisions: Vec<Precision>,
    /// True if every input of a forward kernel has a gradient other than zero, which tests compare with
    /// differences.
    pub has_gradients: bool,
}

/// The name prefix of guards: 16 values between operands, which must not change.
pub(crate) const GUARD: &str = "guard.";
const GUARD_ELEMENTS: usize = 16;

impl Case {
    /// A case without operands yet, of every precision.
    #[must_use]
    pub fn new(name: String, kernel: impl Into<Kernel>) -> Self {
        let precisions = vec![Precision::F32, Precision::Bf16, Precision::F16, Precision::F64];
        Self {
            name,
            kernel: kernel.into(),
            inputs: vec![],
            updates: vec![],
            outputs: vec![],
            precisions,
            has_gradients: true,
        }
    }

    /// Adds an input with values in [-1, 1).
    #[must_use]
    pub fn input(self, name: &'static str, shape: &[usize], class: DTypeClass) -> Self {
        self.filled(name, shape, class, Fill::Uniform { low: -1.0, high: 1.0 })
    }

    /// Adds an input with given contents.
    #[must_use]
    pub fn filled(mut self, name: &'static str, shape: &[usize], class: DTypeClass, fill: Fill) -> Self {
        let role = if class == DTypeClass::IterationScalars { Role::IterationScalars } else { Role::Buffer };
        self.inputs.push(Operand { name, shape: shape.to_vec(), dtype_class: class, role, fill });
        self
    }

    /// Adds an input that is a trained parameter, with values in [-1, 1).
    #[must_use]
    pub fn parameter(mut self, name: &'static str, shape: &[usize], class: DTypeClass) -> Self {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        self.inputs.push(Operand {
            name,
            shape: shape.to_vec(),
            dtype_class: class,
            role: Role::Parameter,
            fill,
        });
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
        class: DTypeClass,
    ) -> Self {
        self.updates.push(Operand { name, shape: shape.to_vec(), dtype_class: class, role, fill });
        self
    }

    /// Adds an output.
    #[must_use]
    pub fn output(mut self, name: &'static str, shape: &[usize], class: DTypeClass) -> Self {
        let role = if class == DTypeClass::Metrics { Role::Metrics } else { Role::Buffer };
        self.outputs.push(Operand {
            name,
            shape: shape.to_vec(),
            dtype_class: class,
            role,
            fill: Fill::Garbage,
        });
        self
    }

    /// Restricts the case to precisions whose compute and master types differ.
    pub(crate) fn mixed_precision_only(mut self) -> Self {
        self.precisions.retain(|precision| precision.compute() != precision.master());
        self
    }

    /// Marks a case in which the result does not depend on some input, such as the norm of a single element.
    pub(crate) fn without_gradients(self) -> Self {
        Self { has_gradients: false, ..self }
    }

    /// Inputs, updates, outputs.
    pub fn operands(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.inputs.iter().chain(&self.updates).chain(&self.outputs)
    }

    /// The compared operands in the order of [`Case::run`]'s results: updates, then outputs.
    pub fn results(&self) -> impl Iterator<Item = &Operand> + '_ {
        self.updates.iter().chain(&self.outputs)
    }

    /// The case as a program of one step. All operands are persistent, each between two guards, so that steps
    /// that a backend appends do not reuse the memory of a result.
    ///
    /// # Errors
    /// If the precision is not supported by the case, or the program does not verify.
    pub fn program(&self, precision: Precision) -> Result<Program, EngineError> {
        if !self.precisions.contains(&precision) {
            return Err(EngineError::InvalidRequest(format!(
                "case `{}` does not support {precision}",
                self.name
            )));
        }
        let mut program = Program {
            network: "case".to_owned(),
            mode: Mode::Train,
            precision,
            batch: self.inputs.first().and_then(|operand| operand.shape.first()).copied().unwrap_or(1),
            batch_parts: 1,
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
            let dtype = operand.dtype_class.dtype(precision);
            let role = match operand.role {
                Role::Parameter if dtype != precision.master() => Role::ComputeCopy,
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
