//! Files of a data set on disk: read whole, or looked at from both ends.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::{FileDetail, IGNORED, RegionRequest, Sample, Scratch, StoredFile};
use crate::decode::{ImageDecoder, LARGEST_FILE};
use crate::error::DataError;
use crate::transform::frame::Orientation;
use crate::transform::pixels::PixelOrder;

/// The most bytes of a text that lists classes or samples.
const LARGEST_LIST: u64 = 256 << 20;

/// The most bytes of a path, as Linux has it.
const MAX_PATH_BYTES: u64 = 4096;

/// What is done with a file: reads at an offset, bytes of the file, where to.
pub(super) type Reading<'a> = &'a mut dyn FnMut(
    &mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>,
    u64,
    &mut Vec<u8>,
) -> Result<(), String>;

/// Calls with a way to read the file at any offset, its length, and where to put what is read.
pub(super) fn with_file(path: &Path, out: &mut Vec<u8>, reading: Reading<'_>) -> Result<(), String> {
    // To open a FIFO would wait for a program that writes to it.
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("not a file".to_owned());
    }
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let bytes = within_limit(about.len())?;
    let mut at = 0;
    let mut read = |offset: u64, out: &mut [u8]| {
        let moved = if offset == at { Ok(at) } else { file.seek(SeekFrom::Start(offset)) };
        at = offset + out.len() as u64;
        moved.and_then(|_| file.read_exact(out)).map_err(|error| error.to_string())
    };
    reading(&mut read, bytes, out)
}

/// Reads a whole file; `out` is made as long as it is.
pub(super) fn read(path: &Path, out: &mut Vec<u8>) -> Result<(), String> {
    with_file(path, out, &mut |file, bytes, out| {
        out.resize(bytes as usize, 0);
        file(0, out)
    })
}

/// Makes `path` that of a file below `root`.
pub(super) fn below(path: &mut PathBuf, root: &Path, name: &str) {
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
    below(&mut scratch.path, root, name);
    let about = if detail == FileDetail::Path { None } else { fs::metadata(&scratch.path).ok() };
    let bytes = about.filter(fs::Metadata::is_file).map(|about| about.len());
    let is_read =
        detail == FileDetail::Content && bytes.is_some() && read(&scratch.path, &mut scratch.encoded).is_ok();
    report(StoredFile { path: name, bytes, content: is_read.then_some(scratch.encoded.as_slice()) });
}

/// The bytes of the file `scratch.path`.
pub(super) fn encoded(scratch: &mut Scratch) -> Result<Option<&[u8]>, String> {
    read(&scratch.path, &mut scratch.encoded)?;
    Ok(Some(&scratch.encoded))
}

/// The image in the file `scratch.path`, or of its pixels those of `region`. What belongs to it is
/// `annotate`'s: given the image's stored size and orientation, it returns a label, or [`IGNORED`] where it
/// has made a mask in `scratch`.
pub(crate) fn sample<'a>(
    scratch: &'a mut Scratch,
    region: Option<RegionRequest<'_>>,
    annotate: impl FnOnce([usize; 2], Orientation, &mut Scratch) -> Result<u32, String>,
) -> Result<Sample<'a>, String> {
    read(&scratch.path, &mut scratch.encoded)?;
    let Scratch { images, encoded, decoded, .. } = &mut *scratch;
    let decoded = match region {
        Some(wanted) => {
            images.decode_region(encoded, decoded, &|image| wanted(image.shape, image.orientation))?
        }
        None => images.decode(encoded, decoded)?,
    };
    let label = annotate(decoded.stored_size(), decoded.orientation, scratch)?;
    Ok(Sample {
        pixels: &scratch.decoded,
        shape: decoded.shape,
        reduced: decoded.reduced,
        order: PixelOrder::Interleaved,
        orientation: decoded.orientation,
        label,
        mask: (label == IGNORED).then_some(scratch.mask.as_slice()),
    })
}

/// As [`ImageDecoder::probe`], for a file of this machine.
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

/// The stored size and the orientation of an image in a file, which is decoded.
pub(super) fn described(
    path: &Path,
    images: &mut ImageDecoder,
    encoded: &mut Vec<u8>,
    decoded: &mut Vec<u8>,
) -> Result<([usize; 2], Orientation), String> {
    read(path, encoded)?;
    images.decode(encoded, decoded).map(|image| (image.stored_size(), image.orientation))
}

pub(super) fn within_limit(bytes: u64) -> Result<u64, String> {
    if bytes <= LARGEST_FILE {
        Ok(bytes)
    } else {
        Err(format!("the file has {bytes} bytes, more than {LARGEST_FILE}"))
    }
}

/// The text of a list.
pub(crate) fn read_list(path: &Path) -> Result<String, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    if fs::metadata(path).map_err(unreadable)?.len() > LARGEST_LIST {
        let problem = format!("is larger than {LARGEST_LIST} bytes, too large for a list");
        return Err(DataError::Damaged { path: path.to_owned(), problem });
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// The path of a file below a data set's folder, as lists and indices name it: `/` between its parts, none of
/// which leads elsewhere.
pub(super) fn is_below(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\\')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// What is wrong with a link that leads nowhere; `None` for anything else.
pub(crate) fn dead_link(path: &Path) -> Option<String> {
    let Ok(target) = fs::read_link(path) else { return link_as_text(path) };
    let cause = fs::metadata(path).err()?;
    Some(format!(
        "is a link to {}, which cannot be followed ({cause}); bring back what it leads to, such as a disk \
         that is not mounted, or remove the link",
        target.display()
    ))
}

/// The problem of a text file that stands in for a link: it holds the link's target and nothing else.
/// `None` for anything else.
fn link_as_text(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok().filter(|about| about.is_file() && about.len() <= MAX_PATH_BYTES)?;
    // Lists and notes have an ending in their names, or several words.
    if path.extension().is_some() || about.len() == 0 {
        return None;
    }
    let target = fs::read_to_string(path).ok()?;
    let leads_away = ["/", "./", "../"].iter().any(|begin| target.starts_with(begin));
    (leads_away && !target.contains(|letter: char| letter.is_whitespace() || letter.is_control())).then(|| {
        format!(
            "is a text that holds the path {target}, as a link becomes where links are not kept (git with \
             core.symlinks=false, some archives and file systems); put what it led to in its place, or \
             remove the file"
        )
    })
}

/// The same as an error.
///
/// # Errors
///
/// [`DataError::Damaged`], where the path is such a link.
pub(super) fn expect_live(path: &Path) -> Result<(), DataError> {
    match dead_link(path) {
        Some(problem) => Err(DataError::Damaged { path: path.to_owned(), problem }),
        None => Ok(()),
    }
}

/// Files and folders that file managers and archivers put beside others, and that do not begin with a dot.
const BESIDE: [&[u8]; 3] = [b"Thumbs.db", b"desktop.ini", b"__MACOSX"];

/// Whether a file or folder of this name is passed over where a folder is listed: it begins with a dot, as
/// `.DS_Store` and `._a.jpg`, or a file manager or an archiver made it.
pub(crate) fn is_hidden(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    name.starts_with(b".") || BESIDE.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The names in a folder that are not hidden and that `wanted` takes, sorted. What a link leads to counts as
/// the link.
pub(super) fn names_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: folder.to_owned(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().into_string().map_err(|_| DataError::Damaged {
            path: entry.path(),
            problem: "its name is not UTF-8; rename it".to_owned(),
        })?;
        if !is_hidden(&name) && wanted(&name) {
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
    fn hidden_names_are_those_of_systems_and_archivers() {
        for name in [".DS_Store", "._a.jpg", ".git", "Thumbs.db", "thumbs.db", "Desktop.ini", "__MACOSX"] {
            assert!(is_hidden(name), "{name}");
        }
        for name in ["a.jpg", "_a.jpg", "a._.jpg", "Thumbs.db.png", "MACOSX"] {
            assert!(!is_hidden(name), "{name}");
        }
    }

    #[test]
    fn a_path_stays_below_its_folder() {
        for path in ["a.png", "train/a.png", "a/b/c", "train/./a.png", "..a/b.."] {
            assert!(is_below(path), "{path}");
        }
        for path in ["", ".", "..", "../a", "a/../../b", "a/..", "/a", "./a", "a\\b"] {
            assert!(!is_below(path), "{path}");
        }
    }
}
