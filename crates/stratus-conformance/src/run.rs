//! Runs a case on a backend.

use crate::Case;
use crate::case::GUARD;
use stratus_engine::ops::KernelSpec;
use stratus_engine::plan::{Location, Persistent, Placement, Plan};
use stratus_engine::{Backend, Choices, Clock, EngineError, Precision, Session};

/// Fill byte for uninitialised memory: NaN in every float type.
const GARBAGE: u8 = 0xff;

/// The results of a case, each in row-major order: updates, then outputs.
pub type Results = Vec<Vec<f64>>;

impl Case {
    /// A session of the case, with its inputs written and everything else filled with garbage.
    pub(crate) fn load(
        &self,
        backend: &dyn Backend,
        precision: Precision,
        choices: Choices,
        measure: bool,
    ) -> Result<Session, EngineError> {
        let mut persistent = Persistent::default();
        let program = self.program(precision)?;
        let prepared = Plan::prepare(backend, &program, choices, measure, &mut persistent)?;
        let mut session = Session::on_backend(backend, vec![prepared], persistent)?;
        session.fill_arena(GARBAGE)?;
        for (operand, contents) in self.inputs.iter().chain(&self.updates).zip(self.generate_inputs()) {
            let value = position(&session, operand.name)?;
            session.write_value(0, value, &contents)?;
        }
        Ok(session)
    }

    /// Runs the case on a backend.
    ///
    /// # Errors
    /// If the backend cannot prepare or run it, or if the kernel modified an input or memory outside of its
    /// operands, or left a nonzero value in the padding of a result.
    pub fn run(
        &self,
        backend: &dyn Backend,
        precision: Precision,
        choices: Choices,
    ) -> Result<Results, EngineError> {
        let mut session = self.load(backend, precision, choices, false)?;
        let untouched: Vec<(String, usize, Vec<u8>)> = session
            .plan(0)
            .program
            .values
            .iter()
            .enumerate()
            .filter(|(_, value)| {
                value.name.starts_with(GUARD) || self.inputs.iter().any(|input| input.name == value.name)
            })
            .map(|(id, value)| Ok((value.name.clone(), id, session.raw_bytes(0, id)?.to_vec())))
            .collect::<Result<_, EngineError>>()?;
        let mut clock = Clock::disabled(session.slots(0));
        session.run(0, &mut [], &mut [], &mut clock, 0)?;
        let broken = |problem: String| EngineError::KernelFailed {
            kernel: self.kernel.name().to_owned(),
            layer: self.name.clone(),
            reason: problem,
        };
        for (name, id, before) in untouched {
            if *session.raw_bytes(0, id)? != before {
                return Err(broken(format!("modified the input `{name}`")));
            }
        }
        let mut results = Vec::new();
        for operand in self.results() {
            let id = position(&session, operand.name)?;
            let dtype = operand.dtype_class.dtype(precision);
            let bytes = session.raw_bytes(0, id)?;
            if let Some(element) = padding(&session.plan(0).placements[id], &operand.shape)
                .into_iter()
                .find(|&element| dtype.load(&bytes, element) != 0.0)
            {
                let value = dtype.load(&bytes, element);
                return Err(broken(format!("left {value} in the padding of `{}`", operand.name)));
            }
            results.push(session.read_value(0, id)?);
        }
        Ok(results)
    }
}

/// The padding elements of a value.
fn padding(placement: &Placement, shape: &[usize]) -> Vec<usize> {
    let mut free = vec![!matches!(placement.location, Location::External(_)); placement.layout.elements()];
    placement.layout.for_each(shape, |element, _| free[element] = false);
    (0..free.len()).filter(|&element| free[element]).collect()
}

fn position(session: &Session, name: &str) -> Result<usize, EngineError> {
    let values = &session.plan(0).program.values;
    values
        .iter()
        .position(|value| value.name == name)
        .ok_or_else(|| EngineError::Placement(format!("the backend dropped the value `{name}`")))
}
