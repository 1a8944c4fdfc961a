//! Reads the imports of a library before loading it, to find out which OpenMP runtime it needs.

use object::Object;
use object::read::elf::ElfFile64;
use std::fs::File;
use std::path::Path;

/// Larger files are not read; oneDNN takes 50 MiB.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Returns whether all OpenMP functions that the library imports are provided by `stratus-threads`. Also
/// `false` if that is unknown: the library then runs on its own runtime.
pub fn runs_on_stratus_threads(path: &Path) -> bool {
    imported(path).is_some_and(|names| is_provided(&names))
}

fn is_provided(imports: &[Vec<u8>]) -> bool {
    let is_openmp = |name: &&Vec<u8>| {
        // The prefixes of GNU's runtime, of OpenMP's own API, and of LLVM's and Intel's runtimes.
        [&b"GOMP_"[..], b"omp_", b"__kmpc_"].iter().any(|prefix| name.starts_with(prefix))
    };
    let mut openmp = imports.iter().filter(is_openmp).peekable();
    let is_ours =
        |name: &Vec<u8>| stratus_threads::PROVIDED_SYMBOLS.iter().any(|provided| provided.as_bytes() == name);
    openmp.peek().is_some() && openmp.all(is_ours)
}

/// The names that an ELF file imports; `None` if it is not an ELF file.
fn imported(path: &Path) -> Option<Vec<Vec<u8>>> {
    let file = File::open(path).ok()?;
    if file.metadata().ok()?.len() > MAX_FILE_BYTES {
        return None;
    }
    // Reads only the tables that are requested.
    let cache = object::ReadCache::new(file);
    let elf: ElfFile64<'_, object::Endianness, _> = ElfFile64::parse(&cache).ok()?;
    let name = |import: object::Result<object::Import<'_>>| Some(import.ok()?.name().into_name()?.to_vec());
    elf.imports().ok()?.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_imported_openmp_function_must_be_provided() {
        let are_provided = |names: &[&str]| {
            is_provided(&names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        assert!(are_provided(&["malloc", "GOMP_parallel", "omp_get_thread_num"]));
        assert!(!are_provided(&["GOMP_parallel", "GOMP_loop_guided_start"]), "guided loops are not provided");
        assert!(
            !are_provided(&["omp_get_thread_num", "__kmpc_fork_call"]),
            "LLVM's functions are not provided"
        );
        assert!(!are_provided(&["malloc"]), "it is single-threaded");
    }

    #[test]
    fn files_other_than_libraries_are_rejected() {
        assert!(!runs_on_stratus_threads(Path::new("there/is/no/such/file")));
        assert!(!runs_on_stratus_threads(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(!runs_on_stratus_threads(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")));
        // This program imports no OpenMP functions.
        assert!(!runs_on_stratus_threads(&std::env::current_exe().unwrap()));
    }
}
