//! Frames of a video, decoded by `ffmpeg` and read from a pipe.
//!
//! ffmpeg writes each frame as a PPM image, whose header has its size, and rotates frames by the video's
//! metadata. The path is passed as one argument that starts with `file:`, without a shell. ffmpeg inherits a
//! video on standard input.
//! <https://ffmpeg.org/ffmpeg.html>, <https://netpbm.sourceforge.net/doc/ppm.html>

use crate::errors::{Failure, Result};
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
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
/// Decoder options for a video that is still being recorded: threads decode parts of one frame, since one
/// thread per frame would delay every frame by the number of threads.
const LIVE_OPTIONS: [&str; 2] = ["-thread_type", "slice"];
/// The name of the video on standard input, in messages and names of masks.
const STDIN_NAME: &str = "stdin";

/// Returns whether a file is read as a video.
pub(super) fn is_video(path: &Path) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| VIDEO_EXTENSIONS.contains(&ending.as_str())) && !path.is_dir()
}

/// The source of a video.
#[derive(Clone, Copy, Debug)]
pub(super) enum VideoSource<'a> {
    File(&'a Path),
    /// The standard input of this process, which ffmpeg inherits.
    Stdin,
}

impl<'a> VideoSource<'a> {
    /// The path of the video, by which its frames are named.
    pub fn path(self) -> &'a Path {
        match self {
            Self::File(path) => path,
            Self::Stdin => Path::new(STDIN_NAME),
        }
    }

    /// ffmpeg's options for the input, and the input.
    fn arguments(self) -> Vec<OsString> {
        // Nothing but the video may be opened, also if it is a playlist.
        let (protocol, input) = match self {
            Self::File(path) => {
                let mut input = OsString::from("file:");
                input.push(path);
                ("file", input)
            }
            Self::Stdin => ("pipe", "pipe:0".into()),
        };
        let mut arguments = vec!["-protocol_whitelist".into(), protocol.into()];
        if matches!(self, Self::Stdin) {
            arguments.extend(LIVE_OPTIONS.map(OsString::from));
        }
        arguments.extend(["-i".into(), input]);
        arguments
    }
}

/// Which frames of a video are processed: every Nth, up to a maximum number.
pub(super) struct FrameSelection {
    every: u64,
    max_frames: u64,
    /// The number of frames so far.
    decoded: u64,
    /// The number of those that are processed.
    processed: u64,
}

impl FrameSelection {
    pub fn new(every: u64, max_frames: Option<u64>) -> Self {
        Self { every, max_frames: max_frames.unwrap_or(u64::MAX), decoded: 0, processed: 0 }
    }

    /// The number of frames that are processed so far.
    pub fn processed(&self) -> u64 {
        self.processed
    }

    /// Returns whether no more frames are processed.
    pub fn is_complete(&self) -> bool {
        self.processed == self.max_frames
    }

    /// The number of the next frame, counted from 1, if it is processed.
    pub fn select(&mut self) -> Option<u64> {
        self.decoded += 1;
        let is_selected = (self.decoded - 1).is_multiple_of(self.every);
        self.processed += u64::from(is_selected);
        is_selected.then_some(self.decoded)
    }
}

/// A frame; `None` after the last.
type Frame = Option<StoredImage>;

/// An error in ffmpeg's output.
struct StreamProblem {
    problem: String,
    /// True if there is more output, which is invalid and may be endless.
    has_more: bool,
}

/// The frames of a video in order. A thread reads them ahead, up to a maximum number.
pub(super) struct VideoFrames {
    /// The name of the video, for messages.
    name: String,
    child: Child,
    frames: Receiver<std::result::Result<Frame, StreamProblem>>,
    messages: Option<JoinHandle<Vec<u8>>>,
    read: u64,
}

impl VideoFrames {
    /// Starts decoding; at most `waiting` frames are read ahead.
    ///
    /// # Errors
    /// If the file cannot be opened, or ffmpeg is not installed.
    pub fn open(source: VideoSource<'_>, waiting: usize) -> Result<Self> {
        let name = source.path().display().to_string();
        let failed = |problem: String| Failure::failed(format!("{name}: {problem}"));
        let input = match source {
            VideoSource::File(path) => {
                std::fs::File::open(path).map_err(|cause| failed(format!("cannot open: {cause}")))?;
                Stdio::null()
            }
            VideoSource::Stdin => Stdio::inherit(),
        };
        let before = ["-nostdin", "-hide_banner", "-loglevel", "error"];
        // Each frame is written at once, not with the next one.
        let after = ["-map", "0:v:0", "-flush_packets", "1", "-f", "image2pipe", "-c:v", "ppm"];
        let mut command = Command::new("ffmpeg");
        command.args(before).args(source.arguments()).args(after).args(["-pix_fmt", "rgb24", "pipe:1"]);
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|cause| match cause.kind() {
            ErrorKind::NotFound => failed("cannot decode a video: ffmpeg not found".to_owned())
                .with_hint("install ffmpeg (apt install ffmpeg), or use the frames as images"),
            _ => failed(format!("cannot start ffmpeg: {cause}")),
        })?;
        let (Some(output), Some(messages)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed("ffmpeg has no output".to_owned()));
        };
        // Messages are read to the end, so that ffmpeg never blocks on a full pipe.
        let messages = thread::spawn(move || {
            let mut first = Vec::new();
            let mut messages = messages;
            if messages.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut first).is_ok() {
                let _ = std::io::copy(&mut messages, &mut std::io::sink());
            }
            first
        });
        let (sender, frames) = sync_channel(waiting);
        thread::spawn(move || read_frames(output, &sender));
        Ok(Self { name, child, frames, messages: Some(messages), read: 0 })
    }

    /// Waits for the next frame; `None` after the last.
    ///
    /// # Errors
    /// If ffmpeg fails, or its output is invalid.
    pub fn next(&mut self) -> Result<Frame> {
        let frame = self.frames.recv().unwrap_or(Ok(None));
        self.check(frame)
    }

    /// Waits for the next frame for at most `timeout`; the outer `None` if there is none yet.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<Frame>> {
        match self.frames.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => self.check(Ok(None)).map(Some),
            Ok(frame) => self.check(frame).map(Some),
        }
    }

    fn check(&mut self, frame: std::result::Result<Frame, StreamProblem>) -> Result<Frame> {
        match frame {
            Ok(Some(frame)) => {
                self.read += 1;
                Ok(Some(frame))
            }
            Ok(None) => self.finish().map(|()| None),
            Err(StreamProblem { problem, has_more: true }) => {
                let _ = self.child.kill();
                Err(self.failure(&problem))
            }
            // ffmpeg's own error is better, if there is one.
            Err(StreamProblem { problem, .. }) => {
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
        Failure::failed(format!("{}: {problem}", self.name))
    }
}

impl Drop for VideoFrames {
    fn drop(&mut self) {
        // The remaining frames are not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the frames to the end of the output, or until the receiver is dropped.
fn read_frames(output: ChildStdout, sender: &SyncSender<std::result::Result<Frame, StreamProblem>>) {
    let mut output = BufReader::with_capacity(1 << 16, output);
    loop {
        let frame = read_ppm(&mut output).map_err(|problem| {
            let has_more = output.read(&mut [0]).is_ok_and(|read| read > 0);
            StreamProblem { problem, has_more }
        });
        let is_last = !matches!(frame, Ok(Some(_)));
        if sender.send(frame).is_err() || is_last {
            return;
        }
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
    fn every_third_frame_is_selected_up_to_the_maximum() {
        let mut selection = FrameSelection::new(3, Some(2));
        let mut selected = Vec::new();
        while !selection.is_complete() {
            selected.push(selection.select());
        }
        assert_eq!(selected, [Some(1), None, None, Some(4)]);
        assert_eq!(selection.processed(), 2);
        assert!(!FrameSelection::new(1, None).is_complete());
    }

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
