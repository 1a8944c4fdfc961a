//! The files of `stratus infer`: images and videos to read; masks, sheets and tables to write.

use super::report::CSV_HEADERS;
use super::{InferArguments, video};
use crate::commands::target::nearest_path;
use crate::errors::{Failure, Result};
use crate::outputs::{Mark, Outputs};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stratus_base::text::shell_path;
use stratus_data::images::{find_images, stem};
use stratus_data::png_mark;
use stratus_run::RunDir;
use stratus_train::TrainError;

/// The minimum number of digits of a frame's number in the name of its mask.
const MIN_FRAME_DIGITS: usize = 6;

/// The files to read, and the masks to write.
#[derive(Default)]
pub(super) struct InferenceFiles {
    /// The image files.
    pub images: Vec<PathBuf>,
    /// The videos.
    pub videos: Vec<PathBuf>,
    /// The mask of each image; empty if no masks are written.
    pub masks: Vec<PathBuf>,
}

impl InferenceFiles {
    /// Finds the images and videos of the arguments.
    ///
    /// Outputs of Stratus in a folder are ignored: files in the folder of masks, and masks, overlays and
    /// sheets elsewhere.
    ///
    /// # Errors
    /// If a path is not found, or a folder has no images.
    pub fn find(arguments: &InferArguments) -> Result<Self> {
        let mut files = Self::default();
        for path in &arguments.images {
            if !video::is_video(path) && !path.exists() && !path.is_symlink() {
                let failure = Failure::usage(format!("{}: file or folder not found", path.display()));
                return Err(match nearest_path(path) {
                    Some(near) => failure.with_hint(format!("did you mean {}?", shell_path(&near))),
                    None => failure,
                });
            }
            if RunDir::is_run(path) && stratus_data::is_image_file(Path::new(&arguments.target)) {
                let (run, image) = (shell_path(path), shell_path(Path::new(&arguments.target)));
                return Err(Failure::usage(format!("{} is an image, not a run", arguments.target))
                    .with_hint(format!("the run comes first: `stratus infer {run} {image}`")));
            }
            if files.add(path, arguments)? == 0 {
                return Err(Failure::usage(format!("{} has no images", path.display()))
                    .with_hint("name JPEG, PNG or WebP files, or a folder of them"));
            }
        }
        Ok(files)
    }

    /// Adds a file, or the images of a folder; returns their number.
    fn add(&mut self, path: &Path, arguments: &InferArguments) -> Result<usize> {
        if video::is_video(path) {
            self.videos.push(path.to_owned());
            return Ok(1);
        }
        let mut found = find_images(path).map_err(TrainError::from)?;
        if path.is_dir() {
            let canonical = |path: &Path| path.canonicalize().ok();
            // Masks may also be next to their images; those are recognised by their mark below.
            let root = canonical(path);
            let out = arguments.out.as_deref().and_then(canonical);
            let out =
                out.filter(|out| root.as_ref().is_some_and(|root| out.starts_with(root) && out != root));
            found.retain(|file| {
                let is_output =
                    out.as_ref().is_some_and(|out| canonical(file).is_some_and(|file| file.starts_with(out)));
                // A file that cannot be read is reported when it is decoded.
                !is_output && !png_mark::is_marked(file).unwrap_or(false)
            });
        }
        let count = found.len();
        self.images.extend(found);
        Ok(count)
    }

    /// Claims every output file, before anything is computed.
    ///
    /// # Errors
    /// If two outputs have the same path, or one would replace an input or a file that Stratus did not write.
    pub fn claim(&mut self, arguments: &InferArguments) -> Result {
        let mut outputs = outputs_of(arguments);
        self.images.iter().chain(&self.videos).for_each(|path| outputs.protect(path));
        if let Some(folder) = &arguments.out {
            for image in &self.images {
                let (mask, image) = (folder.join(mask_name(image)), image.display());
                outputs.claim(&mask, &format!("the mask of {image}"), Mark::Image)?;
                if arguments.overlay {
                    outputs.claim(&overlay_path(&mask), &format!("the overlay of {image}"), Mark::Image)?;
                }
                self.masks.push(mask);
            }
            self.claim_frames(folder, &mut outputs)?;
        }
        if let Some(sheet) = &arguments.sheet {
            outputs.claim(sheet, "the sheet", Mark::Image)?;
        }
        if let Some(csv) = &arguments.csv {
            outputs.claim(csv, "the table", Mark::Table(&CSV_HEADERS))?;
        }
        if let Some(folder) = &arguments.out {
            create_mask_folder(folder)?;
        }
        Ok(())
    }

    /// Claims the existing masks of frames; the number of frames is not known yet.
    fn claim_frames(&self, folder: &Path, outputs: &mut Outputs) -> Result {
        let is_frame = |name: &OsStr, video: &Path| {
            frame_video_stem(name).is_some_and(|stem| video.file_stem() == Some(stem))
        };
        for (position, video) in self.videos.iter().enumerate() {
            let has_same_stem = |other: &&PathBuf| other.file_stem() == video.file_stem();
            if let Some(other) = self.videos[..position].iter().find(has_same_stem) {
                return Err(Failure::usage(format!(
                    "the masks of {} and {} would have the same names",
                    other.display(),
                    video.display()
                ))
                .with_hint("use videos with different names"));
            }
            let looks_like_frame = |mask: &&PathBuf| is_frame(mask.file_name().unwrap_or_default(), video);
            if let Some(mask) = self.masks.iter().find(looks_like_frame) {
                return Err(Failure::usage(format!(
                    "{} would be the mask of an image and of a frame of {}",
                    mask.display(),
                    video.display()
                ))
                .with_hint("use images and videos with different names"));
            }
            // A missing folder has no files.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if is_frame(&entry.file_name(), video) {
                    let what = format!("the mask of a frame of {}", video.display());
                    outputs.claim(&entry.path(), &what, Mark::Image)?;
                }
            }
        }
        Ok(())
    }
}

/// The outputs of the command, with the files of the network protected.
pub(super) fn outputs_of(arguments: &InferArguments) -> Outputs {
    let mut outputs = Outputs::new(arguments.overwrite);
    let network = [Some(arguments.target.as_str()), arguments.weights.as_deref()];
    network.into_iter().flatten().for_each(|path| outputs.protect(path));
    arguments.palette.iter().for_each(|path| outputs.protect(path));
    outputs
}

/// Creates the folder of the masks.
///
/// # Errors
/// If it cannot be created.
pub(super) fn create_mask_folder(folder: &Path) -> Result {
    fs::create_dir_all(folder).map_err(|cause| Failure::failed(format!("{}: {cause}", folder.display())))
}

/// The file name of an image's mask.
pub(super) fn mask_name(image: &Path) -> OsString {
    append(stem(image), ".png")
}

/// The stem of the video whose frame may have a mask or an overlay of this name.
pub(super) fn frame_video_stem(name: &OsStr) -> Option<&OsStr> {
    let name = name.as_bytes().strip_suffix(b".png")?;
    let name = name.strip_suffix(b".overlay").unwrap_or(name);
    let dash = name.iter().rposition(|&byte| byte == b'-')?;
    let (stem, number) = (&name[..dash], &name[dash + 1..]);
    let is_number = number.len() >= MIN_FRAME_DIGITS && number.iter().all(u8::is_ascii_digit);
    is_number.then(|| OsStr::from_bytes(stem))
}

/// The file name of a frame's mask.
pub(super) fn frame_mask_name(video: &Path, number: u64) -> OsString {
    append(video.file_stem().unwrap_or_default(), &format!("-{number:0MIN_FRAME_DIGITS$}.png"))
}

/// The path of the overlay of a mask.
pub(super) fn overlay_path(mask: &Path) -> PathBuf {
    mask.with_file_name(append(mask.file_stem().unwrap_or_default(), ".overlay.png"))
}

fn append(name: &OsStr, end: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(end);
    name
}
