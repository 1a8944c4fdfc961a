//! A network that is ready for images: its kernels are chosen, its weights set.

use super::windows::{LogitSums, SlidingWindows};
use super::{Answer, Prediction, Predictor};
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
use stratus_data::{Dataset, Element, Layout, Loader, LoaderConfig, Scratch};
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::{Clock, EngineError, Phase, Plan, Session};
use stratus_run::csv::Task;

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
    /// The class of every pixel, row-major.
    pub mask: Vec<i32>,
    /// The label of every pixel of the upright image.
    pub labels: Vec<i32>,
    /// Height and width.
    pub size: [usize; 2],
    /// The sum of the losses of the pixels with a class, and their number.
    pub loss: [f64; 2],
    /// The upright image's pixels, `[H, W, C]`.
    pub pixels: Vec<u8>,
    /// Seconds of the network.
    pub network_s: f64,
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

    /// Shows the network image files, and calls `each` with what it says of each; with `views` the images
    /// come along.
    ///
    /// # Errors
    /// If an image cannot be read, a kernel fails, or what `each` returns.
    pub fn files<E: From<TrainError>>(
        &mut self,
        files: Vec<PathBuf>,
        views: bool,
        mut each: impl FnMut(Prediction) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let open = |files| ImageFiles::new(files, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            let mut scratch = Scratch::default();
            for (index, file) in files.into_iter().enumerate() {
                let name = file.display().to_string();
                let one = open(vec![file])?;
                let image = StoredImage::of(&one.read(0, &mut scratch).map_err(TrainError::from)?);
                let mut prediction = self.in_windows(image, &windows, index, views, &name)?;
                prediction.decode_s = one.seconds(0);
                each(prediction)?;
            }
            return Ok(());
        }
        let images = Arc::new(open(files.clone())?);
        let config = self.input.measuring(self.format, self.batch);
        let mut loader =
            Loader::new(Arc::clone(&images) as Arc<dyn Dataset>, config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, answer, network_s| {
            let view = match views {
                true => Some(view(input, Arc::new(open(vec![files[index].clone()])?))?),
                false => None,
            };
            each(Prediction { index, answer, decode_s: images.seconds(index), network_s, view })
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
        mut each: impl FnMut(Prediction) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let held = |images| ImagesInMemory::new(images, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            for (index, image) in images.into_iter().enumerate() {
                each(self.in_windows(image, &windows, index, views, &format!("image {index}"))?)?;
            }
            return Ok(());
        }
        let shown = if views { images.clone() } else { Vec::new() };
        let config = self.input.measuring(self.format, self.batch);
        let mut loader = Loader::new(Arc::new(held(images)?), config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, answer, network_s| {
            let view = match shown.get(index) {
                Some(image) => Some(view(input, Arc::new(held(vec![image.clone()])?))?),
                None => None,
            };
            each(Prediction { index, answer, decode_s: 0.0, network_s, view })
        })
    }

    fn in_windows(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        index: usize,
        views: bool,
        name: &str,
    ) -> Result<Prediction, TrainError> {
        let WholeImage { mask, size, pixels, network_s, .. } = self.whole(image, windows, name)?;
        let view = views.then(|| picture(&pixels, self.input.shape[0], size));
        Ok(Prediction { index, answer: Answer::Mask(mask, size), decode_s: 0.0, network_s, view })
    }

    /// What the network says of an image, window by window.
    ///
    /// # Errors
    /// If the image is smaller than a window, or a kernel fails.
    pub(crate) fn whole(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        name: &str,
    ) -> Result<WholeImage, TrainError> {
        let (size, [channels, h, w]) = (image.upright_size(), self.input.shape);
        let Some(corners) = windows.corners(size) else {
            return Err(TrainError::Configuration {
                problem: format!("{name} has {}x{} pixels, a window {h}x{w}", size[0], size[1]),
                hint: "give a window that is no larger than the images".to_owned(),
            });
        };
        let classes = self.predictor.classes();
        let held = |images| ImagesInMemory::new(images, classes, true);
        // Upright, with the network's channels, and not resized.
        let bytes = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
        let upright = LoaderConfig {
            shape: Some([channels, size[0], size[1]]),
            ..once(self.input.measuring(bytes, 1))
        };
        let mut loader = Loader::new(Arc::new(held(vec![image])?), upright)?;
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next()? {
            pixels.extend_from_slice(&batch.images.elements::<u8>()[..channels * size[0] * size[1]]);
            labels.extend_from_slice(&batch.labels);
            loader.recycle(batch);
        }
        let mut sums = LogitSums::new(classes, size, windows);
        let mut network_s = 0.0;
        for part in corners.chunks(self.batch) {
            let crop = |corner: &[usize; 2]| crop(&pixels, [channels, size[0], size[1]], *corner, [h, w]);
            let crops = held(part.iter().map(crop).collect())?;
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
                    sums.add(corner, [h, w], logits);
                }
                loader.recycle(batch);
            }
        }
        let loss = sums.loss(&labels);
        Ok(WholeImage { mask: sums.classes(), labels, size, loss, pixels, network_s })
    }

    /// The program that evaluates.
    pub(crate) fn plan(&self) -> &Plan {
        self.network.session.plan(self.network.program)
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
fn view(input: &InputPipeline, image: Arc<dyn Dataset>) -> Result<Picture, TrainError> {
    let format = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
    let [channels, height, width] = input.shape;
    let mut loader =
        Loader::new(image, LoaderConfig { epochs: Some(1), slots: 1, ..input.measuring(format, 1) })?;
    let batch = loader.next()?;
    let pixels = batch.as_ref().map_or(&[][..], |batch| batch.images.elements::<u8>());
    let there = pixels.len().min(channels * height * width);
    Ok(picture(&pixels[..there], channels, [height, width]))
}

impl LoadedNetwork {
    /// Runs all batches of a loader's epoch.
    fn run<E: From<TrainError>>(
        &mut self,
        loader: &mut Loader,
        each: &mut dyn FnMut(usize, Answer, f64) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { session, program, clock, answers } = self;
        for _ in 0..loader.batches_per_epoch() {
            let Some(mut batch) = loader.next().map_err(TrainError::from)? else { break };
            let begun = Instant::now();
            let labels = bytemuck::cast_slice_mut(&mut batch.labels);
            session.run(*program, &mut batch.images, labels, clock, 0).map_err(TrainError::from)?;
            let network_s = begun.elapsed().as_secs_f64() / batch.samples as f64;
            let said = answers.read(session, *program, batch.samples).map_err(TrainError::from)?;
            for (&sample, answer) in batch.indices.iter().zip(said) {
                each(sample as usize, answer, network_s)?;
            }
            loader.recycle(batch);
        }
        Ok(())
    }
}

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
