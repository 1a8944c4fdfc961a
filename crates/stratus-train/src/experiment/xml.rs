//! Configurations in XML, with the roots `pytorch_configuration` and `tensorflow_configuration`: the files of
//! an application that measured the times of layers in PyTorch and TensorFlow.
//!
//! The name of an element, or of an attribute, is a key; the elements around it are groups. Within a group
//! whose name has `remote` in it stands where the data are on another machine. Lists are elements of one
//! name, or words in one element.

use super::error::{ExperimentError, Origin, UnknownXmlKey};
use super::{Experiment, ExperimentText};
use roxmltree::{Document, Node, ParsingOptions};
use std::path::{Path, PathBuf};
use stratus_base::nearest;

/// The roots that are read.
pub const ROOTS: [&str; 2] = ["pytorch_configuration", "tensorflow_configuration"];

/// The most bytes of a file; such files have some hundred.
const LONGEST: u64 = 1 << 20;
/// The most elements and attributes.
const MOST_NODES: u32 = 20_000;
/// How deep groups may be in each other.
const DEEPEST: usize = 16;

/// What a key means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The key of this name.
    Key(&'static str),
    /// A network, which elsewhere has capital letters.
    Network,
    /// How many of the classes are used.
    ClassCount,
    /// Names of classes.
    Classes,
    /// GPUs: none or one.
    Gpus,
    /// Only loading is measured.
    OnlyLoad,
    /// Is the case whatever it says; the text says why.
    Always(&'static str),
}

/// Every key, by its names.
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
    (&["profile", "profiling"], Meaning::Always("every iteration is timed, layer by layer")),
    (&["log", "logging", "print_freq"], Meaning::Always("every iteration is a row of iterations.csv")),
];

/// A part of the remote location.
type Part = fn(&mut Remote) -> &mut String;

/// Keys of the remote location, by their names there; outside of its group they begin with `remote_`.
const REMOTE: &[(&[&str], Part)] = &[
    (&["user", "username", "login"], |remote| &mut remote.user),
    (&["host", "hostname", "address", "ip", "server"], |remote| &mut remote.host),
    (&["port"], |remote| &mut remote.port),
    (&["path", "folder", "directory", "dir", "location"], |remote| &mut remote.path),
    (&["key", "key_path", "private_key", "identity", "identity_file"], |remote| &mut remote.key),
];

/// A configuration in XML, as far as it is understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XmlExperiment {
    path: PathBuf,
    /// Keys with their values, and where they stand.
    settings: Vec<(&'static str, String, Origin)>,
    /// Any key of Stratus, which was set on top.
    overrides: Vec<(String, String)>,
    classes: Vec<String>,
    class_count: Option<usize>,
    remote: Remote,
    /// What is the case whatever the file says: line, key, why.
    remarks: Vec<(usize, String, &'static str)>,
    unknown: Vec<UnknownXmlKey>,
}

/// Where the data are on another machine. What is not said is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Remote {
    user: String,
    host: String,
    port: String,
    path: String,
    key: String,
}

impl XmlExperiment {
    /// Whether a file is one by its name.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("xml"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Where it cannot be read, is no XML, has another root, a DTD, or is larger or deeper than such a file
    /// is; where a value cannot be. Unknown keys are no error yet, see [`XmlExperiment::unknown`].
    pub fn read(path: &Path) -> Result<Self, ExperimentError> {
        let failed = |source| ExperimentError::Read { path: path.to_owned(), source };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > LONGEST {
            let message = format!("it has {length} bytes; such a file has at most {LONGEST}");
            return Err(refused(path, None, message));
        }
        Self::parse(&std::fs::read_to_string(path).map_err(failed)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ExperimentError> {
        // A DTD, by which entities could grow without bound, is refused.
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text, options)
            .map_err(|error| refused(path, Some(error.pos().row as usize), error.to_string()))?;
        let root = document.root_element();
        let line = |node: &Node<'_, '_>| document.text_pos_at(node.range().start).row as usize;
        if !ROOTS.contains(&root.tag_name().name()) {
            let found = root.tag_name().name();
            let message = format!("the root is `{found}`; {} are read", ROOTS.join(" and "));
            return Err(refused(path, Some(line(&root)), message));
        }
        let mut read = Self { path: path.to_owned(), ..Self::default() };
        for node in root.descendants().filter(Node::is_element) {
            let depth = node.ancestors().count();
            if depth > DEEPEST {
                let message = format!("elements are more than {DEEPEST} deep in each other");
                return Err(refused(path, Some(line(&node)), message));
            }
            let groups = || node.ancestors().skip(1).map(|group| group.tag_name().name());
            let is_remote = |name: &str| name.to_lowercase().contains("remote");
            let line = line(&node);
            for attribute in node.attributes() {
                let remote = groups().chain([node.tag_name().name()]).any(is_remote);
                read.take(attribute.name(), attribute.value(), remote, line)?;
            }
            let is_group = node == root || node.children().any(|child| child.is_element());
            let is_empty_group =
                node.attributes().len() > 0 && node.text().is_none_or(|text| text.trim().is_empty());
            if !is_group && !is_empty_group {
                let value = node.text().unwrap_or_default();
                read.take(node.tag_name().name(), value, groups().any(is_remote), line)?;
            }
        }
        Ok(read)
    }

    /// Sets keys on top, as `key=value,key=value`. A key is one of the XML file's, or any of Stratus with its
    /// section.
    ///
    /// # Errors
    /// Where a key is unknown, or a value cannot be.
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
                        problem: format!("`{part}` is no key=value"),
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
                unknown: vec![UnknownXmlKey { line: None, nearest: near(&key), key }],
            });
        }
        Ok(())
    }

    /// Keys that are not understood, with their lines.
    #[must_use]
    pub fn unknown(&self) -> &[UnknownXmlKey] {
        &self.unknown
    }

    /// The error that names all keys that are not understood, if there are any.
    ///
    /// # Errors
    /// That one.
    pub fn expect_known(&self) -> Result<(), ExperimentError> {
        if self.unknown.is_empty() {
            return Ok(());
        }
        let origin = Origin::File { path: self.path.clone(), line: None };
        Err(ExperimentError::XmlKeys { origin, unknown: self.unknown.clone() })
    }

    fn take(&mut self, key: &str, value: &str, remote: bool, line: usize) -> Result<(), ExperimentError> {
        let origin = Origin::File { path: self.path.clone(), line: Some(line) };
        if !self.accept(key, value, remote, &origin)? {
            let nearest = if remote { None } else { near(key) };
            self.unknown.push(UnknownXmlKey { line: Some(line), key: key.to_owned(), nearest });
        }
        Ok(())
    }

    /// Takes a key in; false where it is unknown.
    fn accept(
        &mut self,
        key: &str,
        value: &str,
        remote: bool,
        origin: &Origin,
    ) -> Result<bool, ExperimentError> {
        let (name, value) = (key.to_lowercase().replace('-', "_"), value.trim());
        let of_remote = if remote { Some(name.as_str()) } else { name.strip_prefix("remote_") };
        if let Some(part) = of_remote {
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
                    conflict(format!("`{key}` is `{value}`"), "give a whole number of classes")
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
                    let hint = "set it to 1 or 0; a training runs on one device";
                    return Err(conflict(format!("`{key}` is {value}"), hint));
                }
                Err(_) => return Err(conflict(format!("`{key}` is `{value}`"), "give a number of GPUs")),
            },
            Meaning::OnlyLoad => {
                if !matches!(value.to_lowercase().as_str(), "0" | "false" | "no") {
                    let hint = "`stratus bench data` measures loading without training; leave the key out";
                    return Err(conflict(format!("`{key}` is `{value}`"), hint));
                }
            }
            Meaning::Always(why) => {
                if let Origin::File { line: Some(line), .. } = origin {
                    self.remarks.push((*line, key.to_owned(), why));
                }
            }
        }
        Ok(true)
    }

    /// The classes that are used: those that are named, as many as `num_classes` says. Empty where none are
    /// named.
    ///
    /// # Errors
    /// Where fewer are named.
    pub fn classes(&self) -> Result<&[String], ExperimentError> {
        let count = self.class_count.filter(|_| !self.classes.is_empty()).unwrap_or(self.classes.len());
        self.classes.get(..count).ok_or_else(|| ExperimentError::Conflict {
            origin: Origin::File { path: self.path.clone(), line: None },
            problem: format!("num_classes is {count}, and {} classes are named", self.classes.len()),
            hint: "name as many classes, or leave num_classes out".to_owned(),
        })
    }

    /// Whether a class list can be generated from this file, for any `num_classes`.
    #[must_use]
    pub fn makes_list(&self, text: &str) -> bool {
        let lines: Vec<&str> = text.lines().collect();
        lines.len() <= self.classes.len() && lines.iter().zip(&self.classes).all(|(line, name)| line == name)
    }

    /// The file for [`XmlExperiment::classes`], one a line, which the experiment names: beside the XML file.
    #[must_use]
    pub fn class_list(&self) -> PathBuf {
        self.path.with_extension("classes.txt")
    }

    /// Where the data are on another machine, as an address that `stratus data sync` takes: `sftp://…`, or
    /// without a host a folder. None where the file does not say.
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

    /// The configuration as a file: what the XML file sets, and no default. What is of no key stands in
    /// comments.
    ///
    /// # Errors
    /// As [`XmlExperiment::classes`].
    pub fn to_toml(&self) -> Result<String, ExperimentError> {
        let mut text = String::new();
        let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
        let mut put = |key: &str, value: String| {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
            // The last setting of a key counts.
            let line = format!("{name} = {value}");
            let of_key = format!("{name} = ");
            let lines = match sections.iter_mut().find(|(known, _)| *known == section) {
                Some((_, lines)) => lines,
                None => {
                    let section = super::KEYS.iter().map(|key| key.split().0).find(|known| *known == section);
                    sections.push((section.unwrap_or_default(), Vec::new()));
                    let last = sections.len() - 1;
                    &mut sections[last].1
                }
            };
            lines.retain(|known| !known.starts_with(&of_key));
            lines.push(line);
        };
        for (key, value) in self.pairs()? {
            let written = super::parse::find_key(&key, &Origin::Override).ok().and_then(|key| {
                super::Value::from_argument(key.kind, &value).ok().map(|value| value.to_string())
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
            comments.push(format!("{} holds the {named} classes, one a line.", path.display()));
        }
        if let Some(remote) = self.remote() {
            comments
                .push(format!("The data are at {remote}: `stratus data sync {remote} FOLDER` brings them."));
            if !self.remote.key.is_empty() {
                let key = &self.remote.key;
                comments.push(format!("SSH's key is {key}: name it in ~/.ssh/config (IdentityFile)."));
            }
        }
        for (line, key, why) in &self.remarks {
            comments.push(format!("{}:{line}: {key} needs no key: {why}.", self.path.display()));
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
    /// Where a key is unknown, a value is not one of its key, or keys do not go together.
    pub fn experiment(&self, overrides: &[(String, String)]) -> Result<Experiment, ExperimentError> {
        self.expect_known()?;
        // First by itself, so that an error names the line of the XML file.
        for (key, value, origin) in &self.settings {
            Experiment::default().set_one(key, value, origin)?;
        }
        let pairs: Vec<(String, String)> =
            self.pairs()?.into_iter().chain(overrides.iter().cloned()).collect();
        let file = ExperimentText { text: "", path: &self.path, folder: self.path.parent(), without: None };
        Experiment::from_part(&file, &pairs)
    }

    /// Every key that is set, the last one of a name in effect.
    fn pairs(&self) -> Result<Vec<(String, String)>, ExperimentError> {
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

/// The key that was probably meant.
fn near(key: &str) -> Option<&'static str> {
    // One letter is near to every other.
    let names = KEYS.iter().flat_map(|(names, _)| names.iter().copied()).filter(|name| name.len() > 1);
    nearest(key, names)
}

fn refused(path: &Path, line: Option<usize>, message: String) -> ExperimentError {
    ExperimentError::Xml { origin: Origin::File { path: path.to_owned(), line }, message }
}

#[cfg(test)]
mod tests;
