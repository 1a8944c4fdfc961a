//! What taking the times of steps adds to a recording of a GPU's work. No GPU is needed to count it.

use stratus_cuda::Cuda;
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_as;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::update::{LARGE, Optimiser, update_joined};
use stratus_engine::program::Mode;
use stratus_engine::{Backend, Precision, PrepareRequest, Program};
use stratus_graph::zoo;

/// Of every network of the zoo, whose forward convolutions, gradients of inputs and matrix products are all
/// the libraries', as bf16 on an H100: the more of them are native, the fewer marks there are.
#[test]
fn hardly_any_step_has_a_mark_of_its_own() {
    let backend = Cuda::counting();
    let count = |program: &Program| {
        let request = PrepareRequest::default();
        backend.count_marks(&mut backend.prepare(program, &request).unwrap()).unwrap()
    };
    for network in zoo::NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let lowered =
            |mode| fuse_as(&lower(&graph, mode, Precision::Bf16, 64).unwrap(), backend.fusions()).unwrap();
        let sgd = SgdUpdate { momentum: 0.9, weight_decay: 1e-4, nesterov: false, rate: 1.0, scaled: false };
        let backward = differentiate(&lowered(Mode::Train)).unwrap();
        let train = update_joined(&backward, Optimiser::Sgd(sgd), LARGE).unwrap();
        for (mode, program) in [("training", train), ("validation", lowered(Mode::Evaluate))] {
            let [steps, marks] = count(&program);
            println!("{} {mode}: {marks} marks of their own, {steps} steps", network.name);
            assert_eq!(steps, program.steps.len());
            assert!(10 * marks <= steps, "{} {mode}: {marks} for {steps} steps", network.name);
        }
    }
}
