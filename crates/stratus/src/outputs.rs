//! The files that a command writes to paths given by the user.
//!
//! An input is never replaced; an existing file is replaced only if Stratus wrote it, or with `--overwrite`.
//! Both are checked before anything is computed.

use crate::errors::{Failure, Result};
use clap::Args;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stratus_data::png_mark;
use stratus_report::page;
use stratus_run::{atomic, classes};
use stratus_weights::WeightsFile;

/// The flag of the commands that write files.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Overwrite {
    /// Replace existing files that Stratus did not write
    #[arg(long)]
    pub overwrite: bool,
}

/// The mark by which a file is recognised as written by Stratus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// No mark.
    None,
    /// An image that contains its own checksum.
    Image,
    /// A page that names its generator.
    Page,
    /// A table that begins with one of these lines.
    Table(&'static [&'static str]),
    /// Metrics of classes, in the format of a run's `classes.csv`.
    Classes,
    /// A confusion matrix.
    Confusion,
    /// An ONNX model that names its producer.
    Model,
    /// A safetensors file with the metadata of an export.
    Weights,
    /// A file of a run directory, recognised by its name.
    RunFile,
    /// An earlier output of the same command with the same content, as the command has checked.
    Identical,
}

/// The maximum size of a table that is inspected, in bytes.
const MAX_TABLE_BYTES: u64 = 1 << 28;

impl Mark {
    /// Returns whether a file has the mark.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn is_on(self, path: &Path) -> io::Result<bool> {
        let text = || {
            let mut bytes = Vec::new();
            File::open(path)?.take(MAX_TABLE_BYTES).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(String::from_utf8(bytes).unwrap_or_default())
        };
        Ok(match self {
            Self::None => false,
            Self::Image => png_mark::is_marked(path)?,
            Self::Page => page::is_page(path)?,
            Self::Table(heads) => {
                let longest = heads.iter().map(|head| head.len()).max().unwrap_or(0);
                let mut first = Vec::new();
                File::open(path)?.take(longest as u64).read_to_end(&mut first)?;
                heads.iter().any(|head| first.starts_with(head.as_bytes()))
            }
            Self::Classes => classes::read_names(path).is_some(),
            Self::Confusion => classes::is_confusion(&text()?),
            Self::Model => stratus_onnx::is_exported_by_stratus(path)?,
            Self::Weights => WeightsFile::open(path)
                .is_ok_and(|file| EXPORT_METADATA_KEYS.iter().all(|key| file.metadata().contains_key(*key))),
            Self::RunFile | Self::Identical => true,
        })
    }
}

/// The metadata keys of exported weights, besides the ones of images and classes.
pub const EXPORT_METADATA_KEYS: [&str; 2] = ["network", "weights_sha256"];

/// The files that a command reads, and those that it is going to write.
#[derive(Debug, Default)]
pub struct Outputs {
    overwrite: bool,
    inputs: HashSet<PathBuf>,
    claimed: HashMap<PathBuf, String>,
}

impl Outputs {
    /// An empty set of files.
    #[must_use]
    pub fn new(Overwrite { overwrite }: Overwrite) -> Self {
        Self { overwrite, ..Self::default() }
    }

    /// Protects a file that the command reads; a missing file is ignored.
    pub fn protect(&mut self, path: impl AsRef<Path>) {
        self.inputs.extend(path.as_ref().canonicalize());
    }

    /// Claims a file that the command is going to write; `label` is its name in messages, like `the sheet`.
    ///
    /// # Errors
    /// If the path is an input, another output, a folder, or an existing file that may not be replaced.
    pub fn claim(&mut self, path: &Path, label: &str, mark: Mark) -> Result {
        let shown = path.display();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A folder that does not exist yet has no files to replace.
        let canonical = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let Some(name) = path.file_name() else {
            return Err(Failure::usage(format!("cannot write {label} to {shown}: not a file name")));
        };
        let canonical = canonical.join(name);
        if let Some(other) = self.claimed.insert(canonical, label.to_owned()) {
            return Err(Failure::usage(format!("{other} and {label} would both be {shown}"))
                .with_hint("use different file names"));
        }
        self.check_replaceable(path, label, mark)
    }

    /// Checks that a file may be written, without claiming it: for outputs whose number has no limit.
    ///
    /// # Errors
    /// If the path is an input, a folder, or an existing file that may not be replaced.
    pub fn check_replaceable(&self, path: &Path, label: &str, mark: Mark) -> Result {
        let shown = path.display();
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
        if path.canonicalize().is_ok_and(|target| self.inputs.contains(&target)) {
            return Err(Failure::usage(format!("{label} would replace {shown}, which is an input"))
                .with_hint("write to another file"));
        }
        if path.is_dir() {
            return Err(Failure::usage(format!("cannot write {label} to {shown}: is a folder"))
                .with_hint("name a file in it"));
        }
        if !metadata.is_symlink() && !metadata.is_file() {
            return Err(Failure::usage(format!("cannot write {label} to {shown}: not a regular file")));
        }
        // A file that cannot be read counts as not written by Stratus.
        if self.overwrite || mark.is_on(path).unwrap_or(false) {
            return Ok(());
        }
        Err(already_exists_error(path, label))
    }

    /// Writes a claimed file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(path: &Path, bytes: &[u8]) -> Result {
        atomic::write(path, bytes).map_err(Failure::failed)
    }
}

/// The error for an existing file that may not be replaced.
fn already_exists_error(path: &Path, label: &str) -> Failure {
    Failure::usage(format!("{} exists, and {label} would replace it", path.display()))
        .with_hint("name another file, or use --overwrite")
}

/// Writes an output file.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result {
    fs::write(path, content)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_data::contact_sheet::RgbImage;

    #[test]
    fn replaces_neither_inputs_nor_foreign_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["input.png", "own.txt"] {
            fs::write(at(name), "mine").unwrap();
        }
        let picture = RgbImage { pixels: vec![7; 18], height: 2, width: 3 }.to_png().unwrap();
        fs::write(at("ours.png"), &picture).unwrap();
        fs::write(at("page.html"), page::GENERATOR).unwrap();
        fs::write(at("table.csv"), "path,rank\n").unwrap();
        fs::write(at("classes.csv"), "class,name,samples,accuracy,iou,bf\n0,sky,7,1.0,1.0,\n").unwrap();
        fs::write(at("edited.csv"), "class,name,samples,note,accuracy,iou,bf\n0,sky,7,x,1.0,1.0,\n").unwrap();
        fs::write(at("confusion.csv"), "class,sky\nsky,3\n").unwrap();
        fs::write(at("a.onnx"), b"\x08\x08\x12\x07stratus\x1a").unwrap();
        fs::write(at("b.onnx"), b"\x08\x08\x12\x07pytorch\x1a").unwrap();
        let claims = |overwrite: bool, name: &str, mark: Mark| {
            let mut outputs = Outputs::new(Overwrite { overwrite });
            outputs.protect(at("input.png"));
            outputs.protect(at("none"));
            outputs.claim(&at(name), "the sheet", mark).map_err(|failure| failure.to_string())
        };
        for overwrite in [false, true] {
            assert!(claims(overwrite, "input.png", Mark::RunFile).unwrap_err().contains("which is an input"));
            assert!(claims(overwrite, "", Mark::None).is_err());
            assert!(claims(overwrite, "new", Mark::None).is_ok());
            assert!(claims(overwrite, "new/new", Mark::None).is_ok());
        }
        let error = claims(false, "own.txt", Mark::Image).unwrap_err();
        assert!(error.contains("own.txt exists, and the sheet would replace it"), "{error}");
        assert!(error.contains("--overwrite"), "{error}");
        assert!(claims(true, "own.txt", Mark::None).is_ok());
        assert!(claims(false, "ours.png", Mark::Image).is_ok());
        assert!(claims(false, "ours.png", Mark::None).is_err());
        assert!(claims(false, "page.html", Mark::Page).is_ok());
        assert!(claims(false, "own.txt", Mark::Page).is_err());
        for (name, mark, is_own) in [
            ("table.csv", Mark::Table(&["path,rank\n"]), true),
            ("classes.csv", Mark::Table(&["path,rank\n"]), false),
            ("own.txt", Mark::Table(&["path,rank\n"]), false),
            ("classes.csv", Mark::Classes, true),
            ("edited.csv", Mark::Classes, false),
            ("confusion.csv", Mark::Confusion, true),
            ("classes.csv", Mark::Confusion, false),
            ("a.onnx", Mark::Model, true),
            ("b.onnx", Mark::Model, false),
            ("own.txt", Mark::Weights, false),
        ] {
            assert_eq!(claims(false, name, mark).is_ok(), is_own, "{name} {mark:?}");
        }
        let mut outputs = Outputs::default();
        outputs.claim(&at("a.csv"), "the table", Mark::None).unwrap();
        let twice = outputs.claim(&at("./a.csv"), "the sheet", Mark::None).unwrap_err().to_string();
        assert!(twice.contains("the table and the sheet would both be"), "{twice}");
    }

    #[cfg(unix)]
    #[test]
    fn protects_inputs_reached_through_symbolic_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("input"), "mine").unwrap();
        std::os::unix::fs::symlink(at("input"), at("link")).unwrap();
        let mut outputs = Outputs::new(Overwrite { overwrite: true });
        outputs.protect(at("input"));
        assert!(outputs.claim(&at("link"), "the table", Mark::None).is_err());
    }
}
