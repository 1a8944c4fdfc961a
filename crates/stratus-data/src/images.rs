//! Image files without labels as a data set, for prediction.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::dataset::{Dataset, IGNORED, IGNORED_PIXEL, RegionRequest, Sample, Scratch};
use crate::datasets::files;
use crate::decode::JpegLibrary;
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// The file extensions that are searched for in folders.
const IMAGE_EXTENSIONS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
/// Other file extensions of JPEG and PNG files, which are accepted for named files.
const OTHER_EXTENSIONS: [&str; 4] = ["jpe", "jfif", "pjpeg", "apng"];

/// File extensions of formats that are not decoded: such files are damaged images rather than no images.
const UNSUPPORTED_EXTENSIONS: [&str; 15] = [
    "avif", "bmp", "gif", "heic", "heif", "j2k", "jp2", "jxl", "pbm", "pgm", "pnm", "ppm", "tga", "tif",
    "tiff",
];

/// The first bytes of image files: JPEG, PNG, GIF and TIFF.
const IMAGE_SIGNATURES: [&[u8]; 5] = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*"];

/// Image files, JPEG, PNG or WebP, in a given order.
#[derive(Debug)]
pub struct ImageFiles {
    files: Vec<PathBuf>,
    classes: usize,
    masks: bool,
    /// The time of the last reading and decoding of each file, in nanoseconds.
    nanoseconds: Vec<AtomicU64>,
}

impl ImageFiles {
    /// A data set of `files` with `classes` classes. With `masks`, for segmentation networks, every pixel is
    /// ignored; without, every label is 0.
    ///
    /// # Errors
    ///
    /// [`DataError::NoImages`]; [`DataError::Library`].
    pub fn new(files: Vec<PathBuf>, classes: usize, masks: bool) -> Result<Self, DataError> {
        JpegLibrary::check_named()?;
        if files.is_empty() || u32::try_from(files.len()).is_err() {
            return Err(DataError::NoImages { count: files.len() });
        }
        let nanoseconds = files.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self { files, classes, masks, nanoseconds })
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The time of the last reading and decoding of an image, in seconds.
    #[must_use]
    pub fn seconds(&self, index: usize) -> f64 {
        self.nanoseconds.get(index).map_or(0.0, |time| time.load(Ordering::Relaxed) as f64 * 1e-9)
    }

    fn read_sample<'a>(
        &self,
        index: usize,
        scratch: &'a mut Scratch,
        region: Option<RegionRequest<'_>>,
    ) -> Result<Sample<'a>, DataError> {
        let Some(file) = self.files.get(index) else {
            return Err(DataError::SampleOutOfRange {
                dataset: self.name().to_owned(),
                index,
                len: self.files.len(),
            });
        };
        let started = Instant::now();
        scratch.path.clone_from(file);
        let masks = self.masks;
        // A region may be above the position where a file is truncated.
        let probed = match region {
            Some(_) => {
                let Scratch { path, images, encoded, decoded, .. } = &mut *scratch;
                files::probe(path, images, encoded, decoded).map(|_| ())
            }
            None => Ok(()),
        };
        let read = |scratch: &'a mut Scratch| {
            files::decode_sample(scratch, region, |[height, width], _, scratch| {
                if !masks {
                    return Ok(0);
                }
                scratch.mask.clear();
                scratch.mask.resize(height * width, IGNORED_PIXEL);
                Ok(IGNORED)
            })
        };
        let sample = probed.and_then(|()| read(scratch));
        let taken = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds[index].store(taken, Ordering::Relaxed);
        sample.map_err(|problem| DataError::BadSample {
            sample: file.display().to_string(),
            problem: files::dead_link(file).unwrap_or(problem),
        })
    }

    /// Height and width of the stored image, from the header if possible.
    ///
    /// # Errors
    ///
    /// [`DataError::BadSample`].
    pub fn stored_size(&self, index: usize, scratch: &mut Scratch) -> Result<[usize; 2], DataError> {
        let Some(file) = self.files.get(index) else {
            return Err(DataError::SampleOutOfRange {
                dataset: self.name().to_owned(),
                index,
                len: self.files.len(),
            });
        };
        let Scratch { images, encoded, decoded, .. } = scratch;
        files::probe(file, images, encoded, decoded).map_err(|problem| DataError::BadSample {
            sample: file.display().to_string(),
            problem: files::dead_link(file).unwrap_or(problem),
        })
    }
}

impl Dataset for ImageFiles {
    fn name(&self) -> &str {
        "images"
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        None
    }

    fn sample_name(&self, index: usize) -> String {
        self.files.get(index).map_or_else(String::new, |file| file.display().to_string())
    }

    fn label(&self, _index: usize) -> Result<u32, DataError> {
        Ok(if self.masks { IGNORED } else { 0 })
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_sample(index, scratch, None)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        // A mask covers the whole image.
        self.read_sample(index, scratch, Some(region).filter(|_| !self.masks))
    }

    fn has_masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(3)
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// Lists the image files at a path: the file itself, or the files with an image extension in a folder, sorted
/// by name, with subfolders after the files. Hidden files and folders are skipped, like in data sets. Links
/// to folders are followed, each folder once. Broken links are listed, so that reading reports them.
///
/// # Errors
///
/// If a folder cannot be read.
pub fn find_images(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    list_images(path, &mut HashSet::new())
}

/// Returns whether a file begins like an image: JPEG, PNG, WebP, or one of the common formats that are not
/// decoded.
#[must_use]
pub fn is_image_file(path: &Path) -> bool {
    let mut head = [0; 12];
    let Ok(count) = files::read_head(path, &mut head) else { return false };
    let head = &head[..count];
    IMAGE_SIGNATURES.iter().any(|signature| head.starts_with(signature))
        || head.starts_with(b"RIFF") && head.ends_with(b"WEBP")
        || head.get(4..8) == Some(b"ftyp") && [&b"avif"[..], b"heic", b"mif1"].contains(&&head[8..])
}

/// The name of an image file without its extension. An extension that is not an image's is part of the name.
#[must_use]
pub fn stem(path: &Path) -> &OsStr {
    let known = IMAGE_EXTENSIONS.iter().chain(&OTHER_EXTENSIONS);
    match (path.file_stem(), path.extension().and_then(OsStr::to_str)) {
        (Some(stem), Some(extension))
            if known.into_iter().any(|known| extension.eq_ignore_ascii_case(known)) =>
        {
            stem
        }
        _ => path.file_name().unwrap_or_default(),
    }
}

/// Returns whether a file has the extension of an image format, ignoring case, including formats that are not
/// decoded.
pub(crate) fn has_image_extension(name: &str) -> bool {
    let Some((_, extension)) = name.rsplit_once('.') else { return false };
    let mut known = IMAGE_EXTENSIONS.iter().chain(&OTHER_EXTENSIONS).chain(&UNSUPPORTED_EXTENSIONS);
    known.any(|known| extension.eq_ignore_ascii_case(known))
}

/// Returns whether a file has an image's extension, ignoring case, and is not hidden.
pub(crate) fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    IMAGE_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)) && !is_hidden(path)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| files::is_hidden(name.as_encoded_bytes()))
}

/// The image files below a folder, unless it was visited before: a link may lead back to a parent.
fn list_images(path: &Path, visited: &mut HashSet<PathBuf>) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    if !visited.insert(path.canonicalize().map_err(unreadable)?) {
        return Ok(Vec::new());
    }
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        if is_hidden(&entry) {
            continue;
        }
        if entry.is_dir() {
            folders.push(entry);
        } else if is_image(&entry) || files::dead_link(&entry).is_some() {
            files.push(entry);
        }
    }
    files.sort();
    folders.sort();
    for folder in folders {
        files.extend(list_images(&folder, visited)?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

    #[test]
    fn images_are_recognised_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let is_image = |content: &[u8]| {
            let path = folder.path().join("file.toml");
            fs::write(&path, content).unwrap();
            is_image_file(&path)
        };
        for image in [
            &b"\xff\xd8\xff\xe0"[..],
            b"\x89PNG\r\n\x1a\n",
            b"RIFF\x10\0\0\0WEBPVP8 ",
            b"GIF89a",
            b"\0\0\0\x20ftypavif",
        ] {
            assert!(is_image(image), "{image:?}");
        }
        for other in [&b""[..], b"RIFF", b"RIFF\x10\0\0\0WAVE", b"\0\0\0\x20ftyp", b"[model]\n"] {
            assert!(!is_image(other), "{other:?}");
        }
        assert!(!is_image_file(folder.path()) && !is_image_file(&folder.path().join("absent")));
    }

    #[test]
    fn stem_removes_only_image_extensions() {
        for (path, expected) in [
            ("a/scan.1.jpg", "scan.1"),
            ("2024-05-01 12.30.15.JPG", "2024-05-01 12.30.15"),
            ("2024-05-01 12.30.15", "2024-05-01 12.30.15"),
            ("a.b/photo", "photo"),
            (".jpg", ".jpg"),
            ("a.jpg.png", "a.jpg"),
            ("a.jfif", "a"),
            ("..", ""),
        ] {
            assert_eq!(stem(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn skips_hidden_files_unless_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["b/c.PNG", "a.jpg", "._a.jpg", ".ipynb_checkpoints/a.jpg", "__MACOSX/a.jpg", "notes.txt"]
        {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "").unwrap();
        }
        assert_eq!(find_images(folder.path()).unwrap(), [at("a.jpg"), at("b/c.PNG")]);
        assert_eq!(find_images(&at("._a.jpg")).unwrap(), [at("._a.jpg")]);
        assert_eq!(find_images(&at("__MACOSX")).unwrap(), [at("__MACOSX/a.jpg")]);
    }

    /// The requested region may be complete in a truncated file.
    #[test]
    fn truncated_file_is_damaged_for_every_region() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.jpg");
        let jpeg = SyntheticJpeg {
            height: 64,
            width: 16,
            factors: vec![(1, 1)],
            scans: ScanOrder::Interleaved,
            restart: 0,
            adobe: None,
            seed: 1,
        };
        let bytes = jpeg.write();
        fs::write(&file, &bytes[..bytes.len() - 2]).unwrap();
        let set = ImageFiles::new(vec![file], 2, false).unwrap();
        let top = |[_, _, width]: [usize; 3], _| crate::geometry::Region::whole([1, 8, width]);
        assert!(set.read_region(0, &mut Scratch::default(), &top).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn lists_broken_links_and_reports_them_when_read() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nowhere/photos", folder.path().join("photos")).unwrap();
        let files = find_images(folder.path()).unwrap();
        assert_eq!(files, [folder.path().join("photos")]);
        let set = ImageFiles::new(files, 2, false).unwrap();
        let error = set.read(0, &mut Scratch::default()).unwrap_err().to_string();
        assert!(error.contains("is a broken link to /nowhere/photos ("), "{error}");
    }
}
