//! Frames of a video, decoded by `ffmpeg` and read from a pipe.
//!
//! ffmpeg writes each frame as a PPM image, whose header has its size, and rotates frames by the video's
//! metadata. The path is passed as one argument that starts with `file:`, without a shell.
//! <https://ffmpeg.org/ffmpeg.html>, <https://netpbm.sourceforge.net/doc/ppm.html>

use crate::errors::{Failure, Result};
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use stratus_data::memory::StoredImage;

/// The extensions of files that are read as videos.
const VIDEO_EXTENSIONS: [&str; 13] =
    ["mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "m2ts", "wmv", "flv", "ogv"];
/// The maximum number of pixels of a frame: 8192 × 8192, which is 192 MiB, as for images.
const MAX_FRAME_PIXELS: usize = 1 << 26;
/// The maximum length of ffmpeg's messages in an error.
const MAX_STDERR_BYTES: u64 = 2000;
/// The maximum number of digits of a number in a PPM header.
const MAX_HEADER_DIGITS: usize = 6;

/// Returns whether a file is read as a video.
pub(super) fn is_video(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| VIDEO_EXTENSIONS.contains(&ending.as_str())) && !path.is_dir()
}

/// The frames of a video in order; at most one is in memory.
pub(super) struct VideoFrames {
    path: PathBuf,
    child: Child,
    frames: BufReader<ChildStdout>,
    messages: Option<JoinHandle<Vec<u8>>>,
    read: u64,
}

impl VideoFrames {
    /// Starts decoding.
    ///
    /// # Errors
    /// If the file cannot be opened, or ffmpeg is not installed.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |problem: String| Failure::failed(format!("{}: {problem}", path.display()));
        std::fs::File::open(path).map_err(|cause| failed(format!("cannot open: {cause}")))?;
        let mut input = OsString::from("file:");
        input.push(path);
        // Only local files may be opened, also if the file is a playlist.
        let before = ["-nostdin", "-hide_banner", "-loglevel", "error", "-protocol_whitelist", "file"];
        let after = ["-map", "0:v:0", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "pipe:1"];
        let mut command = Command::new("ffmpeg");
        command.args(before).arg("-i").arg(input).args(after);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => failed("cannot decode a video: ffmpeg not found".to_owned())
                .with_hint("install ffmpeg (apt install ffmpeg), or use the frames as images"),
            _ => failed(format!("cannot start ffmpeg: {cause}")),
        })?;
        let (Some(frames), Some(messages)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed("ffmpeg has no output".to_owned()));
        };
        // Messages are read to the end, so that ffmpeg never blocks on a full pipe.
        let messages = std::thread::spawn(move || {
            let mut first = Vec::new();
            let mut messages = messages;
            if messages.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut first).is_ok() {
                let _ = std::io::copy(&mut messages, &mut std::io::sink());
            }
            first
        });
        let frames = BufReader::with_capacity(1 << 16, frames);
        Ok(Self { path: path.to_owned(), child, frames, messages: Some(messages), read: 0 })
    }

    /// Returns the next frame; `None` after the last.
    ///
    /// # Errors
    /// If ffmpeg fails, or its output is invalid.
    pub fn next(&mut self) -> Result<Option<StoredImage>> {
        let frame = read_ppm(&mut self.frames);
        match frame {
            Ok(Some(frame)) => {
                self.read += 1;
                Ok(Some(frame))
            }
            Ok(None) => self.finish().map(|()| None),
            Err(problem) => {
                // If there is more output, it is invalid and may be endless.
                if self.frames.read(&mut [0]).is_ok_and(|read| read > 0) {
                    let _ = self.child.kill();
                    return Err(self.failure(&problem));
                }
                // ffmpeg's own error is better, if there is one.
                Err(self.finish().err().unwrap_or_else(|| self.failure(&problem)))
            }
        }
    }

    /// Waits for ffmpeg, whose output has ended.
    fn finish(&mut self) -> Result {
        let status = self.child.wait().map_err(|cause| self.failure(&cause.to_string()))?;
        let stderr = self.messages.take().and_then(|messages| messages.join().ok()).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr).trim().to_owned();
        let stderr: String = stderr.chars().filter(|sign| *sign == '\n' || !sign.is_control()).collect();
        match (status.success(), self.read) {
            (false, _) => Err(self.failure(&format!("ffmpeg failed ({status}): {stderr}"))),
            (true, 0) => Err(self.failure("ffmpeg found no frames")),
            _ => Ok(()),
        }
    }

    fn failure(&self, problem: &str) -> Failure {
        Failure::failed(format!("{}: {problem}", self.path.display()))
    }
}

impl Drop for VideoFrames {
    fn drop(&mut self) {
        // The remaining frames are not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a binary PPM image of 8 bits: `P6`, width, height and 255, separated by white space, then the
/// pixels.
fn read_ppm(from: &mut impl Read) -> std::result::Result<Option<StoredImage>, String> {
    let invalid = |problem: &str| format!("invalid PPM from ffmpeg: {problem}");
    let mut magic = Vec::new();
    from.by_ref().take(2).read_to_end(&mut magic).map_err(|cause| cause.to_string())?;
    if magic.is_empty() {
        return Ok(None);
    }
    if magic != *b"P6" {
        return Err(invalid("must start with P6"));
    }
    let mut byte = || {
        let mut byte = [0];
        from.read_exact(&mut byte).map(|()| byte[0]).map_err(|_| invalid("truncated header"))
    };
    let mut head = [0_usize; 3];
    let mut next = byte()?;
    for number in &mut head {
        while next.is_ascii_whitespace() {
            next = byte()?;
        }
        let mut digits = 0;
        while next.is_ascii_digit() && digits < MAX_HEADER_DIGITS {
            *number = 10 * *number + usize::from(next - b'0');
            digits += 1;
            next = byte()?;
        }
        if digits == 0 || !next.is_ascii_whitespace() {
            return Err(invalid("header without width, height and depth"));
        }
    }
    let [width, height, depth] = head;
    if depth != 255 || width == 0 || height == 0 || width * height > MAX_FRAME_PIXELS {
        return Err(invalid(&format!("unsupported {width}x{height} pixels with depth {depth}")));
    }
    let bytes = 3 * width * height;
    let mut pixels = Vec::new();
    let read =
        from.by_ref().take(bytes as u64).read_to_end(&mut pixels).map_err(|cause| cause.to_string())?;
    if read < bytes {
        return Err(invalid("truncated pixels"));
    }
    Ok(Some(StoredImage::interleaved(pixels, [3, height, width])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_consecutive_frames_of_different_sizes() {
        let stream = [b"P6\n2 1\n255\n".as_slice(), &[1, 2, 3, 10, 32, 6], b"P6 1 2 255\n", &[7; 6]].concat();
        let mut from = stream.as_slice();
        let first = read_ppm(&mut from).unwrap().unwrap();
        assert_eq!((first.shape, first.pixels), ([3, 1, 2], vec![1, 2, 3, 10, 32, 6]));
        let second = read_ppm(&mut from).unwrap().unwrap();
        assert_eq!((second.shape, second.pixels), ([3, 2, 1], vec![7; 6]));
        assert_eq!(read_ppm(&mut from), Ok(None));
    }

    #[test]
    fn rejects_invalid_frames() {
        for (bytes, words) in [
            (&b"P5\n1 1\n255\n\0"[..], "P6"),
            (b"P", "P6"),
            (b"P6\n2 2", "truncated header"),
            (b"P6\n2 2\n255\n\0\0", "truncated pixels"),
            (b"P6\n0 2\n255\n", "0x2"),
            (b"P6\n2 2\n65535\n", "depth 65535"),
            (b"P6\n9999999 1\n255\n", "without width"),
            (b"P6\n999999 999999\n255\n", "999999x999999"),
            (b"P6\n-2 2\n255\n", "without width"),
            (b"P6\n# x\n2 2\n255\n", "without width"),
        ] {
            let error = read_ppm(&mut &bytes[..]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn videos_are_recognised_by_their_extension() {
        assert!(is_video(Path::new("a/b.MP4")) && is_video(Path::new("-x.mkv")));
        assert!(!is_video(Path::new("a.png")) && !is_video(Path::new("mp4")));
    }
}
