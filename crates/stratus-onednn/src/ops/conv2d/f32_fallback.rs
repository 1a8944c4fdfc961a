//! Convolutions of bf16 maps on oneDNN's f32 implementations.
//!
//! Every operand is converted to f32 in the layout preferred by the implementation, and the result converted
//! back. That can be faster for grouped convolutions, and on CPUs without bf16 instructions. Sums are f32
//! either way, and the result is rounded once.

use super::context::{ConvContext, bias, hint, is_hazardous, weight_shape, window};
use crate::ffi::{Argument, DataType, Desc, Kernel, MemoryDescQuery, PrimitiveDesc, Propagation, arg};
use crate::native::threads::ThreadTeam;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder, conversion_candidate, is_fallback};
use stratus_engine::backend::Tile;
use stratus_engine::{Layout, Operands, StepKernel};

/// The prefix of the names of these candidates.
const PREFIX: &str = "f32:";

/// Alignment of the copies in scratch, in bytes.
const ALIGNMENT: usize = 64;

/// The maximum number of operands of the primitive, including scratch.
const MAX_PRIMITIVE_OPERANDS: usize = 5;

/// An operand of the step and of the primitive.
struct Operand {
    arg: i32,
    /// The primitive's operand, in f32.
    in_f32: Desc,
    /// The conversion between the step's operand and the primitive's; `None` if both are the same bytes.
    conversion: Option<Candidate>,
    is_result: bool,
}

impl Operand {
    /// The scratch bytes of its copy.
    fn copy_bytes(&self) -> usize {
        if self.conversion.is_some() { self.in_f32.bytes().next_multiple_of(ALIGNMENT) } else { 0 }
    }
}

struct F32Fallback {
    desc: PrimitiveDesc,
    operands: Vec<Operand>,
    team: ThreadTeam,
}

struct F32FallbackKernel {
    kernel: Kernel,
    operands: Vec<Conversion>,
    team: ThreadTeam,
}

/// The state of an [`Operand`] while running.
struct Conversion {
    copy_bytes: usize,
    kernel: Option<Box<dyn StepKernel>>,
    is_result: bool,
}

/// Returns a candidate for the forward pass.
pub(super) fn forward(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    relu: bool,
    propagation: Propagation,
) -> Result<Option<Candidate>, String> {
    let bias = bias(builder, context.conv)?;
    let attributes = if relu { &builder.relu } else { &builder.plain };
    let [x, w, y] = any_layouts(builder, context)?;
    let (descs, window) = ([&x, &w, &y], window(context.conv));
    let desc = builder.onednn.convolution_forward(propagation, descs, bias.as_ref(), &window, attributes);
    let operands = [
        (arg::SRC, MemoryDescQuery::Src),
        (arg::WEIGHTS, MemoryDescQuery::Weights),
        (arg::DST, MemoryDescQuery::Dst),
    ];
    candidate(builder, context, desc.ok(), operands, bias.map(|bias| (2, arg::BIAS, bias)))
}

/// Returns a candidate for the input's gradient.
pub(super) fn backward_data(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let [x, w, y] = any_layouts(builder, context)?;
    let window = window(context.conv);
    let in_f32 = ConvContext { x: &x, y: &y, compute: DataType::F32, ..*context };
    let Ok(hint) = hint(builder, &in_f32) else { return Ok(None) };
    let desc = builder.onednn.convolution_backward_data([&x, &w, &y], &window, &hint, &builder.plain);
    let operands = [
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::WEIGHTS, MemoryDescQuery::Weights),
        (arg::DIFF_SRC, MemoryDescQuery::DiffSrc),
    ];
    candidate(builder, context, desc.ok(), operands, None)
}

/// Returns a candidate for the gradients of weights and bias.
pub(super) fn backward_weights(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
) -> Result<Option<Candidate>, String> {
    let (onednn, conv) = (builder.onednn, context.conv);
    let bias = bias(builder, conv)?;
    let [x, w, y] = any_layouts(builder, context)?;
    let (descs, window) = ([&x, &w, &y], window(conv));
    let in_f32 = ConvContext { x: &x, y: &y, compute: DataType::F32, ..*context };
    let Ok(hint) = hint(builder, &in_f32) else { return Ok(None) };
    let created = onednn.convolution_backward_weights(descs, bias.as_ref(), &window, &hint, &builder.plain);
    let Ok(mut desc) = created else { return Ok(None) };
    loop {
        let (x, y) =
            (desc.desc(MemoryDescQuery::Src)?.layout(), desc.desc(MemoryDescQuery::DiffDst)?.layout());
        // Native kernels cannot convert to an opaque layout.
        let usable = x
            .and_then(|x| Ok((x, y?)))
            .is_ok_and(|(x, y)| !is_hazardous(conv, DataType::F32, &x, &y, &desc.implementation()));
        if usable {
            break;
        }
        if !desc.advance() {
            return Ok(None);
        }
    }
    let operands = [
        (arg::SRC, MemoryDescQuery::Src),
        (arg::DIFF_DST, MemoryDescQuery::DiffDst),
        (arg::DIFF_WEIGHTS, MemoryDescQuery::DiffWeights),
    ];
    candidate(builder, context, Some(desc), operands, bias.map(|bias| (3, arg::DIFF_BIAS, bias)))
}

/// Input, weights and output in f32, in any layout.
fn any_layouts(builder: &KernelBuilder<'_>, context: &ConvContext<'_>) -> Result<[Desc; 3], String> {
    let any = |shape: &[usize]| builder.onednn.any(shape, DataType::F32);
    let (x, y) = (context.x.layout()?, context.y.layout()?);
    Ok([any(&x.shape)?, any(&weight_shape(context.conv))?, any(&y.shape)?])
}

/// The step's operand and its type.
fn step_operand(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    which: MemoryDescQuery,
) -> Result<(Desc, DataType), String> {
    let dtype = match which {
        MemoryDescQuery::Src | MemoryDescQuery::DiffSrc => {
            return Ok((context.x.duplicate()?, context.compute));
        }
        MemoryDescQuery::Dst | MemoryDescQuery::DiffDst => {
            return Ok((context.y.duplicate()?, context.compute));
        }
        MemoryDescQuery::DiffWeights => DataType::F32,
        _ => context.compute,
    };
    let desc = match context.weights {
        Some(weights) => weights.duplicate()?,
        None => {
            let plain = Layout::plain(&weight_shape(context.conv));
            builder.onednn.strided(&plain.shape, dtype, &plain.strides)?
        }
    };
    Ok((desc, dtype))
}

/// The primitive as a candidate. `list` holds the step's operands, and `bias` the position of the bias, if
/// there is one.
fn candidate(
    builder: &KernelBuilder<'_>,
    context: &ConvContext<'_>,
    desc: Option<PrimitiveDesc>,
    list: [(i32, MemoryDescQuery); 3],
    bias: Option<(usize, i32, Desc)>,
) -> Result<Option<Candidate>, String> {
    let Some(desc) = desc.filter(|desc| !is_fallback(&desc.implementation())) else { return Ok(None) };
    let (mut operands, mut step_arguments) = (Vec::new(), Vec::new());
    for (arg, which) in list {
        let (step_operands, dtype) = step_operand(builder, context, which)?;
        let in_f32 = desc.desc(which)?;
        let is_result =
            matches!(which, MemoryDescQuery::Dst | MemoryDescQuery::DiffSrc | MemoryDescQuery::DiffWeights);
        let same_bytes = dtype == DataType::F32 && step_operands.layout()?.same_bytes(&in_f32.layout()?);
        let conversion = match (same_bytes, is_result) {
            (true, _) => None,
            (false, false) => {
                Some(conversion_candidate(builder, [&step_operands, &in_f32], [dtype, DataType::F32])?)
            }
            (false, true) => {
                Some(conversion_candidate(builder, [&in_f32, &step_operands], [DataType::F32, dtype])?)
            }
        };
        operands.push(Operand { arg, in_f32, conversion, is_result });
        step_arguments.push((arg, step_operands));
    }
    if let Some((at, arg, bias)) = bias {
        let is_result = arg == arg::DIFF_BIAS;
        operands.insert(at, Operand { arg, in_f32: bias.duplicate()?, conversion: None, is_result });
        step_arguments.insert(at, (arg, bias));
    }
    let name = format!("{PREFIX}{}", desc.implementation());
    let fallback = F32Fallback { desc, operands, team: builder.cpu.team.clone() };
    let implementation = Implementation::Native(Box::new(fallback));
    Ok(Some(Candidate { name, implementation, operands: step_arguments }))
}

impl NativeKernel for F32Fallback {
    /// The copies, followed by scratch shared by the conversions and the primitive.
    fn scratch_bytes(&self) -> usize {
        let conversions = self.operands.iter().filter_map(|operand| operand.conversion.as_ref());
        let shared = conversions.map(Candidate::scratch_bytes).max().unwrap_or(0);
        self.operands.iter().map(Operand::copy_bytes).sum::<usize>() + shared.max(self.desc.scratch_bytes())
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let list = self.operands.iter();
        let arguments: Vec<_> =
            list.map(|Operand { arg, in_f32, .. }| Argument { arg: *arg, desc: in_f32 }).collect();
        let operands = self.operands.iter().map(|operand| {
            let build = |conversion: &Candidate| conversion.build(&self.team);
            let kernel = operand.conversion.as_ref().map(build).transpose()?;
            Ok(Conversion { copy_bytes: operand.copy_bytes(), kernel, is_result: operand.is_result })
        });
        Ok(Box::new(F32FallbackKernel {
            kernel: Kernel::new(&self.desc, &arguments)?,
            operands: operands.collect::<Result<_, String>>()?,
            team: self.team.clone(),
        }))
    }
}

impl F32FallbackKernel {
    /// Converts the step's operands to the primitive's copies, or the results back.
    fn convert(
        &mut self,
        results: bool,
        step_operands: &mut [&mut [u8]; MAX_PRIMITIVE_OPERANDS],
        copies: &mut [&mut [u8]; MAX_PRIMITIVE_OPERANDS],
        scratch: &mut [u8],
        tile: Tile,
    ) -> Result<(), String> {
        for ((operand, step_operands), copy) in self.operands.iter_mut().zip(step_operands).zip(copies) {
            let Some(kernel) = operand.kernel.as_mut().filter(|_| operand.is_result == results) else {
                continue;
            };
            let (step_operands, copy) = (&mut **step_operands, &mut **copy);
            let [from, to] = if results { [copy, step_operands] } else { [step_operands, copy] };
            let mut part = Operands::new(tile);
            part.set(0, from);
            part.set(1, to);
            part.set(2, scratch);
            kernel.run(&mut part)?;
        }
        Ok(())
    }
}

impl StepKernel for F32FallbackKernel {
    fn run(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let count = self.operands.len();
        let tile = o.tile();
        let mut scratch = o.take(count);
        // The step's operands, and their copies, which are empty if nothing is converted.
        let mut step_operands: [&mut [u8]; MAX_PRIMITIVE_OPERANDS] = Default::default();
        let mut copies: [&mut [u8]; MAX_PRIMITIVE_OPERANDS] = Default::default();
        for (position, operand) in self.operands.iter().enumerate() {
            step_operands[position] = o.take(position);
            (copies[position], scratch) = scratch.split_at_mut(operand.copy_bytes);
        }
        self.convert(false, &mut step_operands, &mut copies, scratch, tile)?;
        let mut slices: [&mut [u8]; MAX_PRIMITIVE_OPERANDS] = Default::default();
        let pairs = step_operands.iter_mut().zip(&mut copies).zip(&self.operands);
        for (slice, ((step_operands, copy), operand)) in slices.iter_mut().zip(pairs) {
            *slice = if operand.kernel.is_some() { copy } else { step_operands };
        }
        slices[count] = scratch;
        // The thread count is per calling thread, which may differ from the one that prepared the step.
        self.team.apply_thread_count();
        self.kernel.execute(|position| std::mem::take(&mut slices[position]))?;
        self.convert(true, &mut step_operands, &mut copies, scratch, tile)
    }
}
