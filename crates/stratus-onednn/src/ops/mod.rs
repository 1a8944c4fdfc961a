//! Steps as kernels: each file prepares the steps of one operation, on oneDNN or on our own kernels.

mod conv2d;
mod linear;
mod native;
mod transfer;

pub(crate) use conv2d::{
    Around as ConvAround, backward_data as conv_backward_data, backward_weights as conv_backward_weights,
    forward as conv_forward, weight_shape as conv_weight_shape,
};
pub(crate) use linear::{
    Around as LinearAround, backward_data as linear_backward_data,
    backward_weights as linear_backward_weights, forward as linear_forward,
};
pub(crate) use native::prepare as native;
pub(crate) use transfer::transfer;

use crate::ffi::{Argument, Attributes, Context, DataType, Desc, Kernel, PrimitiveDesc, Which, arg};
use crate::native::threads::Team;
use stratus_engine::{Operands, StepKernel};

/// One way to run a step on oneDNN.
pub(crate) struct Candidate {
    /// The library's name of the implementation, and which weights it takes.
    pub name: String,
    /// The primitive.
    pub desc: PrimitiveDesc,
    /// Per operand of the step: the argument and its layout.
    pub operands: Vec<(i32, Desc)>,
}

impl Candidate {
    /// Makes the kernel.
    pub fn build(&self, team: &Team) -> Result<Primitive, String> {
        let arguments: Vec<Argument<'_>> =
            self.operands.iter().map(|(arg, desc)| Argument { arg: *arg, desc }).collect();
        Ok(Primitive { kernel: Kernel::new(&self.desc, &arguments)?, team: team.clone() })
    }

    /// The operand that is the weights or their gradient.
    pub fn weights(&self) -> Option<&(i32, Desc)> {
        self.operands.iter().find(|(arg, _)| matches!(*arg, arg::WEIGHTS | arg::DIFF_WEIGHTS))
    }

    /// Bytes of scratch.
    pub fn scratch_bytes(&self) -> usize {
        self.desc.scratch_bytes()
    }
}

/// A oneDNN primitive as a step.
pub(crate) struct Primitive {
    kernel: Kernel,
    team: Team,
}

impl StepKernel for Primitive {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        // The number of threads belongs to the calling thread: this may be another than the one that prepared.
        self.team.adopt();
        self.kernel.execute(|position| operands.take(position))
    }
}

/// Whether the library fell back to a kernel that no hot layer should run on.
pub(crate) fn is_fallback(implementation: &str) -> bool {
    implementation.starts_with("ref") || implementation.starts_with("simple")
}

/// Marks an implementation before which the weights, or behind which their gradient, change layout.
pub(crate) const REORDERED: &str = "+reorder";

/// How many implementations of one primitive are looked at.
const IMPLEMENTATIONS: usize = 4;

/// Reads the arguments and layouts of a step's operands from a primitive descriptor.
pub(crate) type OperandsOf<'a> = dyn Fn(&PrimitiveDesc) -> Result<Vec<(i32, Desc)>, String> + 'a;

/// All implementations of a primitive, best first by the library's own order. Reference kernels only where there is nothing else.
pub(crate) fn implementations(
    mut desc: PrimitiveDesc,
    suffix: &str,
    operands: &OperandsOf<'_>,
) -> Result<Vec<Candidate>, String> {
    let mut candidates: Vec<Candidate> = Vec::new();
    loop {
        let name = format!("{}{suffix}", desc.implementation());
        let fallback = is_fallback(&name);
        if (!fallback || candidates.is_empty()) && candidates.iter().all(|other| other.name != name) {
            candidates.push(Candidate { name, operands: operands(&desc)?, desc: desc.duplicate()? });
        }
        if candidates.len() >= IMPLEMENTATIONS || !desc.advance() {
            break;
        }
    }
    if candidates.len() > 1 {
        candidates.retain(|candidate| !is_fallback(&candidate.name));
    }
    Ok(candidates)
}

/// Reads the descriptors of a primitive's operands.
pub(crate) fn descs(desc: &PrimitiveDesc, list: &[(i32, Which)]) -> Result<Vec<(i32, Desc)>, String> {
    list.iter().map(|&(arg, which)| Ok((arg, desc.desc(which)?))).collect()
}

/// What every preparation needs.
pub(crate) struct Maker<'a> {
    /// The library.
    pub context: &'a Context,
    /// Scratchpad by the caller, nothing fused.
    pub plain: Attributes,
    /// The same with a rectified result.
    pub relu: Attributes,
}

/// The library's name of a type.
pub(crate) fn data_type(dtype: stratus_engine::DType) -> Result<DataType, String> {
    DataType::of(dtype).ok_or_else(|| format!("there is no kernel for {dtype}"))
}
