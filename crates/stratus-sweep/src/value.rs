//! Values of a sweep file.

use toml::de::DeValue;

/// Formats a value in the syntax of `--set`: a string as it is, everything else as TOML.
pub(crate) fn to_set_value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Array(values) => {
            let inner = values.iter().map(|value| match value.get_ref() {
                DeValue::String(text) => toml::Value::String(text.to_string()).to_string(),
                other => to_set_value(other),
            });
            format!("[{}]", inner.collect::<Vec<_>>().join(", "))
        }
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Table(_) => "{}".to_owned(),
    }
}

/// Returns the value of a non-negative integer.
pub(crate) fn parse_count(value: &DeValue<'_>) -> Option<usize> {
    match value {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', "").parse().ok(),
        _ => None,
    }
}

/// Reads `sweep.zip`: a list of lists of keys.
pub(crate) fn parse_key_groups(value: &DeValue<'_>) -> Option<Vec<Vec<String>>> {
    let DeValue::Array(groups) = value else { return None };
    groups
        .iter()
        .map(|group| {
            let DeValue::Array(keys) = group.get_ref() else { return None };
            keys.iter()
                .map(|key| match key.get_ref() {
                    DeValue::String(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect()
        })
        .collect()
}
