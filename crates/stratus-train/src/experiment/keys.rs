//! Every configuration key, declared once. The table below makes the structs, the defaults, the checks, the
//! texts of `stratus config keys`, the reference page and the suggestions for misspelt keys.

use super::measure::Measure;
use super::value::{Kind, Setting, Value, choices};

choices! {
    /// The number format of activations and gradients. Weights, statistics and sums are f32 in any case.
    Precision {
        /// bf16 if the device has instructions for it, else f32.
        Auto = "auto",
        /// 32-bit floating point throughout.
        F32 = "f32",
        /// bfloat16 activations and gradients, f32 master weights.
        Bf16 = "bf16",
        /// float16 activations and gradients, f32 master weights, dynamic loss scaling. GPUs only.
        F16 = "f16",
    }
}

choices! {
    /// The device that computes.
    Device {
        /// `gpu` if one can be used, else `cpu`.
        Auto = "auto",
        /// The CPU: oneDNN if it is found, else the reference backend with a warning.
        Cpu = "cpu",
        /// The first NVIDIA GPU; an error if none can be used.
        Gpu = "gpu",
        /// The same.
        Cuda = "cuda",
        /// The CPU through oneDNN; an error if it is not found.
        Onednn = "onednn",
        /// The reference backend: slow, needs no library.
        Reference = "reference",
    }
}

choices! {
    /// How gradients update the weights.
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
    /// How the learning rate changes during training.
    ScheduleName {
        /// Constant after the warm-up.
        Constant = "constant",
        /// Multiplied by `schedule.gamma` every `schedule.step_epochs` epochs.
        Step = "step",
        /// Falls along half a cosine to `schedule.final_learning_rate`.
        Cosine = "cosine",
        /// Falls to `schedule.final_learning_rate` as `(1 - iteration / iterations)^power` (DeepLab, Chen et
        /// al., 2017).
        Poly = "poly",
        /// Rises, then falls far below where it began (Smith and Topin, 2018).
        OneCycle = "one_cycle",
    }
}

choices! {
    /// What fills the pixels that a shift uncovers.
    Padding {
        /// Black.
        Zero = "zero",
        /// The image, mirrored at its edge.
        Reflect = "reflect",
    }
}

choices! {
    /// What happens if samples cannot be decoded.
    OnBadSample {
        /// They are listed, and training does not start.
        Error = "error",
        /// They are left out, counted and listed in the summary.
        Skip = "skip",
    }
}

choices! {
    /// How JPEG files are decoded.
    Decode {
        /// To the pixels that the whole image has.
        Exact = "exact",
        /// To a half, a quarter or an eighth of the size, where that is enough.
        Fast = "fast",
    }
}

choices! {
    /// How much each class counts in the training loss.
    ClassWeighting {
        /// All the same.
        None = "none",
        /// The median of all classes' frequencies divided by the class's own (Eigen and Fergus, 2015).
        MedianFrequency = "median_frequency",
        /// `1 / ln(1.1 + share)` of the class's share of all pixels or images (ERFNet, Romera et al., 2018).
        Logarithmic = "logarithmic",
    }
}

/// What a value must satisfy beyond its type; of a list, every element.
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
    /// Whether the value is within the limit. Numbers that are not finite never are.
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

    /// The limit as it reads after "must be"; empty if there is none.
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
    /// Whether it may be unset.
    pub optional: bool,
    /// What it means, in a few sentences.
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

    /// The default value; `None` if the key is unset by default.
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
        /// The folder of the runs, `runs/<name>/`. Not set: the network's name.
        name: Option<String> = None, Limit::FolderName;
    }

    /// The network.
    model "model": Model {
        /// A network of `stratus model list`, or a layer file such as `net.toml`, which is looked for beside
        /// the experiment file, then in the working directory.
        name: String = String::new(), Limit::NotEmpty;
        /// Filters of the first convolution; all others scale with it. Not set: as published.
        width: Option<usize> = None, Limit::Between(1.0, 65_536.0);
        /// Number of classes. Not set: as many as the data set has.
        classes: Option<usize> = None, Limit::Between(2.0, 1_000_000.0);
        /// Weights to start from: a safetensors file, a PyTorch state dict (`.pth`, `.pt`), or a run
        /// directory, whose newest checkpoint is taken. A classifier for another number of classes is
        /// initialised anew. Not set: all weights are initialised at random.
        weights: Option<String> = None, Limit::NotEmpty;
        /// Layers that are not trained. `layer1` freezes the layer of that name and all whose names begin
        /// with `layer1.`; the name of a parameter, such as `layer1.bn1.weight`, freezes that parameter.
        /// Frozen layers get neither gradients nor updates. Their batch norms use the running statistics and
        /// do not change them; their dropout is off.
        freeze: Vec<String> = Vec::new(), Limit::NotEmpty;
    }

    /// The data set and how it is read.
    data "data": Data {
        /// The data set; `stratus data list` names them.
        name: String = "mnist".into(), Limit::NotEmpty;
        /// The data set's folder. For `folder` it may be a tar archive of one; for `shards` also an address
        /// such as `s3://bucket/folder` or `https://host/path`. A path in a file is looked for beside it,
        /// then in the working directory. Not set: `data/<data.name>`.
        path: Option<String> = None, Limit::NotEmpty;
        /// Check files against the published checksums, if there are any, and the beginning and end of every
        /// image file. `false` starts sooner, and accepts other data in the same format.
        verify: bool = true, Limit::Any;
        /// Channels, height and width of the network's input. Not set: the shape of the images of a data set
        /// that has one; of photographs (folder, shards, coco) and synthetic images the shape that the
        /// network is published for.
        shape: Option<Vec<usize>> = None, Limit::Between(1.0, 65_536.0);
        /// Resize each stored image so that its shorter side has this many pixels, then crop the centre. Not
        /// set: the largest centre crop with the aspect ratio of `data.shape` is resized.
        resize: Option<usize> = None, Limit::Between(1.0, 65_536.0);
        /// folder: a file that names the classes to use, one per line. Not set: all classes.
        classes: Option<String> = None, Limit::NotEmpty;
        /// folder: training images used per class, the first by name. Not set: all.
        images_per_class: Option<usize> = None, Limit::Between(1.0, 4e9);
        /// shards: how many consecutive shards are shuffled together. Each epoch visits the shards in random
        /// order and shuffles the images within this many at a time. The first epoch begins with windows of
        /// one, one, two and four shards, so that it starts sooner. The order of images depends on this
        /// number.
        shuffle_shards: usize = 8, Limit::Between(1.0, 1_000_000.0);
        /// folder, camvid: split the images anew by this seed: 60 % training, 20 % validation, 20 % test,
        /// within each class. The split is a function of the file names. Not set: the data set's own split.
        split_seed: Option<u64> = None, Limit::AtLeast(0.0);
        /// folder, camvid: two or three files that list the training, validation and test images: one path
        /// per line, for camvid the image's and the label image's. Not set: the data set's own split.
        lists: Option<Vec<String>> = None, Limit::NotEmpty;
        /// shards: the folder for local copies of remote shards. Not set: `data` in the folder that
        /// `STRATUS_CACHE` names, or `~/.cache/stratus/data`.
        cache: Option<String> = None, Limit::NotEmpty;
        /// shards: the most MiB of local copies. Results do not depend on it.
        cache_mib: usize = 20_480, Limit::Between(1.0, 1_073_741_824.0);
        /// shards: seconds without a byte from the server after which training ends with an error.
        patience_seconds: f64 = 300.0, Limit::Between(0.0, 1e9);
        /// What happens if images cannot be decoded: `error` lists them and does not train; `skip` leaves
        /// them out and lists them in the summary.
        on_bad_sample: OnBadSample = OnBadSample::Error, Limit::Any;
        /// How JPEG files are decoded: `exact`, or `fast`: to a half, a quarter or an eighth of the size,
        /// where the part of the image that is wanted is at least that much larger than the network's input.
        /// Pixels then differ a little. Needs libjpeg-turbo. Images with masks, and those that are rotated
        /// or zoomed, are decoded exactly.
        decode: Decode = Decode::Exact, Limit::Any;
        /// Threads that decode and augment while the device trains. Results do not depend on it. Not set:
        /// beside a GPU all usable cores but one; on a CPU one, and as many more as the first iterations
        /// show to be needed.
        workers: Option<usize> = None, Limit::Between(1.0, 1024.0);
        /// The most MiB of training batches that are read ahead. As many batches are in work as there are
        /// workers, and a few more, as far as they fit. Results do not depend on it. Not set: 1024, or two
        /// batches where these take more.
        prefetch_mib: Option<usize> = None, Limit::Between(1.0, 1_073_741_824.0);
        /// Leave out the last batch of an epoch if it is smaller than the others.
        drop_last: bool = false, Limit::Any;
        /// Mean of each channel, for pixels scaled to 0…1; it is subtracted. Not set: the data set's.
        mean: Option<Vec<f64>> = None, Limit::Any;
        /// Standard deviation of each channel; pixels are divided by it. Not set: the data set's.
        std: Option<Vec<f64>> = None, Limit::Above(0.0);
    }

    /// Augmentation of the training images. Whatever the order of the keys, it is applied in this order:
    /// crop, zoom and rotation; colour; flip, shift and cutout; mixup and cutmix. Masks are transformed with
    /// their images, except by colour and cutout.
    augment "data.augment": Augment {
        /// Shift each image by up to this many pixels, horizontally and vertically.
        shift: usize = 0, Limit::Between(0.0, 1024.0);
        /// What fills the pixels that a shift uncovers: `zero` is black; `reflect` mirrors the image at its
        /// edge.
        padding: Padding = Padding::Zero, Limit::Any;
        /// Flip each image horizontally with probability 1/2.
        flip: bool = false, Limit::Any;
        /// flip: flip each image in every other epoch, so that two consecutive epochs show both orientations.
        /// Which half of the images begins flipped is drawn once.
        alternate_flip: bool = false, Limit::Any;
        /// Side in pixels of a square that is blanked at a random position; 0: off.
        cutout: usize = 0, Limit::Between(0.0, 1024.0);
        /// Crop a random part of each stored image and resize it, instead of the centre crop.
        random_resized_crop: bool = false, Limit::Any;
        /// random_resized_crop: the smallest and the largest share of the image's area.
        scale: Vec<f64> = vec![0.08, 1.0], Limit::Between(0.0, 1.0);
        /// random_resized_crop: the smallest and the largest ratio of width to height.
        ratio: Vec<f64> = vec![0.75, 1.3333], Limit::Above(0.0);
        /// Crop at a random position after `data.resize`, instead of the centre.
        random_crop: bool = false, Limit::Any;
        /// Rotate each image by up to this many degrees in either direction. Uncovered pixels become the
        /// mean.
        rotation: f64 = 0.0, Limit::Between(0.0, 180.0);
        /// The smallest and the largest factor by which each image is enlarged. Below 1 it shrinks, and
        /// uncovered pixels become the mean. Not set: no zoom.
        zoom: Option<Vec<f64>> = None, Limit::Between(0.0625, 16.0);
        /// Multiply pixels by a factor between 1 - b and 1 + b, at least 0.
        brightness: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Multiply each pixel's difference from the image's mean grey by a factor between 1 - c and 1 + c,
        /// at least 0.
        contrast: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Multiply each pixel's difference from its own grey by a factor between 1 - s and 1 + s, at least
        /// 0.
        saturation: f64 = 0.0, Limit::Between(0.0, 16.0);
        /// Rotate hues by up to this share of the colour circle in either direction. The four colour changes
        /// are applied in an order drawn for each image.
        hue: f64 = 0.0, Limit::Between(0.0, 0.5);
        /// Blend each image, and its label, with another of its batch. The other's share is drawn from
        /// Beta(a, a), where a is this value; 0.1 to 1 are usual. Training accuracy counts the class with the
        /// larger share. 0: off.
        mixup: f64 = 0.0, Limit::Between(0.0, 10_000.0);
        /// Paste a rectangle of another image of the batch into each; its share of the area, drawn from
        /// Beta(a, a), is its share of the label. 1 is usual. With `mixup` each image gets one of the two. 0:
        /// off.
        cutmix: f64 = 0.0, Limit::Between(0.0, 10_000.0);
        /// mixup, cutmix: the share of images that are mixed.
        mixed_share: f64 = 1.0, Limit::Between(0.0, 1.0);
    }

    /// The size of synthetic data, `data.name = "synthetic"`.
    synthetic "data.synthetic": Synthetic {
        /// Training images.
        images: usize = 1280, Limit::Between(1.0, 4e9);
        /// Validation images.
        validation_images: usize = 256, Limit::Between(1.0, 4e9);
        /// Classes.
        classes: usize = 10, Limit::Between(2.0, 1_000_000.0);
        /// Milliseconds that a worker sleeps before it makes an image, as if it waited for a slow disk or a
        /// server: to test and measure the loader.
        delay_ms: u64 = 0, Limit::Between(0.0, 60_000.0);
    }

    /// Training.
    train "train": Train {
        /// Passes over the training images.
        epochs: u64 = 10, Limit::Between(1.0, 1e9);
        /// Images per iteration.
        batch_size: usize = 128, Limit::Between(1.0, 16_777_216.0);
        /// Equal micro-batches that a batch is split into, for batches that do not fit memory. Gradients are
        /// accumulated and parameters updated once per batch. Batch norm takes the statistics of each
        /// micro-batch. 1: no splitting.
        micro_batches: usize = 1, Limit::Between(1.0, 16_777_216.0);
        /// Equal parts that a batch is cut into and that workers share out (`--workers`): a power of two.
        /// Each part has its own batch norm statistics and loss; gradients and running statistics are summed
        /// along one tree over the parts, so that the bits do not depend on the number of workers, 1
        /// included. 0: as many as there are workers when the run begins.
        parts: usize = 0, Limit::Between(0.0, 65_536.0);
        /// Stages that the network is cut into, a process each (`--workers`): a pipeline, for networks that
        /// do not fit one's memory. The parts of a batch go through one behind the other. Bits do not depend
        /// on it. 1: no stages.
        stages: usize = 1, Limit::Between(1.0, 64.0);
        /// Label smoothing: the share of the target that is spread evenly over all classes. Not used in
        /// validation.
        label_smoothing: f64 = 0.0, Limit::From(0.0, 1.0);
        /// Gradient clipping: where the norm of all gradients together is more than this, all are scaled down
        /// to it, before weight decay, as PyTorch's `clip_grad_norm_` does. Not set: gradients stay as they
        /// are.
        clip_norm: Option<f64> = None, Limit::Above(0.0);
        /// The decay of an exponential moving average of the weights, such as 0.999; in iteration t, counted
        /// from 0, it is at most (1 + t) / (10 + t). Running statistics of batch norm are averaged too. The
        /// average is what validation, `stratus eval`, `stratus model export` and runs that begin with these
        /// weights take; training goes on with the weights themselves. Not set: no average.
        ema_decay: Option<f64> = None, Limit::From(0.0, 1.0);
        /// How much each class counts in the training loss. Frequencies are counted in the training data
        /// before the first iteration: of pixels, or of samples where each has one class. A class that does
        /// not occur weighs 0.
        class_weighting: ClassWeighting = ClassWeighting::None, Limit::Any;
        /// The weight of each class in the training loss, as PyTorch's `CrossEntropyLoss(weight=…)` has it:
        /// the loss is divided by the weights of the batch's labels, and where samples are mixed, by their
        /// number. Not set: as `train.class_weighting` says.
        class_weights: Option<Vec<f64>> = None, Limit::AtLeast(0.0);
        /// Seed of initial weights, order and augmentation.
        seed: u64 = 1, Limit::AtLeast(0.0);
        /// Number format of activations and gradients.
        precision: Precision = Precision::Auto, Limit::Any;
        /// CPU threads that compute; 0: one per core. The bits of the result depend on it.
        threads: usize = 0, Limit::Between(0.0, 65_536.0);
        /// KiB of cache that a tile of the batch should fit. Steps that do not need the whole batch at once
        /// run tile by tile, so that activations stay in cache. 0: no tiles. Not set: the second-level caches
        /// of all threads. The bits of the result depend on it.
        tile_kib: Option<usize> = None, Limit::Between(0.0, 1_073_741_824.0);
        /// The most MiB for parameters, activations and scratch. If more would be needed, activations are
        /// recomputed in the backward pass (activation checkpointing): slower, with the same bits. The
        /// loader's batches and data sets held in memory are not included. Not set: no limit.
        memory_limit_mib: Option<usize> = None, Limit::Between(1.0, 1_073_741_824.0);
        /// The most KiB of activations and gradients that are alive at once, as far as recomputation can keep
        /// to it. Not set: as `train.memory_limit_mib` requires.
        activations_kib: Option<usize> = None, Limit::Between(0.0, 1_099_511_627_776.0);
        /// How long training may take: a duration such as `6h` (s, m, h or d), which begins anew where a run
        /// is continued, or a time such as `2026-12-01T08:00Z`, in UTC where it has no offset. Training
        /// stops before it with a checkpoint, and can be continued to the same bits. Not set: as long as it
        /// takes.
        deadline: Option<String> = None, Limit::NotEmpty;
        /// What training may cost in all, with `train.price_per_hour` or `train.instance`. It stops before it
        /// costs more, as before a deadline. Not set: anything.
        budget: Option<f64> = None, Limit::Above(0.0);
        /// What an hour of this machine costs.
        price_per_hour: Option<f64> = None, Limit::Above(0.0);
        /// The cloud instance that this machine is, such as `g5.xlarge`, for its price; `stratus forecast
        /// machines` lists them.
        instance: Option<String> = None, Limit::NotEmpty;
        /// Time the kernels one by one before the first iteration, for about a quarter of a second, and
        /// compare that forecast with what came. With a deadline or a budget they are timed in any case, for
        /// up to four seconds. Not on a GPU.
        forecast: bool = false, Limit::Any;
        /// The device that computes.
        device: Device = Device::Auto, Limit::Any;
        /// Write what TensorBoard shows into the folder `tensorboard` of the run: the network; loss,
        /// accuracy, learning rate and images a second of every iteration; of every epoch its measures, and
        /// each layer's share of the time.
        tensorboard: bool = false, Limit::Any;
        /// cuda: allow TF32, which rounds the inputs of f32 products to 10 bits of mantissa. Sums stay in
        /// f32.
        tf32: bool = true, Limit::Any;
    }

    /// A stage before training: a part of the network is trained first, as an encoder with a classifier of
    /// its own, and the network begins with its weights. Both stages have the same keys but for these; the
    /// first takes `model.weights`. Its run is in the folder `first_stage` of the run.
    first_stage "first_stage": FirstStage {
        /// The network that is trained first; layers of the same name and shape are carried over. Not set:
        /// there is no such stage.
        network: Option<String> = None, Limit::NotEmpty;
        /// Epochs of the first stage.
        epochs: u64 = 10, Limit::Between(1.0, 1e9);
        /// Images per iteration of the first stage. Not set: `train.batch_size`.
        batch_size: Option<usize> = None, Limit::Between(1.0, 16_777_216.0);
        /// The learning rate of the first stage, for its batches. Not set: `optimiser.learning_rate`.
        learning_rate: Option<f64> = None, Limit::Above(0.0);
    }

    /// Ending training before its last epoch, as it gains nothing any more. The run is then complete, and its
    /// summary says why.
    early_stopping "train.early_stopping": EarlyStopping {
        /// Epochs without gain after which training ends. Not set: it does not end early.
        patience: Option<u64> = None, Limit::AtLeast(1.0);
        /// The column of `epochs.csv` that decides. An epoch in which it was not measured decides nothing; a
        /// value that is not finite is no gain.
        measure: Measure = Measure::ValLoss, Limit::Any;
        /// What an epoch must be better by than the best before it, to count as gain.
        min_delta: f64 = 0.0, Limit::AtLeast(0.0);
    }

    /// How gradients update the weights.
    optimiser "optimiser": Optimiser {
        /// The update rule, as PyTorch defines it.
        name: OptimiserName = OptimiserName::Sgd, Limit::Any;
        /// The learning rate; with a schedule, its highest value. Usual: 0.01 to 0.1 for sgd and adagrad,
        /// 0.001 for adam and adamw, 1 for adadelta.
        learning_rate: f64 = 0.01, Limit::Above(0.0);
        /// The batch size that `learning_rate` is meant for; other batches have a rate in proportion
        /// (`schedule.scale_with_batch`). Recipes set it. Not set, as where `learning_rate` alone is given:
        /// the rate is used as it stands.
        learning_rate_batch: Option<usize> = None, Limit::Between(1.0, 16_777_216.0);
        /// sgd: momentum.
        momentum: f64 = 0.9, Limit::From(0.0, 1.0);
        /// Weight decay: this times the weight is added to its gradient. adamw: the learning rate times this
        /// times the weight is subtracted from the weight instead.
        weight_decay: f64 = 0.0, Limit::AtLeast(0.0);
        /// Factor on the learning rate of biases, including those of batch norm. Their weight decay is
        /// divided by it, so that they decay as fast as weights.
        bias_rate: f64 = 1.0, Limit::Above(0.0);
        /// sgd: Nesterov momentum.
        nesterov: bool = false, Limit::Any;
        /// adam, adamw: decay rate of the running mean of gradients.
        beta1: f64 = 0.9, Limit::From(0.0, 1.0);
        /// adam, adamw: decay rate of the running mean of squared gradients.
        beta2: f64 = 0.999, Limit::From(0.0, 1.0);
        /// adadelta: decay rate of both running means of squares.
        rho: f64 = 0.9, Limit::From(0.0, 1.0);
        /// adam, adamw, adagrad, adadelta: added to the denominator of an update. Not set: PyTorch's default,
        /// 1e-8 for adam and adamw, 1e-10 for adagrad, 1e-6 for adadelta.
        epsilon: Option<f64> = None, Limit::Above(0.0);
    }

    /// How the learning rate changes during training.
    schedule "schedule": ScheduleSettings {
        /// Where `optimiser.learning_rate_batch` is set, scale learning rates to `train.batch_size`: in
        /// proportion for sgd (Goyal et al., 2017), by the root for the others (Malladi et al., 2022).
        scale_with_batch: bool = true, Limit::Any;
        /// The shape of the schedule.
        name: ScheduleName = ScheduleName::Constant, Limit::Any;
        /// Epochs of linear warm-up; may be a fraction. cosine, poly and one_cycle begin after it; the steps
        /// of step are counted from the start of training.
        warmup_epochs: f64 = 0.0, Limit::AtLeast(0.0);
        /// step: epochs between two steps.
        step_epochs: u64 = 10, Limit::AtLeast(1.0);
        /// step: factor on the learning rate at each step.
        gamma: f64 = 0.3, Limit::Between(0.0, 1.0);
        /// cosine, poly: the learning rate at the end.
        final_learning_rate: f64 = 0.0, Limit::AtLeast(0.0);
        /// poly: the exponent. 1 falls along a straight line.
        power: f64 = 0.9, Limit::Above(0.0);
        /// one_cycle: share of training in which the learning rate rises.
        peak_at: f64 = 0.3, Limit::From(0.0, 1.0);
        /// one_cycle: the first learning rate is the highest divided by this.
        initial_divisor: f64 = 25.0, Limit::AtLeast(1.0);
        /// one_cycle: the last learning rate is the first divided by this.
        final_divisor: f64 = 1e4, Limit::AtLeast(1.0);
    }

    /// Saving the state of a run. A checkpoint is also written at the end of every epoch.
    checkpoint "checkpoint": Checkpoint {
        /// Seconds between checkpoints within an epoch; 0: only at the end of epochs.
        every_seconds: f64 = 60.0, Limit::AtLeast(0.0);
        /// How many checkpoints to keep, the newest. A damaged one falls back to the one before it.
        keep: usize = 2, Limit::Between(2.0, 1_000_000.0);
        /// A column of `epochs.csv`: the checkpoint of the epoch that is best by it is kept too, of equal
        /// ones the first. `--checkpoint best` takes it. Not set: none is.
        keep_best: Option<Measure> = None, Limit::Any;
    }

    /// Measuring the network on images that it is not trained on.
    validation "validation": Validation {
        /// Epochs between validations; the last epoch is always validated.
        every_epochs: u64 = 1, Limit::AtLeast(1.0);
        /// Images per validation step. Not set: the size of a training batch, or of a micro-batch.
        batch_size: Option<usize> = None, Limit::Between(1.0, 16_777_216.0);
        /// Average the probabilities of each image and its mirror image. Takes twice as long.
        mirror: bool = false, Limit::Any;
        /// Average the probabilities of each image and of four copies, shifted by this many pixels towards
        /// each corner and reflected at the edges. With `validation.mirror` these are ten views. Takes five
        /// times as long. 0: off.
        shift: usize = 0, Limit::Between(0.0, 1024.0);
    }
}
