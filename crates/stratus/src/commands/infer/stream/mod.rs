//! `stratus infer RUN -`: answers the lines of standard input, or the frames of a video on it, one by one.
//!
//! ```text
//! standard input ──thread──▶ lines ──▶ group of waiting images ──▶ network ──▶ a line for each, flushed
//!                ──ffmpeg, thread──▶ frames ──▶ group of waiting frames ──▶ …
//! ```
//!
//! A group has the images that wait at this moment, so an answer never waits for more input. Memory does not
//! grow with the number of answers, except for a hash of each mask's name ([`claims`]).

mod answer;
mod claims;
mod latency;
mod lines;
mod networks;

use self::claims::MaskClaims;
use self::latency::StreamTotals;
use self::lines::{Line, MAX_LINE_BYTES};
use self::networks::Networks;
use super::video::{FrameSelection, VideoFrames, VideoSource, is_video};
use super::writer::PredictionWriter;
use super::{InferArguments, with_hint, without_path};
use crate::errors::{Failure, INTERRUPTED, Result};
use crate::output::Output;
use crate::signals;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use stratus_data::memory::StoredImage;
use stratus_train::TrainError;
use stratus_train::infer::Outcome;

/// The interval at which a stream without input checks whether it was interrupted.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of frames of a video that are read ahead, each of up to 192 MiB.
const MAX_WAITING_FRAMES: usize = 8;

/// The content of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamInput {
    /// The paths of images and videos, one per line.
    Names,
    /// A video.
    Video,
}

impl StreamInput {
    /// The stream that the arguments request, if they do.
    ///
    /// # Errors
    /// If other arguments cannot be combined with a stream.
    pub fn of(arguments: &InferArguments) -> Result<Option<Self>> {
        let refused = |problem: &str, hint: &str| Err(Failure::usage(problem).with_hint(hint));
        let is_stream = arguments.images.iter().any(|path| path == Path::new("-"));
        if !is_stream {
            return match arguments.video {
                true => refused("--video is for a video on standard input", "write `-` instead of paths"),
                false => Ok(None),
            };
        }
        if arguments.images.len() > 1 {
            let hint = "write all paths to standard input";
            return refused("`-` cannot be combined with other paths", hint);
        }
        if arguments.sheet.is_some() {
            let problem = "--sheet cannot be used with `-`: a sheet is written after the last image, and a \
                           stream has none";
            return refused(problem, "name the images, or a folder");
        }
        if arguments.csv.is_some() {
            let problem = "--csv cannot be used with `-`: a table is written after the last image, and a \
                           stream has none";
            return refused(problem, "redirect standard output, whose columns are separated by tabs");
        }
        Ok(Some(if arguments.video { Self::Video } else { Self::Names }))
    }
}

/// The reason why a stream ends before its input.
enum StreamEnd {
    /// The reader of the answers has closed the pipe.
    Closed,
    /// The process received a signal.
    Interrupted,
    Failed(Failure),
}

/// A result whose error ends the stream.
type StreamResult<T = ()> = std::result::Result<T, StreamEnd>;

impl From<Failure> for StreamEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<TrainError> for StreamEnd {
    fn from(error: TrainError) -> Self {
        Self::Failed(error.into())
    }
}

/// An image that waits for its answer.
struct ImageRequest {
    path: PathBuf,
    mask: Option<PathBuf>,
}

/// A stream of answers.
struct Stream<'a> {
    writer: PredictionWriter<'a>,
    output: &'a Output,
    /// The masks; `None` if none are written.
    claims: Option<MaskClaims>,
    totals: StreamTotals,
    /// Set by a signal.
    stop: Arc<AtomicBool>,
}

/// Answers standard input to its end. Images without a prediction do not end the stream.
///
/// # Errors
/// If the network fails or an answer cannot be printed; at the end, if an image has no prediction.
pub(super) fn run(input: StreamInput, writer: PredictionWriter<'_>, output: &Output) -> Result {
    let PredictionWriter { arguments, predictor, .. } = writer;
    let claims = arguments.out.as_deref().map(|folder| MaskClaims::new(folder, arguments)).transpose()?;
    let max_batch = if input == StreamInput::Video { MAX_WAITING_FRAMES } else { usize::MAX };
    let windows = arguments.windows.window.is_some();
    let mut networks = Networks::prepare(predictor, max_batch, windows, &mut |text| output.warning(text))?;
    let stop = signals::stop_flag()?;
    let mut stream = Stream { writer, output, claims, totals: StreamTotals::default(), stop };
    let ended = match input {
        StreamInput::Names => {
            output.message("ready for the paths of images, one per line");
            stream.answer_names(&mut networks)
        }
        StreamInput::Video => stream.answer_video(VideoSource::Stdin, &mut networks),
    };
    let totals = &stream.totals;
    if let Err(StreamEnd::Closed) = ended {
        return Ok(());
    }
    if totals.requests() > 0 {
        output.message(&totals.to_string());
    }
    match ended {
        Ok(()) | Err(StreamEnd::Closed) => totals.check_all_predicted(),
        Err(StreamEnd::Interrupted) => {
            let failure = Failure { code: INTERRUPTED, ..Failure::failed("interrupted") };
            Err(failure.with_hint("inputs without an answer can be sent again"))
        }
        Err(StreamEnd::Failed(failure)) => Err(failure),
    }
}

impl Stream<'_> {
    /// Answers the paths on standard input.
    fn answer_names(&mut self, networks: &mut Networks<'_>) -> StreamResult {
        let lines = lines::read_stdin(networks.batch())?;
        let mut count = 0_u64;
        while let Some(first) = self.wait_for_line(&lines)? {
            let (mut group, mut read_error) = (vec![first?], None);
            while group.len() < networks.batch() {
                match lines.try_recv() {
                    Ok(Ok(line)) => group.push(line),
                    Ok(Err(error)) => {
                        read_error = Some(error);
                        break;
                    }
                    Err(_) => break,
                }
            }
            count += group.len() as u64;
            self.answer_lines(group, networks)?;
            if let Some(error) = read_error {
                return Err(error.into());
            }
        }
        if count == 0 {
            return Err(Failure::usage("no images on standard input")
                .with_hint("write the paths of JPEG, PNG or WebP files, one per line")
                .into());
        }
        Ok(())
    }

    /// Waits for a line; `None` at the end of the input.
    fn wait_for_line(&self, lines: &Receiver<Result<Line>>) -> StreamResult<Option<Result<Line>>> {
        loop {
            self.check_running()?;
            match lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Answers a group of lines in order.
    fn answer_lines(&mut self, lines: Vec<Line>, networks: &mut Networks<'_>) -> StreamResult {
        let mut images = Vec::new();
        let paths =
            lines.into_iter().map(|line| (PathBuf::from(OsString::from_vec(line.bytes)), line.is_cut));
        let paths: Vec<(PathBuf, bool)> = paths.collect();
        // No mask may replace an image that is waiting.
        if let Some(claims) = &mut self.claims {
            paths.iter().for_each(|(path, _)| claims.add_input(path));
        }
        for (path, is_cut) in paths {
            let problem = line_problem(&path, is_cut);
            if problem.is_none() && is_video(&path) {
                self.answer_images(&mut images, networks)?;
                self.answer_video(VideoSource::File(&path), networks)?;
                continue;
            }
            let claimed = match (problem, &mut self.claims) {
                (Some(problem), _) => Err(problem),
                (None, Some(claims)) => claims.claim_image(&path).map(Some),
                (None, None) => Ok(None),
            };
            match claimed {
                Ok(mask) => images.push(ImageRequest { path, mask }),
                Err(problem) => {
                    self.answer_images(&mut images, networks)?;
                    self.refuse(&path.display().to_string(), &problem)?;
                }
            }
        }
        self.answer_images(&mut images, networks)
    }

    /// Answers images in order, and clears them.
    fn answer_images(&mut self, images: &mut Vec<ImageRequest>, networks: &mut Networks<'_>) -> StreamResult {
        let mut waiting = std::mem::take(images);
        let size = networks.group_size(waiting.len());
        while !waiting.is_empty() {
            self.check_running()?;
            let rest = waiting.split_off(size.min(waiting.len()));
            let group = std::mem::replace(&mut waiting, rest);
            let files = group.iter().map(|image| image.path.clone()).collect();
            let outcomes = networks.predict_files(files, self.needs_views())?;
            for (ImageRequest { path, mask }, outcome) in group.into_iter().zip(outcomes) {
                self.answer(&path.display().to_string(), mask.as_deref(), outcome)?;
            }
        }
        Ok(())
    }

    /// Answers every frame of a video, as soon as it is decoded.
    fn answer_video(&mut self, source: VideoSource<'_>, networks: &mut Networks<'_>) -> StreamResult {
        let name = source.path().display().to_string();
        if let Some(Err(problem)) = self.claims.as_mut().map(|claims| claims.claim_video(source.path())) {
            return self.refuse(&name, &problem);
        }
        let mut frames = match VideoFrames::open(source, MAX_WAITING_FRAMES) {
            Ok(frames) => frames,
            Err(failure) => return self.refuse_video(source, 0, &failure),
        };
        let arguments = self.writer.arguments;
        let (mut selection, mut ended) = (FrameSelection::new(arguments.every, arguments.frames), None);
        while ended.is_none() {
            let mut group = Vec::new();
            while group.len() < networks.batch() && ended.is_none() {
                if selection.is_complete() {
                    ended = Some(Ok(()));
                    break;
                }
                // Only the first frame of a group is waited for.
                let timeout = if group.is_empty() { POLL_INTERVAL } else { Duration::ZERO };
                self.check_running()?;
                match frames.poll(timeout) {
                    Ok(Some(Some(frame))) => {
                        group.extend(selection.select().map(|number| (number, frame)));
                    }
                    Ok(Some(None)) => ended = Some(Ok(())),
                    Ok(None) if group.is_empty() => {}
                    Ok(None) => break,
                    Err(failure) => ended = Some(Err(failure)),
                }
            }
            self.answer_frames(source.path(), group, networks)?;
        }
        // ffmpeg receives the signals of a terminal too, and ends.
        self.check_running()?;
        let count = selection.processed();
        match (ended, source) {
            (Some(Err(failure)), _) => self.refuse_video(source, count, &failure),
            // The line of the path itself is the last one of its answer.
            (_, VideoSource::File(_)) => self.print(&answer::end_of_video(&name, count, self.output.json())),
            (_, VideoSource::Stdin) => Ok(()),
        }
    }

    /// Answers frames in order.
    fn answer_frames(
        &mut self,
        video: &Path,
        frames: Vec<(u64, StoredImage)>,
        networks: &mut Networks<'_>,
    ) -> StreamResult {
        let size = networks.group_size(frames.len());
        let mut frames = frames.into_iter().peekable();
        while frames.peek().is_some() {
            self.check_running()?;
            let (numbers, images): (Vec<u64>, Vec<StoredImage>) = frames.by_ref().take(size).unzip();
            let outcomes = networks.predict_images(images, self.needs_views())?;
            for (number, outcome) in numbers.into_iter().zip(outcomes) {
                let name = format!("{}#{number}", video.display());
                match self.claims.as_ref().map(|claims| claims.claim_frame(video, number)).transpose() {
                    Ok(mask) => self.answer(&name, mask.as_deref(), outcome)?,
                    Err(problem) => self.refuse(&name, &problem)?,
                }
            }
        }
        Ok(())
    }

    /// Writes the mask of an image, if requested, and answers it.
    fn answer(&mut self, name: &str, mask: Option<&Path>, outcome: Outcome) -> StreamResult {
        let written = match outcome {
            Ok(prediction) => self
                .writer
                .write(name.to_owned(), String::new(), mask, prediction)
                .map_err(|failure| with_hint(&failure)),
            Err(failure) => Err(failure.problem),
        };
        match written {
            Ok(written) => {
                self.totals.record(written.seconds);
                self.print(&answer::prediction(&written.report, self.output.json()))
            }
            Err(problem) => {
                if let (Some(claims), Some(mask)) = (&mut self.claims, mask) {
                    claims.release(mask);
                }
                self.refuse(name, &problem)
            }
        }
    }

    /// Answers that a video cannot be decoded to its end. Without frames it can be sent again.
    fn refuse_video(&mut self, source: VideoSource<'_>, frames: u64, failure: &Failure) -> StreamResult {
        if let (Some(claims), 0) = (&mut self.claims, frames) {
            claims.release_video(source.path());
        }
        let name = source.path().display().to_string();
        self.refuse(&name, &without_path(&with_hint(failure), &name))
    }

    /// Answers that there is no prediction.
    fn refuse(&mut self, name: &str, problem: &str) -> StreamResult {
        self.totals.record_failure();
        self.print(&answer::error(name, problem, self.output.json()))
    }

    fn print(&self, line: &str) -> StreamResult {
        if self.output.print_line(line)? { Ok(()) } else { Err(StreamEnd::Closed) }
    }

    fn check_running(&self) -> StreamResult {
        if self.stop.load(Ordering::Relaxed) { Err(StreamEnd::Interrupted) } else { Ok(()) }
    }

    /// Returns whether predictions need the image as the network sees it.
    fn needs_views(&self) -> bool {
        self.writer.arguments.overlay
    }
}

/// The problem of a line, if it is not the path of a file. A missing file is reported when it is read.
fn line_problem(path: &Path, is_cut: bool) -> Option<String> {
    if is_cut {
        return Some(format!("longer than {MAX_LINE_BYTES} bytes"));
    }
    if path.as_os_str().is_empty() {
        return Some("the line is empty".to_owned());
    }
    let metadata = path.metadata().ok()?;
    if metadata.is_dir() {
        return Some("is a folder; write the paths of its images, one per line".to_owned());
    }
    // Opening a FIFO would block until another program writes to it.
    (!metadata.is_file()).then(|| "not a file".to_owned())
}
