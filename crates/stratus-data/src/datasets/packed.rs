//! Archives that cannot be read in place: their formats, and the commands to unpack them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::archive::is_zip;
use crate::error::DataError;

/// A compressed format: its first bytes, its description, its file extensions, and the command to unpack an
/// archive.
struct ArchiveFormat {
    magic: &'static [u8],
    description: &'static str,
    extensions: &'static [&'static str],
    command: &'static str,
}

const ARCHIVE_FORMATS: [ArchiveFormat; 12] = [
    ArchiveFormat {
        magic: &[0x1f, 0x8b],
        description: "compressed by gzip",
        extensions: &[".tar.gz", ".tgz"],
        command: "tar -xzf",
    },
    ArchiveFormat {
        magic: &[0x28, 0xb5, 0x2f, 0xfd],
        description: "compressed by zstd",
        extensions: &[".tar.zst", ".tzst"],
        command: "tar --zstd -xf",
    },
    ArchiveFormat {
        magic: &[0xfd, b'7', b'z', b'X', b'Z', 0],
        description: "compressed by xz",
        extensions: &[".tar.xz", ".txz"],
        command: "tar -xJf",
    },
    ArchiveFormat {
        magic: b"BZh",
        description: "compressed by bzip2",
        extensions: &[".tar.bz2", ".tbz2"],
        command: "tar -xjf",
    },
    ArchiveFormat {
        magic: b"LZIP",
        description: "compressed by lzip",
        extensions: &[".tar.lz"],
        command: "tar --lzip -xf",
    },
    ArchiveFormat {
        magic: &[0x04, 0x22, 0x4d, 0x18],
        description: "compressed by lz4",
        extensions: &[".tar.lz4"],
        command: "tar -I lz4 -xf",
    },
    ArchiveFormat {
        magic: &[0x5d, 0, 0],
        description: "compressed by lzma",
        extensions: &[".tar.lzma", ".tlz"],
        command: "tar --lzma -xf",
    },
    ArchiveFormat {
        magic: &[0x1f, 0x9d],
        description: "compressed by compress",
        extensions: &[".tar.z", ".taz"],
        command: "tar -xZf",
    },
    ArchiveFormat {
        magic: b"PK\x03\x04",
        description: "a zip archive",
        extensions: &[".zip"],
        command: "unzip -q",
    },
    // An empty archive, and one in several volumes.
    ArchiveFormat {
        magic: b"PK\x05\x06",
        description: "a zip archive",
        extensions: &[".zip"],
        command: "unzip -q",
    },
    ArchiveFormat {
        magic: b"PK\x07\x08",
        description: "a zip archive",
        extensions: &[".zip"],
        command: "unzip -q",
    },
    ArchiveFormat {
        magic: b"7z\xbc\xaf\x27\x1c",
        description: "a 7z archive",
        extensions: &[".7z"],
        command: "7z x",
    },
];

impl ArchiveFormat {
    /// The name of a file without the extension of the format.
    fn stem<'a>(&self, name: &'a str) -> Option<&'a str> {
        self.extensions.iter().find_map(|extension| {
            let stem = name.len().checked_sub(extension.len())?;
            let end = name.get(stem..)?;
            end.eq_ignore_ascii_case(extension).then_some(&name[..stem])
        })
    }

    fn error(&self, path: &Path) -> DataError {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = self.stem(&name).filter(|stem| !stem.is_empty()).unwrap_or("unpacked");
        let target = match self.command {
            command if command.starts_with("tar") => format!("-C {stem}"),
            command if command.starts_with("7z") => format!("-o{stem}"),
            _ => format!("-d {stem}"),
        };
        let problem = format!(
            "is {} and cannot be read in place; unpack it: mkdir {stem} && {} {name} {target}",
            self.description, self.command
        );
        DataError::Invalid { path: path.to_owned(), problem }
    }
}

/// The error for a file where a data set needs a folder.
pub(super) fn not_a_folder(dataset: &str, path: &Path) -> DataError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let problem = match name.len().checked_sub(4).and_then(|end| name.split_at_checked(end)) {
        Some((stem, extension))
            if extension.eq_ignore_ascii_case(".tar") && !stem.is_empty() && dataset != "shards" =>
        {
            format!(
                "is a file, but `{dataset}` needs a folder; unpack it: mkdir {stem} && tar -xf {name} -C \
                 {stem}"
            )
        }
        _ => format!("is a file, but `{dataset}` needs a folder; pass the folder that contains the file"),
    };
    DataError::Invalid { path: path.to_owned(), problem }
}

/// Rejects an archive that the data set is not read from, by its content. A folder of images may be in a zip
/// archive.
///
/// # Errors
///
/// [`DataError::Invalid`], with the command that unpacks it.
pub(super) fn reject_archive(path: &Path, reads_zip: bool) -> Result<(), DataError> {
    let mut head = [0; 6];
    if !path.is_file() || File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_err() {
        return Ok(());
    }
    match ARCHIVE_FORMATS.iter().find(|format| head.starts_with(format.magic)) {
        Some(_) if reads_zip && is_zip(&head) => Ok(()),
        Some(format) => Err(format.error(path)),
        None => Ok(()),
    }
}

/// Rejects a compressed archive, by its name.
///
/// # Errors
///
/// Like [`reject_archive`].
pub(crate) fn reject_archive_name(path: &Path) -> Result<(), DataError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match ARCHIVE_FORMATS.iter().find(|format| format.stem(name).is_some()) {
        Some(format) => Err(format.error(path)),
        None => Ok(()),
    }
}
