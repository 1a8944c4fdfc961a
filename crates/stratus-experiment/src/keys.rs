//! Every configuration key, declared once. The table below generates the structs, the defaults, the checks,
//! the help of `stratus config keys`, the reference page and the suggestions for misspelt keys.

use crate::choices::{
    ClassWeighting, Decode, Device, ExchangeMode, ExchangeType, LossFunction, OnBadSample, OptimiserName,
    Padding, PositiveWeighting, Precision, ScheduleName,
};
use crate::metric::EpochMetric;
use crate::value::{Setting, Value, ValueKind};

/// The constraint on a value beyond its type; of a list, on every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constraint {
    /// No constraint.
    Any,
    /// At least this number.
    AtLeast(f64),
    /// More than this number.
    Above(f64),
    /// From the first number to the second, both included.
    Inclusive(f64, f64),
    /// From the first number to the second, the second excluded.
    HalfOpen(f64, f64),
    /// A string that can name a folder: letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
    FolderName,
    /// A non-empty string.
    NotEmpty,
}

impl Constraint {
    /// Returns whether the value satisfies the constraint. Non-finite numbers never do.
    pub fn allows(self, value: &Value) -> bool {
        let number_satisfies = |number: f64| match self {
            Constraint::AtLeast(min) => number >= min,
            Constraint::Above(bound) => number > bound,
            Constraint::Inclusive(min, max) => (min..=max).contains(&number),
            Constraint::HalfOpen(min, bound) => (min..bound).contains(&number),
            Constraint::Any | Constraint::FolderName | Constraint::NotEmpty => true,
        };
        let text_satisfies = match (self, value) {
            (Constraint::FolderName, Value::String(text)) => {
                text.len() <= 100
                    && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            }
            (Constraint::NotEmpty, Value::String(text)) => !text.is_empty(),
            (Constraint::NotEmpty, Value::StringList(texts)) => texts.iter().all(|text| !text.is_empty()),
            _ => true,
        };
        text_satisfies
            && value.numbers().into_iter().all(|number| number.is_finite() && number_satisfies(number))
    }

    /// The phrase after "must be"; empty without a constraint.
    pub fn describe(self) -> String {
        match self {
            Constraint::Any => String::new(),
            Constraint::AtLeast(min) => format!("at least {min}"),
            Constraint::Above(bound) => format!("more than {bound}"),
            Constraint::Inclusive(min, max) => format!("from {min} to {max}"),
            Constraint::HalfOpen(min, bound) => format!("at least {min} and less than {bound}"),
            Constraint::FolderName => {
                "made of letters, digits, `.`, `_` and `-`, beginning with a letter or digit".into()
            }
            Constraint::NotEmpty => "a non-empty string".into(),
        }
    }
}

/// A configuration key.
#[derive(Debug)]
pub struct Key {
    /// The full name, `train.epochs`.
    pub name: &'static str,
    /// The type of its values.
    pub kind: ValueKind,
    /// The constraint on its values.
    pub constraint: Constraint,
    /// True if it may be unset.
    pub optional: bool,
    /// The description, in a few sentences.
    pub doc: &'static str,
    pub(crate) get: fn(&Experiment) -> Option<Value>,
    pub(crate) set: fn(&mut Experiment, &Value) -> bool,
    pub(crate) unset: fn(&mut Experiment),
}

impl Key {
    /// The section, `train`, and the name within it, `epochs`.
    pub fn split(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// The default value; `None` if the key is unset by default.
    pub fn default(&self) -> Option<Value> {
        (self.get)(&Experiment::default())
    }

    /// The type and the constraint as one phrase.
    pub fn accepts(&self) -> String {
        match (self.kind, self.constraint) {
            (kind, Constraint::Any | Constraint::NotEmpty) => kind.describe(),
            (ValueKind::String, constraint) => format!("a string {}", constraint.describe()),
            (ValueKind::FloatList, constraint) => {
                format!("a list of numbers, each {}", constraint.describe())
            }
            (ValueKind::IntegerList, constraint) => {
                format!("a list of integers, each {}", constraint.describe())
            }
            (kind, constraint) => format!("{}, {}", kind.describe(), constraint.describe()),
        }
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident $path:literal: $Section:ident {
            $( $(#[doc = $doc:literal])* $key:ident: $type:ty = $default:expr, $constraint:expr; )*
        }
    )*) => {
        /// A configuration, typed and checked: everything that determines the computation of a run.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Experiment { $( $(#[doc = $section_doc])* pub $section: $Section, )* }

        $(
            $(#[doc = $section_doc])*
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section { $( $(#[doc = $doc])* pub $key: $type, )* }

            impl Default for $Section {
                fn default() -> Self { $Section { $( $key: $default, )* } }
            }
        )*

        /// Every key, in the order of the file.
        pub static KEYS: &[Key] = &[$($(
            Key {
                name: concat!($path, ".", stringify!($key)),
                kind: <$type as Setting>::KIND,
                constraint: $constraint,
                optional: <$type as Setting>::OPTIONAL,
                doc: concat!($($doc),*),
                get: |experiment| experiment.$section.$key.to_value(),
                set: |experiment, value| match <$type as Setting>::from_value(value) {
                    Some(value) => { experiment.$section.$key = value; true }
                    None => false,
                },
                unset: |experiment| experiment.$section.$key = $Section::default().$key,
            },
        )*)*];
    };
}

settings! {
    /// The run itself.
    experiment "experiment": ExperimentSettings {
        /// Folder of the runs, `runs/<name>/`. Default: the network's name.
        name: Option<String> = None, Constraint::FolderName;
    }

    /// The network.
    model "model": Model {
        /// Network of `stratus model list`, or a layer file such as `net.toml`, resolved against the
        /// experiment file's folder, then the working directory.
        name: String = String::new(), Constraint::NotEmpty;
        /// Filters of the first convolution; all others scale with it. Default: as published.
        width: Option<usize> = None, Constraint::Inclusive(1.0, 65_536.0);
        /// Number of outputs: classes, labels or targets. Default: as many as the data set has.
        classes: Option<usize> = None, Constraint::Inclusive(1.0, 1_000_000.0);
        /// Initial weights: a safetensors file, a PyTorch state dict (`.pth`, `.pt`), or a run directory, of
        /// which the newest checkpoint is used. A classifier with a different number of classes is
        /// reinitialised. Default: random initial weights.
        weights: Option<String> = None, Constraint::NotEmpty;
        /// Layers that are not trained. `layer1` freezes the layer of that name and all layers whose names
        /// begin with `layer1.`; the name of a parameter, such as `layer1.bn1.weight`, freezes that
        /// parameter. Frozen layers get neither gradients nor updates. Their batch norms use the running
        /// statistics without updating them; their dropout is off.
        freeze: Vec<String> = Vec::new(), Constraint::NotEmpty;
    }

    /// The data set and its input pipeline.
    data "data": Data {
        /// Data set; `stratus data list` lists them.
        name: String = "mnist".into(), Constraint::NotEmpty;
        /// Folder of the data set. For `folder` also a tar archive of it; for `table` a CSV or Parquet file;
        /// for `shards` also an address such as `s3://bucket/folder` or `https://host/path`. A path in an
        /// experiment file is resolved against the file's folder, then the working directory. Default:
        /// `data/<data.name>`.
        path: Option<String> = None, Constraint::NotEmpty;
        /// Check files against published checksums, if there are any, and the start and end of every image
        /// file. `false` starts sooner and accepts other data in the same format.
        verify: bool = true, Constraint::Any;
        /// Channels, height and width of the network's input. Default: the shape of the data set's images, if
        /// all have the same; for photographs (folder, shards, coco) and synthetic images the shape that the
        /// network is published for.
        shape: Option<Vec<usize>> = None, Constraint::Inclusive(1.0, 65_536.0);
        /// Resize each stored image so that its shorter side has this many pixels, then crop the centre.
        /// Default: the largest centre crop with the aspect ratio of `data.shape` is resized.
        resize: Option<usize> = None, Constraint::Inclusive(1.0, 65_536.0);
        /// folder: file with the names of the classes to use, one per line. Default: all classes.
        classes: Option<String> = None, Constraint::NotEmpty;
        /// folder: number of training images per class, the first by name. Default: all.
        images_per_class: Option<usize> = None, Constraint::Inclusive(1.0, 4e9);
        /// shards: number of consecutive shards that are shuffled together. Each epoch visits the shards in
        /// random order and shuffles the images within each window of this many shards. The first epoch uses
        /// windows of one, one, two and four shards first, so that it starts sooner. Changes the order of
        /// images.
        shuffle_shards: usize = 8, Constraint::Inclusive(1.0, 1_000_000.0);
        /// folder, table, camvid: re-split the images with this seed: 60 % training, 20 % validation, 20 %
        /// test, within each class; of tables with labels, each label is about equally frequent in all
        /// splits. The split is a function of the file names and labels. Default: the data set's own split.
        split_seed: Option<u64> = None, Constraint::AtLeast(0.0);
        /// folder, table, camvid: two or three files that list the training, validation and test images, one
        /// path per line; for camvid the path of the image and that of its mask. Default: the data set's own
        /// split.
        lists: Option<Vec<String>> = None, Constraint::NotEmpty;
        /// table: the columns of labels or targets. Default: all except `path`, `split` and `data.group_by`.
        columns: Option<Vec<String>> = None, Constraint::NotEmpty;
        /// table: the character between the labels of a cell, such as `|`, if one column lists them all.
        /// Default: a column for each label.
        label_separator: Option<String> = None, Constraint::NotEmpty;
        /// table: the column of groups, such as patients, whose images `data.split_seed` keeps in one split.
        /// Default: each image is its own group.
        group_by: Option<String> = None, Constraint::NotEmpty;
        /// Numbers: mean of each target, which the network learns as (target - mean) / standard deviation.
        /// Default: of the training images.
        target_mean: Option<Vec<f64>> = None, Constraint::Any;
        /// Numbers: standard deviation of each target. Default: of the training images.
        target_std: Option<Vec<f64>> = None, Constraint::Above(0.0);
        /// shards: folder for local copies of remote shards. Default: `data` in the folder that
        /// `STRATUS_CACHE` names, or `~/.cache/stratus/data`.
        cache: Option<String> = None, Constraint::NotEmpty;
        /// shards: maximum MiB of local copies. Does not affect results.
        cache_mib: usize = 20_480, Constraint::Inclusive(1.0, 1_073_741_824.0);
        /// shards: fail after this many seconds without data from the server.
        patience_seconds: f64 = 300.0, Constraint::Inclusive(0.0, 1e9);
        /// Handling of images that cannot be decoded: `error` lists them and refuses to train; `skip` skips
        /// them and lists them in the summary.
        on_bad_sample: OnBadSample = OnBadSample::Error, Constraint::Any;
        /// JPEG decoding: `exact`, or `fast`, which decodes to a half, a quarter or an eighth of the size if
        /// the required part of the image is at least that much larger than the network's input. Pixels then
        /// differ slightly. Needs libjpeg-turbo. Images with masks, and images that are rotated or zoomed,
        /// are decoded exactly.
        decode: Decode = Decode::Exact, Constraint::Any;
        /// Loader threads (decoding, augmentation). Does not affect results. Default: with a GPU all usable
        /// cores except one; on a CPU one, raised in the first iterations while training waits for data.
        workers: Option<usize> = None, Constraint::Inclusive(1.0, 1024.0);
        /// Maximum MiB of training batches that are read ahead: one per loader thread and a few more, if they
        /// fit. Does not affect results. Default: 1024, or two batches if these are larger.
        prefetch_mib: Option<usize> = None, Constraint::Inclusive(1.0, 1_073_741_824.0);
        /// Drop the last batch of an epoch if it is smaller than the others.
        drop_last: bool = false, Constraint::Any;
        /// Mean of each channel, for pixels scaled to 0…1; it is subtracted. Default: the data set's.
        mean: Option<Vec<f64>> = None, Constraint::Any;
        /// Standard deviation of each channel; pixels are divided by it. Default: the data set's.
        std: Option<Vec<f64>> = None, Constraint::Above(0.0);
    }

    /// Augmentation of the training images, always in this order: crop, zoom and rotation; colour; flip,
    /// shift and cutout; mixup and cutmix. Masks are transformed with their images, except by colour and
    /// cutout.
    augment "data.augment": Augment {
        /// Shift each image by up to this many pixels, horizontally and vertically.
        shift: usize = 0, Constraint::Inclusive(0.0, 1024.0);
        /// Fill of the pixels that a shift uncovers: `zero` is black; `reflect` mirrors the image at its
        /// edge.
        padding: Padding = Padding::Zero, Constraint::Any;
        /// Flip each image horizontally with probability 1/2.
        flip: bool = false, Constraint::Any;
        /// flip: flip each image in every other epoch, so that two consecutive epochs show both orientations.
        /// The half of the images that starts flipped is drawn once.
        alternate_flip: bool = false, Constraint::Any;
        /// Side in pixels of a square that is blanked at a random position. 0: off.
        cutout: usize = 0, Constraint::Inclusive(0.0, 1024.0);
        /// Crop a random part of each stored image and resize it, instead of the centre crop.
        random_resized_crop: bool = false, Constraint::Any;
        /// random_resized_crop: smallest and largest fraction of the image's area.
        scale: Vec<f64> = vec![0.08, 1.0], Constraint::Inclusive(0.0, 1.0);
        /// random_resized_crop: smallest and largest ratio of width to height.
        ratio: Vec<f64> = vec![0.75, 1.3333], Constraint::Above(0.0);
        /// Crop at a random position after `data.resize`, instead of the centre.
        random_crop: bool = false, Constraint::Any;
        /// Rotate each image by up to this many degrees in either direction. Uncovered pixels are filled with
        /// the mean.
        rotation: f64 = 0.0, Constraint::Inclusive(0.0, 180.0);
        /// Smallest and largest factor by which each image is enlarged. Below 1 it shrinks, and uncovered
        /// pixels are filled with the mean. Default: no zoom.
        zoom: Option<Vec<f64>> = None, Constraint::Inclusive(0.0625, 16.0);
        /// Multiply pixels by a factor between 1 - b and 1 + b, at least 0.
        brightness: f64 = 0.0, Constraint::Inclusive(0.0, 16.0);
        /// Multiply each pixel's difference from the image's mean grey by a factor between 1 - c and 1 + c,
        /// at least 0.
        contrast: f64 = 0.0, Constraint::Inclusive(0.0, 16.0);
        /// Multiply each pixel's difference from its own grey by a factor between 1 - s and 1 + s, at least
        /// 0.
        saturation: f64 = 0.0, Constraint::Inclusive(0.0, 16.0);
        /// Rotate hues by up to this fraction of the colour circle in either direction. The four colour
        /// changes are applied in an order drawn for each image.
        hue: f64 = 0.0, Constraint::Inclusive(0.0, 0.5);
        /// Blend each image and its label with another of its batch. The fraction of the other is drawn from
        /// Beta(a, a), where a is this value; 0.1 to 1 are usual. Training accuracy counts the class with the
        /// larger fraction. 0: off.
        mixup: f64 = 0.0, Constraint::Inclusive(0.0, 10_000.0);
        /// Paste a rectangle of another image of the batch into each image. Its fraction of the area, drawn
        /// from Beta(a, a), where a is this value, is its fraction of the label; 1 is usual. With `mixup`
        /// each image gets one of the two. 0: off.
        cutmix: f64 = 0.0, Constraint::Inclusive(0.0, 10_000.0);
        /// mixup, cutmix: fraction of images that are mixed.
        mixed_share: f64 = 1.0, Constraint::Inclusive(0.0, 1.0);
        /// Numbers: states that mirroring, rotating, zooming and cropping an image does not change its
        /// targets; it may change an angle or a count. Without it, such augmentation of images with numbers
        /// is refused.
        keeps_targets: bool = false, Constraint::Any;
    }

    /// The size of synthetic data, `data.name = "synthetic"`.
    synthetic "data.synthetic": Synthetic {
        /// Number of training images.
        images: usize = 1280, Constraint::Inclusive(1.0, 4e9);
        /// Number of validation images.
        validation_images: usize = 256, Constraint::Inclusive(1.0, 4e9);
        /// Number of classes.
        classes: usize = 10, Constraint::Inclusive(2.0, 1_000_000.0);
        /// Milliseconds that a loader thread sleeps before it generates an image, to simulate a slow disk or
        /// server when testing the loader.
        delay_ms: u64 = 0, Constraint::Inclusive(0.0, 60_000.0);
    }

    /// Training.
    train "train": Train {
        /// Training loss. `cross_entropy`: one class of each image or pixel; `binary_cross_entropy`: labels,
        /// each of which applies or does not, or masks of two classes, background and foreground;
        /// `squared_error`, `huber`: numbers. A data set with one class per image can be learned with each of
        /// them: each class is then a label, or its name is the number to predict. Default: by the data set.
        loss: Option<LossFunction> = None, Constraint::Any;
        /// Passes over the training images.
        epochs: u64 = 10, Constraint::Inclusive(1.0, 1e9);
        /// Images per iteration.
        batch_size: usize = 128, Constraint::Inclusive(1.0, 16_777_216.0);
        /// Number of equal micro-batches per batch (gradient accumulation), for batches that exceed the
        /// memory. Parameters are updated once per batch; batch norm uses the statistics of each micro-batch.
        /// 1: off.
        micro_batches: usize = 1, Constraint::Inclusive(1.0, 16_777_216.0);
        /// Number of equal parts per batch, divided among the workers (`--workers`); a power of two. Each
        /// part has its own batch norm statistics; losses, gradients and running statistics are summed along
        /// one tree over the parts, so that results are bit-identical for any number of workers. 0: the
        /// number of workers at the start.
        parts: usize = 0, Constraint::Inclusive(0.0, 65_536.0);
        /// Batch norm uses the statistics of the whole batch instead of those of each part (`train.parts`),
        /// also across workers. Maps between two batch norms are kept for all parts of a worker. No effect
        /// without parts: statistics are then those of the whole batch.
        synchronise_batch_norm: bool = false, Constraint::Any;
        /// Pipeline stages, one process each (`--workers`), for networks that exceed one process's memory.
        /// The parts of a batch pass through the stages one after the other. Does not affect results. 1: off.
        stages: usize = 1, Constraint::Inclusive(1.0, 64.0);
        /// Summing of the gradients of several workers. `exact`: along one tree, by GPUs or through host
        /// memory. `fast`: NCCL's all-reduce. It adds in an order of its own, so results depend on the GPUs,
        /// their number and how they are connected. No effect with one worker.
        exchange: ExchangeMode = ExchangeMode::Exact, Constraint::Any;
        /// Number format of the gradients that workers send to each other. Changes results, and makes them
        /// depend on the number of workers, unless it is f32. No effect with one worker.
        exchange_type: ExchangeType = ExchangeType::F32, Constraint::Any;
        /// Label smoothing: fraction of the target that is spread evenly over all classes, or over yes and no
        /// of each label. Not used in validation, nor for numbers.
        label_smoothing: f64 = 0.0, Constraint::HalfOpen(0.0, 1.0);
        /// Gradient clipping: if the norm of all gradients exceeds this, they are scaled down to it before
        /// weight decay, like PyTorch's `clip_grad_norm_`. Default: no clipping.
        clip_norm: Option<f64> = None, Constraint::Above(0.0);
        /// Decay of an exponential moving average of the weights, such as 0.999; in iteration t, counted from
        /// 0, it is at most (1 + t) / (10 + t). Running statistics of batch norm are averaged too.
        /// Validation, `stratus eval`, `stratus model export` and runs initialised from this one use the
        /// average; training uses the raw weights. Default: no average.
        ema_decay: Option<f64> = None, Constraint::HalfOpen(0.0, 1.0);
        /// Weighting of classes in the training loss by their frequency in the training data: of pixels, or
        /// of samples if each has one class. Frequencies are counted before the first iteration; a class that
        /// does not occur has weight 0.
        class_weighting: ClassWeighting = ClassWeighting::None, Constraint::Any;
        /// Weight of each class in the training loss, like PyTorch's `CrossEntropyLoss(weight=…)`: the loss
        /// is divided by the weights of the batch's labels, or by their number if samples are mixed. With
        /// labels or numbers, the weight of each label or number; the loss is divided by the number of
        /// present targets. Default: as `train.class_weighting` sets.
        class_weights: Option<Vec<f64>> = None, Constraint::AtLeast(0.0);
        /// Weighting of the images to which a label applies, in binary cross-entropy. `auto`: for each label,
        /// the number of training images without it, divided by the number with it.
        positive_weighting: PositiveWeighting = PositiveWeighting::None, Constraint::Any;
        /// By label, the weight of the images to which it applies, like PyTorch's
        /// `BCEWithLogitsLoss(pos_weight=…)`. Default: as `train.positive_weighting` sets.
        positive_weights: Option<Vec<f64>> = None, Constraint::AtLeast(0.0);
        /// Directory of a finished run whose network is the teacher: training also follows the
        /// probabilities that it gives to the same images, in inference (knowledge distillation). With
        /// w = `train.teacher_weight` and T = `train.teacher_temperature`, the loss is (1 - w) times that of
        /// the labels plus w T² times the mean divergence KL(teacher, network) of the samples or pixels with
        /// a label, without class weights. Resuming needs this run, too. Default: no teacher.
        teacher: Option<String> = None, Constraint::NotEmpty;
        /// Temperature T: the logits of teacher and network are divided by it. The higher, the more the
        /// probabilities of wrong classes count.
        teacher_temperature: f64 = 2.0, Constraint::Inclusive(0.01, 1000.0);
        /// Fraction w of the teacher in the training loss. 0: the teacher is not opened.
        teacher_weight: f64 = 0.5, Constraint::Inclusive(0.0, 1.0);
        /// Seed of initial weights, order and augmentation.
        seed: u64 = 1, Constraint::AtLeast(0.0);
        /// Number format of activations and gradients.
        precision: Precision = Precision::Auto, Constraint::Any;
        /// CPU threads that compute; 0: one per core. Changes results bitwise.
        threads: usize = 0, Constraint::Inclusive(0.0, 65_536.0);
        /// KiB of cache that a tile of the batch should fit. Steps that do not need the whole batch at once
        /// run tile by tile, so that activations stay in cache. 0: no tiles. Default: the L2 caches of all
        /// threads. Changes results bitwise.
        tile_kib: Option<usize> = None, Constraint::Inclusive(0.0, 1_073_741_824.0);
        /// Maximum MiB of parameters, activations and scratch. If more is needed, activations are recomputed
        /// in the backward pass (activation checkpointing): slower, but bit-identical. The loader's batches
        /// and data sets in memory do not count. Default: no limit.
        memory_limit_mib: Option<usize> = None, Constraint::Inclusive(1.0, 1_073_741_824.0);
        /// Maximum KiB of activations and gradients that are alive at once, if recomputation can achieve it.
        /// Default: as `train.memory_limit_mib` requires.
        activations_kib: Option<usize> = None, Constraint::Inclusive(0.0, 1_099_511_627_776.0);
        /// Time limit: a duration such as `6h` (s, m, h or d), restarted on resume, or a time such as
        /// `2026-12-01T08:00Z`, in UTC unless it has an offset. Training stops before it with a checkpoint,
        /// and can be resumed bit-identically. Default: none.
        deadline: Option<String> = None, Constraint::NotEmpty;
        /// Cost limit of the whole training, with `train.price_per_hour` or `train.instance`. Training stops
        /// before it is exceeded, as before a deadline. Default: none.
        budget: Option<f64> = None, Constraint::Above(0.0);
        /// Price of an hour of this machine.
        price_per_hour: Option<f64> = None, Constraint::Above(0.0);
        /// Cloud instance type of this machine, such as `g5.xlarge`, for its price; `stratus forecast
        /// machines` lists them.
        instance: Option<String> = None, Constraint::NotEmpty;
        /// Time each kernel before the first iteration (about 0.25 s), and report forecast and measured step
        /// time. Always on with a deadline or budget (up to 4 s). CPU only.
        forecast: bool = false, Constraint::Any;
        /// Device that computes.
        device: Device = Device::Auto, Constraint::Any;
        /// Write TensorBoard events to the run's `tensorboard` folder: the network; loss, accuracy, learning
        /// rate and images per second of every iteration; the metrics of every epoch, and each layer's
        /// fraction of its time.
        tensorboard: bool = false, Constraint::Any;
        /// cuda: allow TF32, which rounds the inputs of f32 products to 10 bits of mantissa. Sums stay in
        /// f32.
        tf32: bool = true, Constraint::Any;
    }

    /// Fine-tuning for int8 inference: training and validation compute convolutions with rounded inputs and
    /// weights (fake quantisation). `stratus optimise --int8 --epochs` sets these keys. CPU only.
    fake_quantisation "train.fake_quantisation": FakeQuantisation {
        /// Convolutions, each as `layer2.0 0 6.25`: the name of the layer, the lowest and the highest number
        /// of its input. Numbers beyond are clipped. Default: none, the training is the usual one.
        layers: Vec<String> = Vec::new(), Constraint::NotEmpty;
        /// Largest magnitude of weights in int8: 127, or 63 for processors without VNNI.
        max_weight: usize = 127, Constraint::Inclusive(1.0, 127.0);
    }

    /// Pre-training stage: train part of the network first, such as an encoder with its own classifier, then
    /// the full network from its weights. Both stages have the same keys except for these; the first uses
    /// `model.weights`. Its run is in the folder `first_stage` of the run.
    first_stage "first_stage": FirstStage {
        /// Network of the pre-training stage; layers of the same name and shape pass on their weights.
        /// Default: no pre-training stage.
        network: Option<String> = None, Constraint::NotEmpty;
        /// Epochs of the pre-training stage.
        epochs: u64 = 10, Constraint::Inclusive(1.0, 1e9);
        /// Images per iteration of the pre-training stage. Default: `train.batch_size`.
        batch_size: Option<usize> = None, Constraint::Inclusive(1.0, 16_777_216.0);
        /// Learning rate of the pre-training stage, for its batch size. Default: `optimiser.learning_rate`.
        learning_rate: Option<f64> = None, Constraint::Above(0.0);
    }

    /// Stop training when a metric no longer improves. The run is then complete, and its summary records the
    /// reason.
    early_stopping "train.early_stopping": EarlyStopping {
        /// Epochs without improvement before stopping. Default: never stop early.
        patience: Option<u64> = None, Constraint::AtLeast(1.0);
        /// Metric that decides, a column of `epochs.csv`. Epochs without a value are ignored; non-finite
        /// values are no improvement.
        measure: EpochMetric = EpochMetric::ValLoss, Constraint::Any;
        /// Minimum improvement over the best epoch so far.
        min_delta: f64 = 0.0, Constraint::AtLeast(0.0);
    }

    /// The update of the weights by gradients.
    optimiser "optimiser": Optimiser {
        /// Update rule, as defined by PyTorch.
        name: OptimiserName = OptimiserName::Sgd, Constraint::Any;
        /// Learning rate; with a schedule, its highest value. Usual: 0.01 to 0.1 for sgd and adagrad, 0.001
        /// for adam and adamw, 1 for adadelta.
        learning_rate: f64 = 0.01, Constraint::Above(0.0);
        /// Batch size that `learning_rate` was tuned for; other sizes scale the rate
        /// (`schedule.scale_with_batch`). Built-in experiments set it. Default: none, also if only
        /// `learning_rate` is set: the rate is not scaled.
        learning_rate_batch: Option<usize> = None, Constraint::Inclusive(1.0, 16_777_216.0);
        /// sgd: momentum.
        momentum: f64 = 0.9, Constraint::HalfOpen(0.0, 1.0);
        /// Weight decay: the weight times this is added to its gradient. adamw: the learning rate times this
        /// times the weight is subtracted from the weight instead.
        weight_decay: f64 = 0.0, Constraint::AtLeast(0.0);
        /// Factor on the learning rate of biases, including those of batch norm. Their weight decay is
        /// divided by it, so that they decay at the rate of weights.
        bias_rate: f64 = 1.0, Constraint::Above(0.0);
        /// sgd: Nesterov momentum.
        nesterov: bool = false, Constraint::Any;
        /// adam, adamw: decay rate of the running mean of gradients.
        beta1: f64 = 0.9, Constraint::HalfOpen(0.0, 1.0);
        /// adam, adamw: decay rate of the running mean of squared gradients.
        beta2: f64 = 0.999, Constraint::HalfOpen(0.0, 1.0);
        /// adadelta: decay rate of both running means of squares.
        rho: f64 = 0.9, Constraint::HalfOpen(0.0, 1.0);
        /// adam, adamw, adagrad, adadelta: added to the denominator of an update. Default: PyTorch's, 1e-8
        /// for adam and adamw, 1e-10 for adagrad, 1e-6 for adadelta.
        epsilon: Option<f64> = None, Constraint::Above(0.0);
    }

    /// The learning rate schedule.
    schedule "schedule": ScheduleSettings {
        /// If `optimiser.learning_rate_batch` is set, scale learning rates to `train.batch_size`: in
        /// proportion for sgd (Goyal et al., 2017), by the square root for the others (Malladi et al., 2022).
        scale_with_batch: bool = true, Constraint::Any;
        /// Shape of the schedule.
        name: ScheduleName = ScheduleName::Constant, Constraint::Any;
        /// Epochs of linear warm-up; may be a fraction. cosine, poly and one_cycle start after it; the epochs
        /// of step are counted from the start of training.
        warmup_epochs: f64 = 0.0, Constraint::AtLeast(0.0);
        /// step: epochs between two steps.
        step_epochs: u64 = 10, Constraint::AtLeast(1.0);
        /// step: factor on the learning rate at each step.
        gamma: f64 = 0.3, Constraint::Inclusive(0.0, 1.0);
        /// cosine, poly: learning rate at the end.
        final_learning_rate: f64 = 0.0, Constraint::AtLeast(0.0);
        /// poly: exponent. 1 falls along a straight line.
        power: f64 = 0.9, Constraint::Above(0.0);
        /// one_cycle: fraction of training in which the learning rate rises.
        peak_at: f64 = 0.3, Constraint::HalfOpen(0.0, 1.0);
        /// one_cycle: the first learning rate is the highest divided by this.
        initial_divisor: f64 = 25.0, Constraint::AtLeast(1.0);
        /// one_cycle: the last learning rate is the first divided by this.
        final_divisor: f64 = 1e4, Constraint::AtLeast(1.0);
    }

    /// Checkpoints of a run. One is also written at the end of every epoch.
    checkpoint "checkpoint": Checkpoint {
        /// Seconds between checkpoints within an epoch; 0: only at the end of epochs.
        every_seconds: f64 = 60.0, Constraint::AtLeast(0.0);
        /// Number of newest checkpoints to keep. If one is damaged, the previous one is used.
        keep: usize = 2, Constraint::Inclusive(2.0, 1_000_000.0);
        /// Metric, a column of `epochs.csv`, by which the checkpoint of the best epoch is kept too; of equal
        /// epochs the first. `--checkpoint best` uses it. Default: none is kept.
        keep_best: Option<EpochMetric> = None, Constraint::Any;
    }

    /// Validation on images that are not trained on.
    validation "validation": Validation {
        /// Epochs between validations; the last epoch is always validated.
        every_epochs: u64 = 1, Constraint::AtLeast(1.0);
        /// Images per validation step. Default: the size of a training batch, or of a micro-batch.
        batch_size: Option<usize> = None, Constraint::Inclusive(1.0, 16_777_216.0);
        /// Average the probabilities of each image and its mirror image. Takes twice as long.
        mirror: bool = false, Constraint::Any;
        /// Average the probabilities of each image and of four copies, shifted by this many pixels towards
        /// each corner and reflected at the edges. With `validation.mirror` these are ten views. Takes five
        /// times as long. 0: off.
        shift: usize = 0, Constraint::Inclusive(0.0, 1024.0);
        /// Number of images that each validation keeps in the run's folder `validation/`: the most confident
        /// mistakes of a classifier; with several labels, the images whose wrong label is farthest from its
        /// threshold; for numbers, those with the largest error in standard deviations; for segmentation,
        /// images with truth, prediction and difference. The confusion matrix and the metrics of each class,
        /// label or target are kept beside them. 0: nothing is kept. With several workers the images are
        /// those of the first worker's share, and pipeline stages keep none; the tables are of all images.
        /// Default: 24, or 8 for segmentation.
        images: Option<usize> = None, Constraint::Inclusive(0.0, 64.0);
    }
}
