//! Image files without labels, as a data set: what is predicted of them is not known beforehand.

use std::collections::HashSet;
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
        let sample = files::sample(scratch, region, |[height, width], _, scratch| {
            if !masks {
                return Ok(0);
            }
            scratch.mask.clear();
            scratch.mask.resize(height * width, IGNORED_PIXEL);
            Ok(IGNORED)
        });
        let taken = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds[index].store(taken, Ordering::Relaxed);
        sample.map_err(|problem| DataError::BadSample { sample: file.display().to_string(), problem })
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
/// of their names, subfolders after the files beside them. Links to folders are followed, each folder once.
///
/// # Errors
///
/// Where a folder cannot be read, or a link leads nowhere.
pub fn find_images(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    images_in(path, &mut HashSet::new())
}

/// Whether a file is called as an image is, in any case of letters.
pub(crate) fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// The same of a folder, unless it was met before: a link may lead back to where it lies.
fn images_in(path: &Path, met: &mut HashSet<PathBuf>) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    if !met.insert(path.canonicalize().map_err(unreadable)?) {
        return Ok(Vec::new());
    }
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let entry = entry.path();
        let is_folder = entry.is_dir();
        files::expect_live(&entry)?;
        if is_folder {
            folders.push(entry);
        } else if is_image(&entry) {
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
