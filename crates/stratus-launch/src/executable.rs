//! The `stratus` executable, its libraries and its requirements.

use crate::{Error, FileSet, Result};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Dependencies of libraries, which are found beside them.
const COMPANIONS: [&str; 1] = ["libgomp.so.1"];

/// The executable with its libraries.
#[derive(Clone, Debug)]
pub struct Executable {
    /// The files: `stratus`, and each library in a folder named after its variable, with its dependencies.
    pub file_set: FileSet,
    /// Environment variables of libraries, with their paths in the file set.
    pub library_variables: Vec<(&'static str, String)>,
    /// The minimum version of glibc, such as `(2, 34)`.
    pub glibc: Option<(u32, u32)>,
    /// The architecture, as `uname -m` prints it.
    pub architecture: &'static str,
}

impl Executable {
    /// Reads the executable at `path`. Each library is the first existing file of its candidates. A library
    /// that is only in the system's search path is not included, and expected on the target too.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn new(path: &Path, libraries: &[(&'static str, Vec<PathBuf>)]) -> Result<Self> {
        let mut files = vec![("stratus".to_owned(), path.to_owned())];
        let mut library_variables = Vec::new();
        for (variable, candidates) in libraries {
            let found = candidates.iter().find(|path| path.is_absolute() && path.is_file());
            let Some((path, file)) = found.and_then(|path| Some((path, path.file_name()?.to_str()?))) else {
                continue;
            };
            let remote = format!("{}/{file}", variable.to_lowercase());
            library_variables.push((*variable, remote.clone()));
            files.push((remote, path.clone()));
            for companion in COMPANIONS {
                let beside = path.with_file_name(companion);
                if beside.is_file() {
                    files.push((format!("{}/{companion}", variable.to_lowercase()), beside));
                }
            }
        }
        let mut glibc = None;
        for (_, path) in &files {
            glibc = glibc.max(required_glibc(&fs::read(path).map_err(Error::file("read", path))?));
        }
        let file_set = FileSet::from_files("program", files)?;
        Ok(Self { file_set, library_variables, glibc, architecture: std::env::consts::ARCH })
    }
}

/// Returns whether a file is a program or a library. A file that cannot be read is not.
pub(crate) fn is_elf(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF"
}

/// The newest version of glibc symbols that an ELF file uses.
fn required_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let mut newest = None;
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == MARK[0]) {
        at += found;
        if bytes[at..].starts_with(MARK) {
            let rest = &bytes[at + MARK.len()..];
            let end = rest.iter().take(12).position(|byte| *byte == 0);
            let text = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
            newest = newest.max(text.and_then(parse_version));
        }
        at += 1;
    }
    newest
}

/// Parses `2.34`; a third part is ignored.
pub(crate) fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::required_glibc;

    #[test]
    fn newest_glibc_version_is_found() {
        assert_eq!(
            required_glibc(b"xGLIBC_2.4\0GGLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.2.5\0GLIBC_9"),
            Some((2, 34))
        );
        assert_eq!(required_glibc(b"nothing"), None);
    }
}
