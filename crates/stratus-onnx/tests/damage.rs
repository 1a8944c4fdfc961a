//! Damaged and hostile files: a network or an error, never a panic, never memory far beyond the file's own size.

// Watching the largest request takes a global allocator, whose trait is unsafe; it only looks and hands on.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use stratus_onnx::{Model, Options};

const FILES: [&str; 6] =
    ["torchscript", "torchscript_mobile", "torchscript_training", "tensorflow", "parts", "refused"];

static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watching;

// SAFETY: every call is handed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.onnx"));
    std::fs::read(path).unwrap()
}

/// Imports a file; whatever it holds, this returns, and what is a network is one.
fn exercise(bytes: Vec<u8>) -> bool {
    let imported = Model::from_bytes("damaged", bytes).import(&Options::default());
    if let Ok(imported) = &imported {
        imported.graph.verify().unwrap();
        assert_eq!(imported.weights.len(), imported.graph.parameters.len());
        for (tensor, parameter) in imported.weights.iter().zip(&imported.graph.parameters) {
            assert_eq!((&tensor.name, &tensor.shape), (&parameter.name, &parameter.shape));
        }
    }
    // The files have 20 kB at most.
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < 1 << 20, "{largest} bytes were asked for at once");
    imported.is_ok()
}

#[test]
fn a_file_cut_short_is_answered() {
    for name in FILES {
        let whole = bytes(name);
        assert_eq!(exercise(whole.clone()), name != "refused", "{name}");
        // A file that ends between two fields is one that says less: it may still be a network.
        let taken = (0..whole.len()).filter(|&length| exercise(whole[..length].to_vec())).count();
        assert!(taken <= 3, "{name}: {taken} cut files were taken");
    }
}

#[test]
fn every_byte_may_have_any_of_some_values() {
    for name in FILES {
        let whole = bytes(name);
        for at in 0..whole.len() {
            for value in [0, 0xff, whole[at] ^ 0x80, whole[at].wrapping_add(1)] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                exercise(damaged);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_bytes_may_have_any_value(
        file in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut damaged = bytes(FILES[file]);
        for (at, value) in changes {
            let at = at.index(damaged.len());
            damaged[at] = value;
        }
        exercise(damaged);
    }

    #[test]
    fn pieces_may_move(
        file in 0..FILES.len(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        length in 1..300usize,
        remove in any::<bool>(),
    ) {
        let mut damaged = bytes(FILES[file]);
        let start = from.index(damaged.len());
        let end = (start + length).min(damaged.len());
        let piece = if remove { damaged.drain(start..end).collect() } else { damaged[start..end].to_vec() };
        let at = to.index(damaged.len() + 1);
        damaged.splice(at..at, piece);
        exercise(damaged);
    }
}
