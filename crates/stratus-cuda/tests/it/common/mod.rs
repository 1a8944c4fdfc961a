//! Helpers shared by several tests.

use std::collections::BTreeSet;
use stratus_conformance::{Case, DTypeClass, Fill, Operand, same_bits};
use stratus_cuda::Cuda;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward, KernelSpec};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::{Choices, Kernel, Precision, Role};
use stratus_graph::ops::Conv2d;
use stratus_testing::sample::sample;

/// The tiles of the weight gradient kernels on tensor cores.
const TILES: [&str; 14] = [
    "tensor:128x256",
    "tensor:128x128",
    "tensor:64x256",
    "tensor:64x192",
    "tensor:64x192:cached",
    "tensor:128x64",
    "tensor:64x64",
    "tensor:32x64",
    "wgmma:128x256",
    "wgmma:256x128",
    "wgmma:128x192:cached",
    "wgmma:128x128",
    "wgmma:64x256",
    "wgmma:64x576:cached",
];

/// The tiles that support a case in bf16 or f16 on a GPU of a compute capability, as 90 for 9.0.
pub fn tiles_for(case: &Case, capability: u32) -> impl Iterator<Item = &'static str> {
    let dense = matches!(&case.kernel, Kernel::Conv2dBackwardWeights(k) if k.conv.groups == 1);
    let channels = |input: usize| case.inputs.get(input).map_or(1, |input| input.shape[1]);
    let hopper = dense && capability == 90 && [0, 1].iter().all(|&input| channels(input).is_multiple_of(8));
    let warps = dense && capability >= 80;
    TILES.into_iter().filter(move |tile| warps && (hopper || !tile.starts_with("wgmma")))
}

/// Every `step`-th case from `offset`, and the first case of each kernel; all cases in `make test-all`.
pub fn covering(cases: impl IntoIterator<Item = Case>, step: usize, offset: usize) -> Vec<Case> {
    let mut covered = BTreeSet::new();
    let cases: Vec<(bool, Case)> =
        cases.into_iter().map(|case| (covered.insert(case.kernel.name()), case)).collect();
    let mut taken: Vec<bool> = cases.iter().map(|(is_first, _)| *is_first).collect();
    sample(&mut taken, step, offset).for_each(|taken| *taken = true);
    cases.into_iter().zip(taken).filter(|(_, taken)| *taken).map(|((_, case), _)| case).collect()
}

/// Two emulations with this many multiprocessors, whose threads and blocks run in order and in reverse order.
pub fn emulated(multiprocessors: u32) -> [Cuda; 2] {
    [false, true].map(|reverse_order| Cuda::emulated_with(multiprocessors, reverse_order).unwrap())
}

/// The choice of a named implementation for a case's step, which must be the one that runs.
pub fn by_name(case: &Case, precision: Precision, name: &str, cuda: &Cuda) -> Choices {
    let program = case.program(precision).unwrap();
    let key = step_key(&program, &program.steps[0]);
    let choices = Choices { implementations: [(key, name.to_owned())].into(), ..Choices::default() };
    let prepared = Plan::prepare(cuda, &program, choices.clone(), false, &mut Persistent::default()).unwrap();
    let runs = prepared.plan.steps.iter().any(|step| step.implementation == name);
    assert!(runs, "`{}` does not run on {name}", case.name);
    choices
}

/// Runs a case by a named implementation and compares its results with the expected ones; twice, on two GPUs
/// or on emulations in order and in reverse order, with the same bits.
pub fn compare_by_name(
    case: &Case,
    precision: Precision,
    name: &str,
    expected: &[Vec<f64>],
    orders: &[Cuda; 2],
) -> Result<(), String> {
    let choices = by_name(case, precision, name, &orders[0]);
    let [got, again] = orders.each_ref().map(|cuda| case.run(cuda, precision, choices.clone()));
    let got = got.map_err(|error| error.to_string())?;
    case.compare(precision, expected, &got)?;
    same_bits(&got, &again.map_err(|error| format!("in reverse order: {error}"))?)
}

/// A kernel's case, with inputs and outputs.
fn case(kernel: impl Into<Kernel>, name: &str, inputs: [Operand; 2], output: Operand) -> Case {
    Case {
        name: name.to_owned(),
        kernel: kernel.into(),
        inputs: inputs.into(),
        updates: Vec::new(),
        outputs: vec![Operand { fill: Fill::Garbage, role: Role::Buffer, ..output }],
        precisions: vec![Precision::F32, Precision::Bf16, Precision::F16],
        has_gradients: true,
    }
}

/// The three passes of a convolution.
pub fn kernels(conv: Conv2d, batch: usize, size: [usize; 2]) -> [Case; 3] {
    let [height, width] = conv.output_size(size).unwrap();
    let operand = |name, shape: &[usize], class, role| {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        Operand { name, shape: shape.to_vec(), dtype_class: class, role, fill }
    };
    let map = |name, channels, [height, width]: [usize; 2]| {
        operand(name, &[batch, channels, height, width], DTypeClass::Compute, Role::Buffer)
    };
    let weight = |class, role| operand("weight", &conv.weight_shape(), class, role);
    let x = || map("x", conv.in_channels, size);
    let y = || map("y", conv.out_channels, [height, width]);
    let read = || weight(DTypeClass::Compute, Role::Parameter);
    let name = format!("{batch}x{size:?} {conv:?}");
    [
        case(Conv2dForward { conv, relu: false }, &format!("forward {name}"), [x(), read()], y()),
        case(Conv2dBackwardData { conv }, &format!("backward_data {name}"), [y(), read()], x()),
        case(
            Conv2dBackwardWeights { conv },
            &format!("backward_weights {name}"),
            [x(), y()],
            weight(DTypeClass::Master, Role::Buffer),
        ),
    ]
}
