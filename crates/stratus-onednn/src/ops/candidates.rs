//! Candidates: the implementations that a step can run on, oneDNN's and native ones.

use super::is_fallback;
use crate::ffi::{Argument, Attributes, Context, Desc, Kernel, PrimitiveDesc, Which, arg};
use crate::native::elementwise::CpuContext;
use crate::native::threads::ThreadTeam;
use stratus_engine::{Layout, Operands, StepKernel};

/// Marks an implementation that takes its weights, or makes their gradient, in another layout than is
/// decided: a reorder before or behind it is part of its cost.
pub(crate) const REORDERED: &str = "+reorder";

/// What the names of native kernels begin with.
pub(crate) const NATIVE_PREFIX: &str = "stratus:";

/// How many of the library's implementations of one primitive are looked at.
const MOST_IMPLEMENTATIONS: usize = 4;

/// One implementation of a step.
pub(crate) struct Candidate {
    /// Its name, as plans record it; ends in [`REORDERED`] where weights change their layout.
    pub name: String,
    /// What runs.
    pub implementation: Implementation,
    /// The step's operands: argument (`DNNL_ARG_*`) and layout.
    pub operands: Vec<(i32, Desc)>,
}

/// What runs a step.
pub(crate) enum Implementation {
    /// A primitive of the library.
    Primitive(PrimitiveDesc),
    /// A native kernel, or the library's in another role.
    Native(Box<dyn NativeKernel>),
}

/// A native kernel for what oneDNN also has kernels for: measured against them before it is made.
pub(crate) trait NativeKernel {
    /// Bytes of scratch.
    fn scratch_bytes(&self) -> usize;

    /// Makes the kernel.
    ///
    /// # Errors
    /// What the library said, where it is used.
    fn kernel(&self) -> Result<Box<dyn StepKernel>, String>;
}

impl Candidate {
    /// Makes the kernel.
    ///
    /// # Errors
    /// What the library said.
    pub fn build(&self, team: &ThreadTeam) -> Result<Box<dyn StepKernel>, String> {
        Ok(match &self.implementation {
            Implementation::Primitive(desc) => {
                let operands = self.operands.iter();
                let arguments: Vec<_> = operands.map(|(arg, desc)| Argument { arg: *arg, desc }).collect();
                Box::new(Primitive { kernel: Kernel::new(desc, &arguments)?, team: team.clone() })
            }
            Implementation::Native(native) => native.kernel()?,
        })
    }

    /// Whether it is anything but a primitive of the library's that is used as it is meant.
    pub fn is_native(&self) -> bool {
        matches!(self.implementation, Implementation::Native(_))
    }

    /// The weights or their gradient: argument and layout.
    pub fn weights(&self) -> Option<&(i32, Desc)> {
        self.operands.iter().find(|(arg, _)| matches!(*arg, arg::WEIGHTS | arg::DIFF_WEIGHTS))
    }

    /// Bytes of scratch.
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
        // The number of threads belongs to the calling thread, which may not be the one that prepared.
        self.team.adopt();
        self.kernel.execute(|position| operands.take(position))
    }
}

/// The name of a native kernel, of a `family` where there are several for a step. It takes weights, or makes
/// their gradient, in the layout `takes`; `decided` is the layout they have, where that is decided.
pub(super) fn native_name(
    family: &str,
    cpu: &CpuContext,
    decided: Option<&Desc>,
    takes: &Layout,
) -> Result<String, String> {
    let decided = decided.map(Desc::layout).transpose()?;
    let suffix = if decided.is_none_or(|layout| layout.same_bytes(takes)) { "" } else { REORDERED };
    Ok(format!("{NATIVE_PREFIX}{family}{}{suffix}", cpu.level.name()))
}

/// Reads the arguments and layouts of a step's operands from a primitive descriptor.
type OperandsOf<'a> = dyn Fn(&PrimitiveDesc) -> Result<Vec<(i32, Desc)>, String> + 'a;

/// The library's candidates for one primitive that takes weights or makes their gradient.
pub(super) struct Candidates<'a> {
    /// Makes the primitive descriptor with the weights, or their gradient, in a layout.
    pub make: &'a dyn Fn(&Desc) -> Result<PrimitiveDesc, String>,
    /// Reads the operands.
    pub operands: &'a OperandsOf<'a>,
    /// Which implementations, by name, may be used at all.
    pub usable: &'a dyn Fn(&str) -> bool,
}

impl Candidates<'_> {
    /// All candidates, in the library's order, which is best first. Where the layout of the weights is
    /// `decided`, those that take it, then, marked [`REORDERED`], those for the layout the library prefers
    /// (`any`). Reference kernels only where there is nothing else.
    pub fn list(
        &self,
        builder: &KernelBuilder<'_>,
        decided: Option<&Desc>,
        any: &Desc,
    ) -> Result<Vec<Candidate>, String> {
        let Some(decided) = decided else { return self.implementations(builder, any, "") };
        let layout = decided.layout()?;
        let as_decided = self.implementations(builder, decided, "");
        let found = as_decided.iter().flatten().any(|candidate| builder.wants(&candidate.name));
        if as_decided.is_ok() && (found || builder.wants_native()) {
            return as_decided;
        }
        let reordered = self.implementations(builder, any, REORDERED);
        let mut candidates = match (as_decided, reordered) {
            (Err(error), Err(_)) => return Err(error),
            (as_decided, reordered) => {
                let mut candidates = as_decided.unwrap_or_default();
                for candidate in reordered.unwrap_or_default() {
                    // The library may prefer the layout that is decided: then this is no further candidate.
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
                // Operands in an opaque layout can neither be read nor reordered by native kernels.
                if operands.iter().all(|(_, operand)| operand.layout().is_ok()) {
                    let implementation = Implementation::Primitive(desc.duplicate()?);
                    candidates.push(Candidate { name, implementation, operands });
                }
            }
            let is_enough = |last: &Candidate| builder.wants_native() || builder.wants(&last.name);
            let found = candidates.last().is_some_and(is_enough);
            if found || candidates.len() >= MOST_IMPLEMENTATIONS || !desc.advance() {
                break;
            }
        }
        if candidates.is_empty() {
            return Err("the library offers no implementation that is safe to use".to_owned());
        }
        drop_fallbacks(&mut candidates);
        Ok(candidates)
    }
}

/// Drops reference kernels where there are others.
pub(super) fn drop_fallbacks(candidates: &mut Vec<Candidate>) {
    if candidates.iter().any(|candidate| !is_fallback(&candidate.name)) {
        candidates.retain(|candidate| !is_fallback(&candidate.name));
    }
}

/// Reads the descriptors of a primitive's operands.
pub(super) fn descs(desc: &PrimitiveDesc, list: &[(i32, Which)]) -> Result<Vec<(i32, Desc)>, String> {
    list.iter().map(|&(arg, which)| Ok((arg, desc.desc(which)?))).collect()
}

/// What candidates are made with.
pub(crate) struct KernelBuilder<'a> {
    /// The library.
    pub library: &'a Context,
    /// What native kernels run on.
    pub cpu: &'a CpuContext,
    /// Attributes with scratch by the caller and nothing fused.
    pub plain: Attributes,
    /// The same with a rectified result.
    pub relu: Attributes,
    /// The implementation that a plan asks for: the library's behind it need not be looked at.
    pub wanted: Option<String>,
}

impl KernelBuilder<'_> {
    fn wants(&self, name: &str) -> bool {
        self.wanted.as_deref() == Some(name)
    }

    /// Whether the plan asks for a native kernel: then one of the library's implementations is enough.
    fn wants_native(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.starts_with(NATIVE_PREFIX))
    }
}
