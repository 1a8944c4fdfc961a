//! A writer of Apache Parquet for flat tables.
//!
//! ```text
//! PAR1  row groups  footer  length of the footer  PAR1
//!
//! row group: for each column a page: header, gzip of (definition levels, values)
//! ```
//!
//! Every column is optional; a definition level of 1 denotes a value, 0 none. Levels are
//! run-length encoded, values plain. Headers and footer are Thrift structures in the compact protocol.
//!
//! Sources: the Parquet format 2.10, `parquet.thrift`, "Encodings"; the Thrift compact protocol.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use stratus_base::protobuf::write_varint;

use super::column::{Column, ColumnType, FieldValue};

/// Rows per row group, which are buffered in memory.
const ROWS_PER_GROUP: usize = 1 << 16;
const MAGIC: &[u8; 4] = b"PAR1";

/// Constants of `parquet.thrift`.
mod number {
    pub const INT64: i32 = 2;
    pub const DOUBLE: i32 = 5;
    pub const BYTE_ARRAY: i32 = 6;
    pub const OPTIONAL: i32 = 1;
    pub const UTF8: i32 = 0;
    pub const PLAIN: i32 = 0;
    pub const RLE: i32 = 3;
    pub const GZIP: i32 = 2;
    pub const DATA_PAGE: i32 = 0;
}

/// Writes a table.
pub(super) struct ParquetWriter<'w> {
    out: &'w mut dyn Write,
    /// Bytes written so far.
    at: u64,
    columns: Vec<ColumnBuffer>,
    /// Rows in the buffers.
    rows: usize,
    /// Rows written.
    total: u64,
    groups: Vec<RowGroup>,
}

/// A buffered column of the current row group.
struct ColumnBuffer {
    name: String,
    column_type: ColumnType,
    values: Vec<u8>,
    /// Run lengths of rows with and without a value.
    levels: Vec<(bool, u64)>,
}

/// The metadata of a row group in the footer.
struct RowGroup {
    rows: u64,
    chunks: Vec<ColumnChunk>,
}

/// The metadata of a column of a row group.
struct ColumnChunk {
    at: u64,
    uncompressed: u64,
    compressed: u64,
}

impl<'w> ParquetWriter<'w> {
    pub(super) fn new(out: &'w mut dyn Write, columns: &[Column]) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let columns = columns.iter().map(|Column { name, column_type: kind }| ColumnBuffer {
            name: name.clone(),
            column_type: *kind,
            values: Vec::new(),
            levels: Vec::new(),
        });
        let columns = columns.collect();
        Ok(Self { out, at: MAGIC.len() as u64, columns, rows: 0, total: 0, groups: Vec::new() })
    }

    /// Buffers a row; the types of `fields` must match the columns.
    pub(super) fn row(&mut self, fields: &[FieldValue<'_>]) -> io::Result<()> {
        for (column, field) in self.columns.iter_mut().zip(fields) {
            let is_value = !matches!(field, FieldValue::None);
            match column.levels.last_mut() {
                Some((level, count)) if *level == is_value => *count += 1,
                _ => column.levels.push((is_value, 1)),
            }
            match field {
                FieldValue::None => {}
                FieldValue::Integer(number) => column.values.extend(number.to_le_bytes()),
                FieldValue::Float(number) => column.values.extend(number.to_le_bytes()),
                FieldValue::Text(text) => {
                    column.values.extend(length(text.len())?.to_le_bytes());
                    column.values.extend(text.as_bytes());
                }
            }
        }
        self.rows += 1;
        if self.rows == ROWS_PER_GROUP { self.group() } else { Ok(()) }
    }

    /// Writes the buffered rows as a row group.
    fn group(&mut self) -> io::Result<()> {
        let mut chunks = Vec::with_capacity(self.columns.len());
        for column in &mut self.columns {
            let mut levels = Vec::new();
            for (is_value, count) in column.levels.drain(..) {
                // A run: its length with the low bit 0, then the level as a byte.
                write_varint(&mut levels, count << 1);
                levels.push(u8::from(is_value));
            }
            let mut body = length(levels.len())?.to_le_bytes().to_vec();
            body.append(&mut levels);
            body.append(&mut column.values);
            let mut packed = GzEncoder::new(Vec::new(), Compression::default());
            packed.write_all(&body)?;
            let packed = packed.finish()?;
            let mut header = Thrift::default();
            header.i32(1, number::DATA_PAGE);
            header.i32(2, signed(body.len())?);
            header.i32(3, signed(packed.len())?);
            header.structure(5, |page| {
                page.i32(1, self.rows as i32);
                page.i32(2, number::PLAIN);
                page.i32(3, number::RLE);
                page.i32(4, number::RLE);
            });
            let header = header.finish();
            self.out.write_all(&header)?;
            self.out.write_all(&packed)?;
            let [uncompressed, compressed] =
                [body.len(), packed.len()].map(|bytes| (header.len() + bytes) as u64);
            chunks.push(ColumnChunk { at: self.at, uncompressed, compressed });
            self.at += compressed;
        }
        self.groups.push(RowGroup { rows: self.rows as u64, chunks });
        self.total += self.rows as u64;
        self.rows = 0;
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.rows > 0 {
            self.group()?;
        }
        let footer = self.footer();
        self.out.write_all(&footer)?;
        self.out.write_all(&length(footer.len())?.to_le_bytes())?;
        self.out.write_all(MAGIC)?;
        self.out.flush()
    }

    /// The `FileMetaData` structure.
    fn footer(&self) -> Vec<u8> {
        let mut meta = Thrift::default();
        meta.i32(1, 1);
        meta.list(2, self.columns.len() + 1, |at, element| match at.checked_sub(1) {
            None => {
                element.text(4, "schema");
                element.i32(5, self.columns.len() as i32);
            }
            Some(at) => {
                let ColumnBuffer { name, column_type: kind, .. } = &self.columns[at];
                element.i32(1, physical(*kind));
                element.i32(3, number::OPTIONAL);
                element.text(4, name);
                if *kind == ColumnType::Text {
                    element.i32(6, number::UTF8);
                    // LogicalType: STRING.
                    element.structure(10, |logical| logical.structure(1, |_| {}));
                }
            }
        });
        meta.i64(3, self.total);
        meta.list(4, self.groups.len(), |at, element| {
            let RowGroup { rows, chunks } = &self.groups[at];
            element.list(1, chunks.len(), |at, element| {
                let (ColumnChunk { at, uncompressed, compressed }, column) = (&chunks[at], &self.columns[at]);
                element.i64(2, *at);
                element.structure(3, |metadata| {
                    metadata.i32(1, physical(column.column_type));
                    metadata.numbers(2, &[number::PLAIN, number::RLE]);
                    metadata.texts(3, &[&column.name]);
                    metadata.i32(4, number::GZIP);
                    metadata.i64(5, *rows);
                    metadata.i64(6, *uncompressed);
                    metadata.i64(7, *compressed);
                    metadata.i64(9, *at);
                });
            });
            element.i64(2, chunks.iter().map(|chunk| chunk.uncompressed).sum());
            element.i64(3, *rows);
        });
        meta.text(6, concat!("stratus ", env!("CARGO_PKG_VERSION")));
        meta.finish()
    }
}

fn physical(kind: ColumnType) -> i32 {
    match kind {
        ColumnType::Integer => number::INT64,
        ColumnType::Float => number::DOUBLE,
        ColumnType::Text => number::BYTE_ARRAY,
    }
}

fn too_long<E>(_: E) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a column of a row group is longer than 2 GiB")
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(too_long)
}

fn signed(bytes: usize) -> io::Result<i32> {
    i32::try_from(bytes).map_err(too_long)
}

/// A writer of structures in the compact protocol of Thrift. Fields must be written in the order of their
/// numbers.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
}

impl Thrift {
    const I32: u8 = 5;
    const I64: u8 = 6;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const STRUCT: u8 = 12;

    fn field(&mut self, number: u8, kind: u8) {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    /// Writes a number with its sign in the lowest bit.
    fn zigzag(&mut self, number: i64) {
        write_varint(&mut self.bytes, ((number << 1) ^ (number >> 63)) as u64);
    }

    fn i32(&mut self, number: u8, value: i32) {
        self.field(number, Self::I32);
        self.zigzag(i64::from(value));
    }

    fn i64(&mut self, number: u8, value: u64) {
        self.field(number, Self::I64);
        self.zigzag(value as i64);
    }

    fn string(&mut self, text: &str) {
        write_varint(&mut self.bytes, text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn text(&mut self, number: u8, text: &str) {
        self.field(number, Self::BINARY);
        self.string(text);
    }

    fn list_header(&mut self, number: u8, length: usize, kind: u8) {
        self.field(number, Self::LIST);
        if length < 15 {
            self.bytes.push((length as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            write_varint(&mut self.bytes, length as u64);
        }
    }

    fn numbers(&mut self, number: u8, values: &[i32]) {
        self.list_header(number, values.len(), Self::I32);
        values.iter().for_each(|&value| self.zigzag(i64::from(value)));
    }

    fn texts(&mut self, number: u8, values: &[&str]) {
        self.list_header(number, values.len(), Self::BINARY);
        values.iter().for_each(|value| self.string(value));
    }

    fn structure(&mut self, number: u8, fill: impl FnOnce(&mut Self)) {
        self.field(number, Self::STRUCT);
        self.nested(fill);
    }

    fn list(&mut self, number: u8, length: usize, mut fill: impl FnMut(usize, &mut Self)) {
        self.list_header(number, length, Self::STRUCT);
        (0..length).for_each(|at| self.nested(|element| fill(at, element)));
    }

    fn nested(&mut self, fill: impl FnOnce(&mut Self)) {
        let last = std::mem::take(&mut self.last);
        fill(self);
        self.bytes.push(0);
        self.last = last;
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_the_compact_protocol() {
        let mut out = Vec::new();
        write_varint(&mut out, 300);
        assert_eq!(out, [0xac, 0x02]);
        let mut thrift = Thrift::default();
        thrift.i32(1, -1);
        thrift.i64(4, 64);
        thrift.text(5, "ab");
        thrift.numbers(6, &[1; 15]);
        let expected = [&[0x15, 1, 0x36, 0x80, 1, 0x18, 2, b'a', b'b', 0x19, 0xf5, 15][..], &[2; 15], &[0]];
        assert_eq!(thrift.finish(), expected.concat());
    }
}
