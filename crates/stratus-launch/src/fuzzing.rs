//! Parsers of a target's answers for `fuzz/`, which are otherwise called with the output of scripts.

use std::io::Read;
use std::path::Path;

use crate::job::LaunchState;

/// Parses the outputs of the scripts of all kinds of targets.
pub fn answers(text: &str) {
    let _ = LaunchState::from_script_output(text, &[]);
    crate::slurm::fuzz(text);
    crate::sky::fuzz(text);
    if let Ok(files) = crate::fetch::parse_file_list(text, Path::new("/run"), "target") {
        for file in files {
            assert!(file.destination.starts_with("/run"), "a path leaves the run: {}", file.path);
        }
    }
    let _ = crate::escape_control_characters(text);
    let _ = crate::executable::parse_version(text);
}

/// Reads the output of a script among other output.
pub fn framed_output(bytes: &[u8]) {
    let frame = crate::shell::Frame::with_token("token");
    let mut out = Vec::new();
    let _ = frame.stream(bytes).read_to_end(&mut out);
    assert!(out.len() <= bytes.len(), "more output than was read");
}
