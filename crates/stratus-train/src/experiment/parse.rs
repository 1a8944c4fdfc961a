//! From TOML text to keys with values, each with its line.

use super::error::{ExperimentError, Origin};
use super::habits;
use super::keys::{KEYS, Key};
use super::value::{Kind, Value};
use std::ops::Range;
use std::path::Path;
use stratus_base::nearest;
use toml::de::{DeTable, DeValue};

/// A key, its value, and where the value was given.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: &'static Key,
    pub value: Value,
    pub origin: Origin,
}

/// What a text sets, in the order in which it stands there, each with its full name.
pub(super) type NamedEntries = Vec<(String, Result<Entry, ExperimentError>)>;

/// The keys that a text sets, in the order in which they stand there.
pub(super) fn known_entries(text: &str, path: &Path) -> Result<Vec<Entry>, ExperimentError> {
    entries(text, path)?.into_iter().map(|(_, entry)| entry).collect()
}

/// What a text sets: where that is no key, or not of its type, the error.
pub(super) fn entries(text: &str, path: &Path) -> Result<NamedEntries, ExperimentError> {
    let origin = |span: Option<Range<usize>>| Origin::File {
        path: path.to_owned(),
        line: span.map(|span| line_of(text, span.start)),
    };
    let document = DeTable::parse(text).map_err(|error| ExperimentError::Syntax {
        origin: origin(error.span()),
        message: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    collect(document.get_ref(), "", &mut |name, span, value| {
        found.push((
            span.start,
            name,
            Origin::File { path: path.to_owned(), line: Some(line_of(text, span.start)) },
            value,
        ));
    });
    found.sort_by_key(|(start, ..)| *start);
    let entry = |name: &str, origin: Origin, value: Found| {
        let key = find_key(name, &origin)?;
        let value = value.map_err(|found| wrong_type(key, origin.clone(), found.to_owned()))?;
        Ok(Entry { key, value, origin })
    };
    Ok(found
        .into_iter()
        .map(|(_, name, origin, value)| {
            let entry = entry(&name, origin, value);
            (name, entry)
        })
        .collect())
}

/// A table entry's value, or a description of something that no key can hold.
type Found = Result<Value, &'static str>;

fn collect(table: &DeTable<'_>, prefix: &str, report: &mut dyn FnMut(String, Range<usize>, Found)) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        match value.get_ref() {
            DeValue::Table(inner) if is_section(&key) => collect(inner, &key, report),
            // An unknown section with keys is reported key by key, so that the suggestion fits.
            DeValue::Table(inner) if !inner.is_empty() && !is_key(&key) => collect(inner, &key, report),
            other => report(key, name.span(), Value::from_toml(other)),
        }
    }
}

fn is_key(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name)
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The key of this name, or the error that suggests another.
pub(super) fn find_key(name: &str, origin: &Origin) -> Result<&'static Key, ExperimentError> {
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return Ok(key);
    }
    if is_section(name)
        && let Some(example) = KEYS.iter().find(|key| key.split().0 == name)
    {
        return Err(ExperimentError::SectionAsKey {
            origin: origin.clone(),
            section: name.to_owned(),
            example: example.name,
        });
    }
    Err(ExperimentError::UnknownKey {
        origin: origin.clone(),
        key: name.to_owned(),
        nearest: habits::key_of(name).or_else(|| nearest(name, KEYS.iter().map(|key| key.name))),
    })
}

/// Whether a value is of the type that a key expects.
pub(super) fn fits(kind: Kind, value: &Value) -> bool {
    // The type of an empty list is unknown.
    let is_empty_list = matches!(value, Value::Wholes(numbers) if numbers.is_empty());
    let fits = matches!(
        (kind, value),
        (Kind::Text | Kind::Choice(_), Value::Text(_))
            | (Kind::Whole, Value::Whole(_))
            | (Kind::Number, Value::Number(_) | Value::Whole(_))
            | (Kind::Flag, Value::Flag(_))
            | (Kind::Numbers, Value::Numbers(_) | Value::Wholes(_))
            | (Kind::Wholes, Value::Wholes(_))
            | (Kind::Texts, Value::Texts(_))
    );
    fits || kind == Kind::Texts && is_empty_list
}

pub(super) fn wrong_type(key: &'static Key, origin: Origin, found: String) -> ExperimentError {
    ExperimentError::WrongType { origin, key: key.name, expected: key.accepts(), found }
}

/// Whether a text is a layer file: it has `[[layer]]`, which an experiment has not.
pub(super) fn is_layer_file(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|document| {
        document.get_ref().get("layer").is_some_and(|layer| matches!(layer.get_ref(), DeValue::Array(_)))
    })
}

/// The name that a layer file gives its network.
pub(super) fn network_name(text: &str) -> Option<String> {
    match DeTable::parse(text).ok()?.get_ref().get("name")?.get_ref() {
        DeValue::String(name) => Some(name.to_string()),
        _ => None,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}
