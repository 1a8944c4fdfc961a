//! Runs a case with every operand, including scratch, between two canaries.

use super::choices;
use stratus_conformance::Case;
use stratus_engine::backend::{PrepareRequest, Tile};
use stratus_engine::program::MAX_OPERANDS;
use stratus_engine::{AlignedBytes, Backend, Operands, Precision};

/// Canary bytes on each side of an operand, more than the overrun of a kernel that miscounts channels.
const MARGIN: usize = 16 << 10;
const CANARY: u8 = 0xa5;
/// Fill byte for uninitialised memory: NaN in every float type.
const GARBAGE: u8 = 0xff;

/// Bytes with a canary directly before and after.
struct Guarded {
    memory: AlignedBytes,
    length: usize,
}

impl Guarded {
    fn new(length: usize) -> Self {
        let mut memory = AlignedBytes::zeroed(length + 2 * MARGIN, "a guarded operand").unwrap();
        memory.as_mut_slice().fill(CANARY);
        memory.as_mut_slice()[MARGIN..MARGIN + length].fill(GARBAGE);
        Self { memory, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut_slice()[MARGIN..MARGIN + self.length]
    }

    fn is_intact(&self) -> bool {
        let (before, rest) = self.memory.as_slice().split_at(MARGIN);
        before.iter().chain(&rest[self.length..]).all(|&byte| byte == CANARY)
    }
}

/// Runs a case on these inputs and updates; returns the bytes of its results in their layouts, and their
/// values in row-major order.
///
/// # Errors
/// The backend's error message, or the damaged canary.
#[allow(clippy::type_complexity, reason = "bytes and numbers of the results, in one test helper")]
pub fn run(
    backend: &dyn Backend,
    case: &Case,
    precision: Precision,
    layout: &str,
    contents: &[Vec<f64>],
) -> Result<(Vec<Vec<u8>>, Vec<Vec<f64>>), String> {
    let program = case.program(precision).unwrap();
    let request = PrepareRequest { choices: choices(case, layout), ..PrepareRequest::default() };
    let mut prepared = backend.prepare(&program, &request).map_err(|error| error.to_string())?;
    let values = &prepared.program.values;
    let mut memory: Vec<Guarded> =
        values.iter().zip(&prepared.layouts).map(|(v, l)| Guarded::new(l.bytes(v.dtype))).collect();
    let find = |name: &str| values.iter().position(|value| value.name == name).unwrap();
    for (operand, contents) in case.inputs.iter().chain(&case.updates).zip(contents) {
        let id = find(operand.name);
        let (dtype, bytes) = (values[id].dtype, memory[id].bytes());
        bytes.fill(0);
        prepared.layouts[id].for_each(&operand.shape, |to, from| dtype.store(bytes, to, contents[from]));
    }
    for (step, kernel) in prepared.program.steps.iter().zip(&mut prepared.steps) {
        let ids: Vec<usize> = step.operands().map(|id| id.0).collect();
        let mut scratch = Guarded::new(kernel.scratch_bytes);
        let mut operands = Operands::new(Tile::WHOLE);
        assert!(ids.len() < MAX_OPERANDS);
        for (id, guarded) in memory.iter_mut().enumerate() {
            if let Some(position) = ids.iter().position(|&operand| operand == id) {
                operands.set(position, guarded.bytes());
            }
        }
        if kernel.scratch_bytes > 0 {
            operands.set(ids.len(), scratch.bytes());
        }
        kernel.kernel.run(&mut operands)?;
        if let Some(&damaged) = ids.iter().find(|&&id| !memory[id].is_intact()) {
            return Err(format!("{} wrote outside of `{}`", kernel.implementation, values[damaged].name));
        }
        if !scratch.is_intact() {
            return Err(format!("{} wrote outside of its scratch", kernel.implementation));
        }
    }
    let mut results = (Vec::new(), Vec::new());
    for operand in case.results() {
        let id = find(operand.name);
        let (dtype, bytes) = (values[id].dtype, memory[id].bytes());
        let mut plain = vec![0.0; operand.shape.iter().product()];
        prepared.layouts[id].for_each(&operand.shape, |from, to| plain[to] = dtype.load(bytes, from));
        results.0.push(bytes.to_vec());
        results.1.push(plain);
    }
    Ok(results)
}
