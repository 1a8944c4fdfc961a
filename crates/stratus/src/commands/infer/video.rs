//! Frames of a video: decoded by `ffmpeg` where it is installed, and read from a pipe.
//!
//! ffmpeg writes each frame as a PPM image, which says its own size: frames come upright, as the video's
//! metadata turn them. The path is one argument, begins with `file:`, and no shell sees it.
//! <https://ffmpeg.org/ffmpeg.html>, <https://netpbm.sourceforge.net/doc/ppm.html>

use crate::errors::{Failure, Result};
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use stratus_data::memory::StoredImage;

/// Endings of files that are read as videos.
const ENDINGS: [&str; 13] =
    ["mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "m2ts", "wmv", "flv", "ogv"];
/// The most pixels of a frame: 16,384 × 16,384.
const MOST_PIXELS: usize = 1 << 28;
/// How much of ffmpeg's messages is shown.
const MESSAGE: u64 = 2000;
/// The longest number of a frame's head.
const DIGITS: usize = 6;

/// Whether a file is read as a video.
pub(super) fn is_video(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && !path.is_dir()
}

/// The frames of a video, one after the other; no more than one is in memory.
pub(super) struct Frames {
    path: PathBuf,
    child: Child,
    frames: BufReader<ChildStdout>,
    messages: Option<JoinHandle<Vec<u8>>>,
    read: u64,
}

impl Frames {
    /// Starts decoding.
    ///
    /// # Errors
    /// Where there is no such file, or ffmpeg is not installed.
    pub fn open(path: &Path) -> Result<Self> {
        let cannot = |what: String| Failure::failed(format!("{}: {what}", path.display()));
        std::fs::File::open(path).map_err(|cause| cannot(format!("cannot open: {cause}")))?;
        let mut input = OsString::from("file:");
        input.push(path);
        // Nothing but this file is opened, whatever a playlist in it names.
        let before = ["-nostdin", "-hide_banner", "-loglevel", "error", "-protocol_whitelist", "file"];
        let after = ["-map", "0:v:0", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "pipe:1"];
        let mut command = Command::new("ffmpeg");
        command.args(before).arg("-i").arg(input).args(after);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => {
                cannot("frames of a video are decoded by ffmpeg, which is not installed".to_owned())
                    .hint("install ffmpeg (apt install ffmpeg), or give the frames as images")
            }
            _ => cannot(format!("ffmpeg cannot be started: {cause}")),
        })?;
        let (Some(frames), Some(messages)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(cannot("ffmpeg has no output".to_owned()));
        };
        // Read to the end, so that ffmpeg never waits for room in the pipe.
        let messages = std::thread::spawn(move || {
            let mut first = Vec::new();
            let mut messages = messages;
            if messages.by_ref().take(MESSAGE).read_to_end(&mut first).is_ok() {
                let _ = std::io::copy(&mut messages, &mut std::io::sink());
            }
            first
        });
        let frames = BufReader::with_capacity(1 << 16, frames);
        Ok(Self { path: path.to_owned(), child, frames, messages: Some(messages), read: 0 })
    }

    /// The next frame; `None` after the last.
    ///
    /// # Errors
    /// Where ffmpeg fails, or its output ends within a frame.
    pub fn next(&mut self) -> Result<Option<StoredImage>> {
        let frame = frame(&mut self.frames);
        match frame {
            Ok(Some(frame)) => {
                self.read += 1;
                Ok(Some(frame))
            }
            Ok(None) => self.end().map(|()| None),
            Err(problem) => {
                // Where more comes, it never was what it should be, and may have no end.
                if self.frames.read(&mut [0]).is_ok_and(|read| read > 0) {
                    let _ = self.child.kill();
                    return Err(self.failure(&problem));
                }
                // What ffmpeg says of it is worth more, where it says something.
                Err(self.end().err().unwrap_or_else(|| self.failure(&problem)))
            }
        }
    }

    /// Waits for ffmpeg, whose output has ended.
    fn end(&mut self) -> Result {
        let status = self.child.wait().map_err(|cause| self.failure(&cause.to_string()))?;
        let said = self.messages.take().and_then(|messages| messages.join().ok()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let said: String = said.chars().filter(|sign| *sign == '\n' || !sign.is_control()).collect();
        match (status.success(), self.read) {
            (false, _) => Err(self.failure(&format!("ffmpeg failed ({status}): {said}"))),
            (true, 0) => Err(self.failure("ffmpeg found no frames in it")),
            _ => Ok(()),
        }
    }

    fn failure(&self, problem: &str) -> Failure {
        Failure::failed(format!("{}: {problem}", self.path.display()))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // Frames that nobody asked for any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A binary PPM image of 8 bits: `P6`, width, height and 255, each before white space, and the pixels.
fn frame(from: &mut impl Read) -> std::result::Result<Option<StoredImage>, String> {
    let wrong = |what: &str| format!("ffmpeg's output is no image: {what}");
    let mut magic = Vec::new();
    from.by_ref().take(2).read_to_end(&mut magic).map_err(|cause| cause.to_string())?;
    if magic.is_empty() {
        return Ok(None);
    }
    if magic != *b"P6" {
        return Err(wrong("it does not begin with P6"));
    }
    let mut byte = || {
        let mut byte = [0];
        from.read_exact(&mut byte).map(|()| byte[0]).map_err(|_| wrong("it ends within its head"))
    };
    let mut head = [0_usize; 3];
    let mut next = byte()?;
    for number in &mut head {
        while next.is_ascii_whitespace() {
            next = byte()?;
        }
        let mut digits = 0;
        while next.is_ascii_digit() && digits < DIGITS {
            *number = 10 * *number + usize::from(next - b'0');
            digits += 1;
            next = byte()?;
        }
        if digits == 0 || !next.is_ascii_whitespace() {
            return Err(wrong("its head has no width, height and depth"));
        }
    }
    let [width, height, depth] = head;
    if depth != 255 || width == 0 || height == 0 || width * height > MOST_PIXELS {
        return Err(wrong(&format!("it has {width}x{height} pixels up to {depth}")));
    }
    let bytes = 3 * width * height;
    let mut pixels = Vec::new();
    let read =
        from.by_ref().take(bytes as u64).read_to_end(&mut pixels).map_err(|cause| cause.to_string())?;
    if read < bytes {
        return Err(wrong("it ends within its pixels"));
    }
    Ok(Some(StoredImage::interleaved(pixels, [3, height, width])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_each_other_whatever_their_size() {
        let stream = [b"P6\n2 1\n255\n".as_slice(), &[1, 2, 3, 10, 32, 6], b"P6 1 2 255\n", &[7; 6]].concat();
        let mut from = stream.as_slice();
        let first = frame(&mut from).unwrap().unwrap();
        assert_eq!((first.shape, first.pixels), ([3, 1, 2], vec![1, 2, 3, 10, 32, 6]));
        let second = frame(&mut from).unwrap().unwrap();
        assert_eq!((second.shape, second.pixels), ([3, 2, 1], vec![7; 6]));
        assert_eq!(frame(&mut from), Ok(None));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for (bytes, words) in [
            (&b"P5\n1 1\n255\n\0"[..], "P6"),
            (b"P", "P6"),
            (b"P6\n2 2", "ends within its head"),
            (b"P6\n2 2\n255\n\0\0", "ends within its pixels"),
            (b"P6\n0 2\n255\n", "0x2"),
            (b"P6\n2 2\n65535\n", "up to 65535"),
            (b"P6\n9999999 1\n255\n", "no width"),
            (b"P6\n999999 999999\n255\n", "999999x999999"),
            (b"P6\n-2 2\n255\n", "no width"),
            (b"P6\n# x\n2 2\n255\n", "no width"),
        ] {
            let error = frame(&mut &bytes[..]).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn videos_are_told_by_their_ending() {
        assert!(is_video(Path::new("a/b.MP4")) && is_video(Path::new("-x.mkv")));
        assert!(!is_video(Path::new("a.png")) && !is_video(Path::new("mp4")));
    }
}
