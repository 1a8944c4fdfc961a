//! Files of a data set on disk: reading, probing, reporting.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use crate::dataset::{FileDetail, IGNORED, RegionRequest, Sample, Scratch, StoredFile};
use crate::decode::{ImageDecoder, MAX_IMAGE_FILE_BYTES};
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::transform::pixels::PixelOrder;

/// The maximum size of a text file that lists classes or samples.
const MAX_LIST_FILE_BYTES: u64 = 256 << 20;

/// The maximum length of a path on Linux.
const MAX_PATH_BYTES: u64 = 4096;

/// Called with a function that reads at an offset, the file's length, and the output buffer.
pub(super) type FileCallback<'a> = &'a mut dyn FnMut(
    &mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>,
    u64,
    &mut Vec<u8>,
) -> Result<(), String>;

/// Calls `callback` with random access to the file.
pub(super) fn with_file(path: &Path, out: &mut Vec<u8>, callback: FileCallback<'_>) -> Result<(), String> {
    // Opening a FIFO would block until another program writes to it.
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("not a file".to_owned());
    }
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let bytes = within_limit(metadata.len())?;
    let mut at = 0;
    let mut read = |offset: u64, out: &mut [u8]| {
        let seeked = if offset == at { Ok(at) } else { file.seek(SeekFrom::Start(offset)) };
        at = offset + out.len() as u64;
        seeked.and_then(|_| file.read_exact(out)).map_err(|error| error.to_string())
    };
    callback(&mut read, bytes, out)
}

/// Reads a whole file into `out`, which is resized.
pub(super) fn read(path: &Path, out: &mut Vec<u8>) -> Result<(), String> {
    with_file(path, out, &mut |file, bytes, out| {
        out.resize(bytes as usize, 0);
        file(0, out)
    })
}

/// Reads the beginning of a file; returns the number of bytes.
pub(crate) fn read_head(path: &Path, head: &mut [u8]) -> Result<usize, String> {
    let failed = |error: io::Error| error.to_string();
    // Opening a FIFO would block until another program writes to it.
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err("not a file".to_owned());
    }
    let count = head.len().min(usize::try_from(metadata.len()).unwrap_or(usize::MAX));
    File::open(path).and_then(|mut file| file.read_exact(&mut head[..count])).map_err(failed)?;
    Ok(count)
}

/// Sets `path` to a file below `root`.
pub(super) fn set_path(path: &mut PathBuf, root: &Path, name: &str) {
    path.clear();
    path.push(root);
    path.push(name);
}

/// Reports the file `name` below `root`, as [`Dataset::stored_files`](super::Dataset::stored_files) does.
pub(super) fn report(
    root: &Path,
    name: &str,
    scratch: &mut Scratch,
    detail: FileDetail,
    report: &mut dyn FnMut(StoredFile<'_>),
) {
    set_path(&mut scratch.path, root, name);
    let metadata = if detail == FileDetail::Path { None } else { fs::metadata(&scratch.path).ok() };
    let bytes = metadata.filter(fs::Metadata::is_file).map(|metadata| metadata.len());
    let is_read =
        detail == FileDetail::Content && bytes.is_some() && read(&scratch.path, &mut scratch.encoded).is_ok();
    report(StoredFile { path: name, bytes, content: is_read.then_some(scratch.encoded.as_slice()) });
}

/// Reads the bytes of the file `scratch.path`.
pub(super) fn read_encoded(scratch: &mut Scratch) -> Result<Option<&[u8]>, String> {
    read(&scratch.path, &mut scratch.encoded)?;
    Ok(Some(&scratch.encoded))
}

/// Decodes `scratch.path`, or only `region`. `annotate` gets the image's stored size and orientation. It
/// returns the label, or [`IGNORED`] after writing a mask to `scratch`.
pub(crate) fn decode_sample<'a>(
    scratch: &'a mut Scratch,
    region: Option<RegionRequest<'_>>,
    annotate: impl FnOnce([usize; 2], Orientation, &mut Scratch) -> Result<u32, String>,
) -> Result<Sample<'a>, String> {
    read(&scratch.path, &mut scratch.encoded)?;
    let Scratch { images, encoded, decoded, .. } = &mut *scratch;
    let decoded = match region {
        Some(region) => {
            images.decode_region(encoded, decoded, &|image| region(image.shape, image.orientation))?
        }
        None => images.decode(encoded, decoded)?,
    };
    let label = annotate(decoded.stored_size(), decoded.orientation, scratch)?;
    Ok(Sample {
        pixels: &scratch.decoded,
        shape: decoded.shape,
        dct_scaled: decoded.dct_scaled,
        order: PixelOrder::Interleaved,
        orientation: decoded.orientation,
        label,
        mask: (label == IGNORED).then_some(scratch.mask.as_slice()),
    })
}

/// Like [`ImageDecoder::probe`], for a file on disk.
pub(crate) fn probe(
    path: &Path,
    images: &mut ImageDecoder,
    encoded: &mut Vec<u8>,
    decoded: &mut Vec<u8>,
) -> Result<[usize; 2], String> {
    let mut size = [0, 0];
    with_file(path, encoded, &mut |file, bytes, out| {
        size = images.probe(file, bytes, out, decoded)?;
        Ok(())
    })?;
    Ok(size)
}

/// The stored size and the orientation of an image file, which is decoded.
pub(super) fn stored_size_and_orientation(
    path: &Path,
    images: &mut ImageDecoder,
    encoded: &mut Vec<u8>,
    decoded: &mut Vec<u8>,
) -> Result<([usize; 2], Orientation), String> {
    read(path, encoded)?;
    images.decode(encoded, decoded).map(|image| (image.stored_size(), image.orientation))
}

pub(super) fn within_limit(bytes: u64) -> Result<u64, String> {
    if bytes <= MAX_IMAGE_FILE_BYTES {
        Ok(bytes)
    } else {
        Err(format!("the file has {bytes} bytes, more than {MAX_IMAGE_FILE_BYTES}"))
    }
}

/// Reads a list file.
pub(crate) fn read_list(path: &Path) -> Result<String, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    if fs::metadata(path).map_err(unreadable)?.len() > MAX_LIST_FILE_BYTES {
        let problem = format!("is larger than {MAX_LIST_FILE_BYTES} bytes, too large for a list");
        return Err(DataError::Invalid { path: path.to_owned(), problem });
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// Reads a file that lists classes. The error for one that does not exist says what `data.classes` is.
pub(crate) fn read_class_list(path: &Path) -> Result<String, DataError> {
    read_list(path).map_err(|error| match error {
        DataError::Unreadable { path, cause } if cause.kind() == io::ErrorKind::NotFound => {
            let problem = "no such file; data.classes names a text file with one class per line";
            DataError::Invalid { path, problem: problem.to_owned() }
        }
        error => error,
    })
}

/// Returns whether `path`, as lists and indices give it, is relative, separated by `/` and stays inside its
/// folder.
pub(super) fn is_relative_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\\')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Returns whether a name is a single path component.
pub(crate) fn is_single_component(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

/// The problem of a broken link; `None` for anything else.
pub(crate) fn dead_link(path: &Path) -> Option<String> {
    let Ok(target) = fs::read_link(path) else { return link_as_text(path) };
    let cause = fs::metadata(path).err()?;
    Some(format!(
        "is a broken link to {} ({cause}); restore the target (disk not mounted?) or remove the link",
        target.display()
    ))
}

/// The problem of a text file that replaces a link: it holds only the link's target. `None` for anything
/// else.
fn link_as_text(path: &Path) -> Option<String> {
    let metadata =
        fs::metadata(path).ok().filter(|metadata| metadata.is_file() && metadata.len() <= MAX_PATH_BYTES)?;
    // Lists and notes have a file extension or several words.
    if path.extension().is_some() || metadata.len() == 0 {
        return None;
    }
    let target = fs::read_to_string(path).ok()?;
    let looks_like_path = ["/", "./", "../"].iter().any(|begin| target.starts_with(begin));
    (looks_like_path && !target.contains(|letter: char| letter.is_whitespace() || letter.is_control())).then(
        || {
            format!(
                "is a text file with the path {target}, probably a link that was not preserved (git with \
             core.symlinks=false, some archives and file systems); replace it with the target or remove it"
            )
        },
    )
}

/// Rejects a broken link.
///
/// # Errors
///
/// [`DataError::Invalid`].
pub(super) fn reject_dead_link(path: &Path) -> Result<(), DataError> {
    match dead_link(path) {
        Some(problem) => Err(DataError::Invalid { path: path.to_owned(), problem }),
        None => Ok(()),
    }
}

/// Files and folders without a leading dot that file managers and archivers create.
const SYSTEM_FILES: [&[u8]; 3] = [b"Thumbs.db", b"desktop.ini", b"__MACOSX"];

/// Returns whether a file or folder of this name is skipped in listings: it begins with a dot, like
/// `.DS_Store` and `._a.jpg`, or was created by a file manager or an archiver.
pub(crate) fn is_hidden(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    name.starts_with(b".") || SYSTEM_FILES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The visible names in a folder for which `accept` returns true, sorted. Links are not followed.
pub(super) fn visible_names(folder: &Path, accept: impl Fn(&str) -> bool) -> Result<Vec<String>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: folder.to_owned(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().into_string().map_err(|_| DataError::Invalid {
            path: entry.path(),
            problem: "name is not UTF-8; rename it".to_owned(),
        })?;
        if !is_hidden(&name) && accept(&name) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_hidden_files_of_systems_and_archivers() {
        for name in [".DS_Store", "._a.jpg", ".git", "Thumbs.db", "thumbs.db", "Desktop.ini", "__MACOSX"] {
            assert!(is_hidden(name), "{name}");
        }
        for name in ["a.jpg", "_a.jpg", "a._.jpg", "Thumbs.db.png", "MACOSX"] {
            assert!(!is_hidden(name), "{name}");
        }
    }

    #[test]
    fn accepts_only_paths_below_their_folder() {
        for path in ["a.png", "train/a.png", "a/b/c", "train/./a.png", "..a/b.."] {
            assert!(is_relative_inside(path), "{path}");
        }
        for path in ["", ".", "..", "../a", "a/../../b", "a/..", "/a", "./a", "a\\b"] {
            assert!(!is_relative_inside(path), "{path}");
        }
    }
}
