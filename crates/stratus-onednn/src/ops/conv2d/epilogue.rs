//! The epilogue of a convolution in inference: the sum with a map, and an activation. oneDNN computes sums
//! and most activations while a result is in registers, depthwise kernels an activation while a row is in L1.
//! Otherwise it is a pass over the output in place. oneDNN's kernels are tried with both: its exponential
//! functions can take longer than such a pass.

use super::context::ConvContext;
use crate::ffi::{DataType, Desc, PostOp, arg};
use crate::native::elementwise::CpuContext;
use crate::native::rows::MapGeometry;
use crate::native::simd::Element;
use crate::ops::candidates::NativeKernel;
use crate::ops::{Candidate, Implementation, KernelBuilder, SEPARATE, typed};
use stratus_engine::ops::FusedActivation;
use stratus_engine::{Operands, StepKernel};
use stratus_graph::ops::Activation;

/// `y = f(z + addend)`, where `z` is the convolution with its bias.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a> {
    /// The map that is added, if any.
    pub addend: Option<&'a Desc>,
    /// The activation.
    pub activation: FusedActivation,
}

impl<'a> Epilogue<'a> {
    /// `Some(true)` for ReLU alone, `Some(false)` for nothing: all kernels compute these. `None` for more.
    pub(super) fn as_plain_relu(&self) -> Option<bool> {
        self.activation.as_plain_relu().filter(|_| self.addend.is_none())
    }

    /// The position of the sum among oneDNN's post-ops.
    pub(super) const SUM: usize = 0;

    /// The epilogue as post-ops of oneDNN; `None` if oneDNN's activation does not propagate NaN.
    pub(super) fn post_ops(&self) -> Option<Vec<PostOp<'a>>> {
        let activation = match self.activation {
            FusedActivation::Identity => None,
            FusedActivation::Relu { ceiling: None } => Some(PostOp::Relu),
            // These multiply their argument, and so keep NaN. The others clamp it, as does a slope of 0.
            FusedActivation::Activation(Activation::LeakyRelu(leaky)) if leaky.alpha != 0.0 => {
                Some(PostOp::LeakyRelu(leaky.alpha))
            }
            FusedActivation::Activation(Activation::Gelu(_)) => Some(PostOp::Gelu),
            FusedActivation::Activation(Activation::HardSwish(_)) => Some(PostOp::HardSwish),
            FusedActivation::Activation(Activation::Mish(_)) => Some(PostOp::Mish),
            FusedActivation::Activation(Activation::Silu(_)) => Some(PostOp::Silu),
            FusedActivation::Relu { ceiling: Some(_) } | FusedActivation::Activation(_) => return None,
        };
        Some(self.addend.map(PostOp::Add).into_iter().chain(activation).collect())
    }

    /// The candidate with the addend as an operand before the output.
    pub(super) fn with_addend(&self, mut candidate: Candidate) -> Result<Candidate, String> {
        if let Some(addend) = self.addend {
            let output = candidate.operands.len() - 1;
            let argument = arg::post_op_operand(Self::SUM);
            candidate.operands.insert(output, (argument, addend.duplicate()?));
        }
        Ok(candidate)
    }

    /// A candidate for the convolution alone, followed by a pass over its output.
    pub(super) fn append_to(
        &self,
        builder: &KernelBuilder<'_>,
        context: &ConvContext<'_>,
        conv: Candidate,
    ) -> Result<Candidate, String> {
        let layout = context.y.layout()?;
        if let Some(addend) = self.addend
            && !addend.layout()?.same_bytes(&layout)
        {
            return Err("the summands have different layouts".to_owned());
        }
        // The output's padding must be zero.
        let has_padding = layout.elements() > layout.shape.iter().product();
        let clears = has_padding && self.activation.value(0.0) != 0.0;
        let geometry = MapGeometry::from_layout(&layout.shape, &layout).filter(|_| clears);
        if clears && geometry.is_none() {
            return Err(format!("the padding of layout {} cannot be cleared", layout.tag));
        }
        let operands = conv.operands.iter().map(|(arg, desc)| Ok((*arg, desc.duplicate()?)));
        let operands = operands.collect::<Result<_, String>>()?;
        let prefix = if conv.is_native() { "" } else { SEPARATE };
        let name = format!("{prefix}{}", conv.name);
        let (dtype, cpu) = (context.compute, builder.cpu.clone());
        let described = ConvWithEpilogue {
            conv,
            epilogue: InPlaceEpilogue {
                adds: self.addend.is_some(),
                activation: self.activation,
                padded: geometry,
                dtype,
                cpu,
            },
        };
        let implementation = Implementation::Native(Box::new(described));
        self.with_addend(Candidate { name, implementation, operands })
    }
}

/// The pass over the output.
#[derive(Clone)]
struct InPlaceEpilogue {
    adds: bool,
    activation: FusedActivation,
    /// The output's geometry, if its padding has to be cleared.
    padded: Option<MapGeometry>,
    dtype: DataType,
    cpu: CpuContext,
}

impl InPlaceEpilogue {
    fn run<E: Element>(&self, addend: &mut [u8], y: &mut [u8]) {
        let y: &mut [E] = bytemuck::cast_slice_mut(y);
        let addend: &[E] = if self.adds { bytemuck::cast_slice(addend) } else { &[] };
        self.cpu.add_and_activate_in_place(self.activation, addend, y);
        if let Some(geometry) = &self.padded {
            geometry.clear_padding(y);
        }
    }
}

/// The description of a convolution and of the pass over its output.
struct ConvWithEpilogue {
    conv: Candidate,
    epilogue: InPlaceEpilogue,
}

/// The kernel built from a [`ConvWithEpilogue`].
struct ConvWithEpilogueKernel {
    conv: Box<dyn StepKernel>,
    /// The number of the convolution's inputs.
    inputs: usize,
    epilogue: InPlaceEpilogue,
}

impl NativeKernel for ConvWithEpilogue {
    fn scratch_bytes(&self) -> usize {
        self.conv.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        let conv = self.conv.build(&self.epilogue.cpu.team)?;
        let inputs = self.conv.operands.len() - 1;
        Ok(Box::new(ConvWithEpilogueKernel { conv, inputs, epilogue: self.epilogue.clone() }))
    }
}

impl StepKernel for ConvWithEpilogueKernel {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let Self { conv, inputs, epilogue } = self;
        let output = *inputs + usize::from(epilogue.adds);
        let addend = if epilogue.adds { operands.take(*inputs) } else { &mut [] };
        let y = operands.take(output);
        let mut of_conv = Operands::new(operands.tile());
        for position in 0..*inputs {
            of_conv.set(position, operands.take(position));
        }
        of_conv.set(*inputs, &mut *y);
        of_conv.set(*inputs + 1, operands.take(output + 1));
        conv.run(&mut of_conv)?;
        typed!(epilogue.dtype.into(), E => epilogue.run::<E>(addend, y));
        Ok(())
    }
}
