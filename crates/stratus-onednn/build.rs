//! Names this build's kernels by a hash of their source. Plans of another build are measured again, and their
//! bits may differ. And has the tests export the functions by which the library gets our threads.

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

/// The files of a folder and of the folders within it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
