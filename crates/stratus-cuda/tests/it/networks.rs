//! Random networks on an emulated GPU against the reference; see `stratus_conformance::networks`.
//! `STRATUS_NETWORKS` sets how many, or names a file with a network to repeat.

use stratus_conformance::networks::{Networks, Subject, check_networks};
use stratus_cuda::Cuda;
use stratus_engine::Precision;

/// The compiler of the emulation takes seconds for the kernels of a network.
const NETWORKS: u64 = 4;

#[test]
fn random_networks_match_the_reference() {
    let backend = Cuda::emulated().unwrap();
    for precision in [Precision::F32, Precision::Bf16] {
        let networks = Networks::from_environment(NETWORKS).unwrap();
        let report = check_networks(&Subject::new(&backend, precision, &[]), &networks);
        println!("emulated GPU, {precision}: {report}");
        report.assert_passed();
    }
}
