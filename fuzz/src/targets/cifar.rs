//! Records of CIFAR-10 and CIFAR-100, without the published checksums.

use crate::scratch;
use stratus_data::{OpenOptions, Scratch, Split};

use super::Target;
use crate::seeds;

pub const TARGET: Target =
    Target { name: "cifar", run, seeds: seeds::cifar, dictionary: &[], max_bytes: 4 * 3074 };

fn run(data: &[u8]) {
    scratch::file("cifar/test_batch.bin", data);
    scratch::file("cifar/test.bin", data);
    let root = scratch::folder().join("cifar");
    let options = OpenOptions { verify: false, ..OpenOptions::default() };
    for name in ["cifar10", "cifar100", "cifar100-coarse"] {
        let Ok(set) = stratus_data::open(name, &root, Split::Test, &options) else { continue };
        let mut scratch = Scratch::default();
        for index in 0..set.len() {
            let label = set.label(index).map(|label| label as usize);
            assert!(label.is_ok_and(|label| label < set.classes()), "a label of {name} is out of range");
            assert!(set.read(index, &mut scratch).is_ok(), "an image of {name} cannot be read");
        }
    }
}
