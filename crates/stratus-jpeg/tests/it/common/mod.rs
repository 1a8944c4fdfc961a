//! What the tests share: the libraries, and what is to be said where there is none.

use proptest::prelude::*;
use std::path::PathBuf;
use stratus_jpeg::{Decoder, Library, Limits, candidates};
use stratus_testing::jpeg::{Scans, Sketch};

pub const LIMITS: Limits = Limits { side: 65_500, pixels: 1 << 22 };

/// Every libjpeg-turbo that is found, each once. Where one has a place in the repository it must be there:
/// nothing is skipped in silence.
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
            panic!("run `make deps` first, which puts libjpeg-turbo under .deps: {refused}");
        }
        eprintln!("SKIPPED: `make deps` brings libjpeg-turbo on x86-64 Linux only, and here {refused}");
    }
    found
}

pub fn decoders() -> Vec<Decoder> {
    libraries().into_iter().map(|library| Decoder::new(library, LIMITS)).collect()
}

/// Files of every kind, up to some rows and columns.
pub fn sketches(longest: u16) -> impl Strategy<Value = Sketch> {
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
    let scans =
        prop_oneof![4 => Just(Scans::Together), 1 => Just(Scans::Apart), 1 => Just(Scans::Progressive)];
    let restart = prop_oneof![2 => Just(0), 1 => 1_u16..20];
    (1..=longest, 1..=longest, kinds, scans, restart, any::<u64>()).prop_map(
        |(height, width, (factors, adobe), scans, restart, seed)| Sketch {
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
