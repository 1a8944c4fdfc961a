//! Changes of layout and type, by oneDNN or a native kernel.

use crate::ffi::{DataType, Desc, arg};
use crate::native::lanes::LaneElement;
use crate::native::relayout::Relayout;
use crate::native::simd::Bf16;
use crate::ops::candidates::{NATIVE_PREFIX, NativeKernel};
use crate::ops::{Candidate, Implementation, KernelBuilder, is_fallback};
use stratus_engine::{Operands, StepKernel};

#[derive(Clone)]
struct LayoutConversion {
    relayout: Relayout,
    dtypes: [DataType; 2],
}

/// A candidate that copies values between layouts, types or both. The bits do not depend on the kernel.
///
/// Transpositions that fit registers are native: oneDNN reorders the weights of large fully connected layers
/// at 11 to 25 GB/s, and the native kernel takes a sixth to three quarters of its time
/// (docs/benchmarks/kernels.md).
pub(crate) fn conversion_candidate(
    builder: &KernelBuilder<'_>,
    [from, to]: [&Desc; 2],
    dtypes: [DataType; 2],
) -> Result<Candidate, String> {
    let operands = vec![(arg::SRC, from.duplicate()?), (arg::DST, to.duplicate()?)];
    let reorder = builder.onednn.reorder(from, to, &builder.plain);
    let slow = reorder.as_ref().map_or(true, |desc| is_slow(&desc.implementation()));
    let are_real = dtypes.iter().all(|dtype| matches!(dtype, DataType::F32 | DataType::Bf16));
    if are_real
        && let Some(relayout) = Relayout::new(&from.layout()?, &to.layout()?, builder.cpu)
        && (slow || relayout.transposes())
    {
        let name = format!("{NATIVE_PREFIX}{}", builder.cpu.level.name());
        let implementation = Implementation::Native(Box::new(LayoutConversion { relayout, dtypes }));
        return Ok(Candidate { name, implementation, operands });
    }
    let desc = reorder?;
    let (name, implementation) = (desc.implementation(), Implementation::Primitive(desc));
    Ok(Candidate { name, implementation, operands })
}

/// Returns whether oneDNN would compute the address of every element separately: 44 ms for the 663,552
/// weights of AlexNet's features.6, where the native kernel takes 0.3 ms (docs/benchmarks/kernels.md).
fn is_slow(implementation: &str) -> bool {
    implementation == "simple:any" || is_fallback(implementation)
}

impl NativeKernel for LayoutConversion {
    fn scratch_bytes(&self) -> usize {
        0
    }

    fn kernel(&self) -> Result<Box<dyn StepKernel>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl LayoutConversion {
    fn run_as<X: LaneElement, Y: LaneElement>(&self, o: &mut Operands<'_>) {
        self.relayout.run::<X, Y>(o.elements(0), o.elements(1));
    }
}

impl StepKernel for LayoutConversion {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        match self.dtypes {
            [DataType::F32, DataType::F32] => self.run_as::<f32, f32>(operands),
            [DataType::F32, DataType::Bf16] => self.run_as::<f32, Bf16>(operands),
            [DataType::Bf16, DataType::F32] => self.run_as::<Bf16, f32>(operands),
            [DataType::Bf16, DataType::Bf16] => self.run_as::<Bf16, Bf16>(operands),
            dtypes => return Err(format!("no kernel that converts {dtypes:?}")),
        }
        Ok(())
    }
}
