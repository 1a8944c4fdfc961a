//! Shared by the tests: the backend, and the message if it is not available.

pub mod guarded;
pub mod network;

use stratus_conformance::Case;
use stratus_engine::backend::step_key;
use stratus_engine::{Choices, Precision};
use stratus_onednn::OneDnn;

/// The precisions that oneDNN supports, given the instructions.
pub const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// The supported precisions for which the machine has instructions.
pub fn precisions(backend: &OneDnn) -> Vec<Precision> {
    let (supported, other): (Vec<_>, Vec<_>) = PRECISIONS.into_iter().partition(|&p| backend.supports(p));
    other.iter().for_each(|precision| eprintln!("SKIPPED in {precision}: oneDNN needs AVX-512"));
    supported
}

/// The layouts of feature maps.
pub const LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

/// The backend on `threads` threads. On platforms for which `make deps` installs oneDNN it must be there, so
/// that no test is skipped silently.
pub fn backend(threads: usize) -> Option<OneDnn> {
    match OneDnn::load(threads) {
        Ok(backend) => Some(backend),
        Err(error) if cfg!(all(target_os = "linux", target_arch = "x86_64")) => {
            panic!("run `make deps` first, which installs oneDNN under .deps: {error}")
        }
        Err(error) => {
            eprintln!("SKIPPED: `make deps` installs oneDNN on x86-64 Linux only, and here {error}");
            None
        }
    }
}

/// Choices that require a layout for every feature map of a case.
pub fn choices(case: &Case, layout: &str) -> Choices {
    let maps = case.operands().filter(|operand| operand.shape.len() == 4);
    let layouts = maps.map(|operand| (operand.name.to_owned(), layout.to_owned())).collect();
    Choices { layouts, ..Choices::default() }
}

/// An implementation of the step of a case, in a layout of feature maps, with the choices that require both.
pub struct OfferedImplementation {
    pub layout: &'static str,
    pub name: String,
    pub choices: Choices,
}

/// Every implementation of the step of a case, in every layout of feature maps.
pub fn implementations(backend: &OneDnn, case: &Case, precision: Precision) -> Vec<OfferedImplementation> {
    let program = case.program(precision).unwrap();
    let key = step_key(&program, &program.steps[0]);
    let mut found = Vec::new();
    for layout in LAYOUTS {
        let plain = choices(case, layout);
        for name in network::offered(backend, &program, &plain, &key) {
            let mut choices = plain.clone();
            choices.implementations.insert(key.clone(), name.clone());
            found.push(OfferedImplementation { layout, name, choices });
        }
    }
    found
}
