//! Exports `GOMP_*` and `omp_*` from the programs of this package, so that oneDNN runs on `stratus-threads`
//! and not on its own OpenMP run time. Folds equal functions of the release build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=GOMP_*,--export-dynamic-symbol=omp_*");
    }
    if folds_functions() {
        // Many functions are equal: those for types of the same layout. 3 % of the program. Nothing compares
        // the addresses of functions, which Rust does not keep apart in any case.
        println!("cargo::rustc-link-arg=-Wl,--icf=all");
    }
}

/// Returns whether this is a release build by rustc's own linker, lld. Other linkers may not fold functions.
fn folds_functions() -> bool {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    is("PROFILE", "release")
        && is("TARGET", "x86_64-unknown-linux-gnu")
        && is("HOST", "x86_64-unknown-linux-gnu")
        && std::env::var_os("RUSTC_LINKER").is_none()
}
