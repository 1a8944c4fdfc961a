//! The masks of a stream: no two of its images write the same file, and no file of the user is replaced.
//!
//! A stream may have any number of images, so file names are stored as hashes of eight bytes. Two names of
//! the same hash would be refused although they differ: one in 2⁶⁴ pairs.

use crate::commands::infer::InferArguments;
use crate::commands::infer::files::{
    create_mask_folder, frame_mask_name, frame_video_stem, mask_name, outputs_of, overlay_path,
};
use crate::commands::infer::with_hint;
use crate::outputs::{Mark, Outputs};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

/// The file names in the folder of the masks that the stream has used.
pub(super) struct MaskClaims {
    folder: PathBuf,
    /// The folder without links.
    canonical: PathBuf,
    overlay: bool,
    /// The files that the command reads besides those of the stream.
    outputs: Outputs,
    names: NameHashes,
}

/// Hashes of file names.
#[derive(Default)]
struct NameHashes {
    keys: RandomState,
    /// Masks and overlays of images.
    masks: HashSet<u64>,
    /// The stems of videos, whose frames have masks.
    videos: HashSet<u64>,
    /// Images and videos that are in the folder themselves.
    inputs: HashSet<u64>,
}

impl MaskClaims {
    /// Creates the folder, if it is missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(folder: &Path, arguments: &InferArguments) -> crate::errors::Result<Self> {
        create_mask_folder(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            canonical: folder.canonicalize().unwrap_or_else(|_| folder.to_owned()),
            overlay: arguments.overlay,
            outputs: outputs_of(arguments),
            names: NameHashes::default(),
        })
    }

    /// Claims the mask of an image, and its overlay.
    ///
    /// # Errors
    /// The problem, if a file may not be written.
    pub fn claim_image(&mut self, image: &Path) -> Result<PathBuf, String> {
        self.add_input(image);
        let name = mask_name(image);
        let mask = self.folder.join(&name);
        let label = format!("the mask of {}", image.display());
        if let Some(stem) = frame_video_stem(&name).filter(|stem| self.names.has_video(stem)) {
            return Err(format!(
                "{label} would have the name of a mask of a frame of {}: {}",
                Path::new(stem).display(),
                mask.display()
            ));
        }
        let mut files = vec![(mask.clone(), label)];
        if self.overlay {
            files.push((overlay_path(&mask), format!("the overlay of {}", image.display())));
        }
        for (file, label) in &files {
            self.check(file, label)?;
        }
        for (file, _) in &files {
            let hash = self.names.hash(file_name(file));
            self.names.masks.insert(hash);
        }
        Ok(mask)
    }

    /// Claims the names of the masks of a video's frames.
    ///
    /// # Errors
    /// The problem, if an earlier video has the same.
    pub fn claim_video(&mut self, video: &Path) -> Result<(), String> {
        self.add_input(video);
        let hash = self.names.hash(video.file_stem().unwrap_or_default());
        if self.names.videos.insert(hash) {
            return Ok(());
        }
        Err("the masks of its frames would have the names of those of an earlier video".to_owned())
    }

    /// The mask of a frame, after [`Self::claim_video`].
    ///
    /// # Errors
    /// The problem, if the file may not be written.
    pub fn claim_frame(&self, video: &Path, number: u64) -> Result<PathBuf, String> {
        let mask = self.folder.join(frame_mask_name(video, number));
        self.check(&mask, &format!("the mask of frame {number} of {}", video.display()))?;
        if self.overlay {
            let label = format!("the overlay of frame {number} of {}", video.display());
            self.check(&overlay_path(&mask), &label)?;
        }
        Ok(mask)
    }

    /// Releases the mask of an image that has none after all.
    pub fn release(&mut self, mask: &Path) {
        let overlay = self.overlay.then(|| overlay_path(mask));
        for file in [Some(mask), overlay.as_deref()].into_iter().flatten() {
            let hash = self.names.hash(file_name(file));
            self.names.masks.remove(&hash);
        }
    }

    /// Releases the names of the masks of a video that has no frames.
    pub fn release_video(&mut self, video: &Path) {
        let hash = self.names.hash(video.file_stem().unwrap_or_default());
        self.names.videos.remove(&hash);
    }

    /// Remembers a file that is read, if a mask could replace it.
    pub fn add_input(&mut self, path: &Path) {
        let Ok(path) = path.canonicalize() else { return };
        if path.parent() == Some(&self.canonical) {
            let hash = self.names.hash(file_name(&path));
            self.names.inputs.insert(hash);
        }
    }

    /// Checks that a file may be written.
    fn check(&self, file: &Path, label: &str) -> Result<(), String> {
        let hash = self.names.hash(file_name(file));
        if self.names.masks.contains(&hash) {
            return Err(format!("{label} would replace {}, that of an earlier image", file.display()));
        }
        if self.names.inputs.contains(&hash) && file.exists() {
            return Err(format!("{label} would replace {}, which is an input", file.display()));
        }
        self.outputs.check_replaceable(file, label, Mark::Image).map_err(|failure| with_hint(&failure))
    }
}

impl NameHashes {
    fn hash(&self, name: &OsStr) -> u64 {
        self.keys.hash_one(name)
    }

    fn has_video(&self, stem: &OsStr) -> bool {
        self.videos.contains(&self.hash(stem))
    }
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outputs::Overwrite;
    use std::fs;

    fn claims(folder: &Path, overlay: bool, overwrite: bool) -> MaskClaims {
        MaskClaims {
            folder: folder.to_owned(),
            canonical: folder.canonicalize().unwrap(),
            overlay,
            outputs: Outputs::new(Overwrite { overwrite }),
            names: NameHashes::default(),
        }
    }

    fn expect_refused<T: std::fmt::Debug>(claimed: Result<T, String>, words: &str) {
        let problem = claimed.unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }

    #[test]
    fn no_file_is_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        for overwrite in [false, true] {
            let mut claims = claims(folder.path(), true, overwrite);
            let mask = claims.claim_image(Path::new("a/x.jpg")).unwrap();
            assert_eq!(mask, folder.path().join("x.png"));
            expect_refused(claims.claim_image(Path::new("b/x.png")), "that of an earlier image");
            expect_refused(claims.claim_image(Path::new("x.overlay.jpg")), "that of an earlier image");
            claims.claim_image(Path::new("film-000001.jpg")).unwrap();
            claims.claim_video(Path::new("film.mp4")).unwrap();
            expect_refused(claims.claim_video(Path::new("b/film.mkv")), "those of an earlier video");
            expect_refused(claims.claim_frame(Path::new("film.mp4"), 1), "that of an earlier image");
            claims.claim_frame(Path::new("film.mp4"), 2).unwrap();
            for image in ["film-000002.jpg", "film-1234567.jpg", "film-000002.overlay.png"] {
                expect_refused(claims.claim_image(Path::new(image)), "of a frame of film");
            }
            claims.claim_image(Path::new("film-2.jpg")).unwrap();
            // After a failure, the image can be sent again.
            claims.release(&mask);
            claims.claim_image(Path::new("b/x.png")).unwrap();
            claims.release_video(Path::new("film.mp4"));
            claims.claim_video(Path::new("b/film.mkv")).unwrap();
        }
    }

    #[test]
    fn neither_inputs_nor_foreign_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["input.png", "other.png", "input.jpg", "film-000003.png"] {
            fs::write(at(name), "mine").unwrap();
        }
        for overwrite in [false, true] {
            let mut claims = claims(folder.path(), false, overwrite);
            expect_refused(claims.claim_image(&at("input.png")), "which is an input");
            expect_refused(claims.claim_image(&at("input.jpg")), "which is an input");
            let other = claims.claim_image(Path::new("other.jpg"));
            let frame = claims.claim_frame(Path::new("film.mp4"), 3);
            if overwrite {
                assert_eq!((other, frame), (Ok(at("other.png")), Ok(at("film-000003.png"))));
            } else {
                expect_refused(other, "--overwrite");
                expect_refused(frame, "--overwrite");
            }
        }
    }
}
