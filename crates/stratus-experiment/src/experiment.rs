//! Reads, overrides and writes experiments.

use crate::keys::{Constraint, Experiment, FirstStage, KEYS, Key};
use crate::parse::{self, Entry};
use crate::value::{Value, ValueKind};
use crate::{ExperimentError, Origin, XmlExperiment};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use stratus_base::{nearest, read_text_at_most};

/// The maximum size of an experiment file. Layer files and sweep files have the same limit.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// The built-in experiments: names, and the text of their file. A name is that of a network, except for
/// experiments that set `model.name`: a network on a particular data set.
const BUILTIN: &[(&[&str], &str)] = &[
    (&["digits"], include_str!("builtin/digits.toml")),
    (&["alexnet", "alexnet_bn", "alexnet_lrn"], include_str!("builtin/alexnet.toml")),
    (
        &["vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn"],
        include_str!("builtin/vgg.toml"),
    ),
    (&["googlenet"], include_str!("builtin/googlenet.toml")),
    (&["inception_v3"], include_str!("builtin/inception_v3.toml")),
    (&["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"], include_str!("builtin/resnet.toml")),
    (&["resnet18_cifar"], include_str!("builtin/resnet_cifar.toml")),
    (&["resnext50_32x4d"], include_str!("builtin/resnet.toml")),
    (&["densenet121"], include_str!("builtin/densenet.toml")),
    (&["squeezenet1_1"], include_str!("builtin/squeezenet.toml")),
    (&["mobilenet_v2"], include_str!("builtin/mobilenet_v2.toml")),
    (&["mobilenet_v3_small", "mobilenet_v3_large"], include_str!("builtin/mobilenet_v3.toml")),
    (&["efficientnet_b0"], include_str!("builtin/efficientnet.toml")),
    (&["convnext_tiny"], include_str!("builtin/convnext.toml")),
    (
        &["fcn_resnet18", "deeplabv3plus_resnet18", "deeplabv3plus_resnet18_os8"],
        include_str!("builtin/deeplab.toml"),
    ),
    (&["erfnet", "erfnet_encoder"], include_str!("builtin/erfnet.toml")),
    (&["camvid-deeplab"], include_str!("builtin/camvid_deeplab.toml")),
    (&["camvid-deeplab-fast"], include_str!("builtin/camvid_deeplab_fast.toml")),
    (&["camvid-erfnet"], include_str!("builtin/camvid_erfnet.toml")),
    (&["camvid-erfnet-fast"], include_str!("builtin/camvid_erfnet_fast.toml")),
    (&["cityscapes-erfnet"], include_str!("builtin/cityscapes_erfnet.toml")),
    (&["coco-labels"], include_str!("builtin/coco_labels.toml")),
];

/// The text of a file that contains an experiment.
#[derive(Clone, Copy, Debug)]
pub struct ExperimentText<'a> {
    /// The text.
    pub text: &'a str,
    /// The file, for messages.
    pub path: &'a Path,
    /// The folder that paths in it are resolved against, before the working directory.
    pub folder: Option<&'a Path>,
    /// A section of the file that does not belong to the experiment.
    pub excluded_section: Option<&'a str>,
}

/// The settings of a file, parsed once, to be combined with several sets of overrides.
#[derive(Debug)]
pub struct ParsedExperiment<'a> {
    entries: Vec<Entry>,
    path: &'a Path,
    folder: Option<&'a Path>,
}

impl<'a> ParsedExperiment<'a> {
    /// Parses the settings of a file.
    ///
    /// # Errors
    /// As [`Experiment::from_toml`].
    pub fn parse(file: &ExperimentText<'a>) -> Result<Self, ExperimentError> {
        let entries = parse::entries(file.text, file.path, file.excluded_section)?;
        Ok(Self { entries, path: file.path, folder: file.folder })
    }

    /// The bytes of the texts and lists of the settings, which every experiment has a copy of.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.value.heap_bytes()).sum()
    }

    /// The experiment with overrides, as [`Experiment::from_part`].
    ///
    /// # Errors
    /// As [`Experiment::with_overrides`].
    pub fn experiment<K: AsRef<str>, V: AsRef<str>>(
        &self,
        overrides: &[(K, V)],
    ) -> Result<Experiment, ExperimentError> {
        let overridden = overrides.iter().rev().find(|(key, _)| key.as_ref() == "model.name");
        let model = overridden.map(|(_, name)| name.as_ref().trim()).or_else(|| {
            self.entries.iter().find_map(|entry| match (entry.key.name, &entry.value) {
                ("model.name", Value::String(name)) => Some(name.as_str()),
                _ => None,
            })
        });
        let mut experiment = model.and_then(|name| Experiment::builtin(name).ok()).unwrap_or_default();
        if model.is_some_and(is_layer_file_name) {
            experiment.data.name.clear();
        }
        experiment.drop_recipe_batch_size(|name| self.entries.iter().any(|entry| entry.key.name == name));
        experiment.apply(&self.entries)?;
        experiment.override_keys(overrides)?;
        if experiment.model.name.is_empty() {
            return Err(ExperimentError::Missing {
                origin: Origin::File { path: self.path.to_owned(), line: None },
                key: "model.name",
                hint: "name the network: [model] name = \"digits\"".into(),
            });
        }
        experiment.resolve_paths(self.folder);
        experiment.check()?;
        Ok(experiment)
    }
}

impl Experiment {
    /// Names of the built-in experiments.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().flat_map(|(names, _)| names.iter().copied())
    }

    /// The built-in experiments: the names of each, and its text.
    pub fn builtin_files() -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
        BUILTIN.iter().copied()
    }

    /// The built-in experiment of a network.
    ///
    /// # Errors
    /// If none has this name.
    pub fn builtin(name: &str) -> Result<Self, ExperimentError> {
        let Some((_, text)) = BUILTIN.iter().find(|(names, _)| names.contains(&name)) else {
            return Err(ExperimentError::UnknownBuiltin {
                name: name.to_owned(),
                nearest: nearest(name, Self::builtin_names()),
                known: Self::builtin_names().collect::<Vec<_>>().join(", "),
            });
        };
        let path = PathBuf::from(format!("built-in experiment {name}"));
        let mut experiment = Experiment::default();
        experiment.model.name = name.to_owned();
        experiment.apply(&parse::entries(text, &path, None)?)?;
        experiment.check()?;
        Ok(experiment)
    }

    /// Reads an experiment file. A layer file is an experiment that trains its network with all defaults, but
    /// without a data set ([`Experiment::has_data_set`]); a file with the extension `.xml` is read as
    /// [`XmlExperiment`].
    ///
    /// # Errors
    /// If the file cannot be read, exceeds [`MAX_FILE_BYTES`], or is not a configuration.
    pub fn load(path: &Path) -> Result<Self, ExperimentError> {
        if XmlExperiment::has_xml_extension(path) {
            return XmlExperiment::read(path)?.experiment(&[]);
        }
        let text = read_text_at_most(path, MAX_FILE_BYTES)
            .map_err(|source| ExperimentError::Read { path: path.to_owned(), source })?;
        if parse::is_layer_file(&text) {
            let mut experiment = Experiment::default();
            experiment.data.name.clear();
            experiment.model.name = path.to_string_lossy().into_owned();
            experiment.experiment.name = parse::network_name(&text).filter(|name| is_folder_name(name));
            experiment.check()?;
            return Ok(experiment);
        }
        Self::from_toml(&text, path)
    }

    /// Parses the text of an experiment file. `path` is for messages, and its folder is used to resolve
    /// paths.
    ///
    /// # Errors
    /// If the text is not a configuration.
    pub fn from_toml(text: &str, path: &Path) -> Result<Self, ExperimentError> {
        Self::from_part::<&str, &str>(
            &ExperimentText { text, path, folder: path.parent(), excluded_section: None },
            &[],
        )
    }

    /// Parses an experiment that is part of a file, with overrides as by `--set key=value`. If they set the
    /// network, the file is applied to the built-in experiment of that network.
    ///
    /// # Errors
    /// As [`Experiment::from_toml`] and [`Experiment::with_overrides`].
    pub fn from_part<K: AsRef<str>, V: AsRef<str>>(
        file: &ExperimentText<'_>,
        overrides: &[(K, V)],
    ) -> Result<Self, ExperimentError> {
        ParsedExperiment::parse(file)?.experiment(overrides)
    }

    /// Resolves paths against the experiment file's folder if they exist there, else against the working
    /// directory.
    fn resolve_paths(&mut self, folder: Option<&Path>) {
        let Some(folder) = folder else { return };
        let layer_file = self.layer_file().is_some().then_some(&mut self.model.name);
        let files = [&mut self.model.weights, &mut self.data.path, &mut self.train.teacher];
        for path in layer_file.into_iter().chain(files.into_iter().flatten()) {
            let resolved = folder.join(&*path);
            if let Some(text) = resolved.to_str().filter(|_| resolved.exists()) {
                *path = text.to_owned();
            }
        }
    }

    /// The layer file that describes the network; `None` for a network of the zoo.
    pub fn layer_file(&self) -> Option<&Path> {
        is_layer_file_name(&self.model.name).then_some(Path::new(&self.model.name))
    }

    /// The run whose network is the teacher; `None` without one, or if its loss has weight 0.
    pub fn teacher(&self) -> Option<&Path> {
        self.train.teacher.as_deref().filter(|_| self.train.teacher_weight > 0.0).map(Path::new)
    }

    /// Returns whether there is a data set. Networks of the zoo have one by default; that of a layer file
    /// must be set.
    pub fn has_data_set(&self) -> bool {
        !self.data.name.is_empty()
    }

    /// The experiment with overrides as by `--set key=value`. An empty value unsets an optional key.
    ///
    /// # Errors
    /// If a key is unknown or does not accept its value.
    pub fn with_overrides<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        overrides: &[(K, V)],
    ) -> Result<Self, ExperimentError> {
        let network = self.model.name.clone();
        self.override_keys(overrides)?;
        // A layer file in place of a network of the zoo sets the sizes of its layers itself: the width of the
        // built-in experiment is dropped. Any other width was given; it stays, and is rejected with the file.
        if self.layer_file().is_some()
            && !overrides.iter().any(|(key, _)| key.as_ref() == "model.width")
            && Self::builtin(&network).is_ok_and(|builtin| builtin.model.width == self.model.width)
        {
            self.model.width = None;
        }
        self.check()?;
        Ok(self)
    }

    fn override_keys<K: AsRef<str>, V: AsRef<str>>(
        &mut self,
        overrides: &[(K, V)],
    ) -> Result<(), ExperimentError> {
        self.drop_recipe_batch_size(|name| overrides.iter().any(|(key, _)| key.as_ref() == name));
        overrides
            .iter()
            .try_for_each(|(key, value)| self.set_key(key.as_ref(), value.as_ref(), &Origin::Override))
    }

    /// Sets a key to the text of a value, without quotes, given at `origin`.
    pub(crate) fn set_key(&mut self, key: &str, value: &str, origin: &Origin) -> Result<(), ExperimentError> {
        let (key, value) = (parse::find_key(key, origin)?, value.trim());
        if value.is_empty() && key.optional {
            (key.unset)(self);
            return Ok(());
        }
        let value = Value::from_argument(key.kind, value)
            .map_err(|found| parse::wrong_type(key, origin.clone(), found))?;
        self.apply(&[Entry { key, value, origin: origin.clone() }])
    }

    /// Drops a recipe's `learning_rate_batch` if another learning rate is given without one.
    fn drop_recipe_batch_size(&mut self, is_given: impl Fn(&str) -> bool) {
        if is_given("optimiser.learning_rate") && !is_given("optimiser.learning_rate_batch") {
            self.optimiser.learning_rate_batch = None;
        }
    }

    /// The factor that scales learning rates to the batch size; `None` if they are not scaled.
    #[must_use]
    pub fn learning_rate_factor(&self) -> Option<f64> {
        let tuned_for = self.optimiser.learning_rate_batch.filter(|_| self.schedule.scale_with_batch)?;
        let (name, batch) = (self.optimiser.name.to_string(), self.train.batch_size);
        (batch != tuned_for)
            .then(|| stratus_run::rate::batch_scaling_factor(&name, batch as f64, tuned_for as f64))
    }

    /// The name of the folder of the runs.
    pub fn name(&self) -> &str {
        let network = || match self.layer_file() {
            Some(path) => path.file_stem().and_then(OsStr::to_str).unwrap_or_default(),
            None => &self.model.name,
        };
        self.experiment.name.as_deref().unwrap_or_else(network)
    }

    /// The experiment of the pre-training stage, if there is one.
    #[must_use]
    pub fn first_stage(&self) -> Option<Self> {
        let FirstStage { network, epochs, batch_size, learning_rate } = self.first_stage.clone();
        let mut first = self.clone();
        first.model.name = network?;
        first.experiment.name = Some(format!("{}-first-stage", self.name()));
        first.first_stage = FirstStage::default();
        first.train.epochs = epochs;
        if let Some(batch_size) = batch_size {
            first.train.batch_size = batch_size;
        }
        if let Some(rate) = learning_rate {
            first.optimiser.learning_rate = rate;
            first.optimiser.learning_rate_batch = None;
        }
        Some(first)
    }

    /// The folder of the data set.
    pub fn data_path(&self) -> PathBuf {
        match &self.data.path {
            Some(path) => PathBuf::from(path),
            None => Path::new("data").join(&self.data.name),
        }
    }

    /// `data.shape`, `[C, H, W]`, if it is set.
    pub fn shape(&self) -> Option<[usize; 3]> {
        self.data.shape.as_deref().and_then(|shape| shape.try_into().ok())
    }

    /// Images per validation step.
    pub fn validation_batch_size(&self) -> usize {
        self.validation.batch_size.unwrap_or_else(|| self.micro_batch_size())
    }

    /// Samples of a micro-batch or part; those of the batch if it is not divided.
    #[must_use]
    pub fn micro_batch_size(&self) -> usize {
        self.train.batch_size / (self.train.micro_batches * self.train.parts.max(1)).max(1)
    }

    /// The experiment, with a value for every key that follows from other keys. [`ResolvedExperiment`] also
    /// sets the keys that follow from data set, network and device.
    ///
    /// [`ResolvedExperiment`]: crate::ResolvedExperiment
    #[must_use]
    pub fn completed(&self) -> Self {
        let mut completed = self.clone();
        completed.experiment.name = Some(self.name().to_owned());
        completed.data.path = Some(self.data_path().to_string_lossy().into_owned());
        completed.validation.batch_size = Some(self.validation_batch_size());
        completed
    }

    /// Every key with its value; `None` if it is unset.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, Option<Value>)> + '_ {
        KEYS.iter().map(|key| (key, (key.get)(self)))
    }

    /// The experiment as the text of a file, including every default.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut open = "";
        for (key, value) in self.completed().entries() {
            let (section, name) = key.split();
            if section != open {
                let gap = if open.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{gap}[{section}]\n"));
                open = section;
            }
            match value {
                Some(value) => text.push_str(&format!("{name} = {value}\n")),
                None => text.push_str(&format!("# {name} is not set\n")),
            }
        }
        text
    }

    fn apply(&mut self, entries: &[Entry]) -> Result<(), ExperimentError> {
        for Entry { key, value, origin } in entries {
            if let ValueKind::Choice(words) = key.kind
                && let Value::String(text) = value
                && !words.contains(&text.as_str())
            {
                return Err(ExperimentError::UnknownChoice {
                    origin: origin.clone(),
                    key: key.name,
                    expected: key.kind.describe(),
                    found: value.to_string(),
                    nearest: nearest(text, words.iter().copied()),
                });
            }
            if !parse::fits(key.kind, value) {
                return Err(parse::wrong_type(key, origin.clone(), value.to_string()));
            }
            if !key.constraint.allows(value) || !(key.set)(self, value) {
                let allowed = match key.constraint {
                    Constraint::Any => "a finite number".to_owned(),
                    constraint => constraint.describe(),
                };
                return Err(ExperimentError::OutOfRange {
                    origin: origin.clone(),
                    key: key.name,
                    allowed,
                    found: value.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Returns whether the name of a network is the path of a layer file.
fn is_layer_file_name(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

/// Returns whether a text is a valid name for the folder of an experiment's runs.
fn is_folder_name(text: &str) -> bool {
    Constraint::FolderName.allows(&Value::String(text.to_owned()))
}

/// Serialised as one flat object: full key names with their values, `null` if unset.
impl Serialize for Experiment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(KEYS.len()))?;
        for (key, value) in self.completed().entries() {
            map.serialize_entry(key.name, &value)?;
        }
        map.end()
    }
}
