//! Helpers of several tests: the libraries, decoders and synthetic files.

use proptest::prelude::*;
use std::path::PathBuf;
use stratus_jpeg::{Decoder, Library, Limits, candidates};
use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

pub const LIMITS: Limits = Limits { max_side: 65_500, max_pixels: 1 << 22 };

/// Every distinct libjpeg-turbo on this machine. Panics if there is none on a system for which `make deps`
/// installs one, so that no test is skipped silently.
pub fn libraries() -> Vec<Library> {
    let loaded = candidates().into_iter().map(|path| Library::load(&path));
    let (mut found, mut paths, mut refused) = (Vec::<Library>::new(), Vec::<PathBuf>::new(), Vec::new());
    for library in loaded {
        match library {
            Ok(library) => {
                let path = library.path().canonicalize().unwrap_or_default();
                if !paths.contains(&path) {
                    paths.push(path);
                    found.push(library);
                }
            }
            Err(error) => refused.push(error.to_string()),
        }
    }
    if found.is_empty() {
        let refused = refused.join("; ");
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            panic!("run `make deps` to install libjpeg-turbo in .deps: {refused}");
        }
        eprintln!("SKIPPED: `make deps` installs libjpeg-turbo only on x86-64 Linux, and here {refused}");
    }
    found
}

pub fn decoders() -> Vec<Decoder> {
    libraries().into_iter().map(|library| Decoder::new(library, LIMITS)).collect()
}

/// Synthetic files of every kind, with at most `max_side` rows and columns.
pub fn synthetic_jpegs(max_side: u16) -> impl Strategy<Value = SyntheticJpeg> {
    let grey = Just((vec![(1, 1)], None));
    let grey_coarse = Just((vec![(2, 2)], None));
    let colour = |first| Just((vec![first, (1, 1), (1, 1)], None));
    let four = |adobe| Just((vec![(1, 1); 4], adobe));
    let kinds = prop_oneof![
        grey,
        grey_coarse,
        colour((1, 1)),
        colour((2, 1)),
        colour((1, 2)),
        colour((2, 2)),
        colour((4, 1)),
        colour((4, 2)),
        Just((vec![(2, 2), (2, 1), (1, 2)], None)),
        Just((vec![(1, 1); 3], Some(0))),
        four(Some(0)),
        four(Some(2)),
        Just((vec![(2, 2), (1, 1), (1, 1), (2, 2)], Some(2))),
    ];
    let scans = prop_oneof![
        4 => Just(ScanOrder::Interleaved),
        1 => Just(ScanOrder::NonInterleaved),
        1 => Just(ScanOrder::Progressive),
    ];
    let restart = prop_oneof![2 => Just(0), 1 => 1_u16..20];
    (1..=max_side, 1..=max_side, kinds, scans, restart, any::<u64>()).prop_map(
        |(height, width, (factors, adobe), scans, restart, seed)| SyntheticJpeg {
            height,
            width,
            factors,
            scans,
            restart,
            adobe,
            seed,
        },
    )
}
