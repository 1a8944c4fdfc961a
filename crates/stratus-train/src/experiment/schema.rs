//! A JSON schema of experiment files, for editors: made of [`KEYS`].

use super::keys::{KEYS, Key, Limit};
use super::value::Kind;
use serde_json::{Map, Value, json};

/// The schema of experiment files, by JSON Schema 2020-12. A section that it does not know in detail is
/// `sweep`, which sweep files have.
#[must_use]
pub fn schema() -> Value {
    let mut properties = Map::new();
    for key in KEYS {
        insert(&mut properties, key.name, of_key(key));
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

/// Enters what a dotted name stands for below its sections.
fn insert(properties: &mut Map<String, Value>, name: &str, of: Value) {
    let Some((section, rest)) = name.split_once('.') else {
        properties.insert(name.to_owned(), of);
        return;
    };
    let section = properties
        .entry(section)
        .or_insert_with(|| json!({ "type": "object", "additionalProperties": false, "properties": {} }));
    if let Some(inner) = section.get_mut("properties").and_then(Value::as_object_mut) {
        insert(inner, rest, of);
    }
}

fn of_key(key: &Key) -> Value {
    let mut of = match key.kind {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Text | Kind::Whole | Kind::Number => item(key.kind, key.limit),
        Kind::Texts => json!({ "type": "array", "items": item(Kind::Text, key.limit) }),
        Kind::Wholes => json!({ "type": "array", "items": item(Kind::Whole, key.limit) }),
        Kind::Numbers => json!({ "type": "array", "items": item(Kind::Number, key.limit) }),
    };
    if let Some(of) = of.as_object_mut() {
        of.insert("description".to_owned(), key.doc.trim().into());
        if let Some(default) = key.default().filter(|default| key.limit.allows(default)) {
            of.insert("default".to_owned(), serde_json::to_value(default).unwrap_or_default());
        }
    }
    of
}

/// A value, or an element of a list.
fn item(kind: Kind, limit: Limit) -> Value {
    let mut of = Map::new();
    let name = match kind {
        Kind::Whole => "integer",
        Kind::Number => "number",
        _ => "string",
    };
    of.insert("type".to_owned(), name.into());
    let mut put = |name: &str, value: Value| _ = of.insert(name.to_owned(), value);
    match limit {
        Limit::Any => {}
        Limit::AtLeast(least) => put("minimum", number(least)),
        Limit::Above(bound) => put("exclusiveMinimum", number(bound)),
        Limit::Between(least, most) => {
            put("minimum", number(least));
            put("maximum", number(most));
        }
        Limit::From(least, bound) => {
            put("minimum", number(least));
            put("exclusiveMaximum", number(bound));
        }
        Limit::FolderName => {
            put("pattern", "^[A-Za-z0-9][A-Za-z0-9._-]*$".into());
            put("maxLength", 100.into());
        }
        Limit::NotEmpty => put("minLength", 1.into()),
    }
    Value::Object(of)
}

/// A limit, as a whole number where it is one.
fn number(limit: f64) -> Value {
    if limit.fract() == 0.0 && limit.abs() < 1e15 { json!(limit as i64) } else { json!(limit) }
}
