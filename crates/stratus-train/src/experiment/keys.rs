//! Every configuration key, declared once. The table below makes the structs, the defaults, the checks, the texts of
//! `stratus config keys`, the reference page and the suggestions for misspelt keys.

use super::value::{Kind, Setting, Value, choices};

choices! {
    /// The number format of activations and gradients. Weights, statistics and sums are kept in f32 by all.
    Precision {
        /// bf16 where the processor has instructions for it, else f32.
        Auto = "auto",
        /// 32-bit floating point throughout.
        F32 = "f32",
        /// bfloat16 activations and gradients, f32 master weights.
        Bf16 = "bf16",
        /// Half-precision activations and gradients, f32 master weights, and a loss that is scaled so that small gradients are not lost. For GPUs.
        F16 = "f16",
    }
}

choices! {
    /// What computes.
    Device {
        /// A GPU where one can be used, else oneDNN where it is found, else the reference backend after a warning.
        Auto = "auto",
        /// An NVIDIA GPU, the first that the driver shows; an error where none can be used.
        Cuda = "cuda",
        /// The CPU through oneDNN; an error where it is not found.
        Onednn = "onednn",
        /// The naive backend: slow, needs nothing.
        Reference = "reference",
    }
}

choices! {
    /// How weights follow their gradients.
    OptimiserName {
        /// Stochastic gradient descent with momentum and weight decay.
        Sgd = "sgd",
        /// Adam (Kingma and Ba, 2015).
        Adam = "adam",
        /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
        AdamW = "adamw",
        /// Adagrad (Duchi, Hazan and Singer, 2011).
        Adagrad = "adagrad",
        /// Adadelta (Zeiler, 2012).
        Adadelta = "adadelta",
    }
}

choices! {
    /// How the learning rate moves over training.
    ScheduleName {
        /// Always the same.
        Constant = "constant",
        /// Multiplied by `schedule.gamma` every `schedule.step_epochs` epochs.
        Step = "step",
        /// Falls along half a cosine to `schedule.final_learning_rate`.
        Cosine = "cosine",
        /// Rises, then falls far below where it began (Smith and Topin, 2018).
        OneCycle = "one_cycle",
    }
}

choices! {
    /// What the pixels show that a shift uncovers.
    Padding {
        /// The background.
        Zero = "zero",
        /// The image mirrored in its edge.
        Reflect = "reflect",
    }
}

choices! {
    /// What becomes of samples that cannot be decoded.
    OnBadSample {
        /// They are listed, and nothing is trained.
        Error = "error",
        /// They are left out, counted and listed in the summary.
        Skip = "skip",
    }
}

/// What a value must satisfy beyond its type. A list must satisfy it with every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Nothing more.
    Any,
    /// At least this.
    AtLeast(f64),
    /// More than this.
    Above(f64),
    /// From the first to the second, both allowed.
    Between(f64, f64),
    /// From the first, which is allowed, to the second, which is not.
    From(f64, f64),
    /// A text that can name a folder: letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
    FolderName,
    /// A text of at least one character.
    NotEmpty,
}

impl Limit {
    /// Whether the value keeps the limit. Numbers that are not finite never do.
    pub fn allows(self, value: &Value) -> bool {
        let keeps = |number: f64| match self {
            Limit::AtLeast(least) => number >= least,
            Limit::Above(bound) => number > bound,
            Limit::Between(least, most) => (least..=most).contains(&number),
            Limit::From(least, bound) => (least..bound).contains(&number),
            Limit::Any | Limit::FolderName | Limit::NotEmpty => true,
        };
        let text_keeps = match (self, value) {
            (Limit::FolderName, Value::Text(text)) => {
                text.len() <= 100
                    && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            }
            (Limit::NotEmpty, Value::Text(text)) => !text.is_empty(),
            (Limit::NotEmpty, Value::Texts(texts)) => texts.iter().all(|text| !text.is_empty()),
            _ => true,
        };
        text_keeps && value.numbers().into_iter().all(|number| number.is_finite() && keeps(number))
    }

    /// The limit as it reads after "must be"; empty where there is none.
    pub fn describe(self) -> String {
        match self {
            Limit::Any => String::new(),
            Limit::AtLeast(least) => format!("at least {least}"),
            Limit::Above(bound) => format!("more than {bound}"),
            Limit::Between(least, most) => format!("from {least} to {most}"),
            Limit::From(least, bound) => format!("at least {least} and less than {bound}"),
            Limit::FolderName => {
                "made of letters, digits, `.`, `_` and `-`, beginning with a letter or digit".into()
            }
            Limit::NotEmpty => "a text of at least one character".into(),
        }
    }
}

/// A configuration key.
#[derive(Debug)]
pub struct Key {
    /// The full name, `train.epochs`.
    pub name: &'static str,
    /// What it accepts.
    pub kind: Kind,
    /// What a value must satisfy beyond that.
    pub limit: Limit,
    /// Whether it may stay unset.
    pub optional: bool,
    /// What it means: a sentence or two.
    pub doc: &'static str,
    pub(super) get: fn(&Experiment) -> Option<Value>,
    pub(super) set: fn(&mut Experiment, &Value) -> bool,
    pub(super) unset: fn(&mut Experiment),
}

impl Key {
    /// The section, `train`, and the name within it, `epochs`.
    pub fn split(&self) -> (&'static str, &'static str) {
        self.name.rsplit_once('.').unwrap_or(("", self.name))
    }

    /// The value before any file or override; `None` for a key that is then unset.
    pub fn default(&self) -> Option<Value> {
        (self.get)(&Experiment::default())
    }

    /// What the key accepts, limit included, as one phrase.
    pub fn accepts(&self) -> String {
        match (self.kind, self.limit) {
            (kind, Limit::Any | Limit::NotEmpty) => kind.describe(),
            (Kind::Text, limit) => format!("a text {}", limit.describe()),
            (Kind::Numbers, limit) => format!("a list of numbers, each {}", limit.describe()),
            (Kind::Wholes, limit) => format!("a list of whole numbers, each {}", limit.describe()),
            (kind, limit) => format!("{}, {}", kind.describe(), limit.describe()),
        }
    }
}

macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])*
        $section:ident $path:literal: $Section:ident {
            $( $(#[doc = $doc:literal])* $key:ident: $type:ty = $default:expr, $limit:expr; )*
        }
    )*) => {
        /// A configuration, typed and checked: everything that decides what a run computes.
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
                limit: $limit,
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
    experiment "experiment": Naming {
        /// Names the folder that the runs go into, `runs/<name>/`. Not set: the network's name.
        name: Option<String> = None, Limit::FolderName;
    }

    /// The network.
    model "model": Model {
        /// The network; `stratus model list` names them. Or a layer file, `net.toml`, beside the experiment file or in the working directory.
        name: String = String::new(), Limit::NotEmpty;
        /// Filters of the network's first convolution; the others scale with it. Not set: as published.
        width: Option<usize> = None, Limit::Between(1.0, 65_536.0);
        /// Number of classes. Not set: as many as the data set has.
        classes: Option<usize> = None, Limit::Between(2.0, 1_000_000.0);
        /// Where the weights come from at the start: a safetensors file, a PyTorch state dict (`.pth`, `.pt`) or a run directory, whose newest
        /// checkpoint is taken. A classifier for another number of classes begins anew. Not set: every weight begins at random.
        weights: Option<String> = None, Limit::NotEmpty;
        /// Layers that training leaves as they are: `layer1` is the layer of that name and all that begin with `layer1.`. They have no gradient and
        /// no update, their batch norm goes by its running statistics and leaves them, their dropout drops nothing. The name of a parameter, such as
        /// `layer1.bn1.weight`, freezes it alone.
        freeze: Vec<String> = Vec::new(), Limit::NotEmpty;
    }

    /// The data set and how it is read.
    data "data": Data {
        /// The data set.
        name: String = "mnist".into(), Limit::NotEmpty;
        /// Folder with the data set's files, or for `folder` also a tar archive of one, or for `shards` also an address: `s3://bucket/folder`,
        /// `https://host/path`. Not set: `data/<data.name>`.
        path: Option<String> = None, Limit::NotEmpty;
        /// Check the files against the published checksums, where the data set has some, and beginning and end of every image file;
        /// `false` takes other data in the same format, and begins sooner.
        verify: bool = true, Limit::Any;
        /// Channels, height and width of the images that the network gets. Not set: those of the stored images, or where they have no common
        /// size, or are made up, those that the network is published for.
        shape: Option<Vec<usize>> = None, Limit::Between(1.0, 65_536.0);
        /// Shorter side that a stored image is resized to before its middle is cut out. Not set: as much of the image is taken as fits
        /// the shape's aspect ratio.
        resize: Option<usize> = None, Limit::Between(1.0, 65_536.0);
        /// folder: a file that names the classes to use, one a line. Not set: all that are there.
        classes: Option<String> = None, Limit::NotEmpty;
        /// folder: training images used of each class, the first by name. Not set: all.
        images_per_class: Option<usize> = None, Limit::Between(1.0, 4e9);
        /// shards: archives whose images are shuffled among each other. An epoch takes the archives in a random order, and so many of them at a
        /// time; the first one, where there are more, begins with one, one, two, four, so that it need not wait for so many. Which image comes
        /// when depends on it.
        shuffle_shards: usize = 8, Limit::Between(1.0, 1_000_000.0);
        /// folder, camvid: share the images out anew by this seed, 60 % to train on, 20 % to validate and 20 % to test with, in a folder of each
        /// class. A function of the files' names. Not set: as the data set comes.
        split_seed: Option<u64> = None, Limit::AtLeast(0.0);
        /// folder, camvid: two or three files that list what is trained on, validated and tested with: a path a line, for camvid a pair of
        /// image and label image. Not set: as the data set comes.
        lists: Option<Vec<String>> = None, Limit::NotEmpty;
        /// shards: folder for copies of archives that `data.path` has an address of. Not set: `data` in the folder of `STRATUS_CACHE`, or
        /// `~/.cache/stratus/data`.
        cache: Option<String> = None, Limit::NotEmpty;
        /// shards: MiB that these copies take at most. Results do not depend on it.
        cache_mib: usize = 20_480, Limit::Between(1.0, 1_073_741_824.0);
        /// shards: seconds that a server may stay away, without a byte coming, before training ends with an error.
        patience_seconds: f64 = 300.0, Limit::Between(0.0, 1e9);
        /// What becomes of images that cannot be decoded: `error` lists them and trains nothing, `skip` leaves them out and lists them in the
        /// summary.
        on_bad_sample: OnBadSample = OnBadSample::Error, Limit::Any;
        /// Threads that prepare batches while others are trained on. Results do not depend on it.
        workers: usize = 1, Limit::Between(1.0, 1024.0);
        /// Leave out the last batch of an epoch where it is smaller than the others.
        drop_last: bool = false, Limit::Any;
        /// What is subtracted from each channel of the pixels, scaled to 0…1. Not set: the data set's own mean.
        mean: Option<Vec<f64>> = None, Limit::Any;
        /// What each channel is then divided by. Not set: the data set's own standard deviation.
        std: Option<Vec<f64>> = None, Limit::Above(0.0);
    }

    /// Random changes to the training images, in this order whatever the order of the keys: a part is cut out, zoomed and rotated; colours
    /// change; the result is mirrored, shifted and partly blanked; images of a batch are mixed. Masks follow all but colours and blanking.
    augment "data.augment": Augment {
        /// Shift each image by up to this many pixels in both directions.
        shift: usize = 0, Limit::Between(0.0, 1024.0);
        /// What a shift uncovers: `zero` is the background, black; `reflect` the image itself, mirrored in its edge.
        padding: Padding = Padding::Zero, Limit::Any;
        /// Mirror every other image, left to right.
        flip: bool = false, Limit::Any;
        /// flip: the two halves are drawn once and change in every epoch, so that two epochs show every image both ways.
        alternate_flip: bool = false, Limit::Any;
        /// Side of a square that is blanked at a random place, in pixels; 0 blanks nothing.
        cutout: usize = 0, Limit::Between(0.0, 1024.0);
        /// Cut a random part out of each stored image and resize it, in place of the middle.
        random_resized_crop: bool = false, Limit::Any;
        /// random_resized_crop: least and greatest share of the image's area.
        scale: Vec<f64> = vec![0.08, 1.0], Limit::Between(0.0, 1.0);
        /// random_resized_crop: least and greatest width divided by height.
        ratio: Vec<f64> = vec![0.75, 1.3333], Limit::Above(0.0);
        /// Take the part at a random place of the image, resized as `data.resize` says, in place of its middle.
        random_crop: bool = false, Limit::Any;
        /// Rotate each image by up to this many degrees either way. What the image does not reach gets the mean.
        rotation: f64 = 0.0, Limit::Between(0.0, 180.0);
        /// Least and greatest factor that each image is enlarged by; below 1 it is shrunk, and what it does not reach gets the mean. Not
        /// set: none is.
        zoom: Option<Vec<f64>> = None, Limit::Between(0.0625, 16.0);
        /// Multiply pixels by a factor of up to this much more or less than 1, never below 0.
        brightness: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Multiply the distance of pixels from the image's mean grey by such a factor.
        contrast: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Multiply the distance of pixels from their own grey by such a factor.
        saturation: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Move hues by up to this share of the circle either way. The four changes of colour follow each other in an order drawn for every
        /// image.
        hue: f64 = 0.0, Limit::Between(0.0, 0.5);
        /// Blend each image with another of its batch, and their labels: the other's share comes from the beta distribution with both parameters
        /// this one; usual are 0.1 to 1. Training accuracy then counts the class with the larger share. 0 blends nothing.
        mixup: f64 = 0.0, Limit::Between(0.0, 10_000.0);
        /// Paste a rectangle of another image of the batch into each, whose area comes from such a distribution; it has the share of the label that
        /// it has of the image. Usual is 1. With `mixup` each image has one of the two. 0 pastes nothing.
        cutmix: f64 = 0.0, Limit::Between(0.0, 10_000.0);
        /// mixup, cutmix: the share of images that are mixed.
        mixed_share: f64 = 1.0, Limit::Between(0.0, 1.0);
    }

    /// The size of made-up data, `data.name = "synthetic"`.
    synthetic "data.synthetic": Synthetic {
        /// Training images of an epoch.
        images: usize = 1280, Limit::Between(1.0, 4e9);
        /// Validation images.
        validation_images: usize = 256, Limit::Between(1.0, 4e9);
        /// Classes.
        classes: usize = 10, Limit::Between(2.0, 1_000_000.0);
    }

    /// Training.
    train "train": Train {
        /// How often every image is trained on.
        epochs: u64 = 10, Limit::Between(1.0, 1e9);
        /// Images per iteration.
        batch_size: usize = 128, Limit::Between(1.0, 16_777_216.0);
        /// Into how many equal micro-batches a batch is cut that does not fit memory otherwise: their gradients are added up, and the parameters
        /// are updated once. A batch norm takes the statistics of each. 1: the batch is whole.
        micro_batches: usize = 1, Limit::Between(1.0, 16_777_216.0);
        /// Share of the training target that all classes have equally, instead of the label alone. Validation knows none.
        label_smoothing: f64 = 0.0, Limit::From(0.0, 1.0);
        /// Decides initial weights, order and augmentation.
        seed: u64 = 1, Limit::AtLeast(0.0);
        /// Number format of activations and gradients.
        precision: Precision = Precision::Auto, Limit::Any;
        /// Threads that compute; 0 takes every core. The bits of the result depend on it.
        threads: usize = 0, Limit::Between(0.0, 65_536.0);
        /// KiB of cache that a tile of the batch is made to fit: steps that need not wait for the whole batch go through it tile by tile.
        /// 0: every step runs on the whole batch. Not set: the caches nearest to the threads. The bits of the result depend on it.
        tile_kib: Option<usize> = None, Limit::Between(0.0, 1_073_741_824.0);
        /// MiB that parameters, activations and scratch may take. Where they would take more, activations are made again in the backward pass: it
        /// takes longer, the numbers are the same. Batches on their way and a data set in memory come on top.
        memory_limit_mib: Option<usize> = None, Limit::Between(1.0, 1_073_741_824.0);
        /// KiB of activations and gradients that may be alive at once, as far as making activations again can do it. Not set: what
        /// `train.memory_limit_mib` needs.
        activations_kib: Option<usize> = None, Limit::Between(0.0, 1_099_511_627_776.0);
        /// What computes.
        device: Device = Device::Auto, Limit::Any;
        /// cuda: whether f32 may be rounded to TF32, which has ten bits behind the point, where it is multiplied. Sums are f32 either way.
        tf32: bool = true, Limit::Any;
    }

    /// How weights follow their gradients.
    optimiser "optimiser": Optimiser {
        /// The rule, as PyTorch has it.
        name: OptimiserName = OptimiserName::Sgd, Limit::Any;
        /// The learning rate; the highest one where the schedule moves it. Usual are 0.1 to 0.01 for sgd and adagrad, 0.001 for adam and adamw,
        /// 1 for adadelta.
        learning_rate: f64 = 0.01, Limit::Above(0.0);
        /// sgd: share of the last update that the next one keeps.
        momentum: f64 = 0.9, Limit::From(0.0, 1.0);
        /// Added to each gradient as this times the weight; adamw: the weight loses this times the learning rate instead.
        weight_decay: f64 = 0.0, Limit::AtLeast(0.0);
        /// What the learning rate of biases is multiplied by, batch norms' among them. Their weight decay is divided by it: they shrink like the others.
        bias_rate: f64 = 1.0, Limit::Above(0.0);
        /// sgd: take each step as if the last one had already been repeated (Nesterov's momentum).
        nesterov: bool = false, Limit::Any;
        /// adam, adamw: share of the old that the gradients' mean keeps.
        beta1: f64 = 0.9, Limit::From(0.0, 1.0);
        /// adam, adamw: share of the old that the mean of the gradients' squares keeps.
        beta2: f64 = 0.999, Limit::From(0.0, 1.0);
        /// adadelta: share of the old that both means of squares keep.
        rho: f64 = 0.9, Limit::From(0.0, 1.0);
        /// adam, adamw, adagrad, adadelta: added to what a step is divided by. Not set: 1e-8 for adam and adamw, 1e-10 for adagrad, 1e-6 for adadelta.
        epsilon: Option<f64> = None, Limit::Above(0.0);
    }

    /// How the learning rate moves over training.
    schedule "schedule": ScheduleSettings {
        /// The shape.
        name: ScheduleName = ScheduleName::Constant, Limit::Any;
        /// constant, step, cosine: epochs in which the rate first rises in a straight line; may be a fraction.
        warmup_epochs: f64 = 0.0, Limit::AtLeast(0.0);
        /// step: epochs between two steps.
        step_epochs: u64 = 10, Limit::AtLeast(1.0);
        /// step: what the rate is multiplied by at each step.
        gamma: f64 = 0.3, Limit::Between(0.0, 1.0);
        /// cosine: the rate at the end.
        final_learning_rate: f64 = 0.0, Limit::AtLeast(0.0);
        /// one_cycle: share of training in which the rate rises.
        peak_at: f64 = 0.3, Limit::From(0.0, 1.0);
        /// one_cycle: the rate begins at the learning rate divided by this.
        initial_divisor: f64 = 25.0, Limit::AtLeast(1.0);
        /// one_cycle: the rate ends at its beginning divided by this.
        final_divisor: f64 = 1e4, Limit::AtLeast(1.0);
    }

    /// Saving the state of a run. A checkpoint is also written at the end of every epoch.
    checkpoint "checkpoint": Checkpoint {
        /// Seconds between checkpoints within an epoch; 0 writes them at the end of epochs alone.
        every_seconds: f64 = 60.0, Limit::AtLeast(0.0);
        /// How many checkpoints stay, the newest; older ones are what a damaged one falls back to.
        keep: usize = 2, Limit::Between(2.0, 1_000_000.0);
    }

    /// Measuring the network on images that it is not trained on.
    validation "validation": Validation {
        /// Epochs between validations; the last epoch is always validated.
        every_epochs: u64 = 1, Limit::AtLeast(1.0);
        /// Images per validation step. Not set: `train.batch_size`, or one of `train.micro_batches`.
        batch_size: Option<usize> = None, Limit::Between(1.0, 16_777_216.0);
        /// Measure each image together with its mirror image: their probabilities are averaged. It takes twice as long.
        mirror: bool = false, Limit::Any;
        /// Measure each image also moved by so many pixels towards each of the four corners, what is uncovered showing its reflection: the
        /// probabilities are averaged, with `validation.mirror` those of ten views. It takes five times as long. 0: as it is alone.
        shift: usize = 0, Limit::Between(0.0, 1024.0);
    }
}
