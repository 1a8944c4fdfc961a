//! The program and what it needs of a machine.

use crate::{Error, Parcel, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The program with its libraries.
#[derive(Clone, Debug)]
pub struct Program {
    /// The files: `stratus`, and each library below the name of its variable.
    pub parcel: Parcel,
    /// Variables that name the libraries, by their path in the parcel.
    pub libraries: Vec<(&'static str, String)>,
    /// The oldest glibc that has what they use, such as `(2, 34)`.
    pub glibc: Option<(u32, u32)>,
    /// What `uname -m` says where it runs.
    pub architecture: &'static str,
}

impl Program {
    /// The program at `path`, with the first file that there is of the candidates of each library. One that
    /// is on the system's search path alone is expected there too.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub fn new(path: &Path, libraries: &[(&'static str, Vec<PathBuf>)]) -> Result<Self> {
        let mut files = vec![("stratus".to_owned(), path.to_owned())];
        let mut named = Vec::new();
        for (variable, candidates) in libraries {
            let found = candidates.iter().find(|path| path.is_absolute() && path.is_file());
            let Some((path, file)) = found.and_then(|path| Some((path, path.file_name()?.to_str()?))) else {
                continue;
            };
            let there = format!("{}/{file}", variable.to_lowercase());
            named.push((*variable, there.clone()));
            files.push((there, path.clone()));
        }
        let mut glibc = None;
        for (_, path) in &files {
            glibc = glibc.max(glibc_of(&fs::read(path).map_err(Error::file("read", path))?));
        }
        let parcel = Parcel::of_files("program", files)?;
        Ok(Self { parcel, libraries: named, glibc, architecture: std::env::consts::ARCH })
    }
}

/// The newest version of glibc's symbols that an ELF file names.
fn glibc_of(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let mut newest = None;
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == MARK[0]) {
        at += found;
        if bytes[at..].starts_with(MARK) {
            let rest = &bytes[at + MARK.len()..];
            let end = rest.iter().take(12).position(|byte| *byte == 0);
            let text = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
            newest = newest.max(text.and_then(version));
        }
        at += 1;
    }
    newest
}

/// `2.34`, also with a third part.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::glibc_of;

    #[test]
    fn the_newest_version_of_glibc_is_found() {
        assert_eq!(glibc_of(b"xGLIBC_2.4\0GGLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.2.5\0GLIBC_9"), Some((2, 34)));
        assert_eq!(glibc_of(b"nothing"), None);
    }
}
