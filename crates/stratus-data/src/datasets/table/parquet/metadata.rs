//! Parquet's metadata: the footer of a file, and the headers of pages.
//!
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>

use super::thrift::Compact;

type Result<T> = std::result::Result<T, String>;

/// The metadata of a file.
#[derive(Debug, Default)]
pub(super) struct FileMetadata {
    pub columns: Vec<SchemaColumn>,
    pub rows: u64,
    pub groups: Vec<RowGroup>,
}

/// A column at the top level of the schema.
#[derive(Debug)]
pub(super) struct SchemaColumn {
    pub name: String,
    /// The index of its chunk in a row group; `Err` with the reason if it cannot be read.
    pub leaf: std::result::Result<Leaf, String>,
}

/// A column without nesting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    /// The index of its chunk in a row group.
    pub chunk: usize,
    pub kind: PhysicalType,
    /// True if cells may be missing.
    pub is_optional: bool,
    /// True if integers have no sign.
    pub is_unsigned: bool,
}

/// The stored type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhysicalType {
    Boolean,
    Int32,
    Int64,
    Float,
    Double,
    Text,
}

/// A range of rows.
#[derive(Debug, Default)]
pub(super) struct RowGroup {
    pub chunks: Vec<Chunk>,
    pub rows: u64,
}

/// The values of a column in a row group.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunk {
    pub codec: u64,
    pub values: u64,
    pub bytes: u64,
    pub data_page: u64,
    pub dictionary_page: Option<u64>,
    /// True if it is in another file.
    pub is_elsewhere: bool,
}

/// An element of the schema, in depth-first order.
#[derive(Debug, Default)]
struct SchemaElement {
    kind: Option<u64>,
    repetition: u64,
    name: String,
    children: u64,
    converted: Option<u64>,
    /// The field of the union `LogicalType`.
    logical: Option<i64>,
}

/// The header of a page.
#[derive(Debug, Default)]
pub(super) struct PageHeader {
    pub kind: u64,
    pub uncompressed: u64,
    pub compressed: u64,
    pub values: u64,
    pub encoding: u64,
    /// For data pages of version 2: the bytes of definition and repetition levels.
    pub levels: [u64; 2],
    pub is_compressed: bool,
}

impl FileMetadata {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let (mut metadata, mut schema) = (Self::default(), Vec::new());
        Compact::new(bytes).fields(|input, field, _| {
            match field {
                2 => schema = input.list(SchemaElement::read)?,
                3 => metadata.rows = input.count()?,
                4 => metadata.groups = input.list(RowGroup::read)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        metadata.columns = columns(&schema)?;
        Ok(metadata)
    }
}

/// The columns at the top level.
fn columns(schema: &[SchemaElement]) -> Result<Vec<SchemaColumn>> {
    let Some((root, elements)) = schema.split_first() else { return Err("the schema is empty".to_owned()) };
    let mut columns = Vec::new();
    let (mut at, mut chunk) = (0, 0);
    for _ in 0..root.children {
        let Some(element) = elements.get(at) else { return Err("the schema ends too early".to_owned()) };
        let leaf = element.leaf(chunk);
        columns.push(SchemaColumn { name: element.name.clone(), leaf });
        // The elements of the subtree that are still to come.
        let mut open = 1u64;
        while open > 0 {
            let Some(element) = elements.get(at) else { return Err("the schema ends too early".to_owned()) };
            open = (open - 1).saturating_add(element.children);
            chunk += usize::from(element.children == 0);
            at += 1;
        }
    }
    Ok(columns)
}

impl SchemaElement {
    fn read(input: &mut Compact<'_>) -> Result<Self> {
        let mut element = Self::default();
        input.fields(|input, field, _| {
            match field {
                1 => element.kind = Some(input.count()?),
                3 => element.repetition = input.count()?,
                4 => element.name = input.text()?,
                5 => element.children = input.count()?,
                6 => element.converted = Some(input.count()?),
                10 => input.fields(|_, field, _| {
                    element.logical = Some(field);
                    Ok(false)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }

    fn leaf(&self, chunk: usize) -> Result<Leaf> {
        if self.children > 0 || self.repetition > 1 {
            return Err("has lists or structures; expected one text or number per row".to_owned());
        }
        // Decimals, dates and times are stored as integers.
        if self.converted.is_some_and(|kind| (5..=10).contains(&kind))
            || self.logical.is_some_and(|kind| (5..=8).contains(&kind))
        {
            return Err("has decimals, dates or times; expected text or numbers".to_owned());
        }
        let kind = match self.kind {
            Some(0) => PhysicalType::Boolean,
            Some(1) => PhysicalType::Int32,
            Some(2) => PhysicalType::Int64,
            Some(4) => PhysicalType::Float,
            Some(5) => PhysicalType::Double,
            Some(6) => PhysicalType::Text,
            _ => return Err("has values of an unsupported type; expected text or numbers".to_owned()),
        };
        let is_unsigned = self.converted.is_some_and(|kind| (11..=14).contains(&kind));
        Ok(Leaf { chunk, kind, is_optional: self.repetition == 1, is_unsigned })
    }
}

impl RowGroup {
    fn read(input: &mut Compact<'_>) -> Result<Self> {
        let mut group = Self::default();
        input.fields(|input, field, _| {
            match field {
                1 => group.chunks = input.list(Chunk::read)?,
                3 => group.rows = input.count()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(group)
    }
}

impl Chunk {
    fn read(input: &mut Compact<'_>) -> Result<Self> {
        let mut chunk = Self::default();
        input.fields(|input, field, _| {
            match field {
                1 => chunk.is_elsewhere = !input.text()?.is_empty(),
                3 => input.fields(|input, field, _| {
                    match field {
                        4 => chunk.codec = input.count()?,
                        5 => chunk.values = input.count()?,
                        7 => chunk.bytes = input.count()?,
                        9 => chunk.data_page = input.count()?,
                        11 => chunk.dictionary_page = Some(input.count()?),
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(chunk)
    }
}

impl PageHeader {
    /// Reads a header, and its length.
    pub(super) fn read(bytes: &[u8]) -> Result<(Self, usize)> {
        let mut header = Self { is_compressed: true, ..Self::default() };
        let mut input = Compact::new(bytes);
        input.fields(|input, field, _| {
            match field {
                1 => header.kind = input.count()?,
                2 => header.uncompressed = input.count()?,
                3 => header.compressed = input.count()?,
                // Data, dictionary and data of version 2: their numbers of values come first.
                5 | 7 | 8 => input.fields(|input, inner, kind| {
                    match (field, inner) {
                        (_, 1) => header.values = input.count()?,
                        (5 | 7, 2) | (8, 4) => header.encoding = input.count()?,
                        (8, 5) => header.levels[0] = input.count()?,
                        (8, 6) => header.levels[1] = input.count()?,
                        (8, 7) => header.is_compressed = Compact::bool(kind),
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((header, input.position()))
    }
}
