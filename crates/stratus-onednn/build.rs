//! Identifies the kernels of this build by a hash of their source: plans of another build are measured again,
//! and may differ in bits. Also makes the test binaries export the OpenMP functions that give oneDNN
//! Stratus's threads.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    let mut files = Vec::new();
    collect(Path::new("src"), &mut files)?;
    files.sort();
    let mut hash = DefaultHasher::new();
    for file in files {
        (file.to_string_lossy(), fs::read(&file)?).hash(&mut hash);
    }
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=GOMP_*,--export-dynamic-symbol=omp_*");
    }
    println!("cargo::rustc-env=STRATUS_KERNELS={:016x}", hash.finish());
    Ok(())
}

/// Collects the files of a folder and of its subfolders.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
