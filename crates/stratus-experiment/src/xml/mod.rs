//! XML configurations with the roots `pytorch_configuration` and `tensorflow_configuration`: the files of an
//! application that measured the times of layers in PyTorch and TensorFlow.
//!
//! The name of an element or attribute is a key; the elements around it are groups. A group whose name
//! contains `remote` describes the location of the data on another machine. Lists are elements of one name,
//! or words in one element.

use crate::{Experiment, ExperimentError, ExperimentText, Origin, UnknownXmlKey};
use roxmltree::{Document, Node, ParsingOptions};
use std::path::{Path, PathBuf};
use stratus_base::{nearest, read_text_at_most, text};

/// The supported root elements.
pub const ROOTS: [&str; 2] = ["pytorch_configuration", "tensorflow_configuration"];

/// Bytes of a file, at most; such files have a few hundred.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Elements and attributes of a file, at most.
const MAX_NODES: u32 = 20_000;
/// Nesting depth of elements, at most.
const MAX_DEPTH: usize = 16;

/// The meaning of an XML key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A configuration key.
    Key(&'static str),
    /// The network, whose name may have capital letters.
    Network,
    /// The number of classes to use.
    ClassCount,
    /// Names of classes.
    Classes,
    /// The number of GPUs: 0 or 1.
    Gpus,
    /// True if only data loading is measured.
    OnlyLoad,
    /// Ignored, since it always applies; with the reason.
    Ignored(&'static str),
}

/// The keys with all their names.
const KEYS: &[(&[&str], Meaning)] = &[
    (&["network_type", "network", "model"], Meaning::Network),
    (&["num_classes", "classes_number", "number_of_classes"], Meaning::ClassCount),
    (&["classes", "class", "class_id", "class_ids", "input_classes"], Meaning::Classes),
    (&["images_per_class"], Meaning::Key("data.images_per_class")),
    (&["epochs_number", "epochs", "num_epochs"], Meaning::Key("train.epochs")),
    (&["batch_size", "batch"], Meaning::Key("train.batch_size")),
    (&["momentum"], Meaning::Key("optimiser.momentum")),
    (&["learning_rate", "lr"], Meaning::Key("optimiser.learning_rate")),
    (&["weight_decay"], Meaning::Key("optimiser.weight_decay")),
    (&["seed"], Meaning::Key("train.seed")),
    (&["j", "workers", "num_workers"], Meaning::Key("data.workers")),
    (
        &["input_path", "input_dir", "data_path", "data_dir", "path", "dataset_path"],
        Meaning::Key("data.path"),
    ),
    (&["gpus_number", "gpu_number", "num_gpus", "gpus"], Meaning::Gpus),
    (&["only_load"], Meaning::OnlyLoad),
    (&["profile", "profiling"], Meaning::Ignored("every iteration is timed, layer by layer")),
    (&["log", "logging", "print_freq"], Meaning::Ignored("every iteration is a row of iterations.csv")),
];

/// A field of the remote location.
type RemoteField = fn(&mut Remote) -> &mut String;

/// The keys of the remote location; outside its group they have the prefix `remote_`.
const REMOTE: &[(&[&str], RemoteField)] = &[
    (&["user", "username", "login"], |remote| &mut remote.user),
    (&["host", "hostname", "address", "ip", "server"], |remote| &mut remote.host),
    (&["port"], |remote| &mut remote.port),
    (&["path", "folder", "directory", "dir", "location"], |remote| &mut remote.path),
    (&["key", "key_path", "private_key", "identity", "identity_file"], |remote| &mut remote.key),
];

/// An XML configuration: its known and unknown keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XmlExperiment {
    path: PathBuf,
    /// Configuration keys with their values and origins.
    settings: Vec<(&'static str, String, Origin)>,
    /// Overrides of configuration keys.
    overrides: Vec<(String, String)>,
    classes: Vec<String>,
    class_count: Option<usize>,
    remote: Remote,
    /// Ignored keys: line, key, reason.
    ignored: Vec<(usize, String, &'static str)>,
    unknown: Vec<UnknownXmlKey>,
}

/// The location of the data on another machine. Unset fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Remote {
    user: String,
    host: String,
    port: String,
    path: String,
    key: String,
}

impl XmlExperiment {
    /// Returns whether a file has the extension `.xml`.
    #[must_use]
    pub fn has_xml_extension(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("xml"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not XML, has another root or a DTD, exceeds the limits of size and
    /// depth, or has an invalid value. Unknown keys are not an error yet, see [`XmlExperiment::unknown`].
    pub fn read(path: &Path) -> Result<Self, ExperimentError> {
        let failed = |source| ExperimentError::Read { path: path.to_owned(), source };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > MAX_FILE_BYTES {
            let message = format!("it has {length} bytes, more than {}", text::bytes(MAX_FILE_BYTES));
            return Err(invalid(path, None, message));
        }
        Self::parse(&read_text_at_most(path, MAX_FILE_BYTES).map_err(failed)?, path)
    }

    /// Parses the text of a file; `path` is for messages and for paths relative to its folder.
    ///
    /// # Errors
    /// As [`XmlExperiment::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ExperimentError> {
        // A DTD is rejected, since its entities could expand without bound.
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options)
            .map_err(|error| invalid(path, Some(error.pos().row as usize), error.to_string()))?;
        let root = document.root_element();
        let line = |node: &Node<'_, '_>| document.text_pos_at(node.range().start).row as usize;
        if !ROOTS.contains(&root.tag_name().name()) {
            let found = root.tag_name().name();
            let message = format!("unsupported root element `{found}`; expected {}", ROOTS.join(" or "));
            return Err(invalid(path, Some(line(&root)), message));
        }
        let mut read = Self { path: path.to_owned(), ..Self::default() };
        for node in root.descendants().filter(Node::is_element) {
            let depth = node.ancestors().count();
            if depth > MAX_DEPTH {
                let message = format!("elements nested deeper than {MAX_DEPTH}");
                return Err(invalid(path, Some(line(&node)), message));
            }
            let groups = || node.ancestors().skip(1).map(|group| group.tag_name().name());
            let is_remote = |name: &str| name.to_lowercase().contains("remote");
            let line = line(&node);
            for attribute in node.attributes() {
                let remote = groups().chain([node.tag_name().name()]).any(is_remote);
                read.read_key(attribute.name(), attribute.value(), remote, line)?;
            }
            let is_group = node == root || node.children().any(|child| child.is_element());
            let is_empty_group =
                node.attributes().len() > 0 && node.text().is_none_or(|text| text.trim().is_empty());
            if !is_group && !is_empty_group {
                let value = node.text().unwrap_or_default();
                read.read_key(node.tag_name().name(), value, groups().any(is_remote), line)?;
            }
        }
        Ok(read)
    }

    /// Applies overrides, as `key=value,key=value`. A key is an XML key, or a configuration key with its
    /// section.
    ///
    /// # Errors
    /// If a key is unknown, or a value is invalid.
    pub fn set(&mut self, settings: &str) -> Result<(), ExperimentError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for part in settings.split(',') {
            match (part.split_once('='), pairs.last_mut()) {
                (Some((key, value)), _) => pairs.push((key.trim().to_owned(), value.trim().to_owned())),
                // A comma within a value.
                (None, Some((_, value))) => value.push_str(&format!(",{part}")),
                (None, None) => {
                    return Err(ExperimentError::Conflict {
                        origin: Origin::Override,
                        problem: format!("`{part}` is not key=value"),
                        hint: "write key=value,key=value, like batch_size=64,epochs_number=3".to_owned(),
                    });
                }
            }
        }
        for (key, value) in pairs {
            if key.contains('.') {
                self.overrides.push((key, value));
                continue;
            }
            if self.accept(&key, &value, false, &Origin::Override)? {
                continue;
            }
            return Err(ExperimentError::XmlKeys {
                origin: Origin::Override,
                unknown: vec![UnknownXmlKey { line: None, nearest: suggestion(&key), key }],
            });
        }
        Ok(())
    }

    /// The unknown keys, with their lines.
    #[must_use]
    pub fn unknown(&self) -> &[UnknownXmlKey] {
        &self.unknown
    }

    /// Checks that all keys are known.
    ///
    /// # Errors
    /// If there are unknown keys; names all of them.
    pub fn check_known(&self) -> Result<(), ExperimentError> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        let origin = Origin::File { path: self.path.clone(), line: None };
        Err(ExperimentError::XmlKeys { origin, unknown: self.unknown.clone() })
    }

    fn read_key(&mut self, key: &str, value: &str, remote: bool, line: usize) -> Result<(), ExperimentError> {
        let origin = Origin::File { path: self.path.clone(), line: Some(line) };
        if !self.accept(key, value, remote, &origin)? {
            let nearest = if remote { None } else { suggestion(key) };
            self.unknown.push(UnknownXmlKey { line: Some(line), key: key.to_owned(), nearest });
        }
        Ok(())
    }

    /// Sets a key; returns whether it is known.
    fn accept(
        &mut self,
        key: &str,
        value: &str,
        remote: bool,
        origin: &Origin,
    ) -> Result<bool, ExperimentError> {
        let (name, value) = (key.to_lowercase().replace('-', "_"), value.trim());
        let remote_name = if remote { Some(name.as_str()) } else { name.strip_prefix("remote_") };
        if let Some(part) = remote_name {
            let part = part.strip_prefix("remote_").unwrap_or(part);
            let Some((_, field)) = REMOTE.iter().find(|(names, _)| names.contains(&part)) else {
                return Ok(false);
            };
            value.clone_into(field(&mut self.remote));
            return Ok(true);
        }
        let Some((_, meaning)) = KEYS.iter().find(|(names, _)| names.contains(&name.as_str())) else {
            return Ok(false);
        };
        if value.is_empty() {
            return Ok(true);
        }
        let conflict = |problem: String, hint: &str| ExperimentError::Conflict {
            origin: origin.clone(),
            problem,
            hint: hint.to_owned(),
        };
        match meaning {
            Meaning::Key(key) => self.settings.push((key, value.to_owned(), origin.clone())),
            Meaning::Network => {
                let network = value.to_lowercase().replace('-', "_");
                self.settings.push(("model.name", network, origin.clone()));
            }
            Meaning::ClassCount => {
                let count = value.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
                    conflict(format!("`{key}` is `{value}`"), "set an integer of at least 1")
                })?;
                self.class_count = Some(count);
            }
            Meaning::Classes => {
                if *origin == Origin::Override {
                    self.classes.clear();
                }
                let words = value.split(|letter: char| letter.is_whitespace() || ",;".contains(letter));
                self.classes.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
            }
            Meaning::Gpus => match value.parse::<u32>() {
                Ok(0) => self.settings.push(("train.device", "cpu".to_owned(), origin.clone())),
                Ok(1) => self.settings.push(("train.device", "gpu".to_owned(), origin.clone())),
                Ok(_) => {
                    let hint = "set it to 0 or 1: a training uses one device";
                    return Err(conflict(format!("`{key}` is {value}"), hint));
                }
                Err(_) => return Err(conflict(format!("`{key}` is `{value}`"), "set the number of GPUs")),
            },
            Meaning::OnlyLoad => {
                if !matches!(value.to_lowercase().as_str(), "0" | "false" | "no") {
                    let hint = "remove the key; `stratus bench data` measures data loading without training";
                    return Err(conflict(format!("`{key}` is `{value}`"), hint));
                }
            }
            Meaning::Ignored(reason) => {
                if let Origin::File { line: Some(line), .. } = origin {
                    self.ignored.push((*line, key.to_owned(), reason));
                }
            }
        }
        Ok(true)
    }

    /// The classes to use: the first `num_classes` of those that are listed. Empty if none are listed.
    ///
    /// # Errors
    /// If fewer are listed.
    pub fn classes(&self) -> Result<&[String], ExperimentError> {
        let count = self.class_count.filter(|_| !self.classes.is_empty()).unwrap_or(self.classes.len());
        self.classes.get(..count).ok_or_else(|| ExperimentError::Conflict {
            origin: Origin::File { path: self.path.clone(), line: None },
            problem: format!("num_classes is {count}, but {} classes are listed", self.classes.len()),
            hint: "list as many classes, or remove num_classes".to_owned(),
        })
    }

    /// Returns whether a class list can be generated from this file, for any `num_classes`.
    #[must_use]
    pub fn could_generate(&self, text: &str) -> bool {
        let lines: Vec<&str> = text.lines().collect();
        lines.len() <= self.classes.len() && lines.iter().zip(&self.classes).all(|(line, name)| line == name)
    }

    /// The path of the list of [`XmlExperiment::classes`], one per line, next to the XML file. The experiment
    /// refers to it.
    #[must_use]
    pub fn class_list(&self) -> PathBuf {
        self.path.with_extension("classes.txt")
    }

    /// The location of the data as a source of `stratus data sync`: `sftp://…`, or a folder without a host.
    /// `None` if the file sets no path.
    #[must_use]
    pub fn remote(&self) -> Option<String> {
        let Remote { user, host, port, path, .. } = &self.remote;
        if path.is_empty() {
            return None;
        }
        if host.is_empty() {
            return Some(path.clone());
        }
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        let port = if port.is_empty() { String::new() } else { format!(":{port}") };
        Some(format!("sftp://{user}{host}{port}/{}", path.trim_start_matches('/')))
    }

    /// The configuration as TOML, without defaults. Settings without a key become comments.
    ///
    /// # Errors
    /// As [`XmlExperiment::classes`].
    pub fn to_toml(&self) -> Result<String, ExperimentError> {
        let mut text = String::new();
        let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
        let mut put = |key: &str, value: String| {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
            // The last setting of a key is used.
            let line = format!("{name} = {value}");
            let prefix = format!("{name} = ");
            let lines = match sections.iter_mut().find(|(known, _)| *known == section) {
                Some((_, lines)) => lines,
                None => {
                    let section = crate::KEYS.iter().map(|key| key.split().0).find(|known| *known == section);
                    sections.push((section.unwrap_or_default(), Vec::new()));
                    let last = sections.len() - 1;
                    &mut sections[last].1
                }
            };
            lines.retain(|known| !known.starts_with(&prefix));
            lines.push(line);
        };
        for (key, value) in self.key_values()? {
            let written = crate::parse::find_key(&key, &Origin::Override).ok().and_then(|key| {
                crate::Value::from_argument(key.kind, &value).ok().map(|value| value.to_string())
            });
            put(&key, written.unwrap_or_else(|| toml::Value::String(value).to_string()));
        }
        for (section, lines) in &sections {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}[{section}]\n{}\n", lines.join("\n")));
        }
        let mut comments = Vec::new();
        let named = self.classes()?.len();
        if named > 0 {
            let path = self.class_list();
            comments.push(format!("{} lists the {named} classes, one per line.", path.display()));
        }
        if let Some(remote) = self.remote() {
            comments.push(format!(
                "The data are at {remote}: fetch them with `stratus data sync {remote} FOLDER`."
            ));
            if !self.remote.key.is_empty() {
                let key = &self.remote.key;
                comments.push(format!("The SSH key is {key}: set it in ~/.ssh/config (IdentityFile)."));
            }
        }
        for (line, key, reason) in &self.ignored {
            comments.push(format!("{}:{line}: {key} is ignored: {reason}.", self.path.display()));
        }
        comments.extend(self.unknown.iter().map(|unknown| format!("{}: {unknown}", self.path.display())));
        if !comments.is_empty() {
            text.push('\n');
            comments.iter().for_each(|line| text.push_str(&format!("# {}\n", line.replace('\n', " "))));
        }
        Ok(text)
    }

    /// The experiment.
    ///
    /// # Errors
    /// If a key is unknown, a value is invalid, or the values of several keys conflict.
    pub fn experiment(&self, overrides: &[(String, String)]) -> Result<Experiment, ExperimentError> {
        self.check_known()?;
        // Each setting is checked by itself first, so that an error names its line.
        for (key, value, origin) in &self.settings {
            Experiment::default().set_key(key, value, origin)?;
        }
        let pairs: Vec<(String, String)> =
            self.key_values()?.into_iter().chain(overrides.iter().cloned()).collect();
        let file =
            ExperimentText { text: "", path: &self.path, folder: self.path.parent(), excluded_section: None };
        Experiment::from_part(&file, &pairs)
    }

    /// All settings in order; the last one of a key is used.
    fn key_values(&self) -> Result<Vec<(String, String)>, ExperimentError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let has = |key: &str| self.settings.iter().any(|(known, ..)| *known == key);
        let named = !self.classes()?.is_empty();
        if has("data.path") || named {
            pairs.push(("data.name".to_owned(), "folder".to_owned()));
        }
        if named {
            pairs.push(("data.classes".to_owned(), self.class_list().display().to_string()));
        } else if let Some(count) = self.class_count {
            pairs.push(("model.classes".to_owned(), count.to_string()));
        }
        pairs.extend(self.settings.iter().map(|(key, value, _)| ((*key).to_owned(), value.clone())));
        pairs.extend(self.overrides.iter().cloned());
        Ok(pairs)
    }
}

/// The most similar XML key.
fn suggestion(key: &str) -> Option<&'static str> {
    // Keys of one letter are similar to any other letter.
    let names = KEYS.iter().flat_map(|(names, _)| names.iter().copied()).filter(|name| name.len() > 1);
    nearest(key, names)
}

fn invalid(path: &Path, line: Option<usize>, message: String) -> ExperimentError {
    ExperimentError::Xml { origin: Origin::File { path: path.to_owned(), line }, message }
}

#[cfg(test)]
mod tests;
