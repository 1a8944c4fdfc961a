//! Bilinear resizing against PyTorch values from `scripts/fixtures/resize.py`, and to the size of another
//! map.

use stratus_conformance::{Case, DTypeClass};
use stratus_engine::ops::{Interpolation, ResizeBackward, ResizeForward};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::lower::lower;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, Clock, Kernel, Precision, Session};
use stratus_graph::layer_file;

const FIXTURE: &str = include_str!("../fixtures/resize.json");

/// One case: shapes, and the results of PyTorch.
#[derive(serde::Deserialize)]
struct Resized {
    x: Vec<usize>,
    y: Vec<usize>,
    scale: Option<[f64; 2]>,
    align_corners: bool,
    output: Vec<f64>,
    gradient: Vec<f64>,
}

/// The values of the script's rule.
fn numbers(shape: &[usize]) -> Vec<f64> {
    let count = shape.iter().product::<usize>();
    (0..count).map(|i| f64::from(((i * 7919 % 2003) as f64 / 1001.5 - 1.0) as f32)).collect()
}

/// Runs a kernel on the rule's values.
fn run(kernel: impl Into<Kernel>, from: &[usize], to: &[usize]) -> Vec<f64> {
    let case = Case::new("resize".to_owned(), kernel).input("from", from, DTypeClass::Compute).output(
        "to",
        to,
        DTypeClass::Compute,
    );
    let program = case.program(Precision::F32).unwrap();
    let mut persistent = Persistent::default();
    let plan =
        Plan::prepare(&ReferenceBackend, &program, Choices::default(), false, &mut persistent).unwrap();
    let mut session = Session::new(vec![plan], persistent).unwrap();
    let [from_id, to_id] =
        ["from", "to"].map(|name| program.values.iter().position(|value| value.name == name).unwrap());
    session.write_value(0, from_id, &numbers(from)).unwrap();
    session.run(0, &mut [], &mut [], &mut Clock::disabled(1), 0).unwrap();
    session.read_value(0, to_id).unwrap()
}

/// Up to the rounding of f32: results, and positions among up to sixteen pixels, whose last bit is 2^-20.
#[test]
fn outputs_and_gradients_match_pytorch() {
    let cases: Vec<Resized> = serde_json::from_str(FIXTURE).unwrap();
    assert_eq!(cases.len(), 12);
    for Resized { x, y, scale, align_corners, output, gradient } in cases {
        let interpolation = Interpolation { align_corners, scale, nearest: false };
        let found = run(ResizeForward { interpolation }, &x, &y);
        let back = run(ResizeBackward { interpolation }, &y, &x);
        for (found, expected) in [(found, output), (back, gradient)] {
            assert_eq!(found.len(), expected.len());
            for (position, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() <= 2e-6 * expected.abs().max(1.0),
                    "{x:?} to {y:?} {interpolation:?}, element {position}: {found}, PyTorch has {expected}"
                );
            }
        }
    }
}

/// The map that gives the size is neither read nor differentiated.
#[test]
fn size_input_gets_no_gradient() {
    let text = "name = 'like'\ninput = [3, 9, 8]\n\
                [[layer]]\nname = 'deep'\nop = 'conv2d'\nout_channels = 4\nkernel = 3\nstride = 3\n\
                [[layer]]\nname = 'wide'\nop = 'conv2d'\nout_channels = 5\nkernel = 2\ninputs = 'input'\n\
                [[layer]]\nname = 'up'\nop = 'resize'\ninputs = ['deep', 'wide']\n\
                [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
                [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 3\n";
    let graph = layer_file::parse(text).unwrap();
    let program = differentiate(&lower(&graph, Mode::Train, Precision::F32, 2).unwrap()).unwrap();
    let resize = |step: &&stratus_engine::Step| matches!(step.kernel, Kernel::ResizeForward(_));
    let step = program.steps.iter().find(resize).unwrap();
    assert_eq!((step.inputs.len(), program.value(step.outputs[0]).shape.clone()), (1, vec![2, 4, 8, 7]));
    let has_gradient = |name: &str| {
        let id = program.values.iter().position(|value| value.name == name).unwrap();
        let gradient = |value: usize| program.primal_of(stratus_engine::ValueId(value));
        (0..program.values.len()).any(|value| gradient(value) == Some(stratus_engine::ValueId(id)))
    };
    assert!(has_gradient("deep.weight") && !has_gradient("wide.weight"), "{}", program.dump());
}

/// Copies of the nearest pixels are no operations.
#[test]
fn operations_are_those_of_the_graph() {
    for (attributes, flops) in [("scale = 2", 8 * 3 * 8 * 10), ("scale = 2\nnearest = true", 0)] {
        let text = format!(
            "name = 'up'\ninput = [3, 4, 5]\n[[layer]]\nname = 'up'\nop = 'resize'\n{attributes}\n\
             [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
             [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 3\n"
        );
        let graph = layer_file::parse(&text).unwrap();
        let program = lower(&graph, Mode::Train, Precision::F32, 2).unwrap();
        let is_resize = |step: &stratus_engine::Step| matches!(step.kernel, Kernel::ResizeForward(_));
        let position = program.steps.iter().position(is_resize).unwrap();
        assert_eq!(program.step_flops(position), 2 * flops, "{attributes}");
    }
}
