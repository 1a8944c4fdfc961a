//! What a library imports, read before it is loaded: which OpenMP run time it needs.

use object::Object;
use object::read::elf::ElfFile64;
use std::fs::File;
use std::path::Path;

/// Larger files are not looked at; the library has 50 MiB.
const LARGEST: u64 = 1 << 30;

/// Whether what the library imports of OpenMP are functions that `stratus-threads` has, and nothing else.
/// `false` too where that cannot be told: it then runs on a run time of its own.
pub fn runs_on_our_threads(path: &Path) -> bool {
    imported(path).is_some_and(|names| is_provided(&names))
}

fn is_provided(imports: &[Vec<u8>]) -> bool {
    let is_openmp = |name: &&Vec<u8>| {
        // GNU's, OpenMP's own, and LLVM's and Intel's.
        [&b"GOMP_"[..], b"omp_", b"__kmpc_"].iter().any(|prefix| name.starts_with(prefix))
    };
    let mut openmp = imports.iter().filter(is_openmp).peekable();
    let is_ours =
        |name: &Vec<u8>| stratus_threads::PROVIDED.iter().any(|provided| provided.as_bytes() == name);
    openmp.peek().is_some() && openmp.all(is_ours)
}

/// The names that an ELF file imports; `None` where it is no such file.
fn imported(path: &Path) -> Option<Vec<Vec<u8>>> {
    let file = File::open(path).ok()?;
    if file.metadata().ok()?.len() > LARGEST {
        return None;
    }
    // Only the tables that are asked for are read.
    let cache = object::ReadCache::new(file);
    let elf: ElfFile64<'_, object::Endianness, _> = ElfFile64::parse(&cache).ok()?;
    let name = |import: object::Result<object::Import<'_>>| Some(import.ok()?.name().into_name()?.to_vec());
    elf.imports().ok()?.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_to_be_ours() {
        let told = |names: &[&str]| {
            is_provided(&names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>())
        };
        assert!(told(&["malloc", "GOMP_parallel", "omp_get_thread_num"]));
        assert!(!told(&["GOMP_parallel", "GOMP_loop_guided_start"]), "it has no such loop");
        assert!(!told(&["omp_get_thread_num", "__kmpc_fork_call"]), "LLVM's");
        assert!(!told(&["malloc"]), "it runs on one thread");
    }

    #[test]
    fn what_is_no_library_is_not_read() {
        assert!(!runs_on_our_threads(Path::new("there/is/no/such/file")));
        assert!(!runs_on_our_threads(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(!runs_on_our_threads(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")));
        // This program calls no OpenMP of a library's.
        assert!(!runs_on_our_threads(&std::env::current_exe().unwrap()));
    }
}
