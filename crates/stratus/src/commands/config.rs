//! `stratus config`: resolved configurations, and the reference of their keys.

use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_base::nearest;
use stratus_experiment::{Experiment, KEYS, Key, Value, ValueKind, XmlExperiment, schema};

/// Arguments of `stratus config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `stratus config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the full configuration as an experiment file
    Show {
        /// Built-in experiment, experiment file or run directory
        #[arg(value_name = "EXPERIMENT")]
        target: String,
    },
    /// Explain the configuration keys
    Keys {
        /// Key, section, or part of a name [default: all]
        filter: Option<String>,
        /// Print the reference in Markdown
        #[arg(long, conflicts_with = "filter")]
        markdown: bool,
    },
    /// List the built-in experiments
    List,
    /// Convert an XML configuration (`pytorch_configuration`, `tensorflow_configuration`) to TOML
    Convert {
        /// XML configuration file
        #[arg(value_name = "FILE.xml")]
        file: PathBuf,
        /// Settings that override it, by XML or configuration key: batch_size=64,train.seed=2
        #[arg(value_name = "KEY=VALUE,…")]
        settings: Vec<String>,
        /// Write to this file instead of printing, and write the list of classes next to the XML file
        #[arg(long, short, value_name = "FILE.toml")]
        out: Option<PathBuf>,
        /// Existing output files.
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Print the JSON schema of experiment files, for editors
    Schema,
}

/// Runs `stratus config`.
///
/// # Errors
/// If a configuration is invalid, or a key is unknown.
pub fn run(arguments: &ConfigArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.command {
        ConfigCommand::Show { target } => {
            let experiment = RunOrExperiment::resolve_as_written(target, globals)?.experiment(globals)?;
            output.print_verbatim(&experiment, || experiment.to_toml())
        }
        ConfigCommand::Keys { filter, markdown } => {
            let keys = find_keys(filter.as_deref())?;
            let described: Vec<KeyDescription> = keys.iter().copied().map(KeyDescription::of).collect();
            if *markdown {
                return output.print_verbatim(&described, reference_page);
            }
            output.print_wrapped(&described, || explain_keys(&keys))
        }
        ConfigCommand::List => {
            let names: Vec<&str> = Experiment::builtin_names().collect();
            output.print_verbatim(&names, || names.join("\n"))
        }
        ConfigCommand::Convert { file, settings, out, overwrite } => {
            convert_xml(file, settings, out.as_deref(), *overwrite, output)
        }
        ConfigCommand::Schema => {
            let schema = schema();
            output.print_verbatim(&schema, || serde_json::to_string_pretty(&schema).unwrap_or_default())
        }
    }
}

/// A converted configuration, as JSON.
#[derive(Serialize)]
struct Converted<'a> {
    toml: &'a str,
    classes: &'a [String],
    class_list: Option<PathBuf>,
    remote: Option<String>,
    unknown: Vec<String>,
}

fn convert_xml(
    file: &Path,
    settings: &[String],
    out: Option<&Path>,
    overwrite: Overwrite,
    output: &Output,
) -> Result {
    let mut xml = XmlExperiment::read(file)?;
    settings.iter().try_for_each(|settings| xml.set(settings))?;
    let (toml, classes) = (xml.to_toml()?, xml.classes()?);
    for unknown in xml.unknown() {
        output.warning(&format!("{}: {unknown}", file.display()));
    }
    if let Some(out) = out {
        let (list, lines) = (xml.class_list(), super::xml::class_lines(classes));
        let mut files = vec![(out, &toml, "the experiment")];
        if !classes.is_empty() {
            files.push((&list, &lines, "the list of classes"));
        }
        // Files that already have this content are not written.
        files.retain(|(path, text, _)| std::fs::read(path).ok().as_deref() != Some(text.as_bytes()));
        let mut outputs = Outputs::new(overwrite);
        outputs.protect(file);
        for (path, _, what) in &files {
            let is_list =
                *path == list && std::fs::read_to_string(path).is_ok_and(|text| xml.could_generate(&text));
            outputs.claim(path, what, if is_list { Mark::Identical } else { Mark::None })?;
        }
        for (path, text, _) in files {
            Outputs::write(path, text.as_bytes())?;
            output.message(&format!("wrote {}", path.display()));
        }
        return Ok(());
    }
    if !classes.is_empty() && !output.json() {
        let list = xml.class_list();
        output.message(&format!("--out also writes the list of classes to {}", list.display()));
    }
    let converted = Converted {
        toml: &toml,
        classes,
        class_list: (!classes.is_empty()).then(|| xml.class_list()),
        remote: xml.remote(),
        unknown: xml.unknown().iter().map(ToString::to_string).collect(),
    };
    output.print_verbatim(&converted, || toml.clone())
}

/// The description of a key, as JSON.
#[derive(Serialize)]
struct KeyDescription {
    key: &'static str,
    accepts: String,
    default: Option<Value>,
    doc: &'static str,
}

impl KeyDescription {
    fn of(key: &'static Key) -> Self {
        KeyDescription {
            key: key.name,
            accepts: key.accepts(),
            default: default_of(key),
            doc: key.doc.trim(),
        }
    }
}

/// The default of a key; `None` if it must be set.
fn default_of(key: &Key) -> Option<Value> {
    key.default().filter(|value| key.constraint.allows(value))
}

fn find_keys(filter: Option<&str>) -> Result<Vec<&'static Key>> {
    let Some(filter) = filter else { return Ok(KEYS.iter().collect()) };
    if let Some(exact) = KEYS.iter().find(|key| key.name == filter) {
        return Ok(vec![exact]);
    }
    let found: Vec<&Key> = KEYS.iter().filter(|key| key.name.contains(filter)).collect();
    if found.is_empty() {
        return Err(no_such_key(&format!("no configuration key matches `{filter}`"), filter));
    }
    Ok(found)
}

/// Checks that configuration keys exist.
///
/// # Errors
/// If one does not; the hint names the nearest.
pub(super) fn check_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result {
    let is_known = |name: &&str| KEYS.iter().any(|key| key.name == *name);
    match keys.into_iter().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(unknown) => Err(no_such_key(&format!("unknown key `{unknown}`"), unknown)),
    }
}

/// The error for a name that is not a key; the hint names the nearest.
fn no_such_key(problem: &str, name: &str) -> Failure {
    let hint = match nearest(name, KEYS.iter().map(|key| key.name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`stratus config keys` lists every key".to_owned(),
    };
    Failure::usage(problem.to_owned()).with_hint(hint)
}

fn explain_keys(keys: &[&Key]) -> String {
    let blocks: Vec<String> = keys
        .iter()
        .map(|key| {
            let default = match (default_of(key), key.optional) {
                (Some(value), _) => format!("default {value}"),
                (None, true) => "not set by default".to_owned(),
                (None, false) => "must be set".to_owned(),
            };
            format!("{}\n    {}\n    {}; {default}\n", key.name, key.doc.trim(), key.accepts())
        })
        .collect();
    blocks.join("\n")
}

/// Renders the reference page: one list item per key, in lines of at most 110 columns.
pub fn reference_page() -> String {
    let mut text = String::from(
        "# Configuration keys\n\n\
         Written by `stratus config keys --markdown`. Any key can be set in an experiment file or with\n\
         `--set key=value`.\n",
    );
    let mut open = "";
    for key in KEYS {
        let (section, name) = key.split();
        if section != open {
            text.push_str(&format!("\n## {section}\n\n"));
            open = section;
        }
        let accepts = match key.kind {
            ValueKind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(
                    ", \
            ",
                )
            }
            _ => key.accepts(),
        };
        let default = match (default_of(key), key.optional) {
            (Some(value), _) => format!("default `{value}`"),
            (None, true) => "not set by default".to_owned(),
            (None, false) => "must be set".to_owned(),
        };
        push_wrapped(&mut text, "- ", &format!("**`{name}`**: {accepts}; {default}."));
        push_wrapped(&mut text, "  ", key.doc.trim());
    }
    text
}

/// The width of the reference page, in columns.
const REFERENCE_COLUMNS: usize = 110;

/// Appends a wrapped paragraph of a list item: the first line starts with `bullet`, the others are indented
/// by two.
fn push_wrapped(text: &mut String, bullet: &str, paragraph: &str) {
    text.push_str(bullet);
    let mut column = bullet.len();
    for (position, word) in paragraph.split_whitespace().enumerate() {
        let width = word.chars().count();
        if column + 1 + width > REFERENCE_COLUMNS {
            text.push_str("\n  ");
            column = 2;
        } else if position > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}
