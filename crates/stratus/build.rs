//! Exports `GOMP_*` and `omp_*` from the programs of this package, so that oneDNN runs on `stratus-threads`
//! and not on its own OpenMP run time.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=GOMP_*,--export-dynamic-symbol=omp_*");
    }
}
