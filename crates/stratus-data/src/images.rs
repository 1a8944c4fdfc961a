//! Image files without labels, as a data set: what is predicted of them is not known beforehand.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::datasets::files;
use crate::datasets::{Dataset, IGNORED, IGNORED_PIXEL, RegionRequest, Sample, Scratch};
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// Endings of the files that a folder is searched for.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Other endings of JPEG and PNG files, which are taken where a file is named.
const OTHER_ENDINGS: [&str; 4] = ["jpe", "jfif", "pjpeg", "apng"];

/// Image files, JPEG or PNG, in a given order.
#[derive(Debug)]
pub struct ImageFiles {
    files: Vec<PathBuf>,
    classes: usize,
    masks: bool,
    /// Nanoseconds that each took to read and decode, the last time.
    nanoseconds: Vec<AtomicU64>,
}

impl ImageFiles {
    /// These files, of `classes` classes; with `masks` for a network that answers for each pixel. Every pixel
    /// is then of no class, and every image without masks of the first.
    ///
    /// # Errors
    ///
    /// [`DataError::NoImages`].
    pub fn new(files: Vec<PathBuf>, classes: usize, masks: bool) -> Result<Self, DataError> {
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

    /// Seconds that an image took to read and decode.
    #[must_use]
    pub fn seconds(&self, index: usize) -> f64 {
        self.nanoseconds.get(index).map_or(0.0, |time| time.load(Ordering::Relaxed) as f64 * 1e-9)
    }

    fn sample<'a>(
        &self,
        index: usize,
        scratch: &'a mut Scratch,
        region: Option<RegionRequest<'_>>,
    ) -> Result<Sample<'a>, DataError> {
        let Some(file) = self.files.get(index) else {
            return Err(DataError::NoSuchSample {
                dataset: self.name().to_owned(),
                index,
                len: self.files.len(),
            });
        };
        let begun = Instant::now();
        scratch.path.clone_from(file);
        let masks = self.masks;
        // A region may lie above the place where a file is cut off.
        let whole = match region {
            Some(_) => {
                let Scratch { path, images, encoded, decoded, .. } = &mut *scratch;
                files::probe(path, images, encoded, decoded).map(|_| ())
            }
            None => Ok(()),
        };
        let read = |scratch: &'a mut Scratch| {
            files::sample(scratch, region, |[height, width], _, scratch| {
                if !masks {
                    return Ok(0);
                }
                scratch.mask.clear();
                scratch.mask.resize(height * width, IGNORED_PIXEL);
                Ok(IGNORED)
            })
        };
        let sample = whole.and_then(|()| read(scratch));
        let taken = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds[index].store(taken, Ordering::Relaxed);
        sample.map_err(|problem| DataError::BadSample {
            sample: file.display().to_string(),
            problem: files::dead_link(file).unwrap_or(problem),
        })
    }

    /// Height and width of an image as it is stored, by its header where that suffices.
    ///
    /// # Errors
    ///
    /// [`DataError::BadSample`].
    pub fn stored_size(&self, index: usize, scratch: &mut Scratch) -> Result<[usize; 2], DataError> {
        let Some(file) = self.files.get(index) else {
            return Err(DataError::NoSuchSample {
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
        self.sample(index, scratch, None)
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        // A mask is of the whole image.
        self.sample(index, scratch, Some(wanted).filter(|_| !self.masks))
    }

    fn masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::unit(3)
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// The image files that a path stands for: itself, or of a folder those with an image's ending, in the order
/// of their names, subfolders after the files beside them. Hidden files and folders are passed over, as data
/// sets do; links to folders are followed, each folder once, and a link that leads nowhere is listed, so that
/// reading it says so.
///
/// # Errors
///
/// Where a folder cannot be read.
pub fn find_images(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    images_in(path, &mut HashSet::new())
}

/// The name of an image's file without its ending; an ending that no image has is part of the name.
#[must_use]
pub fn stem(path: &Path) -> &OsStr {
    let known = ENDINGS.iter().chain(&OTHER_ENDINGS);
    match (path.file_stem(), path.extension().and_then(OsStr::to_str)) {
        (Some(stem), Some(ending)) if known.into_iter().any(|known| ending.eq_ignore_ascii_case(known)) => {
            stem
        }
        _ => path.file_name().unwrap_or_default(),
    }
}

/// Whether a file has an image's extension, ignoring case, and is not hidden.
pub(crate) fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)) && !is_hidden(path)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| files::is_hidden(name.as_encoded_bytes()))
}

/// The same of a folder, unless it was met before: a link may lead back to where it lies.
fn images_in(path: &Path, met: &mut HashSet<PathBuf>) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    if !met.insert(path.canonicalize().map_err(unreadable)?) {
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
        files.extend(images_in(&folder, met)?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_testing::jpeg::{Scans, Sketch};

    #[test]
    fn takes_the_ending_of_an_image_off_alone() {
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
    fn lists_no_hidden_files_and_takes_them_by_name() {
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

    /// The region that is wanted may be whole in a file that is not.
    #[test]
    fn a_file_that_is_cut_off_is_damaged_whatever_region_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.jpg");
        let sketch = Sketch {
            height: 64,
            width: 16,
            factors: vec![(1, 1)],
            scans: Scans::Together,
            restart: 0,
            adobe: None,
            seed: 1,
        };
        let bytes = sketch.write();
        fs::write(&file, &bytes[..bytes.len() - 2]).unwrap();
        let set = ImageFiles::new(vec![file], 2, false).unwrap();
        let top = |[_, _, width]: [usize; 3], _| crate::transform::frame::Region::of([1, 8, width]);
        assert!(set.read_region(0, &mut Scratch::default(), &top).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_listed_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nowhere/photos", folder.path().join("photos")).unwrap();
        let files = find_images(folder.path()).unwrap();
        assert_eq!(files, [folder.path().join("photos")]);
        let set = ImageFiles::new(files, 2, false).unwrap();
        let error = set.read(0, &mut Scratch::default()).unwrap_err().to_string();
        assert!(error.contains("is a link to /nowhere/photos, which cannot be followed"), "{error}");
    }
}
