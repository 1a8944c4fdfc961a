//! NVRTC compiles every kernel of the case tables, for the GPUs that are supported. They need NVRTC, but no
//! GPU.

use crate::common::{covering, tiles_for};
use std::path::PathBuf;
use stratus_conformance::{Case, cases};
use stratus_cuda::Cuda;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{KernelSpec, SgdUpdate};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::update::{Optimiser, update};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::program::Mode;
use stratus_engine::{Backend, Choices, Precision};
use stratus_graph::zoo;

/// The folder of the machine code: `STRATUS_KERNELS_OUT`, which may then be `STRATUS_CACHE/kernels` on a
/// machine with a GPU.
fn out() -> PathBuf {
    let named = std::env::var_os("STRATUS_KERNELS_OUT").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
}

// Separate tests, which run in parallel: one per precision, and one for convolutions in f32, which take as
// long as all others. `make test` compiles a third of the cases in each precision, another third in each.
#[test]
fn convolutions_in_f32_are_compiled_for_hopper() {
    compile(90, 132, Precision::F32, [3, 0], is_convolution);
}

#[test]
fn other_cases_in_f32_are_compiled_for_hopper() {
    compile(90, 132, Precision::F32, [3, 0], |case| !is_convolution(case));
}

#[test]
fn cases_in_bf16_are_compiled_for_hopper() {
    compile(90, 132, Precision::Bf16, [3, 1], |_| true);
}

#[test]
fn cases_in_f16_are_compiled_for_hopper() {
    compile(90, 132, Precision::F16, [3, 2], |_| true);
}

#[test]
#[ignore = "it takes minutes: `make test-all` runs it"]
fn every_case_is_compiled_for_ampere() {
    PRECISIONS.into_iter().for_each(|precision| compile(80, 108, precision, [1, 0], |_| true));
}

/// The oldest GPU that NVRTC compiles for. Its convolutions are cuDNN's, depthwise or plain.
#[test]
#[ignore = "it takes minutes: `make test-all` runs it"]
fn every_case_is_compiled_for_turing() {
    PRECISIONS.into_iter().for_each(|precision| compile(75, 40, precision, [1, 0], |_| true));
}

#[test]
#[ignore = "it takes minutes: `make test-all` runs it"]
fn every_case_is_compiled_for_blackwell() {
    PRECISIONS.into_iter().for_each(|precision| compile(120, 170, precision, [1, 0], |_| true));
}

/// Convolutions for which Ampere and Hopper have special kernels.
#[test]
fn convolutions_are_compiled_for_turing() {
    let gradients = |case: &Case| case.kernel.name().starts_with("conv2d_backward_weights");
    for (offset, precision) in PRECISIONS.into_iter().enumerate() {
        compile(75, 40, precision, [3, offset], gradients);
    }
}

fn is_convolution(case: &Case) -> bool {
    case.kernel.name().starts_with("conv2d")
}

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

/// Compiles the wanted cases, of which [`covering`] takes every `step`-th.
fn compile(
    capability: u32,
    multiprocessors: u32,
    precision: Precision,
    [step, offset]: [usize; 2],
    wanted: impl Fn(&Case) -> bool,
) {
    let backend = match Cuda::compile_only(capability, multiprocessors, out()) {
        Ok(backend) => backend,
        Err(reason) if cfg!(all(target_os = "linux", target_arch = "x86_64")) => {
            panic!("run `make deps` first, which installs NVRTC under .deps: {reason}")
        }
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    // Kernels that depend only on sizes are the same in f16 and bf16.
    let sizes = if precision == Precision::F16 { Vec::new() } else { cases::benchmarks(precision) };
    let cases = cases::for_precision(precision).into_iter().chain(sizes).filter(wanted);
    for case in covering(cases, step, offset) {
        let program = case.program(precision).unwrap();
        let prepare = |choices| Plan::prepare(&backend, &program, choices, false, &mut Persistent::default());
        if let Err(error) = prepare(Choices::default()) {
            panic!("{precision} `{}` for {capability}: {error}", case.name);
        }
        for tile in tiles_for(&case, capability).filter(|_| precision != Precision::F32) {
            let key = step_key(&program, &program.steps[0]);
            let implementations = [(key, format!("stratus:{tile}"))].into();
            if let Err(error) = prepare(Choices { implementations, ..Choices::default() }) {
                panic!("{precision} `{}` by {tile} for {capability}: {error}", case.name);
            }
        }
    }
}

/// Compiles the kernels that train whole networks: `STRATUS_KERNELS_FOR='resnet50:256 vgg11:128:f16'` is a
/// list of network, batch size and, unless that is bf16, precision.
#[test]
fn whole_networks_are_compiled() {
    let named = std::env::var("STRATUS_KERNELS_FOR").unwrap_or_else(|_| "digits:64 digits:64:f16".to_owned());
    let backend = match Cuda::compile_only(90, 132, out()) {
        Ok(backend) => backend,
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    for entry in named.split_whitespace() {
        let (name, batch) = entry.split_once(':').unwrap();
        let (batch, precision) = match batch.split_once(':').unwrap_or((batch, "bf16")) {
            (batch, "f32") => (batch, Precision::F32),
            (batch, "bf16") => (batch, Precision::Bf16),
            (batch, "f16") => (batch, Precision::F16),
            (_, other) => panic!("`{entry}`: networks are not trained in {other}"),
        };
        let network = zoo::find(name).unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let forward = lower(&graph, Mode::Train, precision, batch.parse().unwrap()).unwrap();
        let backward = differentiate(&fuse_with(&forward, backend.fusions()).unwrap()).unwrap();
        let sgd = SgdUpdate {
            momentum: 0.9,
            weight_decay: 1e-4,
            nesterov: false,
            rate_factor: 1.0,
            loss_scaled: false,
        };
        let program = update(&backward, Optimiser::Sgd(sgd)).unwrap();
        // With measuring, every candidate is compiled.
        Plan::prepare(&backend, &program, Choices::default(), true, &mut Persistent::default()).unwrap();
    }
}
