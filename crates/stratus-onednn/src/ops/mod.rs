//! Steps as kernels: each file prepares the steps of one operation, on oneDNN or on our own kernels.

mod conv2d;
mod direct;
mod linear;
mod narrow;
mod native;
mod outer;
#[cfg(target_arch = "x86_64")]
mod panels;
mod transfer;
mod update;
mod wide;
mod winograd;

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
pub(crate) use update::linear as linear_update;

use crate::ffi::{Argument, Attributes, Context, DataType, Desc, Kernel, PrimitiveDesc, Which, arg};
use crate::native::elementwise::CpuContext;
use crate::native::threads::ThreadTeam;
use stratus_engine::{Kernel as Step, Layout, Operands, StepKernel};
use stratus_graph::ops::{Conv2d, Linear};

/// One way to run a step that oneDNN has kernels for.
pub(crate) struct Candidate {
    /// The name of the implementation, and which weights it takes.
    pub name: String,
    /// What runs.
    pub run: Run,
    /// Per operand of the step: the argument and its layout.
    pub operands: Vec<(i32, Desc)>,
}

/// What runs a step.
pub(crate) enum Run {
    /// A primitive of the library.
    Primitive(PrimitiveDesc),
    /// A kernel of our own.
    Own(Box<dyn Own>),
}

/// A kernel of our own for what oneDNN also has kernels for.
pub(crate) trait Own {
    /// Bytes of scratch.
    fn scratch_bytes(&self) -> usize;
    /// The kernel.
    ///
    /// # Errors
    /// What the library said, where it is used.
    fn kernel(&self) -> Result<Box<dyn StepKernel>, String>;
}

impl Candidate {
    /// Makes the kernel.
    pub fn build(&self, team: &ThreadTeam) -> Result<Box<dyn StepKernel>, String> {
        let arguments =
            || self.operands.iter().map(|(arg, desc)| Argument { arg: *arg, desc }).collect::<Vec<_>>();
        Ok(match &self.run {
            Run::Primitive(desc) => {
                Box::new(Primitive { kernel: Kernel::new(desc, &arguments())?, team: team.clone() })
            }
            Run::Own(own) => own.kernel()?,
        })
    }

    /// Whether it is a kernel of our own.
    pub fn is_own(&self) -> bool {
        matches!(self.run, Run::Own(_))
    }

    /// The operand that is the weights or their gradient.
    pub fn weights(&self) -> Option<&(i32, Desc)> {
        self.operands.iter().find(|(arg, _)| matches!(*arg, arg::WEIGHTS | arg::DIFF_WEIGHTS))
    }

    /// Bytes of scratch.
    pub fn scratch_bytes(&self) -> usize {
        match &self.run {
            Run::Primitive(desc) => desc.scratch_bytes(),
            Run::Own(own) => own.scratch_bytes(),
        }
    }
}

/// A oneDNN primitive as a step.
pub(crate) struct Primitive {
    kernel: Kernel,
    team: ThreadTeam,
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
    implementation.starts_with("ref")
}

/// Whether an implementation of the library runs on AMX.
pub(crate) fn runs_on_tiles(implementation: &str) -> bool {
    implementation.contains("amx")
}

/// Whether an implementation of the library multiplies bf16 as such, twice as fast as f32 or faster.
pub(crate) fn multiplies_bf16(implementation: &str) -> bool {
    runs_on_tiles(implementation) || implementation.contains("avx512_core_bf16")
}

/// Whether an implementation of a convolution is the library's for any kernel, and `other` the one of the same family for kernels of one tap: what
/// it computes is then a product of matrices, and the general one has never been found to be faster.
pub(crate) fn is_generalised(implementation: &str, other: &str) -> bool {
    const ONE_TAP: &str = "_1x1:";
    other.starts_with("jit") && other.contains(ONE_TAP) && other.replacen(ONE_TAP, ":", 1) == implementation
}

/// Whether a step is a pass of a convolution.
pub(crate) fn is_convolution(kernel: &Step) -> bool {
    matches!(kernel, Step::Conv2dForward(_) | Step::Conv2dBackwardData(_) | Step::Conv2dBackwardWeights(_))
}

/// The width of the registers that an implementation of the library computes in, where its name says so. Where there is one with wider ones, the
/// others are not worth a try.
pub(crate) fn register_bytes(implementation: &str) -> Option<u8> {
    let widths = [("avx512", 64), ("avx2", 32), ("sse41", 16)];
    widths.into_iter().find_map(|(name, bytes)| implementation.contains(name).then_some(bytes))
}

/// Whether a step's channels fill the tiles of AMX, which then multiply several times as fast as anything else.
pub(crate) fn fills_tiles(kernel: &Step) -> bool {
    let of_linear = |linear: &Linear| are_full([linear.in_features, linear.out_features]);
    match kernel {
        Step::Conv2dForward(k) => fills_tiles_of(&k.conv),
        Step::Conv2dBackwardData(k) => fills_tiles_of(&k.conv),
        Step::Conv2dBackwardWeights(k) => fills_tiles_of(&k.conv),
        Step::LinearForward(k) => of_linear(&k.linear),
        Step::LinearBackwardData(k) => of_linear(&k.linear),
        Step::LinearBackwardWeights(k) => of_linear(&k.linear),
        _ => false,
    }
}

/// The same of a convolution: each group has its own tiles.
fn fills_tiles_of(conv: &Conv2d) -> bool {
    are_full([conv.in_channels, conv.out_channels].map(|channels| channels / conv.groups.max(1)))
}

fn are_full(channels: [usize; 2]) -> bool {
    // A row of a tile holds 32 numbers of two bytes, and a tile has 16 rows.
    const FULL: usize = 32;
    channels.iter().all(|channels| channels.is_multiple_of(FULL))
}

/// Marks an implementation before which the weights, or behind which their gradient, change layout.
pub(crate) const REORDERED: &str = "+reorder";

/// What the names of our own kernels begin with.
const OWN: &str = "stratus:";

/// The name of a kernel of our own, of a `family` where there are several for a step, that takes weights, or makes their gradient, in a layout; `lies`
/// is how they lie where that is decided.
pub(crate) fn own_name(
    family: &str,
    cpu: &CpuContext,
    lies: Option<&Desc>,
    takes: &Layout,
) -> Result<String, String> {
    let lies = lies.map(Desc::layout).transpose()?;
    let as_they_lie = lies.is_none_or(|lies| lies.same_bytes(takes));
    Ok(format!("{OWN}{family}{}{}", cpu.level.name(), if as_they_lie { "" } else { REORDERED }))
}

/// How many implementations of one primitive are looked at.
const IMPLEMENTATIONS: usize = 4;

/// Reads the arguments and layouts of a step's operands from a primitive descriptor.
type OperandsOf<'a> = dyn Fn(&PrimitiveDesc) -> Result<Vec<(i32, Desc)>, String> + 'a;

/// One operation around weights whose layout is fixed, or left to the library.
pub(crate) struct Ways<'a> {
    /// Makes the primitive descriptor with the weights, or their gradient, in a layout.
    pub make: &'a dyn Fn(&Desc) -> Result<PrimitiveDesc, String>,
    /// Reads the operands.
    pub operands: &'a OperandsOf<'a>,
    /// Which implementations, by name, may be used at all.
    pub usable: &'a dyn Fn(&str) -> bool,
}

impl Ways<'_> {
    /// Every way to run the operation, best first by the library's own order: with the weights as they lie where `fixed` says how, then,
    /// marked [`REORDERED`], with those that the library would choose (`any`). Reference kernels only where there is nothing else.
    pub fn list(
        &self,
        maker: &Maker<'_>,
        fixed: Option<&Desc>,
        any: &Desc,
    ) -> Result<Vec<Candidate>, String> {
        let Some(fixed) = fixed else { return self.implementations(maker, any, "") };
        let lies = fixed.layout()?;
        let as_they_lie = self.implementations(maker, fixed, "");
        let found = as_they_lie.iter().flatten().any(|candidate| maker.wants(&candidate.name));
        if as_they_lie.is_ok() && (found || maker.wants_own()) {
            return as_they_lie;
        }
        let elsewhere = self.implementations(maker, any, REORDERED);
        let mut candidates = match (as_they_lie, elsewhere) {
            (Err(error), Err(_)) => return Err(error),
            (as_they_lie, elsewhere) => {
                let mut candidates = as_they_lie.unwrap_or_default();
                for candidate in elsewhere.unwrap_or_default() {
                    // A change of layout that changes nothing is no way of its own.
                    let Some((_, weights)) = candidate.weights() else { continue };
                    if !weights.layout()?.same_bytes(&lies) {
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
        maker: &Maker<'_>,
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
                // What lies in a way that is the library's secret can neither be read nor brought into another layout.
                if operands.iter().all(|(_, operand)| operand.layout().is_ok()) {
                    candidates.push(Candidate { name, operands, run: Run::Primitive(desc.duplicate()?) });
                }
            }
            let found = candidates.last().is_some_and(|last| maker.wants_own() || maker.wants(&last.name));
            if found || candidates.len() >= IMPLEMENTATIONS || !desc.advance() {
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

fn drop_fallbacks(candidates: &mut Vec<Candidate>) {
    if candidates.iter().any(|candidate| !is_fallback(&candidate.name)) {
        candidates.retain(|candidate| !is_fallback(&candidate.name));
    }
}

/// Reads the descriptors of a primitive's operands.
pub(crate) fn descs(desc: &PrimitiveDesc, list: &[(i32, Which)]) -> Result<Vec<(i32, Desc)>, String> {
    list.iter().map(|&(arg, which)| Ok((arg, desc.desc(which)?))).collect()
}

/// What every preparation needs.
pub(crate) struct Maker<'a> {
    /// The library.
    pub context: &'a Context,
    /// What our own kernels run on.
    pub cpu: &'a CpuContext,
    /// Scratchpad by the caller, nothing fused.
    pub plain: Attributes,
    /// The same with a rectified result.
    pub relu: Attributes,
    /// The implementation that a plan asks for: those behind it need not be looked at.
    pub wanted: Option<String>,
}

impl Maker<'_> {
    fn wants(&self, name: &str) -> bool {
        self.wanted.as_deref() == Some(name)
    }

    /// Whether the plan asks for a kernel of our own: then of the library's there is no need for more than one.
    fn wants_own(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.starts_with(OWN))
    }
}

/// The library's name of a type.
pub(crate) fn data_type(dtype: stratus_engine::DType) -> Result<DataType, String> {
    DataType::of(dtype).ok_or_else(|| format!("there is no kernel for {dtype}"))
}
