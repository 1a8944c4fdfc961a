//! Distillation: a program that also runs another network, the teacher, on the same images, and whose main
//! loss follows its logits too.
//!
//! ```text
//! images ─┬─▶ teacher's layers ─▶ teacher's logits ─┐
//!         └─▶ layers ─▶ logits ─▶ main loss ────────┴─▶ distillation loss ─▶ auxiliary losses
//! ```
//!
//! The teacher's steps come first, so that its feature maps are dead before the network's are kept for the
//! backward pass. They belong to [`Phase::Teacher`], and its parameters have [`Role::Teacher`]: neither is
//! differentiated, updated, recomputed or stored. Later passes split and tile them as any other steps.

use crate::ops::{DistillationFunction, DistillationLoss, TargetFunction};
use crate::program::{Layer, Mode};
use crate::{EngineError, Kernel, Phase, Program, Role, Step, Value, ValueId};

/// The name of a layer or value of the teacher in the program of the network that it teaches.
#[must_use]
pub fn teacher_name(name: &str) -> String {
    format!("teacher:{name}")
}

/// How much a network learns from its teacher.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distillation {
    /// The share of the distillation loss in the loss, above 0 and at most 1. That of the main loss is the
    /// rest.
    pub weight: f32,
    /// The temperature of both softmax or logistic functions; numbers have none.
    pub temperature: f32,
}

/// The forward program `student` in training, followed by the evaluation program `teacher`.
///
/// It is applied before differentiation, and before images are taken as bytes; class weights and mixed labels
/// of the main loss must be set.
///
/// # Errors
/// If the programs differ in batch, images or logits, or `student` has no loss.
pub fn with_teacher(
    student: &Program,
    teacher: &Program,
    distillation: Distillation,
) -> Result<Program, EngineError> {
    let Distillation { weight, temperature } = distillation;
    let no_loss = |program: &Program| {
        EngineError::InvalidRequest(format!("the program of `{}` has no loss to distil", program.network))
    };
    let main = |program: &Program| program.steps.iter().position(|step| step.phase == Phase::Loss);
    let (main_loss, teacher_loss) =
        (main(student).ok_or_else(|| no_loss(student))?, main(teacher).ok_or_else(|| no_loss(teacher))?);
    if (student.mode, teacher.mode) != (Mode::Train, Mode::Evaluate) {
        return Err(EngineError::InvalidRequest(
            "distillation needs a training program and the evaluation program of its teacher".to_owned(),
        ));
    }
    let images = [student, teacher].map(|program| program.find_role(Role::Images));
    let [Some(images), Some(teacher_images)] = images else {
        return Err(EngineError::InvalidRequest("a network or its teacher takes no images".to_owned()));
    };
    check_same("images", student.value(images), teacher.value(teacher_images))?;
    let [logits, labels] = [0, 1].map(|at| student.steps[main_loss].inputs[at]);
    let teacher_logits = teacher.steps[teacher_loss].inputs[0];
    check_same("logits", student.value(logits), teacher.value(teacher_logits))?;

    let mut program = student.clone();
    let step = &mut program.steps[main_loss];
    let (function, mixed_labels, scale) = match &mut step.kernel {
        Kernel::SoftmaxCrossEntropy(loss) => {
            loss.main_weight = Some(1.0 - weight);
            let scale = loss.loss_scaled.then_some(loss.positions()[1]);
            (DistillationFunction::Softmax, loss.mixed_labels, scale)
        }
        Kernel::PixelCrossEntropy(loss) => {
            loss.main_weight = Some(1.0 - weight);
            let function =
                if loss.binary { DistillationFunction::Sigmoid } else { DistillationFunction::Softmax };
            (function, false, loss.loss_scaled.then_some(loss.positions()[1]))
        }
        Kernel::TargetLoss(loss) => {
            loss.main_weight = Some(1.0 - weight);
            let function = match loss.function {
                TargetFunction::BinaryCrossEntropy => DistillationFunction::Sigmoid,
                TargetFunction::SquaredError | TargetFunction::Huber => DistillationFunction::SquaredError,
            };
            (function, false, loss.loss_scaled.then_some(loss.positions()[1]))
        }
        _ => return Err(no_loss(student)),
    };
    let scale = scale.map(|position| step.inputs[position]);
    let (Some(&metrics), Some(&gradient)) = (step.outputs.first(), step.outputs.get(1)) else {
        return Err(no_loss(student));
    };
    let mut copy = TeacherCopy::new(teacher, [teacher_images, images]);
    let mut steps: Vec<Step> = (0..teacher.steps.len())
        .filter(|&position| teacher.steps[position].phase != Phase::Loss)
        .map(|position| copy.step(&teacher.steps[position], &mut program))
        .collect();
    let teacher_logits = copy.value(teacher_logits, &mut program);
    let loss_scaled = scale.is_some();
    let layers = vec![program.layers.len()];
    program.layers.push(Layer { name: "loss.teacher".to_owned(), kind: "distillation_loss".to_owned() });
    let distillation_loss = Step {
        kernel: DistillationLoss { function, weight, temperature, mixed_labels, loss_scaled, partial: false }
            .into(),
        phase: Phase::Loss,
        layers,
        inputs: [logits, teacher_logits, labels].into_iter().chain(scale).collect(),
        updates: vec![metrics, gradient],
        outputs: vec![],
    };
    program.steps.insert(main_loss + 1, distillation_loss);
    steps.append(&mut program.steps);
    program.steps = steps;
    program.verify("with_teacher")?;
    Ok(program)
}

/// Checks that a value of the network and of its teacher have the same shape and type.
fn check_same(what: &str, student: &Value, teacher: &Value) -> Result<(), EngineError> {
    if (&student.shape, student.dtype) == (&teacher.shape, teacher.dtype) {
        return Ok(());
    }
    Err(EngineError::InvalidRequest(format!(
        "the network and its teacher differ in {what}: {} {:?} and {} {:?}",
        student.dtype, student.shape, teacher.dtype, teacher.shape
    )))
}

/// Copies the values and layers of a teacher to another program, each when it is first used.
struct TeacherCopy<'a> {
    teacher: &'a Program,
    /// The copy of each value.
    values: Vec<Option<ValueId>>,
    /// The copy of each layer.
    layers: Vec<Option<usize>>,
}

impl<'a> TeacherCopy<'a> {
    /// A copy of nothing yet; the teacher's `images` are those of the other program.
    fn new(teacher: &'a Program, [teacher_images, images]: [ValueId; 2]) -> Self {
        let mut values = vec![None; teacher.values.len()];
        values[teacher_images.0] = Some(images);
        Self { teacher, values, layers: vec![None; teacher.layers.len()] }
    }

    fn step(&mut self, step: &Step, to: &mut Program) -> Step {
        let layers = step.layers.iter().map(|&layer| self.layer(layer, to)).collect();
        let mut copies =
            |ids: &[ValueId]| -> Vec<ValueId> { ids.iter().map(|&id| self.value(id, to)).collect() };
        let (inputs, updates, outputs) = (copies(&step.inputs), copies(&step.updates), copies(&step.outputs));
        Step { kernel: step.kernel.clone(), phase: Phase::Teacher, layers, inputs, updates, outputs }
    }

    fn layer(&mut self, layer: usize, to: &mut Program) -> usize {
        *self.layers[layer].get_or_insert_with(|| {
            let Layer { name, kind } = &self.teacher.layers[layer];
            to.layers.push(Layer { name: teacher_name(name), kind: kind.clone() });
            to.layers.len() - 1
        })
    }

    fn value(&mut self, id: ValueId, to: &mut Program) -> ValueId {
        if let Some(copy) = self.values[id.0] {
            return copy;
        }
        let teacher = self.teacher;
        let value = teacher.value(id);
        // The master of a copy in the compute precision is read only when copies are refreshed.
        let origin = value.origin.map(|origin| origin.with_source(self.value(origin.source(), to)));
        let role = match value.role {
            Role::Parameter | Role::Frozen | Role::Buffer => Role::Teacher,
            role => role,
        };
        let name = teacher_name(&value.name);
        to.values.push(Value { name, role, origin, ..value.clone() });
        let copy = ValueId(to.values.len() - 1);
        self.values[id.0] = Some(copy);
        copy
    }
}
