//! Apache Parquet, as much of it as flat tables need.
//!
//! ```text
//! PAR1  row groups  footer  length of the footer  PAR1
//!
//! row group: for each column a page: header, gzip of (definition levels, values)
//! ```
//!
//! Every column is optional; a definition level of 1 stands for a value, 0 for none. Levels are
//! run-length encoded, values plain. Headers and footer are Thrift structures in the compact protocol.
//!
//! Sources: the Parquet format 2.10, `parquet.thrift`, "Encodings"; the Thrift compact protocol.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{Column, Field, Kind};

/// Rows of a row group: what is in memory at a time.
const GROUP: usize = 1 << 16;
const MAGIC: &[u8; 4] = b"PAR1";

/// Numbers of `parquet.thrift`.
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
    columns: Vec<Buffer>,
    /// Rows in the buffers.
    rows: usize,
    /// Rows written.
    total: u64,
    groups: Vec<Group>,
}

/// A column of the row group that is being filled.
struct Buffer {
    name: String,
    kind: Kind,
    values: Vec<u8>,
    /// Runs of rows with a value and without one.
    levels: Vec<(bool, u64)>,
}

/// A row group as the footer describes it.
struct Group {
    rows: u64,
    chunks: Vec<Chunk>,
}

/// A column of a row group.
struct Chunk {
    at: u64,
    uncompressed: u64,
    compressed: u64,
}

impl<'w> ParquetWriter<'w> {
    pub(super) fn new(out: &'w mut dyn Write, columns: &[Column]) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let columns = columns.iter().map(|Column { name, kind }| Buffer {
            name: name.clone(),
            kind: *kind,
            values: Vec::new(),
            levels: Vec::new(),
        });
        let columns = columns.collect();
        Ok(Self { out, at: MAGIC.len() as u64, columns, rows: 0, total: 0, groups: Vec::new() })
    }

    /// `fields` are of the kinds of the columns.
    pub(super) fn row(&mut self, fields: &[Field<'_>]) -> io::Result<()> {
        for (column, field) in self.columns.iter_mut().zip(fields) {
            let is_value = !matches!(field, Field::None);
            match column.levels.last_mut() {
                Some((level, count)) if *level == is_value => *count += 1,
                _ => column.levels.push((is_value, 1)),
            }
            match field {
                Field::None => {}
                Field::Whole(number) => column.values.extend(number.to_le_bytes()),
                Field::Number(number) => column.values.extend(number.to_le_bytes()),
                Field::Text(text) => {
                    column.values.extend(length(text.len())?.to_le_bytes());
                    column.values.extend(text.as_bytes());
                }
            }
        }
        self.rows += 1;
        if self.rows == GROUP { self.group() } else { Ok(()) }
    }

    /// Writes the rows in the buffers as a row group.
    fn group(&mut self) -> io::Result<()> {
        let mut chunks = Vec::with_capacity(self.columns.len());
        for column in &mut self.columns {
            let mut levels = Vec::new();
            for (is_value, count) in column.levels.drain(..) {
                // A run: its length with a bit that says so, then the level in a byte.
                varint(&mut levels, count << 1);
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
            chunks.push(Chunk { at: self.at, uncompressed, compressed });
            self.at += compressed;
        }
        self.groups.push(Group { rows: self.rows as u64, chunks });
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

    /// `FileMetaData`.
    fn footer(&self) -> Vec<u8> {
        let mut meta = Thrift::default();
        meta.i32(1, 1);
        meta.list(2, self.columns.len() + 1, |at, element| match at.checked_sub(1) {
            None => {
                element.text(4, "schema");
                element.i32(5, self.columns.len() as i32);
            }
            Some(at) => {
                let Buffer { name, kind, .. } = &self.columns[at];
                element.i32(1, physical(*kind));
                element.i32(3, number::OPTIONAL);
                element.text(4, name);
                if *kind == Kind::Text {
                    element.i32(6, number::UTF8);
                    // LogicalType: STRING.
                    element.structure(10, |logical| logical.structure(1, |_| {}));
                }
            }
        });
        meta.i64(3, self.total);
        meta.list(4, self.groups.len(), |at, element| {
            let Group { rows, chunks } = &self.groups[at];
            element.list(1, chunks.len(), |at, element| {
                let (Chunk { at, uncompressed, compressed }, column) = (&chunks[at], &self.columns[at]);
                element.i64(2, *at);
                element.structure(3, |of_column| {
                    of_column.i32(1, physical(column.kind));
                    of_column.numbers(2, &[number::PLAIN, number::RLE]);
                    of_column.texts(3, &[&column.name]);
                    of_column.i32(4, number::GZIP);
                    of_column.i64(5, *rows);
                    of_column.i64(6, *uncompressed);
                    of_column.i64(7, *compressed);
                    of_column.i64(9, *at);
                });
            });
            element.i64(2, chunks.iter().map(|chunk| chunk.uncompressed).sum());
            element.i64(3, *rows);
        });
        meta.text(6, concat!("stratus ", env!("CARGO_PKG_VERSION")));
        meta.finish()
    }
}

fn physical(kind: Kind) -> i32 {
    match kind {
        Kind::Whole => number::INT64,
        Kind::Number => number::DOUBLE,
        Kind::Text => number::BYTE_ARRAY,
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

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A structure in Thrift's compact protocol. Fields are written in the order of their numbers.
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

    /// A number with its sign in the lowest bit.
    fn zigzag(&mut self, number: i64) {
        varint(&mut self.bytes, ((number << 1) ^ (number >> 63)) as u64);
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
        varint(&mut self.bytes, text.len() as u64);
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
            varint(&mut self.bytes, length as u64);
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
    fn numbers_of_the_compact_protocol() {
        let mut out = Vec::new();
        varint(&mut out, 300);
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
