//! Runs a predictor's network on images, with its kernels chosen and its weights set.

use super::outputs::{OutputMeaning, OutputReader, check_finite};
use super::windows::{LogitSums, SlidingWindows, WindowResults};
use super::{FailureReason, ImageFailure, Outcome, Output, Prediction, Predictor};
use crate::TrainError;
use crate::compile::{
    EvaluationSession, InferenceForm, InferenceProgram, inference_program, inference_session, layer_values,
};
use crate::device;
use crate::input::{BatchFormat, InputPipeline};
use crate::resolve::ResolvedProcess;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use stratus_base::AlignedBytes;
use stratus_data::contact_sheet::RgbImage;
use stratus_data::images::ImageFiles;
use stratus_data::memory::{ImagesInMemory, StoredImage};
use stratus_data::{DataError, Dataset, Element, Layout, Loader, LoaderConfig, LoaderError, Scratch};
use stratus_engine::passes::lower::output_name;
use stratus_engine::passes::quantise::QuantisedMap;
use stratus_engine::{Clock, EngineError, Plan, Role, Session};
use stratus_optimise::quantise::QuantisedWeights;
use stratus_run::csv::Task;
use stratus_run::machine::allocatable_memory_bytes;

/// A predictor's network on a device. Images are processed in batches, in their order.
pub struct Inference<'a> {
    pub(super) predictor: &'a Predictor,
    pub(super) input: InputPipeline,
    pub(super) format: BatchFormat,
    batch: usize,
    pub(super) network: LoadedNetwork,
    /// The library of the kernels, and its threads.
    pub(super) library: String,
    /// Memory for the logits of a batch of windows.
    logits: Vec<f32>,
}

/// The layers of a network that run in int8.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Layers {
    /// The maps that they read in int8, by the layer that writes each.
    pub maps: BTreeMap<String, QuantisedMap>,
    /// Weights and biases by the name of the layer.
    pub weights: BTreeMap<String, (QuantisedWeights, Option<Vec<f32>>)>,
}

/// The evaluation program with its weights.
pub(super) struct LoadedNetwork {
    pub(super) session: Session,
    pub(super) program: usize,
    clock: Clock,
    outputs: OutputReader,
    /// The labels of a batch, all 0: the program computes a loss, which is finite only if all outputs are.
    pub(super) labels: AlignedBytes,
}

/// The results for an image that is evaluated in windows.
pub(crate) struct WindowedPrediction {
    /// The classes of its pixels, and the losses of labelled ones.
    pub results: WindowResults,
    /// Height and width.
    pub size: [usize; 2],
    /// The upright image's pixels, `[H, W, C]`.
    pub pixels: Vec<u8>,
    /// Seconds of the network.
    pub network_s: f64,
}

/// An error of one image, or of all further ones.
pub(crate) enum ImageError {
    /// The problem concerns this image only.
    Image(ImageFailure),
    /// Something else failed.
    Other(TrainError),
}

impl<E: Into<TrainError>> From<E> for ImageError {
    fn from(error: E) -> Self {
        match error.into() {
            TrainError::Data(DataError::BadSample { problem, .. }) => {
                Self::Image(ImageFailure { problem, reason: FailureReason::Unreadable })
            }
            error => Self::Other(error),
        }
    }
}

impl Predictor {
    /// Prepares the network for batches of at most `max_batch` images.
    ///
    /// # Errors
    /// If the device cannot run it, or the weights cannot be read.
    pub fn prepare(&self, max_batch: usize, warn: &mut dyn FnMut(&str)) -> Result<Inference<'_>, TrainError> {
        self.prepare_for(&self.placeholder()?, max_batch, warn)
    }

    /// Prepares the network for batches of `batch` images, whatever the experiment sets.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(super) fn prepare_batch(
        &self,
        batch: usize,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Inference<'_>, TrainError> {
        self.prepare_exactly(&self.placeholder()?, batch, warn)
    }

    /// A data set of one pixel: images of any size are resized.
    fn placeholder(&self) -> Result<ImagesInMemory, TrainError> {
        let pixel = StoredImage::interleaved(vec![0; 3], [3, 1, 1]);
        Ok(ImagesInMemory::new(vec![pixel], self.classes(), self.has_masks())?)
    }

    /// Prepares the network for the images of a data set, whose normalisation is used by default.
    pub(crate) fn prepare_for(
        &self,
        images: &dyn Dataset,
        max_batch: usize,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Inference<'_>, TrainError> {
        let batch = self.experiment.validation_batch_size().min(max_batch).max(1);
        self.prepare_exactly(images, batch, warn)
    }

    fn prepare_exactly(
        &self,
        images: &dyn Dataset,
        batch: usize,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Inference<'_>, TrainError> {
        let mut experiment = self.experiment.clone();
        experiment.data.shape = Some(self.graph.input_shape().0.clone());
        experiment.validation.batch_size = Some(batch);
        let device = device::open(&experiment.train)?;
        let model = self.folded_model()?;
        let resolved = ResolvedProcess::new(&experiment, images, &model.graph, &device)?;
        let form = InferenceForm { smooths_labels: true, ..self.form() };
        let EvaluationSession { session, evaluate, .. } =
            inference_session(&resolved, &model, &device, form, warn)?;
        let plan = session.plan(evaluate);
        let outputs = OutputReader::from_plan(plan, OutputMeaning::new(resolved.settings(), self.task()))?;
        let format = BatchFormat::from_plan(plan);
        let clock = Clock::disabled(session.slots(evaluate));
        let labels = zero_labels(plan)?;
        let network = LoadedNetwork { session, program: evaluate, clock, outputs, labels };
        let input = resolved.input().clone();
        let library = device.backend.describe();
        Ok(Inference { predictor: self, input, format, batch, network, library, logits: Vec::new() })
    }

    fn form(&self) -> InferenceForm<'_> {
        let (quantisation, separates_steps) = (self.quantisation.as_ref(), self.separates_steps);
        InferenceForm { quantisation, separates_steps, ..InferenceForm::default() }
    }

    /// The layers that run in int8 on this machine, and their maps; `None` if there are none.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn int8_layers(&self) -> Result<Option<Int8Layers>, TrainError> {
        if self.quantisation.is_none() {
            return Ok(None);
        }
        let mut experiment = self.experiment.clone();
        experiment.data.shape = Some(self.graph.input_shape().0.clone());
        experiment.validation.batch_size = Some(1);
        let device = device::open(&experiment.train)?;
        let model = self.folded_model()?;
        let resolved = ResolvedProcess::new(&experiment, &self.placeholder()?, &model.graph, &device)?;
        let InferenceProgram { layers, maps, .. } =
            inference_program(&resolved, &model, &device, self.form())?;
        let largest = device.backend.max_int8_weight().unwrap_or(i8::MAX);
        let weights = layers.iter().map(|layer| {
            let (weights, biases) = layer_values(layer, &model.values, largest)?;
            Ok((layer.layer.clone(), (weights, biases.map(<[f32]>::to_vec))))
        });
        let weights = weights.collect::<Result<_, TrainError>>()?;
        let nodes = model.graph.nodes.iter();
        let maps = nodes.filter_map(|node| Some((node.name.clone(), *maps.get(&output_name(&node.name))?)));
        Ok(Some(Int8Layers { maps: maps.collect(), weights }))
    }

    pub(super) fn has_masks(&self) -> bool {
        self.task() == Task::Segmentation
    }
}

impl Inference<'_> {
    /// The number of images per batch.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Runs inference on image files; calls `on_prediction` with the position and outcome of each. `views`
    /// adds the image as the network sees it. An image that cannot be decoded does not affect the others.
    ///
    /// # Errors
    /// If a kernel or `on_prediction` fails.
    pub fn predict_files<E: From<TrainError>>(
        &mut self,
        files: Vec<PathBuf>,
        views: bool,
        mut on_prediction: impl FnMut(usize, Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let open = |files, masks| ImageFiles::new(files, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            let mut scratch = Scratch::default();
            for (index, file) in files.into_iter().enumerate() {
                // Images in windows need no labels.
                let one = open(vec![file], false)?;
                let outcome = match self.file_in_windows(&one, &windows, views, &mut scratch) {
                    Ok(prediction) => Ok(prediction),
                    Err(ImageError::Image(failure)) => Err(failure),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                };
                on_prediction(index, outcome)?;
            }
            return Ok(());
        }
        let images = Arc::new(open(files.clone(), masks)?);
        let evaluation = self.input.evaluation(self.format, self.batch);
        let workers = evaluation.workers.min(files.len());
        let config = LoaderConfig { skip_damaged: true, workers, ..evaluation };
        let mut loader =
            Loader::new(Arc::clone(&images) as Arc<dyn Dataset>, config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, result| {
            let (output, network_s) = match result {
                Ok(result) => result,
                Err(failure) => return on_prediction(index, Err(failure)),
            };
            let view = match views {
                true => match network_view(input, Arc::new(open(vec![files[index].clone()], masks)?)) {
                    Ok(view) => Some(view),
                    Err(ImageError::Image(failure)) => return on_prediction(index, Err(failure)),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                },
                false => None,
            };
            on_prediction(
                index,
                Ok(Prediction { index, output, decode_s: images.seconds(index), network_s, view }),
            )
        })
    }

    /// Runs inference on images in memory, such as frames of a video; else as [`Self::predict_files`].
    ///
    /// # Errors
    /// If a kernel or `on_prediction` fails.
    pub fn predict_images<E: From<TrainError>>(
        &mut self,
        images: Vec<StoredImage>,
        views: bool,
        mut on_prediction: impl FnMut(usize, Outcome) -> Result<(), E>,
    ) -> Result<(), E> {
        let (classes, masks) = (self.predictor.classes(), self.predictor.has_masks());
        let in_memory = |images| ImagesInMemory::new(images, classes, masks).map_err(TrainError::from);
        if let Some(windows) = self.predictor.windows {
            for (index, image) in images.into_iter().enumerate() {
                let outcome = match self.in_windows(image, &windows, views) {
                    Ok(prediction) => Ok(Prediction { index, ..prediction }),
                    Err(ImageError::Image(failure)) => Err(failure),
                    Err(ImageError::Other(error)) => return Err(error.into()),
                };
                on_prediction(index, outcome)?;
            }
            return Ok(());
        }
        let originals = if views { images.clone() } else { Vec::new() };
        let evaluation = self.input.evaluation(self.format, self.batch);
        let config = LoaderConfig { workers: evaluation.workers.min(images.len()), ..evaluation };
        let mut loader = Loader::new(Arc::new(in_memory(images)?), config).map_err(TrainError::from)?;
        let input = &self.input;
        self.network.run(&mut loader, &mut |index, result| {
            let (output, network_s) = match result {
                Ok(result) => result,
                Err(failure) => return on_prediction(index, Err(failure)),
            };
            let view = match originals
                .get(index)
                .map(|image| network_view(input, Arc::new(in_memory(vec![image.clone()])?)))
            {
                Some(Ok(view)) => Some(view),
                Some(Err(ImageError::Image(unanswered))) => return on_prediction(index, Err(unanswered)),
                Some(Err(ImageError::Other(error))) => return Err(error.into()),
                None => None,
            };
            on_prediction(index, Ok(Prediction { index, output, decode_s: 0.0, network_s, view }))
        })
    }

    /// The prediction for the only image of a data set, which is not decoded without enough memory.
    fn file_in_windows(
        &mut self,
        one: &ImageFiles,
        windows: &SlidingWindows,
        views: bool,
        scratch: &mut Scratch,
    ) -> Result<Prediction, ImageError> {
        let size = one.stored_size(0, scratch)?;
        // The decoded image is held twice, besides the copy that the network sees.
        self.check_memory(size, windows, ImageMemory { decoded: 2, views, labels: false })?;
        let image = StoredImage::from_sample(&one.read(0, scratch)?);
        let prediction = self.in_windows(image, windows, views)?;
        Ok(Prediction { decode_s: one.seconds(0), ..prediction })
    }

    fn in_windows(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        views: bool,
    ) -> Result<Prediction, ImageError> {
        let WindowedPrediction { results, size, pixels, network_s } =
            self.predict_in_windows(image, windows, false)?;
        let view = views.then(|| picture(&pixels, self.input.shape[0], size));
        let output = Output::Mask(results.predicted, size);
        Ok(Prediction { index: 0, output, decode_s: 0.0, network_s, view })
    }

    /// Checks that there is enough memory for an image of this size, before it is decoded and before the
    /// network runs.
    fn check_memory(
        &self,
        size: [usize; 2],
        windows: &SlidingWindows,
        held: ImageMemory,
    ) -> Result<(), ImageError> {
        let sums = LogitSums::bytes(self.predictor.classes(), size, windows);
        let needed = sums.saturating_add(held.bytes(size, self.input.shape[0]));
        match allocatable_memory_bytes() {
            Some(free) if free < needed => Err(self.out_of_memory(size, needed, Some(free))),
            _ => Ok(()),
        }
    }

    fn out_of_memory(&self, [height, width]: [usize; 2], needed: u64, free: Option<u64>) -> ImageError {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let free = free.map_or("fewer".to_owned(), |free| (free >> 20).to_string());
        let classes = self.predictor.classes();
        let problem = format!(
            "needs {} MiB of memory, but {free} are free, for {height}x{width} pixels, their mask, and the \
             sums of {classes} classes over the rows of a window",
            mib(needed)
        );
        ImageError::Image(ImageFailure { problem, reason: FailureReason::TooLarge })
    }

    /// Evaluates an image window by window; if `labelled`, with the image's labels.
    ///
    /// # Errors
    /// If the image is smaller than a window, there is not enough memory for it, or a kernel fails.
    pub(crate) fn predict_in_windows(
        &mut self,
        image: StoredImage,
        windows: &SlidingWindows,
        labelled: bool,
    ) -> Result<WindowedPrediction, ImageError> {
        let (size, [channels, h, w]) = (image.upright_size(), self.input.shape);
        let Some(corners) = windows.corners(size) else {
            let problem = format!("has {}x{} pixels, fewer than a window of {h}x{w}", size[0], size[1]);
            return Err(ImageError::Image(ImageFailure { problem, reason: FailureReason::TooSmall }));
        };
        self.check_memory(size, windows, ImageMemory { decoded: 0, views: false, labels: labelled })?;
        let classes = self.predictor.classes();
        let in_memory = |images, masks| ImagesInMemory::new(images, classes, masks);
        // Upright, with the network's channels, without resizing.
        let bytes = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
        let upright = LoaderConfig {
            shape: Some([channels, size[0], size[1]]),
            ..single_pass(self.input.evaluation(bytes, 1))
        };
        let image = Arc::new(in_memory(vec![image], labelled)?);
        let mut loader = Loader::new(image, upright).map_err(|error| match error {
            LoaderError::Memory { bytes, .. } => self.out_of_memory(size, bytes, None),
            error => error.into(),
        })?;
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        while let Some(batch) = loader.next()? {
            let decoded = &batch.images.elements::<u8>()[..channels * size[0] * size[1]];
            let stored = if labelled { &batch.labels[..] } else { &[] };
            let reserved =
                pixels.try_reserve_exact(decoded.len()).and(labels.try_reserve_exact(stored.len()));
            reserved.map_err(|_| self.out_of_memory(size, 2 * decoded.len() as u64, None))?;
            pixels.extend_from_slice(decoded);
            labels.extend_from_slice(stored);
            loader.recycle(batch);
        }
        drop(loader);
        let mut sums = LogitSums::new(classes, size, windows, labels)
            .map_err(|_| self.out_of_memory(size, LogitSums::bytes(classes, size, windows), None))?;
        let mut network_s = 0.0;
        let (mut rest, mut part) = (corners.iter(), Vec::with_capacity(self.batch));
        loop {
            part.clear();
            part.extend(rest.by_ref().take(self.batch));
            if part.is_empty() {
                break;
            }
            let crop = |corner: &[usize; 2]| crop(&pixels, [channels, size[0], size[1]], *corner, [h, w]);
            let crops = in_memory(part.iter().map(crop).collect(), true)?;
            let config = single_pass(self.input.evaluation(self.format, self.batch));
            let mut loader = Loader::new(Arc::new(crops), config)?;
            let LoadedNetwork { session, program, clock, outputs, .. } = &mut self.network;
            while let Some(mut batch) = loader.next()? {
                let started = Instant::now();
                let labels = bytemuck::cast_slice_mut(&mut batch.labels);
                session.run(*program, &mut batch.images, labels, clock, 0)?;
                network_s += started.elapsed().as_secs_f64();
                session.read_f32(*program, outputs.logits, &mut self.logits)?;
                for (&corner, logits) in part.iter().zip(self.logits.chunks_exact(classes * h * w)) {
                    check_finite(logits).map_err(ImageError::Image)?;
                    sums.add(corner, logits);
                }
                loader.recycle(batch);
            }
        }
        Ok(WindowedPrediction { results: sums.finish(), size, pixels, network_s })
    }

    /// The plan of the evaluation program.
    pub(crate) fn plan(&self) -> &Plan {
        self.network.session.plan(self.network.program)
    }
}

/// The copies of an image in memory, besides its mask and its sums.
#[derive(Clone, Copy)]
struct ImageMemory {
    /// Number of copies of the decoded image.
    decoded: u64,
    /// True if the image is shown with its mask.
    views: bool,
    /// True if its pixels have labels.
    labels: bool,
}

impl ImageMemory {
    /// The number of bytes for an image of this size, in a network that takes `channels`.
    fn bytes(self, [height, width]: [usize; 2], channels: usize) -> u64 {
        // A stored image has at most three channels. A batch's image and labels are copied once; a view adds
        // the picture, its overlay, and both encoded as files.
        let Self { decoded, views, labels } = self;
        let per_pixel =
            3 * decoded + 2 * channels as u64 + 3 * 4 * u64::from(views) + 2 * 4 * u64::from(labels);
        // Two bytes more for the mask as a file.
        (height as u64).saturating_mul(width as u64).saturating_mul(per_pixel + 2)
    }
}

/// The same configuration for a single epoch, with minimum memory and without resizing.
fn single_pass(config: LoaderConfig) -> LoaderConfig {
    LoaderConfig { resize: None, mask_size: None, epochs: Some(1), slots: 1, workers: 1, ..config }
}

/// A crop of an image of interleaved pixels.
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

/// Converts interleaved pixels to RGB.
pub(crate) fn picture(pixels: &[u8], channels: usize, [height, width]: [usize; 2]) -> RgbImage {
    let colours = |pixel: &[u8]| [0, 1, 2].map(|channel: usize| pixel[channel.min(channels - 1)]);
    RgbImage { pixels: pixels.chunks_exact(channels).flat_map(colours).collect(), height, width }
}

/// The only image of a data set, as the network sees it.
fn network_view(input: &InputPipeline, image: Arc<dyn Dataset>) -> Result<RgbImage, ImageError> {
    let format = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
    let [channels, height, width] = input.shape;
    let evaluation = input.evaluation(format, 1);
    let config = LoaderConfig { epochs: Some(1), slots: 1, workers: 1, skip_damaged: true, ..evaluation };
    let mut loader = Loader::new(image, config)?;
    let batch = loader.next()?;
    if let Some(problem) = loader.skip_reason(0) {
        return Err(ImageError::Image(ImageFailure { problem, reason: FailureReason::Unreadable }));
    }
    let pixels = batch.as_ref().map_or(&[][..], |batch| batch.images.elements::<u8>());
    let count = pixels.len().min(channels * height * width);
    Ok(picture(&pixels[..count], channels, [height, width]))
}

impl LoadedNetwork {
    /// The plan of the evaluation program.
    pub(super) fn plan(&self) -> &Plan {
        self.session.plan(self.program)
    }

    /// Runs all batches of a loader's epoch, and calls `on_output` with the position and result of every
    /// sample.
    fn run<E: From<TrainError>>(
        &mut self,
        loader: &mut Loader,
        on_output: &mut dyn FnMut(usize, SampleOutput) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { session, program, clock, outputs, labels } = self;
        for _ in 0..loader.batches_per_epoch() {
            let Some(mut batch) = loader.next().map_err(TrainError::from)? else { break };
            let problems: Vec<Option<String>> =
                batch.indices.iter().map(|&sample| loader.skip_reason(sample)).collect();
            let decoded = problems.iter().filter(|problem| problem.is_none()).count();
            let started = Instant::now();
            let mut batch_outputs = Vec::new();
            if decoded > 0 {
                session.run(*program, &mut batch.images, labels, clock, 0).map_err(TrainError::from)?;
            }
            let network_s = started.elapsed().as_secs_f64() / decoded.max(1) as f64;
            if decoded > 0 {
                batch_outputs = outputs.read(session, *program, batch.samples).map_err(TrainError::from)?;
            }
            let mut batch_outputs = batch_outputs.into_iter();
            for (&sample, problem) in batch.indices.iter().zip(problems) {
                // The batch row of an image that could not be decoded has an output too; it is ignored.
                let output = batch_outputs.next();
                let result = match (problem, output) {
                    (None, Some(output)) => output.map(|output| (output, network_s)),
                    (Some(problem), _) => Err(ImageFailure { problem, reason: FailureReason::Unreadable }),
                    (None, None) => continue,
                };
                on_output(sample as usize, result)?;
            }
            loader.recycle(batch);
        }
        Ok(())
    }
}

/// Memory for the labels of a plan's program, all 0.
fn zero_labels(plan: &Plan) -> Result<AlignedBytes, TrainError> {
    let program = &plan.program;
    let labels = program.find_role(Role::Labels).map(|id| program.value(id));
    let bytes = labels.map_or(0, |labels| labels.elements() * labels.dtype.bytes());
    AlignedBytes::zeroed(bytes, "the labels of a batch").map_err(|error| EngineError::from(error).into())
}

/// The output for an image and the seconds of the network, or the reason why there is none.
type SampleOutput = Result<(Output, f64), ImageFailure>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::weights::initialise::values;
    use std::collections::BTreeMap;
    use stratus_experiment::Experiment;
    use stratus_weights::{TensorRef, ValuesRef, write_safetensors};

    /// The outcome of an image for `erfnet`, the last layer of which has these weights and bias for `class`.
    fn segment(class: usize, weight: f32) -> Outcome {
        let keys = [("model.name", "erfnet"), ("model.classes", "3"), ("train.device", "reference")];
        let mut experiment = Experiment::default().with_overrides(&keys).unwrap();
        experiment.data.shape = Some(vec![3, 16, 16]);
        let graph = Network::as_published(&experiment).unwrap().graph;
        let mut tensors: Vec<Vec<f32>> =
            (0..).zip(&graph.parameters).map(|(i, parameter)| values(parameter, i, 0).unwrap()).collect();
        let [.., weights, bias] = &mut tensors[..] else { panic!("few parameters") };
        // Of the shape [inputs, classes, 2, 2].
        for weights in weights.chunks_exact_mut(4).skip(class).step_by(3) {
            weights.fill(weight);
        }
        bias[class] = weight;
        let named = graph.parameters.iter().zip(&tensors).map(|(parameter, values)| TensorRef {
            name: &parameter.name,
            shape: &parameter.shape,
            values: ValuesRef::F32(values),
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let mut file = std::fs::File::create(&path).unwrap();
        write_safetensors(&mut file, &named.collect::<Vec<_>>(), &BTreeMap::new()).unwrap();
        let predictor = Predictor::from_weights(&experiment, &path, &mut |_| ()).unwrap();
        let image = StoredImage::interleaved(vec![100; 3 * 16 * 16], [3, 16, 16]);
        let mut outcomes = Vec::new();
        let mut inference = predictor.prepare(1, &mut |_| ()).unwrap();
        let add = |_, outcome| -> Result<(), TrainError> {
            outcomes.push(outcome);
            Ok(())
        };
        inference.predict_images(vec![image], false, add).unwrap();
        outcomes.pop().unwrap()
    }

    #[test]
    fn mask_is_refused_if_the_logit_of_any_class_is_not_finite() {
        assert!(segment(0, 1.0).is_ok());
        // The logits of the class overflow.
        for weight in [f32::MAX, f32::MIN] {
            for class in 0..3 {
                let outcome = segment(class, weight).map(|_| ());
                assert_eq!(outcome, Err(ImageFailure::not_finite()), "class {class}, weight {weight}");
            }
        }
    }
}
