//! Archives that are not read in place: what they are, and the command that unpacks them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::DataError;

/// A kind of compressed file: its first bytes, what it is, its endings, and the command that unpacks an
/// archive into a folder.
struct Packing {
    magic: &'static [u8],
    what: &'static str,
    endings: &'static [&'static str],
    command: &'static str,
}

const PACKINGS: [Packing; 12] = [
    Packing {
        magic: &[0x1f, 0x8b],
        what: "compressed by gzip",
        endings: &[".tar.gz", ".tgz"],
        command: "tar -xzf",
    },
    Packing {
        magic: &[0x28, 0xb5, 0x2f, 0xfd],
        what: "compressed by zstd",
        endings: &[".tar.zst", ".tzst"],
        command: "tar --zstd -xf",
    },
    Packing {
        magic: &[0xfd, b'7', b'z', b'X', b'Z', 0],
        what: "compressed by xz",
        endings: &[".tar.xz", ".txz"],
        command: "tar -xJf",
    },
    Packing {
        magic: b"BZh",
        what: "compressed by bzip2",
        endings: &[".tar.bz2", ".tbz2"],
        command: "tar -xjf",
    },
    Packing { magic: b"LZIP", what: "compressed by lzip", endings: &[".tar.lz"], command: "tar --lzip -xf" },
    Packing {
        magic: &[0x04, 0x22, 0x4d, 0x18],
        what: "compressed by lz4",
        endings: &[".tar.lz4"],
        command: "tar -I lz4 -xf",
    },
    Packing {
        magic: &[0x5d, 0, 0],
        what: "compressed by lzma",
        endings: &[".tar.lzma", ".tlz"],
        command: "tar --lzma -xf",
    },
    Packing {
        magic: &[0x1f, 0x9d],
        what: "compressed by compress",
        endings: &[".tar.z", ".taz"],
        command: "tar -xZf",
    },
    Packing { magic: b"PK\x03\x04", what: "a zip archive", endings: &[".zip"], command: "unzip -q" },
    // One without files, and one in several parts.
    Packing { magic: b"PK\x05\x06", what: "a zip archive", endings: &[".zip"], command: "unzip -q" },
    Packing { magic: b"PK\x07\x08", what: "a zip archive", endings: &[".zip"], command: "unzip -q" },
    Packing { magic: b"7z\xbc\xaf\x27\x1c", what: "a 7z archive", endings: &[".7z"], command: "7z x" },
];

impl Packing {
    /// A file's name without the ending.
    fn stem<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.endings.iter().find_map(|ending| {
            let stem = name.len().checked_sub(ending.len())?;
            let end = name.get(stem..)?;
            end.eq_ignore_ascii_case(ending).then_some(&name[..stem])
        })
    }

    fn refuse(&self, path: &Path) -> DataError {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = self.stem(&name).filter(|stem| !stem.is_empty()).unwrap_or("unpacked");
        let target = match self.command {
            command if command.starts_with("tar") => format!("-C {stem}"),
            command if command.starts_with("7z") => format!("-o{stem}"),
            _ => format!("-d {stem}"),
        };
        let problem = format!(
            "is {}, and only plain .tar archives are read in place; unpack it first, and name the folder: \
             mkdir {stem} && {} {name} {target}",
            self.what, self.command
        );
        DataError::Damaged { path: path.to_owned(), problem }
    }
}

/// Why a data set that is read from a folder is not read from a file.
pub(super) fn not_a_folder(dataset: &str, path: &Path) -> DataError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let problem = match name.len().checked_sub(4).and_then(|end| name.split_at_checked(end)) {
        Some((stem, ending))
            if ending.eq_ignore_ascii_case(".tar") && !stem.is_empty() && dataset != "shards" =>
        {
            format!(
                "is a file, and `{dataset}` is read from a folder; unpack it first, and name the folder: \
                 mkdir {stem} && tar -xf {name} -C {stem}"
            )
        }
        _ => format!("is a file, and `{dataset}` is read from a folder; name the folder that the file is in"),
    };
    DataError::Damaged { path: path.to_owned(), problem }
}

/// Checks that a path is no archive that would have to be unpacked, by its content.
///
/// # Errors
///
/// [`DataError::Damaged`], with the command that unpacks it.
pub(super) fn expect_unpacked(path: &Path) -> Result<(), DataError> {
    let mut head = [0; 6];
    if !path.is_file() || File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_err() {
        return Ok(());
    }
    match PACKINGS.iter().find(|packing| head.starts_with(packing.magic)) {
        Some(packing) => Err(packing.refuse(path)),
        None => Ok(()),
    }
}

/// Checks that a file in a folder is none, by its name.
///
/// # Errors
///
/// As [`expect_unpacked`].
pub(crate) fn expect_unpacked_name(path: &Path) -> Result<(), DataError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match PACKINGS.iter().find(|packing| packing.stem(name).is_some()) {
        Some(packing) => Err(packing.refuse(path)),
        None => Ok(()),
    }
}
