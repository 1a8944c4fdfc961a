//! Initial contents of operands: a function of the case's name and the operand's position.

use crate::{Case, Fill, Operand};
use stratus_engine::ops::{FULL_SHARE, ITERATION_SCALAR_FIELDS, MIXED_LABEL_LEN};
use stratus_random::{Purpose, Stream};

impl Case {
    /// The contents of the inputs and updates, in row-major order, before rounding to their types.
    #[must_use]
    pub fn generate_inputs(&self) -> Vec<Vec<f64>> {
        let operands = self.inputs.iter().chain(&self.updates).enumerate();
        operands.map(|(position, operand)| generate(&self.name, position, operand)).collect()
    }
}

fn generate(case: &str, position: usize, operand: &Operand) -> Vec<f64> {
    let mut stream = Stream::new(0, Purpose::Test, fnv(case), position as u32);
    let count = operand.shape.iter().product();
    let each = |number: &mut dyn FnMut(usize) -> f64| (0..count).map(number).collect::<Vec<f64>>();
    match operand.fill {
        Fill::Garbage => Vec::new(),
        Fill::Uniform { low, high } => each(&mut |_| f64::from(stream.uniform_between(low, high))),
        Fill::Integers { low, high } => {
            each(&mut |_| f64::from(low) + f64::from(stream.below(low.abs_diff(high) + 1)))
        }
        Fill::Labels { classes } => {
            each(&mut |_| if stream.below(4) == 0 { -1.0 } else { f64::from(stream.below(classes)) })
        }
        Fill::Mixed { classes } => each(&mut |position| match position % MIXED_LABEL_LEN {
            0 if stream.below(4) == 0 => -1.0,
            0 | 1 => f64::from(stream.below(classes)),
            _ if stream.below(4) == 0 => 0.0,
            _ => f64::from(stream.below(FULL_SHARE as u32 + 1)),
        }),
        Fill::Targets { low, high } => each(&mut |_| match stream.below(8) {
            0 | 1 => f64::NAN,
            2 => f64::from(low),
            3 | 4 => f64::from(high),
            _ => f64::from(stream.uniform_between(low, high)),
        }),
        Fill::Missing => each(&mut |_| f64::NAN),
        Fill::IterationScalars => ITERATION_SCALAR_FIELDS
            .iter()
            .map(|name| match *name {
                "learning_rate" => f64::from(stream.uniform_between(0.05, 0.1)),
                _ => f64::from(stream.next_u32()),
            })
            .collect(),
        Fill::Exact(values) => each(&mut |position| f64::from(values[position])),
        Fill::WithInfinity => each(&mut |position| match position + 1 == count {
            true => f64::INFINITY,
            false => f64::from(stream.uniform_between(-1.0, 1.0)),
        }),
        Fill::PoolIndices { pool, size, mask_relu } => each(&mut |output| {
            if mask_relu && stream.below(4) == 0 {
                return 255.0;
            }
            let [.., height, width] = operand.shape[..] else { return 0.0 };
            let at = [output / width % height, output % width];
            loop {
                let tap = [stream.below(pool.kernel[0] as u32), stream.below(pool.kernel[1] as u32)];
                let inside = (0..2).all(|axis| {
                    let position = at[axis] * pool.stride[axis] + tap[axis] as usize;
                    (pool.padding[axis]..pool.padding[axis] + size[axis]).contains(&position)
                });
                if inside {
                    return f64::from(tap[0]) * pool.kernel[1] as f64 + f64::from(tap[1]);
                }
            }
        }),
    }
}

/// The FNV-1a hash of a name.
fn fnv(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
