//! The files of `stratus infer`: images and videos to read; masks, sheets and tables to write.

use super::report::CSV_HEADER;
use super::{InferArguments, video};
use crate::commands::target::nearest_path;
use crate::errors::{Failure, Result};
use crate::outputs::{Mark, Outputs};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use stratus_base::text::shell_path;
use stratus_data::images::{find_images, stem};
use stratus_data::png_mark;
use stratus_run::RunDir;
use stratus_train::TrainError;

/// The files to read, and the masks to write.
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
    /// If a path is not found, a folder has no images, or there are no images at all.
    pub fn find(arguments: &InferArguments) -> Result<Self> {
        let mut files = Self { images: Vec::new(), videos: Vec::new(), masks: Vec::new() };
        for path in &arguments.images {
            if path == Path::new("-") {
                for line in std::io::stdin().lock().lines() {
                    let line = line.map_err(|cause| Failure::failed(format!("standard input: {cause}")))?;
                    if !line.trim().is_empty() {
                        files.add(Path::new(line.trim()), arguments)?;
                    }
                }
                continue;
            }
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
        if files.images.is_empty() && files.videos.is_empty() {
            return Err(Failure::usage("no images on standard input")
                .with_hint("write the paths of JPEG, PNG or WebP files, one per line"));
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
        let mut outputs = Outputs::new(arguments.overwrite);
        let network = [Some(arguments.target.as_str()), arguments.weights.as_deref()];
        network.into_iter().flatten().for_each(|path| outputs.protect(path));
        arguments.palette.iter().for_each(|path| outputs.protect(path));
        self.images.iter().chain(&self.videos).for_each(|path| outputs.protect(path));
        if let Some(folder) = &arguments.out {
            for image in &self.images {
                let (mask, image) = (folder.join(append(stem(image), ".png")), image.display());
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
            outputs.claim(csv, "the table", Mark::Table(CSV_HEADER))?;
        }
        if let Some(folder) = &arguments.out {
            fs::create_dir_all(folder)
                .map_err(|cause| Failure::failed(format!("{}: {cause}", folder.display())))?;
        }
        Ok(())
    }

    /// Claims the existing masks of frames; the number of frames is not known yet.
    fn claim_frames(&self, folder: &Path, outputs: &mut Outputs) -> Result {
        let is_frame = |name: &OsStr, video: &Path| {
            let prefix = append(video.file_stem().unwrap_or_default(), "-");
            let number = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
            let number = number.and_then(|number| number.strip_suffix(b".png"));
            let number = number.map(|number| number.strip_suffix(b".overlay").unwrap_or(number));
            number.is_some_and(|number| number.len() >= 6 && number.iter().all(u8::is_ascii_digit))
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

/// The file name of a frame's mask.
pub(super) fn frame_mask_name(video: &Path, number: u64) -> OsString {
    append(video.file_stem().unwrap_or_default(), &format!("-{number:06}.png"))
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
