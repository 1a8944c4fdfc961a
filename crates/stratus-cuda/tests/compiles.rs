//! NVRTC compiles every kernel that the cases need, for the GPUs that we build for. It takes the library, and no GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::TILES;
use std::path::PathBuf;
use stratus_cuda::Cuda;
use stratus_engine::backend::step_key;
use stratus_engine::cases;
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::{Choices, Kernel, Precision};

/// `STRATUS_KERNELS_OUT` keeps the machine code: a folder that `STRATUS_CACHE/kernels` may be on a machine with a GPU.
fn out() -> PathBuf {
    let named = std::env::var_os("STRATUS_KERNELS_OUT").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
}

#[test]
fn every_case_is_compiled() {
    for (capability, multiprocessors) in [(80, 108), (90, 132)] {
        let backend = match Cuda::compiling(capability, multiprocessors, out()) {
            Ok(backend) => backend,
            Err(reason) => return eprintln!("SKIPPED: {reason}; `make deps` installs it"),
        };
        for precision in [Precision::F32, Precision::Bf16] {
            for case in cases::of(precision).into_iter().chain(cases::benchmarks(precision)) {
                let program = case.program(precision).unwrap();
                let prepare =
                    |choices| Plan::prepare(&backend, &program, choices, false, &mut Persistent::default());
                if let Err(error) = prepare(Choices::default()) {
                    panic!("{precision} `{}` for {capability}: {error}", case.name);
                }
                let dense = matches!(&case.kernel, Kernel::Conv2dBackwardWeights(k) if k.conv.groups == 1);
                for tile in TILES.iter().filter(|_| dense && precision == Precision::Bf16) {
                    let key = step_key(&program, &program.steps[0]);
                    let implementations = [(key, format!("stratus:tensor:{tile}"))].into();
                    if let Err(error) = prepare(Choices { implementations, ..Choices::default() }) {
                        panic!("`{}` by {tile} for {capability}: {error}", case.name);
                    }
                }
            }
        }
    }
}
