//! One program for all targets: `STRATUS_FUZZ=<target>` chooses one, the rest is libFuzzer's.
//!
//! With `STRATUS_FUZZ_SEEDS=<folder>` it writes the seeds and the dictionary of every target and ends. With
//! `STRATUS_FUZZ=list` it prints the names of all targets.

#![no_main]

mod memory;
mod scratch;
mod seeds;
mod targets;

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use targets::Target;

#[global_allocator]
static ALLOCATOR: memory::LimitedAllocator = memory::LimitedAllocator;

/// The maximum processor time for each started KiB of an input, in seconds.
const MAX_SECONDS_PER_KIB: f64 = 1.0;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: initialise(),
    |data: &[u8]| {
        let Some(target) = TARGET.get() else { return };
        run(target, data);
    }
);

fn run(target: &Target, data: &[u8]) {
    memory::begin();
    let start = cpu_seconds();
    (target.run)(data);
    let seconds = cpu_seconds() - start;
    report_peak(memory::peak());
    let limit = MAX_SECONDS_PER_KIB * data.len().div_ceil(1024).max(1) as f64;
    assert!(seconds <= limit, "{} bytes take {seconds:.1} s, more than {limit} s", data.len());
}

fn initialise() {
    if let Some(folder) = std::env::var_os("STRATUS_FUZZ_SEEDS") {
        if let Err(error) = seeds::write(Path::new(&folder)) {
            eprintln!("cannot write seeds: {error}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
    let name = std::env::var("STRATUS_FUZZ").unwrap_or_default();
    if name == "list" {
        targets::ALL.iter().for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    }
    let Some(target) = targets::ALL.iter().find(|target| target.name == name) else {
        eprintln!("set STRATUS_FUZZ to a target; STRATUS_FUZZ=list prints them");
        std::process::exit(2);
    };
    let _ = TARGET.set(target);
}

/// Prints the peak of the inputs' memory each time that it grows by a tenth.
fn report_peak(bytes: usize) {
    static PRINTED: AtomicUsize = AtomicUsize::new(0);
    let printed = PRINTED.load(Relaxed);
    if bytes > printed + printed / 10 {
        PRINTED.store(bytes, Relaxed);
        eprintln!("peak_input_bytes {bytes}");
    }
}

/// The processor time of this process; other programs do not change it.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = stat.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
    nanoseconds / 1e9
}
