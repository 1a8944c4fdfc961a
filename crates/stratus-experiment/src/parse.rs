//! Parses TOML text into keys with values, each with its line.

use crate::error::{ExperimentError, Origin};
use crate::foreign_names;
use crate::keys::{KEYS, Key};
use crate::value::{Value, ValueKind};
use std::ops::Range;
use std::path::Path;
use stratus_base::nearest;
use toml::de::{DeTable, DeValue};

/// A key with its value and origin.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: &'static Key,
    pub value: Value,
    pub origin: Origin,
}

/// Parses the settings of a text, in their order, except those of a section.
///
/// # Errors
/// If the text is not TOML; the first setting that is unknown or of the wrong type.
pub(crate) fn entries(
    text: &str,
    path: &Path,
    excluded: Option<&str>,
) -> Result<Vec<Entry>, ExperimentError> {
    let origin = |line: Option<usize>| Origin::File { path: path.to_owned(), line };
    let document = DeTable::parse(text).map_err(|error| ExperimentError::Syntax {
        origin: origin(error.span().map(|span| 1 + line_breaks(text, 0..span.start))),
        message: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    collect(document.get_ref(), "", &mut |name, span, value| {
        if excluded.is_none_or(|section| name.split('.').next() != Some(section)) {
            found.push((span.start, name, value));
        }
    });
    found.sort_by_key(|(start, ..)| *start);
    // Counts lines from one setting to the next: from the beginning, the time would be quadratic.
    let (mut line, mut counted) = (1, 0);
    let mut entry = |(start, name, value): (usize, String, Found)| {
        line += line_breaks(text, counted..start);
        counted = start;
        let origin = origin(Some(line));
        let key = find_key(&name, &origin)?;
        let value = value.map_err(|found| wrong_type(key, origin.clone(), found.to_owned()))?;
        Ok(Entry { key, value, origin })
    };
    found.into_iter().map(&mut entry).collect()
}

/// A table entry's value, or a description of a value that no key accepts.
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
            // The keys of an unknown section are reported one by one, each with its own suggestion.
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

/// The key of a name.
///
/// # Errors
/// If there is none; suggests another.
pub(crate) fn find_key(name: &str, origin: &Origin) -> Result<&'static Key, ExperimentError> {
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
        nearest: foreign_names::key_of(name).or_else(|| nearest(name, KEYS.iter().map(|key| key.name))),
    })
}

/// Returns whether a value has a key's type.
pub(crate) fn fits(kind: ValueKind, value: &Value) -> bool {
    // The type of an empty list is unknown.
    let is_empty_list = matches!(value, Value::IntegerList(numbers) if numbers.is_empty());
    let fits = matches!(
        (kind, value),
        (ValueKind::String | ValueKind::Choice(_), Value::String(_))
            | (ValueKind::Integer, Value::Integer(_))
            | (ValueKind::Float, Value::Float(_) | Value::Integer(_))
            | (ValueKind::Bool, Value::Bool(_))
            | (ValueKind::FloatList, Value::FloatList(_) | Value::IntegerList(_))
            | (ValueKind::IntegerList, Value::IntegerList(_))
            | (ValueKind::StringList, Value::StringList(_))
    );
    fits || kind == ValueKind::StringList && is_empty_list
}

pub(crate) fn wrong_type(key: &'static Key, origin: Origin, found: String) -> ExperimentError {
    ExperimentError::WrongType { origin, key: key.name, expected: key.accepts(), found }
}

/// Returns whether a text is a layer file: only layer files have `[[layer]]`.
pub(crate) fn is_layer_file(text: &str) -> bool {
    DeTable::parse(text).is_ok_and(|document| {
        document.get_ref().get("layer").is_some_and(|layer| matches!(layer.get_ref(), DeValue::Array(_)))
    })
}

/// The name that a layer file gives its network.
pub(crate) fn network_name(text: &str) -> Option<String> {
    match DeTable::parse(text).ok()?.get_ref().get("name")?.get_ref() {
        DeValue::String(name) => Some(name.to_string()),
        _ => None,
    }
}

fn line_breaks(text: &str, range: Range<usize>) -> usize {
    text.as_bytes().get(range).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
}
