//! Convolutions of bf16 maps that the library runs in f32, as further ways to run steps that it also runs in bf16. Everything is converted, into
//! whatever layout it runs best in, and the result back; for grouped convolutions, and where the processor has no instructions for bf16, that can
//! be faster all the same. Sums are in f32 either way, and the result is rounded once.

use super::conv2d::{Around, bias, hint, is_hazardous, weight_shape, window};
use super::{Candidate, Maker, Own, Run, is_fallback, transfer};
use crate::ffi::{Argument, DataType, Desc, Kernel, PrimitiveDesc, Propagation, Which, arg};
use crate::native::threads::ThreadTeam;
use stratus_engine::backend::Tile;
use stratus_engine::{Layout, Operands, StepKernel};

/// What names of these ways begin with.
pub(super) const PREFIX: &str = "f32:";

/// Where the parts of scratch begin.
const ALIGNMENT: usize = 64;

/// An operand of the step and of the primitive.
struct Operand {
    arg: i32,
    /// How the primitive takes or makes it.
    wide: Desc,
    /// From the step's to the primitive's or back; none where both are the same bytes.
    moved: Option<Candidate>,
    result: bool,
}

impl Operand {
    /// Bytes of scratch that its copy takes.
    fn copy_bytes(&self) -> usize {
        if self.moved.is_some() { self.wide.bytes().next_multiple_of(ALIGNMENT) } else { 0 }
    }
}

struct Wide {
    desc: PrimitiveDesc,
    operands: Vec<Operand>,
    team: ThreadTeam,
}

struct WideKernel {
    kernel: Kernel,
    operands: Vec<MovedOperand>,
    team: ThreadTeam,
}

/// What an [`Operand`] is while running.
struct MovedOperand {
    copy_bytes: usize,
    moved: Option<Box<dyn StepKernel>>,
    result: bool,
}

/// A way to run the forward pass; `weights` is how they lie, where that is decided.
pub(super) fn forward(
    maker: &Maker<'_>,
    around: &Around<'_>,
    relu: bool,
    propagation: Propagation,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let wide = WideMaker::new(maker, around, weights);
    let bias = bias(maker, around.conv)?;
    let attributes = if relu { &maker.relu } else { &maker.plain };
    let [x, w, y] = wide.any()?;
    let window = window(around.conv);
    let desc =
        maker.context.convolution_forward(propagation, [&x, &w, &y], bias.as_ref(), &window, attributes);
    let operands = [(arg::SRC, Which::Src), (arg::WEIGHTS, Which::Weights), (arg::DST, Which::Dst)];
    wide.candidate(desc.ok(), operands, bias.map(|bias| (2, arg::BIAS, bias)))
}

/// A way to make the input's gradient; `weights` is how they lie, where that is decided.
pub(super) fn backward_data(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let wide = WideMaker::new(maker, around, weights);
    let [x, w, y] = wide.any()?;
    let window = window(around.conv);
    let Ok(hint) = hint(maker, &Around { conv: around.conv, x: &x, y: &y, compute: DataType::F32 }) else {
        return Ok(None);
    };
    let desc = maker.context.convolution_backward_data([&x, &w, &y], &window, &hint, &maker.plain);
    let operands =
        [(arg::DIFF_DST, Which::DiffDst), (arg::WEIGHTS, Which::Weights), (arg::DIFF_SRC, Which::DiffSrc)];
    wide.candidate(desc.ok(), operands, None)
}

/// A way to make the gradients of weight and bias; `weights` is how the gradient is wanted, where that is decided.
pub(super) fn backward_weights(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let wide = WideMaker::new(maker, around, weights);
    let bias = bias(maker, around.conv)?;
    let [x, w, y] = wide.any()?;
    let window = window(around.conv);
    let Ok(hint) = hint(maker, &Around { conv: around.conv, x: &x, y: &y, compute: DataType::F32 }) else {
        return Ok(None);
    };
    let made =
        maker.context.convolution_backward_weights([&x, &w, &y], bias.as_ref(), &window, &hint, &maker.plain);
    let Ok(mut desc) = made else { return Ok(None) };
    loop {
        let (x, y) = (desc.desc(Which::Src)?.layout(), desc.desc(Which::DiffDst)?.layout());
        // What lies in a way that is the library's secret cannot be made by us.
        let usable = x
            .and_then(|x| Ok((x, y?)))
            .is_ok_and(|(x, y)| !is_hazardous(around.conv, DataType::F32, &x, &y, &desc.implementation()));
        if usable {
            break;
        }
        if !desc.advance() {
            return Ok(None);
        }
    }
    let operands =
        [(arg::SRC, Which::Src), (arg::DIFF_DST, Which::DiffDst), (arg::DIFF_WEIGHTS, Which::DiffWeights)];
    wide.candidate(Some(desc), operands, bias.map(|bias| (3, arg::DIFF_BIAS, bias)))
}

struct WideMaker<'a> {
    maker: &'a Maker<'a>,
    around: &'a Around<'a>,
    weights: Option<&'a Desc>,
}

impl<'a> WideMaker<'a> {
    fn new(maker: &'a Maker<'a>, around: &'a Around<'a>, weights: Option<&'a Desc>) -> Self {
        Self { maker, around, weights }
    }

    /// Input, weights and output in f32, in any layout.
    fn any(&self) -> Result<[Desc; 3], String> {
        let any = |shape: &[usize]| self.maker.context.any(shape, DataType::F32);
        let Around { x, y, conv, .. } = self.around;
        Ok([any(&x.layout()?.shape)?, any(&weight_shape(conv))?, any(&y.layout()?.shape)?])
    }

    /// How the step has an operand, and in which type.
    fn lies(&self, which: Which) -> Result<(Desc, DataType), String> {
        let compute = self.around.compute;
        let (lies, dtype) = match which {
            Which::Src | Which::DiffSrc => return Ok((self.around.x.duplicate()?, compute)),
            Which::Dst | Which::DiffDst => return Ok((self.around.y.duplicate()?, compute)),
            Which::DiffWeights => (self.weights, DataType::F32),
            _ => (self.weights, compute),
        };
        let desc = match lies {
            Some(lies) => lies.duplicate()?,
            None => {
                let plain = Layout::plain(&weight_shape(self.around.conv));
                self.maker.context.strided(&plain.shape, dtype, &plain.strides)?
            }
        };
        Ok((desc, dtype))
    }

    /// The primitive as a way to run the step, whose operands are `list`, and the bias where it says.
    fn candidate(
        &self,
        desc: Option<PrimitiveDesc>,
        list: [(i32, Which); 3],
        bias: Option<(usize, i32, Desc)>,
    ) -> Result<Option<Candidate>, String> {
        let Some(desc) = desc.filter(|desc| !is_fallback(&desc.implementation())) else { return Ok(None) };
        let (mut operands, mut of_step) = (Vec::new(), Vec::new());
        for (arg, which) in list {
            let (lies, dtype) = self.lies(which)?;
            let wide = desc.desc(which)?;
            let result = matches!(which, Which::Dst | Which::DiffSrc | Which::DiffWeights);
            let as_it_lies = dtype == DataType::F32 && lies.layout()?.same_bytes(&wide.layout()?);
            let moved = match (as_it_lies, result) {
                (true, _) => None,
                (false, false) => Some(transfer(self.maker, [&lies, &wide], [dtype, DataType::F32])?),
                (false, true) => Some(transfer(self.maker, [&wide, &lies], [DataType::F32, dtype])?),
            };
            operands.push(Operand { arg, wide, moved, result });
            of_step.push((arg, lies));
        }
        if let Some((at, arg, bias)) = bias {
            let result = arg == arg::DIFF_BIAS;
            operands.insert(at, Operand { arg, wide: bias.duplicate()?, moved: None, result });
            of_step.insert(at, (arg, bias));
        }
        let name = format!("{PREFIX}{}", desc.implementation());
        let wide = Wide { desc, operands, team: self.maker.cpu.team.clone() };
        Ok(Some(Candidate { name, run: Run::Own(Box::new(wide)), operands: of_step }))
    }
}

impl Own for Wide {
    /// The copies, and behind them what whoever runs at a time needs.
    fn scratch_bytes(&self) -> usize {
        let moved = self.operands.iter().filter_map(|operand| operand.moved.as_ref());
        let shared = moved.map(Candidate::scratch_bytes).max().unwrap_or(0).max(self.desc.scratch_bytes());
        self.operands.iter().map(Operand::copy_bytes).sum::<usize>() + shared
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let list = self.operands.iter();
        let arguments: Vec<_> =
            list.map(|Operand { arg, wide, .. }| Argument { arg: *arg, desc: wide }).collect();
        let operands = self.operands.iter().map(|operand| {
            let moved = operand.moved.as_ref().map(|moved| moved.build(&self.team)).transpose()?;
            Ok(MovedOperand { copy_bytes: operand.copy_bytes(), moved, result: operand.result })
        });
        Ok(Box::new(WideKernel {
            kernel: Kernel::new(&self.desc, &arguments)?,
            operands: operands.collect::<Result<_, String>>()?,
            team: self.team.clone(),
        }))
    }
}

/// Operands of the primitive, and its scratch.
const MOST: usize = 5;

impl WideKernel {
    /// Brings operands to where the primitive has them, or its results back.
    fn move_operands(
        &mut self,
        results: bool,
        narrow: &mut [&mut [u8]; MOST],
        copies: &mut [&mut [u8]; MOST],
        scratch: &mut [u8],
        tile: Tile,
    ) -> Result<(), String> {
        for ((operand, narrow), copy) in self.operands.iter_mut().zip(narrow).zip(copies) {
            let Some(moved) = operand.moved.as_mut().filter(|_| operand.result == results) else { continue };
            let (narrow, copy) = (&mut **narrow, &mut **copy);
            let [from, to] = if results { [copy, narrow] } else { [narrow, copy] };
            let mut part = Operands::new(tile);
            part.set(0, from);
            part.set(1, to);
            part.set(2, scratch);
            moved.run(&mut part)?;
        }
        Ok(())
    }
}

impl StepKernel for WideKernel {
    fn run(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let count = self.operands.len();
        let tile = o.tile();
        let mut scratch = o.take(count);
        // What the step has, and the copies, empty where there is none.
        let mut narrow: [&mut [u8]; MOST] = Default::default();
        let mut copies: [&mut [u8]; MOST] = Default::default();
        for (position, operand) in self.operands.iter().enumerate() {
            narrow[position] = o.take(position);
            (copies[position], scratch) = scratch.split_at_mut(operand.copy_bytes);
        }
        self.move_operands(false, &mut narrow, &mut copies, scratch, tile)?;
        let mut slices: [&mut [u8]; MOST] = Default::default();
        let pairs = narrow.iter_mut().zip(&mut copies).zip(&self.operands);
        for (slice, ((narrow, copy), operand)) in slices.iter_mut().zip(pairs) {
            *slice = if operand.moved.is_some() { copy } else { narrow };
        }
        slices[count] = scratch;
        // The number of threads belongs to the calling thread: this may be another than the one that prepared.
        self.team.adopt();
        self.kernel.execute(|position| std::mem::take(&mut slices[position]))?;
        self.move_operands(true, &mut narrow, &mut copies, scratch, tile)
    }
}
