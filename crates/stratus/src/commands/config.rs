//! `stratus config`: what a configuration resolves to, and the keys there are.

use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_train::Experiment;
use stratus_train::experiment::{KEYS, Key, Kind, Value, XmlExperiment, nearest, schema};

/// Arguments of `stratus config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// What to show.
    #[command(subcommand)]
    pub what: What,
}

/// What `stratus config` shows.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Show a configuration with every default written out, as a file that gives it again
    Show {
        /// A built-in experiment, an experiment file or a run directory
        #[arg(value_name = "EXPERIMENT")]
        target: String,
    },
    /// Explain the configuration keys
    Keys {
        /// A key, a section or a part of a name; every key without it
        filter: Option<String>,
        /// Print the reference page in Markdown
        #[arg(long, conflicts_with = "filter")]
        markdown: bool,
    },
    /// List the built-in experiments
    List,
    /// Print a configuration in XML as TOML: roots `pytorch_configuration` and `tensorflow_configuration`
    Convert {
        /// The XML file
        #[arg(value_name = "FILE.xml")]
        file: PathBuf,
        /// Keys on top of it, by their names in the file or with their section: batch_size=64,train.seed=2
        #[arg(value_name = "KEY=VALUE,…")]
        settings: Vec<String>,
        /// Write the file, and beside the XML file the list of classes that it names, instead of printing it
        #[arg(long, short, value_name = "FILE.toml")]
        out: Option<PathBuf>,
        /// Files that are replaced.
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Print a JSON schema of experiment files, for editors
    Schema,
}

/// Runs `stratus config`.
///
/// # Errors
/// Where a configuration is wrong or a key unknown.
pub fn run(arguments: &ConfigArguments, globals: &Globals, output: &Output) -> Result {
    match &arguments.what {
        What::Show { target } => {
            let experiment = Target::find(target, globals)?.experiment(globals)?;
            output.document(&experiment, || experiment.to_toml())
        }
        What::Keys { filter, markdown } => {
            let keys = matching(filter.as_deref())?;
            let described: Vec<Described> = keys.iter().copied().map(Described::of).collect();
            if *markdown {
                return output.document(&described, reference);
            }
            output.result(&described, || explain(&keys))
        }
        What::List => {
            let names: Vec<&str> = Experiment::builtin_names().collect();
            output.document(&names, || names.join("\n"))
        }
        What::Convert { file, settings, out, overwrite } => {
            convert(file, settings, out.as_deref(), *overwrite, output)
        }
        What::Schema => {
            let schema = schema();
            output.document(&schema, || serde_json::to_string_pretty(&schema).unwrap_or_default())
        }
    }
}

/// A converted configuration as JSON.
#[derive(Serialize)]
struct Converted<'a> {
    toml: &'a str,
    classes: &'a [String],
    class_list: Option<PathBuf>,
    remote: Option<String>,
    unknown: Vec<String>,
}

fn convert(
    file: &Path,
    settings: &[String],
    out: Option<&Path>,
    overwrite: Overwrite,
    output: &Output,
) -> Result {
    let mut read = XmlExperiment::read(file)?;
    settings.iter().try_for_each(|settings| read.set(settings))?;
    let (toml, classes) = (read.to_toml()?, read.classes()?);
    for unknown in read.unknown() {
        output.warning(&format!("{}: {unknown}", file.display()));
    }
    if let Some(out) = out {
        let (list, lines) = (read.class_list(), super::xml::class_lines(classes));
        let mut files = vec![(out, &toml, "the experiment")];
        if !classes.is_empty() {
            files.push((&list, &lines, "the list of classes"));
        }
        // Nothing is lost where the file has the same content.
        files.retain(|(path, text, _)| std::fs::read(path).ok().as_deref() != Some(text.as_bytes()));
        let mut outputs = Outputs::new(overwrite);
        outputs.protect(file);
        for (path, _, what) in &files {
            let is_list =
                *path == list && std::fs::read_to_string(path).is_ok_and(|text| read.makes_list(&text));
            outputs.claim(path, what, if is_list { Mark::Same } else { Mark::None })?;
        }
        for (path, text, _) in files {
            Outputs::write(path, text.as_bytes())?;
            output.message(&format!("{} is written", path.display()));
        }
        return Ok(());
    }
    if !classes.is_empty() && !output.json() {
        let list = read.class_list();
        output.message(&format!("{} names the classes; with --out it is written", list.display()));
    }
    let converted = Converted {
        toml: &toml,
        classes,
        class_list: (!classes.is_empty()).then(|| read.class_list()),
        remote: read.remote(),
        unknown: read.unknown().iter().map(ToString::to_string).collect(),
    };
    output.document(&converted, || toml.clone())
}

/// A key as JSON.
#[derive(Serialize)]
struct Described {
    key: &'static str,
    accepts: String,
    default: Option<Value>,
    doc: &'static str,
}

impl Described {
    fn of(key: &'static Key) -> Self {
        Described { key: key.name, accepts: key.accepts(), default: default(key), doc: key.doc.trim() }
    }
}

/// The default that a file without the key gets; none for a key that must be set.
fn default(key: &Key) -> Option<Value> {
    key.default().filter(|value| key.limit.allows(value))
}

fn matching(filter: Option<&str>) -> Result<Vec<&'static Key>> {
    let Some(filter) = filter else { return Ok(KEYS.iter().collect()) };
    if let Some(exact) = KEYS.iter().find(|key| key.name == filter) {
        return Ok(vec![exact]);
    }
    let found: Vec<&Key> = KEYS.iter().filter(|key| key.name.contains(filter)).collect();
    if found.is_empty() {
        let hint = match nearest(filter, KEYS.iter().map(|key| key.name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`stratus config keys` lists every key".to_owned(),
        };
        return Err(Failure::usage(format!("no configuration key is named like `{filter}`")).hint(hint));
    }
    Ok(found)
}

fn explain(keys: &[&Key]) -> String {
    let blocks: Vec<String> = keys
        .iter()
        .map(|key| {
            let default = match (default(key), key.optional) {
                (Some(value), _) => format!("default {value}"),
                (None, true) => "not set by default".to_owned(),
                (None, false) => "must be set".to_owned(),
            };
            format!("{}\n    {}\n    {}; {default}\n", key.name, key.doc.trim(), key.accepts())
        })
        .collect();
    blocks.join("\n")
}

/// The reference page: a list item per key, its lines within 110 columns.
pub fn reference() -> String {
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
            Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(
                ", \
            ",
            ),
            _ => key.accepts(),
        };
        let default = match (default(key), key.optional) {
            (Some(value), _) => format!("default `{value}`"),
            (None, true) => "not set by default".to_owned(),
            (None, false) => "must be set".to_owned(),
        };
        push_wrapped(&mut text, "- ", &format!("**`{name}`**: {accepts}; {default}."));
        push_wrapped(&mut text, "  ", key.doc.trim());
    }
    text
}

/// Columns of the reference page.
const LINE: usize = 110;

/// Appends lines of a list item: the first begins with `bullet`, the others are indented by two.
fn push_wrapped(text: &mut String, bullet: &str, paragraph: &str) {
    text.push_str(bullet);
    let mut column = bullet.len();
    for (position, word) in paragraph.split_whitespace().enumerate() {
        let width = word.chars().count();
        if column + 1 + width > LINE {
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
