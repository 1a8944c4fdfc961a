//! Columns of a table, and their values.

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Signed 64-bit integers.
    Integer,
    /// Numbers of type f64.
    Float,
    /// UTF-8 text.
    Text,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The name.
    pub name: String,
    /// The type.
    pub column_type: ColumnType,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, kind: ColumnType) -> Self {
        Self { name: name.into(), column_type: kind }
    }
}

/// A field of a row, of the type of its column or empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// No value.
    None,
    /// An integer.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(&'a str),
}

impl From<Option<f64>> for FieldValue<'_> {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::None, Self::Float)
    }
}
