//! The suite detects faults: a backend that is wrong in one way at a time.

use stratus_conformance::{Case, Fill, cases};
use stratus_engine::backend::{PrepareRequest, PreparedProgram};
use stratus_engine::program::MAX_OPERANDS;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{
    Backend, Choices, DType, EngineError, Layout, Operands, Precision, Program, StepKernel,
};

/// The fault of a backend.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// None, but the output has a layout with blocks of 16 channels, padded with zeros.
    None,
    /// The last element of the output is not written.
    Unwritten,
    /// The last element of the output is a hundredth off.
    Inexact,
    /// The first input is modified.
    Input,
    /// The padding of the output is not written.
    Padding,
}

/// ReLU in single precision on one sample of one pixel, with one fault.
struct Faulty(Fault);

struct FaultyRelu(Fault);

const CHANNELS: usize = 10;

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn describe(&self) -> String {
        "deliberately wrong".to_owned()
    }

    fn revision(&self) -> &'static str {
        "1"
    }

    fn threads(&self) -> usize {
        1
    }

    fn precisions(&self) -> Vec<Precision> {
        ReferenceBackend.precisions()
    }

    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError> {
        let mut prepared = ReferenceBackend.prepare(program, request)?;
        prepared.steps[0].kernel = Box::new(FaultyRelu(self.0));
        let y = program.steps[0].outputs[0].0;
        let mut layout = Layout::plain(&program.values[y].shape);
        layout.tag = "aB16b".to_owned();
        layout.padded[1] = 16;
        layout.strides = vec![16, 16];
        layout.blocks = vec![(1, 16)];
        prepared.layouts[y] = layout;
        Ok(prepared)
    }
}

impl StepKernel for FaultyRelu {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (x, y) = (operands.elements::<f32>(0), operands.elements::<f32>(1));
        assert_eq!((x.len(), y.len()), (CHANNELS, 16));
        for (position, y) in y.iter_mut().enumerate() {
            let last = position + 1 == CHANNELS;
            match self.0 {
                Fault::Unwritten if last => {}
                Fault::Padding if position >= CHANNELS => {}
                Fault::Inexact if last => *y = x[position].max(0.0) + 0.01,
                _ => *y = x.get(position).map_or(0.0, |x| x.max(0.0)),
            }
        }
        if matches!(self.0, Fault::Input) {
            x[0] += 1.0;
        }
        Ok(())
    }
}

/// The case of ReLU on `[1, CHANNELS]`.
fn case() -> Case {
    let mut case =
        cases::for_precision(Precision::F32).into_iter().find(|case| case.name.starts_with("relu ")).unwrap();
    case.name = "relu 1x10".to_owned();
    case.inputs[0].shape = vec![1, CHANNELS];
    case.outputs[0].shape = vec![1, CHANNELS];
    case
}

fn verdict(fault: Fault) -> Result<(), String> {
    let run = |backend: &dyn Backend| case().run(backend, Precision::F32, Choices::default());
    let got = run(&Faulty(fault)).map_err(|error| error.to_string())?;
    case().compare(Precision::F32, &run(&ReferenceBackend).unwrap(), &got)
}

#[test]
fn every_fault_is_detected() {
    assert_eq!(verdict(Fault::None), Ok(()));
    let message = |fault| verdict(fault).unwrap_err();
    insta::assert_snapshot!(
        message(Fault::Input),
        @"relu_forward of layer `relu 1x10` failed: modified the input `x`"
    );
    insta::assert_snapshot!(
        message(Fault::Padding),
        @"relu_forward of layer `relu 1x10` failed: left NaN in the padding of `y`"
    );
    assert!(message(Fault::Unwritten).starts_with("case `relu 1x10` f32, `y`: element 9 is NaN"));
    assert!(
        message(Fault::Inexact).starts_with("case `relu 1x10` f32, `y`: the difference has norm 1.000e-2")
    );
}

#[test]
fn every_case_verifies_and_its_inputs_are_representable() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16, Precision::F64] {
        for case in cases::for_precision(precision).iter().chain(&cases::benchmarks(precision)) {
            let program = case.program(precision).unwrap();
            assert!(program.steps[0].operands().count() < MAX_OPERANDS);
        }
    }
    for case in cases::all() {
        for (operand, contents) in case.inputs.iter().chain(&case.updates).zip(case.generate_inputs()) {
            assert_eq!(contents.len(), operand.shape.iter().product::<usize>(), "{}", case.name);
            for value in contents {
                let whole = matches!(operand.dtype_class.dtype(Precision::F64), DType::U8 | DType::I32);
                let any_value =
                    matches!(operand.fill, Fill::WithInfinity | Fill::Targets { .. } | Fill::Missing);
                assert!(
                    (any_value || value.is_finite()) && (!whole || value.fract() == 0.0),
                    "{}: {value}",
                    case.name
                );
            }
        }
    }
    assert!(case().program(Precision::F64).is_ok());
    let error = case().clone();
    let error = Case { precisions: vec![], ..error }.program(Precision::F32).unwrap_err();
    insta::assert_snapshot!(error, @"case `relu 1x10` does not support f32");
}
