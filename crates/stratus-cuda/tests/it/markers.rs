//! The cost of timing steps in a recording of a GPU's work. Counting needs no GPU.

use stratus_cuda::Cuda;
use stratus_engine::ops::SgdUpdate;
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse_with;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::update::{MIN_FUSED_UPDATE_WEIGHTS, Optimiser, update_with_threshold};
use stratus_engine::program::Mode;
use stratus_engine::{Backend, Precision, PrepareRequest, Program};
use stratus_graph::zoo;

/// Every network of the zoo, with all forward convolutions, input gradients and matrix products by the
/// libraries, as in bf16 on an H100: with more native kernels there are fewer markers.
#[test]
fn at_most_a_tenth_of_steps_need_a_marker_kernel() {
    let backend = Cuda::counting();
    let count = |program: &Program| {
        let request = PrepareRequest::default();
        backend.count_markers(&mut backend.prepare(program, &request).unwrap()).unwrap()
    };
    for network in zoo::NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let lowered =
            |mode| fuse_with(&lower(&graph, mode, Precision::Bf16, 64).unwrap(), backend.fusions()).unwrap();
        let sgd = SgdUpdate {
            momentum: 0.9,
            weight_decay: 1e-4,
            nesterov: false,
            rate_factor: 1.0,
            loss_scaled: false,
        };
        let backward = differentiate(&lowered(Mode::Train)).unwrap();
        let train = update_with_threshold(&backward, Optimiser::Sgd(sgd), MIN_FUSED_UPDATE_WEIGHTS).unwrap();
        for (mode, program) in [("training", train), ("validation", lowered(Mode::Evaluate))] {
            let [steps, markers] = count(&program);
            println!("{} {mode}: {markers} marker kernels, {steps} steps", network.name);
            assert_eq!(steps, program.steps.len());
            assert!(
                10 * markers <= steps,
                "{} {mode}: {markers} marker kernels for {steps} steps",
                network.name
            );
        }
    }
}
