//! The gradient of a convolution's weights on our own kernel for AMX, as a further way to run a step that oneDNN also runs.

use super::conv2d::Around;
use super::{Candidate, Maker, Own, Run};
use crate::ffi::{DataType, Desc, arg};
use crate::native::amx::Amx;
use crate::native::weight_gradient::WeightGradient;
use stratus_engine::{Layout, Operands, StepKernel};

#[derive(Clone)]
struct OnTiles {
    gradient: WeightGradient,
    bias: bool,
}

/// A way to make the gradients of weight and bias, where there is one; `weights` is how the gradient is wanted, where that is decided.
pub(crate) fn candidate(
    maker: &Maker<'_>,
    around: &Around<'_>,
    weights: Option<&Desc>,
) -> Result<Option<Candidate>, String> {
    let Some(amx) = Amx::of(maker.context).filter(|_| around.compute == DataType::Bf16) else {
        return Ok(None);
    };
    let (x, y) = (around.x.layout()?, around.y.layout()?);
    let channels_last = [&x, &y].iter().all(|map| map.same_bytes(&Layout::channels_last(&map.shape)));
    let &[batch, _, height, width] = &x.shape[..] else { return Ok(None) };
    let conv = around.conv;
    // It makes the gradient as it is wanted.
    let plain = Layout::plain(&conv.weight_shape());
    let takes = weights.map(Desc::layout).transpose()?.unwrap_or_else(|| plain.clone());
    let gradient = WeightGradient::new(conv, batch, [height, width], &takes, amx, maker.machine);
    let Some(gradient) = gradient.filter(|_| channels_last) else { return Ok(None) };
    let dw = match weights {
        Some(weights) => weights.duplicate()?,
        None => maker.context.strided(&plain.shape, DataType::F32, &plain.strides)?,
    };
    let mut operands = vec![
        (arg::SRC, around.x.duplicate()?),
        (arg::DIFF_DST, around.y.duplicate()?),
        (arg::DIFF_WEIGHTS, dw),
    ];
    if conv.bias {
        operands.push((arg::DIFF_BIAS, maker.context.strided(&[conv.out_channels], DataType::F32, &[1])?));
    }
    let run = Run::Own(Box::new(OnTiles { gradient, bias: conv.bias }));
    Ok(Some(Candidate { name: "stratus:amx".to_owned(), run, operands }))
}

impl Own for OnTiles {
    fn scratch_bytes(&self) -> usize {
        self.gradient.scratch_bytes()
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl StepKernel for OnTiles {
    fn run(&mut self, o: &mut Operands<'_>) -> Result<(), String> {
        let db = if self.bias { o.elements(3) } else { &mut [] };
        let (x, dy) = (o.elements(0), o.elements(1));
        self.gradient.run(x, dy, o.elements(2), db, o.elements(if self.bias { 4 } else { 3 }));
        Ok(())
    }
}
