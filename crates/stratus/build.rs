//! Exports `GOMP_*` and `omp_*` from the programs of this package, so that oneDNN runs on `stratus-threads`
//! and not on its own OpenMP run time. Folds equal functions of the release build.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=GOMP_*,--export-dynamic-symbol=omp_*");
    }
    if folds_functions() {
        // Many functions are equal: those for types of the same layout. 3 % of the program. Nothing compares
        // the addresses of functions, which Rust does not keep apart in any case.
        println!("cargo::rustc-link-arg=-Wl,--icf=all");
    }
}

/// Returns whether this is a release build that links with rustc's own lld. Other linkers may reject the
/// option.
fn folds_functions() -> bool {
    let target = "x86_64-unknown-linux-gnu";
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let chooses_linker = env::var_os("RUSTC_LINKER").is_some()
        || env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("link"));
    is("PROFILE", "release")
        && is("TARGET", target)
        && is("HOST", target)
        && !chooses_linker
        && has_lld(target)
}

/// Returns whether the toolchain contains lld, with which it links then, as those of rustup do. A
/// distribution's toolchain may link with the system's linker.
fn has_lld(target: &str) -> bool {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(asked) = Command::new(compiler).args(["--print", "sysroot"]).output() else { return false };
    let sysroot = String::from_utf8_lossy(&asked.stdout);
    Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("bin/gcc-ld/ld.lld").is_file()
}
