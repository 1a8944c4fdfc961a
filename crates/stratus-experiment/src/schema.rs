//! The JSON schema of experiment files, for editors, generated from [`KEYS`].

use crate::keys::{Constraint, KEYS, Key};
use crate::value::ValueKind;
use serde_json::{Map, Value, json};

/// The schema of experiment files, as JSON Schema 2020-12. It accepts any `sweep` section, which sweep files
/// have.
#[must_use]
pub fn schema() -> Value {
    let mut properties = Map::new();
    for key in KEYS {
        insert(&mut properties, key.name, key_schema(key));
    }
    properties.insert(
        "sweep".to_owned(),
        json!({ "type": "object", "description": "Keys that are swept: see `stratus sweep`." }),
    );
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stratus experiment",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// Inserts the schema of a dotted name below its sections.
fn insert(properties: &mut Map<String, Value>, name: &str, schema: Value) {
    let Some((section, rest)) = name.split_once('.') else {
        properties.insert(name.to_owned(), schema);
        return;
    };
    let section = properties
        .entry(section)
        .or_insert_with(|| json!({ "type": "object", "additionalProperties": false, "properties": {} }));
    if let Some(inner) = section.get_mut("properties").and_then(Value::as_object_mut) {
        insert(inner, rest, schema);
    }
}

fn key_schema(key: &Key) -> Value {
    let mut schema = match key.kind {
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Choice(words) => json!({ "enum": words }),
        ValueKind::String | ValueKind::Integer | ValueKind::Float => item(key.kind, key.constraint),
        ValueKind::StringList => json!({ "type": "array", "items": item(ValueKind::String, key.constraint) }),
        ValueKind::IntegerList => {
            json!({ "type": "array", "items": item(ValueKind::Integer, key.constraint) })
        }
        ValueKind::FloatList => json!({ "type": "array", "items": item(ValueKind::Float, key.constraint) }),
    };
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), key.doc.trim().into());
        if let Some(default) = key.default().filter(|default| key.constraint.allows(default)) {
            schema.insert("default".to_owned(), serde_json::to_value(default).unwrap_or_default());
        }
    }
    schema
}

/// The schema of a value, or of an element of a list.
fn item(kind: ValueKind, constraint: Constraint) -> Value {
    let mut schema = Map::new();
    let name = match kind {
        ValueKind::Integer => "integer",
        ValueKind::Float => "number",
        _ => "string",
    };
    schema.insert("type".to_owned(), name.into());
    let mut put = |name: &str, value: Value| _ = schema.insert(name.to_owned(), value);
    match constraint {
        Constraint::Any => {}
        Constraint::AtLeast(min) => put("minimum", number(min)),
        Constraint::Above(bound) => put("exclusiveMinimum", number(bound)),
        Constraint::Inclusive(min, max) => {
            put("minimum", number(min));
            put("maximum", number(max));
        }
        Constraint::HalfOpen(min, bound) => {
            put("minimum", number(min));
            put("exclusiveMaximum", number(bound));
        }
        Constraint::FolderName => {
            put("pattern", "^[A-Za-z0-9][A-Za-z0-9._-]*$".into());
            put("maxLength", 100.into());
        }
        Constraint::NotEmpty => put("minLength", 1.into()),
    }
    Value::Object(schema)
}

/// A number, as an integer if it is one.
fn number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}
