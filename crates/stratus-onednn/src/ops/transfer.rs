//! Changes of layout and type, on oneDNN or on our own kernel.

use super::{Candidate, Maker, OWN, Own, Run, is_fallback};
use crate::ffi::{DataType, Desc, arg};
use crate::native::lanes::LaneElement;
use crate::native::relayout::Relayout;
use crate::native::simd::Bf16;
use stratus_engine::{Operands, StepKernel};

#[derive(Clone)]
struct Moved {
    relayout: Relayout,
    dtypes: [DataType; 2],
}

/// The same numbers in another layout, another type, or both. The bits are the same whoever moves them.
///
/// What can be transposed in registers is ours: the library moves the weights of large fully connected layers at 11 to 25 GB/s, where our own kernel takes
/// from a sixth to three quarters of the time (docs/benchmarks/kernels.md).
pub(crate) fn transfer(
    maker: &Maker<'_>,
    [from, to]: [&Desc; 2],
    dtypes: [DataType; 2],
) -> Result<Candidate, String> {
    let operands = vec![(arg::SRC, from.duplicate()?), (arg::DST, to.duplicate()?)];
    let library = maker.context.reorder(from, to, &maker.plain);
    let slow = library.as_ref().map_or(true, |desc| is_slow(&desc.implementation()));
    if let Some(relayout) = Relayout::new(&from.layout()?, &to.layout()?, maker.cpu)
        && (slow || relayout.transposes())
    {
        let name = format!("{OWN}{}", maker.cpu.level.name());
        return Ok(Candidate { name, operands, run: Run::Own(Box::new(Moved { relayout, dtypes })) });
    }
    let desc = library?;
    Ok(Candidate { name: desc.implementation(), operands, run: Run::Primitive(desc) })
}

/// Whether the library would compute the place of every element by itself: 44 ms for the 663,552 weights of AlexNet's features.6, where our own
/// kernel takes 0.3 (docs/benchmarks/kernels.md).
fn is_slow(implementation: &str) -> bool {
    implementation == "simple:any" || is_fallback(implementation)
}

impl Own for Moved {
    fn scratch_bytes(&self) -> usize {
        0
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Moved {
    fn run_as<X: LaneElement, Y: LaneElement>(&self, o: &mut Operands<'_>) {
        self.relayout.run::<X, Y>(o.elements(0), o.elements(1));
    }
}

impl StepKernel for Moved {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtypes {
            [DataType::F32, DataType::F32] => self.run_as::<f32, f32>(operands),
            [DataType::F32, DataType::Bf16] => self.run_as::<f32, Bf16>(operands),
            [DataType::Bf16, DataType::F32] => self.run_as::<Bf16, f32>(operands),
            [DataType::Bf16, DataType::Bf16] => self.run_as::<Bf16, Bf16>(operands),
        }
        Ok(())
    }
}
