//! Random networks against the reference; see `stratus_conformance::networks`. `STRATUS_NETWORKS` sets how
//! many, or names a file with a network to repeat.

use crate::common::{backend, precisions};
use stratus_conformance::networks::{Networks, Subject, check_networks};
use stratus_engine::Precision;

/// The number of networks in `make test`.
const NETWORKS: u64 = 50;

/// On two threads; many networks on one, which never waits for another.
fn check(precision: Precision) {
    let networks = Networks::from_environment(NETWORKS).unwrap();
    let is_many = matches!(&networks, Networks::Seeds(seeds) if seeds.end - seeds.start > 2 * NETWORKS);
    let Some(backend) = backend(if is_many { 1 } else { 2 }) else { return };
    if !precisions(&backend).contains(&precision) {
        return;
    }
    let report = check_networks(&Subject::new(&backend, precision, &["nChw16c"]), &networks);
    println!("oneDNN {precision}: {report}");
    report.assert_passed();
}

#[test]
fn random_networks_match_the_reference_in_f32() {
    check(Precision::F32);
}

#[test]
fn random_networks_match_the_reference_in_bf16() {
    check(Precision::Bf16);
}
