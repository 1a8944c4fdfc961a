//! Candidates: the oneDNN and native implementations of a step.

use super::{SEPARATE, is_fallback};
use crate::ffi::{Argument, Attributes, Context, Desc, Kernel, MemoryDescQuery, PrimitiveDesc, arg};
use crate::native::elementwise::CpuContext;
use crate::native::threads::ThreadTeam;
use stratus_engine::{Layout, Operands, StepKernel};

/// The suffix of an implementation whose weights, or their gradient, differ from the decided layout: the
/// reorder before or after it counts towards its time.
pub(crate) const REORDERED: &str = "+reorder";

/// The prefix of the names of native kernels.
pub(crate) const NATIVE_PREFIX: &str = "stratus:";

/// The number of oneDNN's implementations of a primitive that are considered.
const MAX_IMPLEMENTATIONS: usize = 4;

/// One implementation of a step.
pub(crate) struct Candidate {
    /// The name recorded in plans; ends in [`REORDERED`] if the weights are reordered.
    pub name: String,
    /// The primitive or native kernel.
    pub implementation: Implementation,
    /// The step's operands: argument (`DNNL_ARG_*`) and layout.
    pub operands: Vec<(i32, Desc)>,
}

/// The implementation of a step.
pub(crate) enum Implementation {
    /// A oneDNN primitive.
    Primitive(PrimitiveDesc),
    /// A native kernel, or a oneDNN primitive in another role.
    Native(Box<dyn NativeKernel>),
}

/// A native alternative to oneDNN's kernels, measured against them before it is built.
pub(crate) trait NativeKernel {
    /// The scratch space in bytes.
    fn scratch_bytes(&self) -> usize;

    /// Builds the kernel.
    ///
    /// # Errors
    /// oneDNN's error message, if it is used.
    fn kernel(&self) -> Result<Box<dyn StepKernel>, String>;
}

impl Candidate {
    /// Builds the kernel.
    ///
    /// # Errors
    /// oneDNN's error message.
    pub fn build(&self, team: &ThreadTeam) -> Result<Box<dyn StepKernel>, String> {
        Ok(match &self.implementation {
            Implementation::Primitive(desc) => {
                let operands = self.operands.iter();
                let arguments: Vec<_> = operands.map(|(arg, desc)| Argument { arg: *arg, desc }).collect();
                primitive_step(desc, &arguments, team)?
            }
            Implementation::Native(native) => native.kernel()?,
        })
    }

    /// Returns whether it is anything other than a oneDNN primitive in its own role, alone or before a pass
    /// over its output.
    pub fn is_native(&self) -> bool {
        matches!(self.implementation, Implementation::Native(_)) && !self.name.starts_with(SEPARATE)
    }

    /// The weights or their gradient: argument and layout.
    pub fn weights(&self) -> Option<&(i32, Desc)> {
        self.operands.iter().find(|(arg, _)| matches!(*arg, arg::WEIGHTS | arg::DIFF_WEIGHTS))
    }

    /// The scratch space in bytes.
    pub fn scratch_bytes(&self) -> usize {
        match &self.implementation {
            Implementation::Primitive(desc) => desc.scratch_bytes(),
            Implementation::Native(native) => native.scratch_bytes(),
        }
    }
}

/// A oneDNN primitive as a step.
struct Primitive {
    kernel: Kernel,
    team: ThreadTeam,
}

impl StepKernel for Primitive {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        // The thread count is per calling thread, which may differ from the one that prepared the step.
        self.team.apply_thread_count();
        self.kernel.execute(|position| operands.take(position))
    }
}

/// A oneDNN primitive as a step whose operands are `arguments`, and the scratch if it has one.
///
/// # Errors
/// oneDNN's error message.
pub(crate) fn primitive_step(
    desc: &PrimitiveDesc,
    arguments: &[Argument<'_>],
    team: &ThreadTeam,
) -> Result<Box<dyn StepKernel>, String> {
    Ok(Box::new(Primitive { kernel: Kernel::new(desc, arguments)?, team: team.clone() }))
}

/// [`REORDERED`] if weights, or their gradient, in the layout `takes` differ from their `decided` layout.
pub(crate) fn reorder_suffix(decided: Option<&Desc>, takes: &Layout) -> Result<&'static str, String> {
    let decided = decided.map(Desc::layout).transpose()?;
    Ok(if decided.is_none_or(|layout| layout.same_bytes(takes)) { "" } else { REORDERED })
}

/// The name of a native kernel, with its `family` if a step has several. `takes` is the layout in which it
/// reads weights or writes their gradient; `decided` is their layout, if decided.
pub(super) fn native_name(
    family: &str,
    cpu: &CpuContext,
    decided: Option<&Desc>,
    takes: &Layout,
) -> Result<String, String> {
    let suffix = reorder_suffix(decided, takes)?;
    Ok(format!("{NATIVE_PREFIX}{family}{}{suffix}", cpu.level.name()))
}

/// Reads the arguments and layouts of a step's operands from a primitive descriptor.
type OperandsOf<'a> = dyn Fn(&PrimitiveDesc) -> Result<Vec<(i32, Desc)>, String> + 'a;

/// oneDNN's candidates for one primitive that reads weights or computes their gradient.
pub(super) struct Candidates<'a> {
    /// Creates the primitive descriptor with the weights, or their gradient, in a layout.
    pub make: &'a dyn Fn(&Desc) -> Result<PrimitiveDesc, String>,
    /// Reads the operands.
    pub operands: &'a OperandsOf<'a>,
    /// True if the implementation of this name may be used at all.
    pub usable: &'a dyn Fn(&str) -> bool,
}

impl Candidates<'_> {
    /// All candidates, in oneDNN's order, which is best first. If the layout of the weights is `decided`:
    /// those that take it, then those for oneDNN's preferred layout (`any`), marked [`REORDERED`]. Reference
    /// kernels are included only if there is nothing else.
    pub fn list(
        &self,
        builder: &KernelBuilder<'_>,
        decided: Option<&Desc>,
        any: &Desc,
    ) -> Result<Vec<Candidate>, String> {
        let Some(decided) = decided else { return self.implementations(builder, any, "") };
        let layout = decided.layout()?;
        let as_decided = self.implementations(builder, decided, "");
        let found = as_decided.iter().flatten().any(|candidate| builder.requires(&candidate.name));
        if as_decided.is_ok() && (found || builder.requires_native()) {
            return as_decided;
        }
        let reordered = self.implementations(builder, any, REORDERED);
        let mut candidates = match (as_decided, reordered) {
            (Err(error), Err(_)) => return Err(error),
            (as_decided, reordered) => {
                let mut candidates = as_decided.unwrap_or_default();
                for candidate in reordered.unwrap_or_default() {
                    // If oneDNN prefers the decided layout, this is not a further candidate.
                    let Some((_, weights)) = candidate.weights() else { continue };
                    if !weights.layout()?.same_bytes(&layout) {
                        candidates.push(candidate);
                    }
                }
                candidates
            }
        };
        drop_fallbacks(&mut candidates);
        Ok(candidates)
    }

    fn implementations(
        &self,
        builder: &KernelBuilder<'_>,
        weights: &Desc,
        suffix: &str,
    ) -> Result<Vec<Candidate>, String> {
        let mut desc = (self.make)(weights)?;
        let mut candidates: Vec<Candidate> = Vec::new();
        loop {
            let implementation = desc.implementation();
            let name = format!("{implementation}{suffix}");
            let known = candidates.iter().any(|other| other.name == name);
            if !known && (self.usable)(&implementation) {
                let operands = (self.operands)(&desc)?;
                // Native kernels can neither read nor reorder operands in an opaque layout.
                if operands.iter().all(|(_, operand)| operand.layout().is_ok()) {
                    let implementation = Implementation::Primitive(desc.duplicate()?);
                    candidates.push(Candidate { name, implementation, operands });
                }
            }
            let is_enough = |last: &Candidate| builder.requires_native() || builder.requires(&last.name);
            let found = candidates.last().is_some_and(is_enough);
            if found || candidates.len() >= MAX_IMPLEMENTATIONS || !desc.advance() {
                break;
            }
        }
        if candidates.is_empty() {
            return Err("oneDNN has no safe implementation".to_owned());
        }
        drop_fallbacks(&mut candidates);
        Ok(candidates)
    }
}

/// Drops reference kernels if there are others.
pub(super) fn drop_fallbacks(candidates: &mut Vec<Candidate>) {
    if candidates.iter().any(|candidate| !is_fallback(&candidate.name)) {
        candidates.retain(|candidate| !is_fallback(&candidate.name));
    }
}

/// Reads the descriptors of a primitive's operands.
pub(super) fn descs(
    desc: &PrimitiveDesc,
    list: &[(i32, MemoryDescQuery)],
) -> Result<Vec<(i32, Desc)>, String> {
    list.iter().map(|&(arg, which)| Ok((arg, desc.desc(which)?))).collect()
}

/// The context for building candidates.
pub(crate) struct KernelBuilder<'a> {
    /// oneDNN.
    pub onednn: &'a Context,
    /// The context of native kernels.
    pub cpu: &'a CpuContext,
    /// Attributes with caller-provided scratch and nothing fused.
    pub plain: Attributes,
    /// Attributes with caller-provided scratch and fused ReLU.
    pub relu: Attributes,
    /// The implementation required by the plan: oneDNN's later ones are not considered.
    pub required: Option<String>,
}

impl KernelBuilder<'_> {
    fn requires(&self, name: &str) -> bool {
        self.required.as_deref() == Some(name)
    }

    /// Returns whether the plan requires a native kernel: then one of oneDNN's implementations is enough.
    fn requires_native(&self) -> bool {
        self.required.as_ref().is_some_and(|required| required.starts_with(NATIVE_PREFIX))
    }
}
