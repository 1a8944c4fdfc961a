//! A reader of Parquet files with flat columns: plain and dictionary encoding, uncompressed or compressed by
//! snappy, gzip or zstd.
//!
//! It reads only what a table needs, so that the program grows little, and bounds the memory of a damaged
//! file by the file's length.
//!
//! The format: <https://parquet.apache.org/docs/file-format/>.

mod codec;
mod metadata;
mod thrift;
mod values;

use std::io::{Read, Seek, SeekFrom};

use self::metadata::{FileMetadata, Leaf};
use self::values::Values;
use super::source::{Cell, Problem, Row, RowCallback};

/// The first and the last bytes of a file.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// The last bytes of an encrypted file.
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";
/// The length of the footer's length and the last bytes.
const END_BYTES: u64 = 8;
/// The maximum size of the metadata.
const MAX_METADATA_BYTES: u64 = 16 << 20;
/// The maximum number of cells that are read, if the file is small.
const MAX_SMALL_CELLS: u64 = 1 << 22;
/// The maximum number of cells per byte of a larger file: a bit per cell, and runs.
const MAX_CELLS_PER_BYTE: u64 = 256;

/// A Parquet file.
pub(super) struct ParquetFile<R> {
    input: R,
    length: u64,
    metadata: FileMetadata,
    columns: Vec<String>,
}

impl<R: Read + Seek> ParquetFile<R> {
    /// Reads the metadata of a file of `length` bytes.
    pub(super) fn open(mut input: R, length: u64) -> Result<Self, Problem> {
        let damaged = |problem: &str| Problem::whole(format!("is a damaged Parquet file: {problem}"));
        let mut end = [0; END_BYTES as usize];
        let at = length.checked_sub(END_BYTES).ok_or_else(|| damaged("it ends after its first bytes"))?;
        read_at(&mut input, at, &mut end).map_err(|problem| damaged(&problem))?;
        let [size @ .., _, _, _, _] = end;
        if end.ends_with(ENCRYPTED_MAGIC) {
            return Err(Problem::whole("is an encrypted Parquet file; decrypt it".to_owned()));
        }
        if !end.ends_with(MAGIC) {
            return Err(damaged("its end is missing"));
        }
        let size = u64::from(u32::from_le_bytes(size));
        let start = at.checked_sub(size).filter(|_| size <= MAX_METADATA_BYTES);
        let start = start.ok_or_else(|| damaged(&format!("its metadata have {size} bytes")))?;
        let mut bytes = vec![0; size as usize];
        read_at(&mut input, start, &mut bytes).map_err(|problem| damaged(&problem))?;
        let metadata = FileMetadata::parse(&bytes).map_err(|problem| damaged(&problem))?;
        let columns = metadata.columns.iter().map(|column| column.name.clone()).collect();
        Ok(Self { input, length, metadata, columns })
    }

    /// The names of the columns at the top level.
    pub(super) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Reads the columns `wanted` of all rows.
    pub(super) fn read(&mut self, wanted: &[usize], callback: RowCallback<'_>) -> Result<(), Problem> {
        let mut leaves = Vec::new();
        for &column in wanted {
            let in_column = |text: String| Problem { row: None, column: Some(column), text };
            let found = self.metadata.columns.get(column).map(|column| column.leaf.clone());
            let found = found.unwrap_or_else(|| Err("is missing".to_owned()));
            leaves.push((column, found.map_err(in_column)?));
        }
        let cells = self.metadata.rows.saturating_mul(leaves.len() as u64);
        if cells > MAX_SMALL_CELLS.max(self.length.saturating_mul(MAX_CELLS_PER_BYTE)) {
            let rows = self.metadata.rows;
            let text = format!("is a damaged Parquet file: {rows} rows in {} bytes", self.length);
            return Err(Problem::whole(text));
        }
        let mut before = 0;
        for group in 0..self.metadata.groups.len() {
            let rows = self.metadata.groups[group].rows;
            let in_file = self.metadata.rows;
            let Some(rows) = usize::try_from(rows).ok().filter(|_| rows <= in_file - before) else {
                return Err(Problem::whole(
                    "is a damaged Parquet file: its groups have more rows".to_owned(),
                ));
            };
            let mut values: Vec<Option<Values>> = Vec::new();
            values.resize_with(self.columns.len(), || None);
            for &(column, leaf) in &leaves {
                let found = self.read_chunk(group, leaf, rows);
                let in_column = |text| Problem { row: Some(before + 1), column: Some(column), text };
                values[column] = Some(found.map_err(in_column)?);
            }
            for row in 0..rows {
                callback(before + row as u64 + 1, &GroupRow { values: &values, row })?;
            }
            before += rows as u64;
        }
        if before != self.metadata.rows {
            let text = format!("is a damaged Parquet file: {before} of {} rows", self.metadata.rows);
            return Err(Problem::whole(text));
        }
        Ok(())
    }

    /// Reads the values of a column in a row group.
    fn read_chunk(&mut self, group: usize, leaf: Leaf, rows: usize) -> Result<Values, String> {
        let chunk = self.metadata.groups[group].chunks.get(leaf.chunk).ok_or("is missing in a row group")?;
        if chunk.is_elsewhere {
            return Err("is in another file".to_owned());
        }
        if chunk.values != rows as u64 {
            return Err(format!("has {} values in a group of {rows} rows", chunk.values));
        }
        // Some writers store 0 if there is no dictionary.
        let dictionary = chunk.dictionary_page.filter(|&at| at > 0 && at < chunk.data_page);
        let start = dictionary.unwrap_or(chunk.data_page);
        if start.checked_add(chunk.bytes).is_none_or(|end| end > self.length) {
            return Err("is beyond the end of the file".to_owned());
        }
        let mut bytes = vec![0; chunk.bytes as usize];
        read_at(&mut self.input, start, &mut bytes)?;
        Values::read(&bytes, leaf, chunk, rows)
    }
}

fn read_at(input: &mut (impl Read + Seek), at: u64, out: &mut [u8]) -> Result<(), String> {
    input.seek(SeekFrom::Start(at)).and_then(|_| input.read_exact(out)).map_err(|error| error.to_string())
}

/// A row of a group.
struct GroupRow<'a> {
    /// The values of the columns that were read.
    values: &'a [Option<Values>],
    row: usize,
}

impl Row for GroupRow<'_> {
    fn cell(&self, column: usize) -> Cell<'_> {
        let Some(values) = self.values.get(column).and_then(Option::as_ref) else { return Cell::Text("") };
        match values.text(self.row) {
            Some(text) => Cell::Text(text),
            None => Cell::Number(values.number(self.row)),
        }
    }
}
