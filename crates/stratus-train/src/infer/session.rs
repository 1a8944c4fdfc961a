//! A network that is ready for images: its kernels are chosen, its weights set.

use super::windows::{LogitSums, SlidingWindows, Summed};
use super::{Answer, Outcome, Prediction, Predictor, Reason, Unanswered};
use crate::TrainError;
use crate::compile::{EvaluationSession, compile_evaluation};
use crate::device;
use crate::input::{BatchFormat, InputPipeline};
use crate::resolve::Resolved;
use crate::weights::session_state::refresh;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stratus_data::contact_sheet::Picture;
use stratus_data::images::ImageFiles;
use stratus_data::memory::{ImagesInMemory, StoredImage};
use stratus_data::{DataError, Dataset, Element, Layout, Loader, LoaderConfig, LoaderError, Scratch};
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::{Clock, EngineError, Phase, Plan, Session};
use stratus_run::csv::Task;
use stratus_run::machine::allocatable_memory_bytes;

/// A predictor's network on a device. Images go through it in batches, in their order.
pub struct Inference<'a> {
    predictor: &'a Predictor,
    input: InputPipeline,
    format: BatchFormat,
    batch: usize,
    network: LoadedNetwork,
    /// Of one batch of windows.
    logits: Vec<f32>,
}

/// The program that evaluates, with its weights.
struct LoadedNetwork {
    session: Session,
    program: usize,
    clock: Clock,
    answers: Answers,
}

/// What a network says of an image that it sees in windows.
pub(crate) struct WholeImage {
    /// The classes of its pixels, and the losses of those with a label.
    pub summed: Summed,
    /// Height and width.
    pub size: [usize; 2],
    /// The upright image's pixels, `[H, W, C]`.
    pub pixels: Vec<u8>,
    /// Seconds of the network.
    pub network_s: f64,
}

/// Why an image gets no answer, or why nothing more does.
pub(crate) enum ImageError {
    /// The problem concerns this image only.
    Image(Unanswered),
    /// Something else failed.
    Other(TrainError),
}

impl<E: Into<TrainError>> From<E> for ImageError {
    fn from(error: E) -> Self {
        match error.into() {
            TrainError::Data(DataError::BadSample { problem, .. }) => {
                Self::Image(Unanswered { problem, reason: Reason::Unreadable })
            }
            error => Self::Other(error),
        }
    }
}

impl Predictor {
    /// Prepares the network for batches of at most `most` images.
    ///
    /// # Errors
    /// If the device cannot run it, or the weights cannot be read.
    pub fn prepare(&self, most: usize, warn: &mut dyn FnMut(&str)) -> Result<Inference<'_>, TrainError> {
        let pixel = StoredImage::interleaved(vec![0; 3], [3, 1, 1]);
        let images = ImagesInMemory::new(vec![pixel], self.classes(), self.has_masks())?;
        self.prepare_for(&images, most, warn)
    }

    /// The same for the images of a data set, whose normalisation they have where none is set.
    pub(crate) fn prepare_for(
        &self,
        images: &dyn Dataset,
        most: usize,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Inference<'_>, TrainError> {
        let mut experiment = self.experiment.clone();
        experiment.data.shape = Some(self.graph.input_shape().0.clone());
        let batch = experiment.validation_batch_size().min(most).max(1);
        experiment.validation.batch_size = Some(batch);
        let device = device::open(&experiment.train)?;
        let resolved = Resolved::new(&experiment, images, &self.graph, &device)?;
        let EvaluationSession { mut session, evaluate, refresh: copies } =
            compile_evaluation(&resolved, &self.graph, &device, None, warn)?;
        self.write_weights(&mut session)?;
        refresh(&mut session, copies)?;
        let plan = session.plan(evaluate);
        let (format, answers) = (BatchFormat::of(plan), Answers::of(plan)?);
        let clock = Clock::disabled(session.slots(evaluate));
        let network = LoadedNetwork { session, program: evaluate, clock, answers };
        let input = resolved.input().clone();
        Ok(Inference { predictor: self, input, format, batch, network, logits: Vec::new() })
    }

    fn has_masks(&self) -> bool {
        self.task() == Task::Segmentation
    }
}

impl Inference<'_> {
    /// Images that go through the network together.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Runs the network on image files, and calls `each` with the position and the outcome of each; with
    /// `views` the images come along. An image that cannot be decoded changes nothing for the others.
    ///
    /// # Errors
    /// If a kernel fails, or what `each` returns.
    pub fn files<E: From<TrainError>>(
        &mut self,
        files: Vec<PathBuf>,
        views: bool,
        mut each: impl FnMut(usize, Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let open = |files, masks| ImageFiles::new(files, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            let mut scratch = Scratch::default();
            for (index, file) in files.into_iter().enumerate() {
                // A whole image needs no labels.
                let one = open(vec![file], false)?;
                let outcome = match self.file_in_windows(&one, &windows, views, &mut scratch) {
                    Ok(prediction) => Ok(prediction),
                    Err(ImageError::Image(unanswered)) => Err(unanswered),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                };
                each(index, outcome)?;
            }
            return Ok(());
        }
        let images = Arc::new(open(files.clone(), masks)?);
        let config = LoaderConfig { skip_bad: true, ..self.input.measuring(self.format, self.batch) };
        let mut loader =
            Loader::new(Arc::clone(&images) as Arc<dyn Dataset>, config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, answered| {
            let (answer, network_s) = match answered {
                Ok(answered) => answered,
                Err(problem) => {
                    return each(index, Err(Unanswered { problem, reason: Reason::Unreadable }));
                }
            };
            let view = match views {
                true => match view(input, Arc::new(open(vec![files[index].clone()], masks)?)) {
                    Ok(view) => Some(view),
                    Err(ImageError::Image(unanswered)) => return each(index, Err(unanswered)),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                },
                false => None,
            };
            each(index, Ok(Prediction { index, answer, decode_s: images.seconds(index), network_s, view }))
        })
    }

    /// The same of images in memory, such as frames of a video.
    ///
    /// # Errors
    /// If a kernel fails, or what `each` returns.
    pub fn images<E: From<TrainError>>(
        &mut self,
        images: Vec<StoredImage>,
        views: bool,
        mut each: impl FnMut(usize, Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let held = |images| ImagesInMemory::new(images, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            for (index, image) in images.into_iter().enumerate() {
                let outcome = match self.in_windows(image, &windows, views) {
                    Ok(prediction) => Ok(Prediction { index, ..prediction }),
                    Err(ImageError::Image(unanswered)) => Err(unanswered),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                };
                each(index, outcome)?;
            }
            return Ok(());
        }
        let shown = if views { images.clone() } else { Vec::new() };
        let config = self.input.measuring(self.format, self.batch);
        let mut loader = Loader::new(Arc::new(held(images)?), config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, answered| {
            let unreadable = |problem| Unanswered { problem, reason: Reason::Unreadable };
            let (answer, network_s) = match answered {
                Ok(answered) => answered,
                Err(problem) => return each(index, Err(unreadable(problem))),
            };
            let view = match shown.get(index).map(|image| view(input, Arc::new(held(vec![image.clone()])?))) {
                Some(Ok(view)) => Some(view),
                Some(Err(ImageError::Image(unanswered))) => return each(index, Err(unanswered)),
                Some(Err(ImageError::Other(error))) => return Err(error.into()),
                None => None,
            };
            each(index, Ok(Prediction { index, answer, decode_s: 0.0, network_s, view }))
        })
    }

    /// The answer for the one image of a data set, which is not decoded where there is no memory for it.
    fn file_in_windows(
        &mut self,
        one: &ImageFiles,
        windows: &SlidingWindows,
        views: bool,
        scratch: &mut Scratch,
    ) -> Result<Prediction, ImageError> {
        let size = one.stored_size(0, scratch)?;
        // As it is decoded, as it is kept, and as the network sees it.
        self.expect_room(size, windows, Held { decoded: 2, views, labels: false })?;
        let image = StoredImage::of(&one.read(0, scratch)?);
        let prediction = self.in_windows(image, windows, views)?;
        Ok(Prediction { decode_s: one.seconds(0), ..prediction })
    }

    fn in_windows(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        views: bool,
    ) -> Result<Prediction, ImageError> {
        let WholeImage { summed, size, pixels, network_s } = self.whole(image, windows, false)?;
        let view = views.then(|| picture(&pixels, self.input.shape[0], size));
        let answer = Answer::Mask(summed.predicted, size);
        Ok(Prediction { index: 0, answer, decode_s: 0.0, network_s, view })
    }

    /// Checks that there is memory for what an image of this size needs: before it is decoded, and before the
    /// network runs.
    fn expect_room(&self, size: [usize; 2], windows: &SlidingWindows, held: Held) -> Result<(), ImageError> {
        let sums = LogitSums::bytes(self.predictor.classes(), size, windows);
        let needed = sums.saturating_add(held.bytes(size, self.input.shape[0]));
        match allocatable_memory_bytes() {
            Some(there) if there < needed => Err(self.no_room(size, needed, Some(there))),
            _ => Ok(()),
        }
    }

    fn no_room(&self, [height, width]: [usize; 2], needed: u64, there: Option<u64>) -> ImageError {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let there = there.map_or("fewer".to_owned(), |there| (there >> 20).to_string());
        let classes = self.predictor.classes();
        let problem = format!(
            "needs {} MiB of memory, and {there} are free, for the pixels and the mask of {height}x{width} \
             pixels and the sums of {classes} classes over the rows that windows see",
            mib(needed)
        );
        ImageError::Image(Unanswered { problem, reason: Reason::TooLarge })
    }

    /// Evaluates an image window by window; `labelled` with the image's labels.
    ///
    /// # Errors
    /// If the image is smaller than a window or there is no memory for it, or a kernel fails.
    pub(crate) fn whole(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        labelled: bool,
    ) -> Result<WholeImage, ImageError> {
        let (size, [channels, h, w]) = (image.upright_size(), self.input.shape);
        let Some(corners) = windows.corners(size) else {
            let problem = format!("has {}x{} pixels, a window {h}x{w}", size[0], size[1]);
            return Err(ImageError::Image(Unanswered { problem, reason: Reason::TooSmall }));
        };
        self.expect_room(size, windows, Held { decoded: 0, views: false, labels: labelled })?;
        let classes = self.predictor.classes();
        let held = |images, masks| ImagesInMemory::new(images, classes, masks);
        // Upright, with the network's channels, and not resized.
        let bytes = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
        let upright = LoaderConfig {
            shape: Some([channels, size[0], size[1]]),
            ..once(self.input.measuring(bytes, 1))
        };
        let image = Arc::new(held(vec![image], labelled)?);
        let mut loader = Loader::new(image, upright).map_err(|error| match error {
            LoaderError::Memory { bytes, .. } => self.no_room(size, bytes, None),
            error => error.into(),
        })?;
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next()? {
            let there = &batch.images.elements::<u8>()[..channels * size[0] * size[1]];
            let stored = if labelled { &batch.labels[..] } else { &[] };
            let room = pixels.try_reserve_exact(there.len()).and(labels.try_reserve_exact(stored.len()));
            room.map_err(|_| self.no_room(size, 2 * there.len() as u64, None))?;
            pixels.extend_from_slice(there);
            labels.extend_from_slice(stored);
            loader.recycle(batch);
        }
        drop(loader);
        let mut sums = LogitSums::new(classes, size, windows, labels)
            .map_err(|_| self.no_room(size, LogitSums::bytes(classes, size, windows), None))?;
        let mut network_s = 0.0;
        let (mut rest, mut part) = (corners.iter(), Vec::with_capacity(self.batch));
        loop {
            part.clear();
            part.extend(rest.by_ref().take(self.batch));
            if part.is_empty() {
                break;
            }
            let crop = |corner: &[usize; 2]| crop(&pixels, [channels, size[0], size[1]], *corner, [h, w]);
            let crops = held(part.iter().map(crop).collect(), true)?;
            let config = once(self.input.measuring(self.format, self.batch));
            let mut loader = Loader::new(Arc::new(crops), config)?;
            let LoadedNetwork { session, program, clock, answers } = &mut self.network;
            while let Some(mut batch) = loader.next()? {
                let begun = Instant::now();
                let labels = bytemuck::cast_slice_mut(&mut batch.labels);
                session.run(*program, &mut batch.images, labels, clock, 0)?;
                network_s += begun.elapsed().as_secs_f64();
                session.read_f32(*program, answers.logits, &mut self.logits)?;
                for (&corner, logits) in part.iter().zip(self.logits.chunks_exact(classes * h * w)) {
                    sums.add(corner, logits);
                }
                loader.recycle(batch);
            }
        }
        Ok(WholeImage { summed: sums.finish(), size, pixels, network_s })
    }

    /// The program that evaluates.
    pub(crate) fn plan(&self) -> &Plan {
        self.network.session.plan(self.network.program)
    }
}

/// The memory that an image takes beside its mask and its sums.
#[derive(Clone, Copy)]
struct Held {
    /// Copies of the decoded image.
    decoded: u64,
    /// Whether it is shown with its mask.
    views: bool,
    /// Whether its pixels have labels.
    labels: bool,
}

impl Held {
    /// The number of bytes for an image of this size, in a network that takes `channels`.
    fn bytes(self, [height, width]: [usize; 2], channels: usize) -> u64 {
        // A stored image has at most three channels. A batch's image and labels are copied once; with a view
        // there are the picture, its overlay and what becomes of both as a file.
        let Self { decoded, views, labels } = self;
        let each = 3 * decoded + 2 * channels as u64 + 3 * 4 * u64::from(views) + 2 * 4 * u64::from(labels);
        // The mask as a file.
        (height as u64).saturating_mul(width as u64).saturating_mul(each + 2)
    }
}

/// The same, of one epoch, with as little memory as can be, and without resizing.
fn once(config: LoaderConfig) -> LoaderConfig {
    LoaderConfig { resize: None, mask_size: None, epochs: Some(1), slots: 1, workers: 1, ..config }
}

/// A part of an image of interleaved pixels.
fn crop(
    pixels: &[u8],
    [channels, _, width]: [usize; 3],
    [row, column]: [usize; 2],
    [h, w]: [usize; 2],
) -> StoredImage {
    let lines = pixels.chunks_exact(width * channels).skip(row).take(h);
    let part = lines.flat_map(|line| &line[column * channels..(column + w) * channels]);
    StoredImage::interleaved(part.copied().collect(), [channels, h, w])
}

/// Interleaved pixels in red, green and blue.
fn picture(pixels: &[u8], channels: usize, [height, width]: [usize; 2]) -> Picture {
    let colours = |pixel: &[u8]| [0, 1, 2].map(|channel: usize| pixel[channel.min(channels - 1)]);
    Picture { pixels: pixels.chunks_exact(channels).flat_map(colours).collect(), height, width }
}

/// The one image of a data set as the network sees it.
fn view(input: &InputPipeline, image: Arc<dyn Dataset>) -> Result<Picture, ImageError> {
    let format = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
    let [channels, height, width] = input.shape;
    let measuring = input.measuring(format, 1);
    let config = LoaderConfig { epochs: Some(1), slots: 1, workers: 1, skip_bad: true, ..measuring };
    let mut loader = Loader::new(image, config)?;
    let batch = loader.next()?;
    if let Some(problem) = loader.problem_of(0) {
        return Err(ImageError::Image(Unanswered { problem, reason: Reason::Unreadable }));
    }
    let pixels = batch.as_ref().map_or(&[][..], |batch| batch.images.elements::<u8>());
    let there = pixels.len().min(channels * height * width);
    Ok(picture(&pixels[..there], channels, [height, width]))
}

impl LoadedNetwork {
    /// Runs all batches of a loader's epoch, and calls `each` with the position of every sample and its
    /// answer with the seconds that it took, or the reason that it could not be decoded.
    fn run<E: From<TrainError>>(
        &mut self,
        loader: &mut Loader,
        each: &mut dyn FnMut(usize, Answered) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { session, program, clock, answers } = self;
        for _ in 0..loader.batches_per_epoch() {
            let Some(mut batch) = loader.next().map_err(TrainError::from)? else { break };
            let problems: Vec<Option<String>> =
                batch.indices.iter().map(|&sample| loader.problem_of(sample)).collect();
            let seen = problems.iter().filter(|problem| problem.is_none()).count();
            let begun = Instant::now();
            let mut said = Vec::new();
            if seen > 0 {
                let labels = bytemuck::cast_slice_mut(&mut batch.labels);
                session.run(*program, &mut batch.images, labels, clock, 0).map_err(TrainError::from)?;
            }
            let network_s = begun.elapsed().as_secs_f64() / seen.max(1) as f64;
            if seen > 0 {
                said = answers.read(session, *program, batch.samples).map_err(TrainError::from)?;
            }
            let mut said = said.into_iter();
            for (&sample, problem) in batch.indices.iter().zip(problems) {
                // The batch row of an image that could not be decoded has an output too; it is ignored.
                let answer = said.next();
                match (problem, answer) {
                    (None, Some(answer)) => each(sample as usize, Ok((answer, network_s)))?,
                    (Some(problem), _) => each(sample as usize, Err(problem))?,
                    (None, None) => {}
                }
            }
            loader.recycle(batch);
        }
        Ok(())
    }
}

/// An answer with the seconds that it took, or the reason that an image could not be decoded.
type Answered = Result<(Answer, f64), String>;

/// Where an evaluation program's answers are.
struct Answers {
    /// The value with the logits.
    logits: usize,
    classes: usize,
    /// The value with the classes of pixels, and their height and width.
    masks: Option<(usize, [usize; 2])>,
    /// Memory for the logits of a batch.
    memory: Vec<f32>,
}

impl Answers {
    fn of(plan: &Plan) -> Result<Self, TrainError> {
        let program = &plan.program;
        let masks = program.find(PREDICTIONS).and_then(|id| match program.value(id).shape[..] {
            [_, height, width] => Some((id.0, [height, width])),
            _ => None,
        });
        let loss = program.steps.iter().find(|step| step.phase == Phase::Loss);
        let logits = loss.and_then(|step| step.inputs.first());
        match logits.map(|&id| (id.0, &program.value(id).shape[..])) {
            Some((logits, &[_, classes, ..])) => Ok(Self { logits, classes, masks, memory: Vec::new() }),
            _ => Err(EngineError::Mismatch(format!("`{}` makes no predictions", program.network)).into()),
        }
    }

    fn read(
        &mut self,
        session: &Session,
        program: usize,
        samples: usize,
    ) -> Result<Vec<Answer>, EngineError> {
        let Some((value, size)) = self.masks else {
            session.read_f32(program, self.logits, &mut self.memory)?;
            return Ok(self.memory.chunks_exact(self.classes).take(samples).map(ranked).collect());
        };
        let mut all = Vec::new();
        session.read_labels(program, value, &mut all)?;
        let masks = all.chunks_exact(size[0] * size[1]).take(samples);
        Ok(masks.map(|mask| Answer::Mask(mask.to_vec(), size)).collect())
    }
}

/// The classes by their probability, of equal ones the first first.
fn ranked(logits: &[f32]) -> Answer {
    let logits = || logits.iter().copied().map(f64::from);
    let largest = logits().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits().map(|logit| (logit - largest).exp()).sum();
    let mut classes: Vec<(usize, f64)> =
        logits().map(|logit| (logit - largest).exp() / sum).enumerate().collect();
    classes.sort_by(|one, other| other.1.total_cmp(&one.1));
    Answer::Classes(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ranked_by_probability() {
        let Answer::Classes(classes) = ranked(&[0.0, 2.0_f32.ln(), 0.0]) else { panic!("no classes") };
        let order: Vec<usize> = classes.iter().map(|(class, _)| *class).collect();
        assert_eq!(order, [1, 0, 2]);
        assert!((classes[0].1 - 0.5).abs() < 1e-7);
    }
}
