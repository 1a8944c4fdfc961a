//! The values of a column in a row group, from its pages.

use super::codec::unpack;
use super::metadata::{Chunk, Leaf, PageHeader, PhysicalType};

type Result<T> = std::result::Result<T, String>;

/// The encodings of values, by their numbers.
const PLAIN: u64 = 0;
const PLAIN_DICTIONARY: u64 = 2;
const RLE: u64 = 3;
const RLE_DICTIONARY: u64 = 8;

/// The kinds of pages, by their numbers.
const DATA_PAGE: u64 = 0;
const DICTIONARY_PAGE: u64 = 2;
const DATA_PAGE_V2: u64 = 3;

/// The maximum size of a column's unpacked pages in a row group, if they are packed well.
const MAX_SMALL_CHUNK_BYTES: u64 = 64 << 20;
/// The maximum size of more pages, in units of their packed size.
const MAX_CHUNK_RATIO: u64 = 256;

/// The row of a missing text.
const MISSING: u32 = u32::MAX;

/// The values of a column, one per row.
#[derive(Debug)]
pub(super) enum Values {
    /// NaN if missing.
    Numbers(Vec<f64>),
    /// The index of each text in `texts`.
    Texts { texts: Texts, rows: Vec<u32> },
}

/// Different texts, or each text of a page.
#[derive(Debug, Default)]
pub(super) struct Texts {
    text: String,
    ends: Vec<usize>,
}

impl Texts {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &str {
        let start = if index == 0 { Some(&0) } else { self.ends.get(index - 1) };
        let range = start.zip(self.ends.get(index)).map(|(&start, &end)| start..end);
        range.and_then(|range| self.text.get(range)).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.text.push_str(std::str::from_utf8(bytes).map_err(|_| "has text that is not UTF-8")?);
        self.ends.push(self.text.len());
        Ok(())
    }
}

impl Values {
    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Texts { rows, .. } => rows.len(),
        }
    }

    /// The text of a row, empty if missing; `None` if values are numbers.
    pub(super) fn text(&self, row: usize) -> Option<&str> {
        match self {
            Self::Numbers(_) => None,
            Self::Texts { texts, rows } => Some(rows.get(row).map_or("", |&text| texts.get(text as usize))),
        }
    }

    /// The number of a row.
    pub(super) fn number(&self, row: usize) -> f64 {
        match self {
            Self::Numbers(numbers) => numbers.get(row).copied().unwrap_or(f64::NAN),
            Self::Texts { .. } => f64::NAN,
        }
    }

    /// Reads the pages of a chunk, which has a value for each of `rows` rows.
    pub(super) fn read(bytes: &[u8], leaf: Leaf, chunk: &Chunk, rows: usize) -> Result<Self> {
        let mut values = match leaf.kind {
            PhysicalType::Text => Self::Texts { texts: Texts::default(), rows: Vec::new() },
            _ => Self::Numbers(Vec::new()),
        };
        let mut reader = PageReader { leaf, dictionary: Vec::new(), texts: 0, present: Vec::new() };
        let (mut rest, mut page) = (bytes, Vec::new());
        let max_unpacked = MAX_SMALL_CHUNK_BYTES.max(MAX_CHUNK_RATIO.saturating_mul(bytes.len() as u64));
        let mut unpacked = 0u64;
        while values.len() < rows {
            let (header, length) = PageHeader::read(rest)?;
            rest = rest.get(length..).unwrap_or_default();
            let packed = usize::try_from(header.compressed).ok().and_then(|length| rest.get(..length));
            let packed = packed.ok_or("a page ends after its column")?;
            rest = &rest[packed.len()..];
            unpacked = unpacked.saturating_add(header.uncompressed);
            if unpacked > max_unpacked {
                return Err(format!("pages of {} bytes would be unpacked to {unpacked}", bytes.len()));
            }
            let count = usize::try_from(header.values).unwrap_or(usize::MAX);
            match header.kind {
                DICTIONARY_PAGE => {
                    unpack(chunk.codec, packed, header.uncompressed, &mut page)?;
                    reader.read_dictionary(&page, count, &mut values)?;
                }
                DATA_PAGE | DATA_PAGE_V2 if count > rows - values.len() => {
                    return Err(format!("has more than {rows} values"));
                }
                DATA_PAGE => {
                    unpack(chunk.codec, packed, header.uncompressed, &mut page)?;
                    let levels = reader.read_levels(&page, count)?;
                    reader.read_values(&page[levels..], header.encoding, count, &mut values)?;
                }
                DATA_PAGE_V2 => reader.read_page_v2(packed, chunk, &header, &mut page, &mut values)?,
                // Indices of pages are not needed.
                _ => {}
            }
        }
        if values.len() != rows {
            return Err(format!("has {} values, expected {rows}", values.len()));
        }
        Ok(values)
    }
}

/// Reads the pages of a column.
struct PageReader {
    leaf: Leaf,
    /// The dictionary of numbers.
    dictionary: Vec<f64>,
    /// The number of texts in the dictionary.
    texts: usize,
    /// For the current page: 1 for each row with a value; empty if all have one.
    present: Vec<u32>,
}

impl PageReader {
    fn read_dictionary(&mut self, page: &[u8], count: usize, values: &mut Values) -> Result<()> {
        match values {
            Values::Texts { texts, .. } => {
                if texts.len() > 0 {
                    return Err("has two dictionaries".to_owned());
                }
                plain_texts(page, count, texts)?;
                self.texts = texts.len();
            }
            Values::Numbers(_) => {
                self.dictionary.clear();
                plain_numbers(page, self.leaf, count, &mut |number| self.dictionary.push(number))?;
            }
        }
        Ok(())
    }

    /// Reads which rows of a page have a value. Returns the length of the levels.
    fn read_levels(&mut self, page: &[u8], count: usize) -> Result<usize> {
        self.present.clear();
        if !self.leaf.is_optional {
            return Ok(0);
        }
        let (levels, length) = with_length(page)?;
        runs(levels, 1, count, &mut self.present)?;
        Ok(length)
    }

    fn read_page_v2(
        &mut self,
        packed: &[u8],
        chunk: &Chunk,
        header: &PageHeader,
        page: &mut Vec<u8>,
        values: &mut Values,
    ) -> Result<()> {
        let count = usize::try_from(header.values).unwrap_or(usize::MAX);
        let [definition, repetition] =
            header.levels.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let too_short = "a page is shorter than its levels";
        let rest = packed.get(repetition..).ok_or(too_short)?;
        let (levels, data) = rest.split_at_checked(definition).ok_or(too_short)?;
        self.present.clear();
        if self.leaf.is_optional {
            runs(levels, 1, count, &mut self.present)?;
        }
        let codec = if header.is_compressed { chunk.codec } else { 0 };
        let length = header.uncompressed.saturating_sub((definition + repetition) as u64);
        if data.is_empty() && length == 0 {
            page.clear();
        } else {
            unpack(codec, data, length, page)?;
        }
        self.read_values(page, header.encoding, count, values)
    }

    /// Adds the values of a page of `count` rows.
    fn read_values(&self, data: &[u8], encoding: u64, count: usize, values: &mut Values) -> Result<()> {
        let stored = if self.leaf.is_optional {
            self.present.iter().filter(|level| **level == 1).count()
        } else {
            count
        };
        let is_present = |row: usize| self.present.get(row).is_none_or(|level| *level == 1);
        match (encoding, &mut *values) {
            (PLAIN, Values::Texts { texts, rows }) => {
                let mut next = u32::try_from(texts.len()).unwrap_or(MISSING);
                plain_texts(data, stored, texts)?;
                if texts.len() >= MISSING as usize {
                    return Err("has too many texts".to_owned());
                }
                rows.extend((0..count).map(|row| {
                    if !is_present(row) {
                        return MISSING;
                    }
                    next += 1;
                    next - 1
                }));
            }
            (PLAIN | RLE, Values::Numbers(numbers))
                if encoding == PLAIN || self.leaf.kind == PhysicalType::Boolean =>
            {
                let mut found = Vec::with_capacity(stored.min(data.len().saturating_mul(8)));
                if encoding == PLAIN {
                    plain_numbers(data, self.leaf, stored, &mut |number| found.push(number))?;
                } else {
                    let mut bits = Vec::new();
                    runs(with_length(data)?.0, 1, stored, &mut bits)?;
                    found.extend(bits.into_iter().map(f64::from));
                }
                let mut found = found.into_iter();
                numbers.extend(
                    (0..count).map(
                        |row| {
                            if is_present(row) { found.next().unwrap_or(f64::NAN) } else { f64::NAN }
                        },
                    ),
                );
            }
            (PLAIN_DICTIONARY | RLE_DICTIONARY, _) => self.read_indices(data, stored, count, values)?,
            _ => return Err(unsupported(encoding)),
        }
        Ok(())
    }

    /// Adds the values of a page of indices into the dictionary.
    fn read_indices(&self, data: &[u8], stored: usize, count: usize, values: &mut Values) -> Result<()> {
        let mut indices = Vec::new();
        if stored > 0 {
            let (&width, runs_of) = data.split_first().ok_or("a page is empty")?;
            runs(runs_of, width, stored, &mut indices)?;
        }
        let known = if self.leaf.kind == PhysicalType::Text { self.texts } else { self.dictionary.len() };
        if let Some(index) = indices.iter().find(|index| **index as usize >= known) {
            return Err(format!("has the index {index} of a dictionary of {known}"));
        }
        let mut indices = indices.into_iter();
        let is_present = |row: usize| self.present.get(row).is_none_or(|level| *level == 1);
        for row in 0..count {
            let index = if is_present(row) { indices.next() } else { None };
            match values {
                Values::Texts { rows, .. } => rows.push(index.unwrap_or(MISSING)),
                Values::Numbers(numbers) => {
                    let number = index.and_then(|index| self.dictionary.get(index as usize));
                    numbers.push(number.copied().unwrap_or(f64::NAN));
                }
            }
        }
        Ok(())
    }
}

fn unsupported(encoding: u64) -> String {
    let name = match encoding {
        4 => "BIT_PACKED",
        5 => "DELTA_BINARY_PACKED",
        6 => "DELTA_LENGTH_BYTE_ARRAY",
        7 => "DELTA_BYTE_ARRAY",
        9 => "BYTE_STREAM_SPLIT",
        _ => "an unknown encoding",
    };
    format!("has values in {name}; write it with plain or dictionary encoding, or as CSV")
}

/// A part that begins with its length, and the length of both.
fn with_length(bytes: &[u8]) -> Result<(&[u8], usize)> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("a page ends too early")?;
    let length = u32::from_le_bytes(*length) as usize;
    Ok((rest.get(..length).ok_or("a page ends too early")?, 4 + length))
}

/// Decodes `count` numbers of `width` bits from runs of equal numbers and packed ones.
fn runs(mut bytes: &[u8], width: u8, count: usize, out: &mut Vec<u32>) -> Result<()> {
    let damaged = "a page ends too early";
    if width > 32 {
        return Err(format!("has indices of {width} bits"));
    }
    let end = out.len() + count;
    while out.len() < end {
        let mut head = 0u64;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = bytes.split_first().ok_or(damaged)?;
            bytes = rest;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let left = end - out.len();
        let run = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        if head & 1 == 0 {
            let (number, rest) = bytes.split_at_checked(usize::from(width).div_ceil(8)).ok_or(damaged)?;
            bytes = rest;
            let number = number.iter().rev().fold(0, |all: u32, &byte| all << 8 | u32::from(byte));
            if run == 0 {
                return Err("has an empty run".to_owned());
            }
            out.resize(out.len() + run.min(left), number);
        } else {
            // Groups of eight numbers; the last one may be cut.
            let packed = run.saturating_mul(usize::from(width)).min(bytes.len());
            let (packed, rest) = bytes.split_at(packed);
            bytes = rest;
            let numbers = run.saturating_mul(8).min(left);
            if packed.len().saturating_mul(8) < numbers.saturating_mul(usize::from(width)) || run == 0 {
                return Err(damaged.to_owned());
            }
            unpack_bits(packed, width, numbers, out);
        }
    }
    Ok(())
}

/// Decodes numbers of `width` bits, the lowest bits first.
fn unpack_bits(packed: &[u8], width: u8, count: usize, out: &mut Vec<u32>) {
    let mask = (1u64 << width) - 1;
    let (mut bits, mut available, mut bytes) = (0u64, 0, packed.iter());
    for _ in 0..count {
        while available < width {
            bits |= u64::from(bytes.next().copied().unwrap_or(0)) << available;
            available += 8;
        }
        out.push((bits & mask) as u32);
        bits >>= width;
        available -= width;
    }
}

/// Decodes texts, each with its length before it.
fn plain_texts(mut bytes: &[u8], count: usize, texts: &mut Texts) -> Result<()> {
    for _ in 0..count {
        let (text, length) = with_length(bytes)?;
        texts.push(text)?;
        bytes = &bytes[length..];
    }
    Ok(())
}

/// Decodes numbers of the column's type.
fn plain_numbers(bytes: &[u8], leaf: Leaf, count: usize, take: &mut dyn FnMut(f64)) -> Result<()> {
    let width = match leaf.kind {
        PhysicalType::Boolean => {
            if bytes.len().saturating_mul(8) < count {
                return Err("a page ends too early".to_owned());
            }
            (0..count).for_each(|row| take(f64::from(bytes[row / 8] >> (row % 8) & 1)));
            return Ok(());
        }
        PhysicalType::Int32 | PhysicalType::Float => 4,
        _ => 8,
    };
    let needed = count.checked_mul(width).and_then(|needed| bytes.get(..needed));
    for value in needed.ok_or("a page ends too early")?.chunks_exact(width) {
        let bits = value.iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        take(match (leaf.kind, leaf.is_unsigned) {
            (PhysicalType::Float, _) => f64::from(f32::from_bits(bits as u32)),
            (PhysicalType::Double, _) => f64::from_bits(bits),
            (PhysicalType::Int32, false) => f64::from((bits as u32).cast_signed()),
            (_, false) => bits.cast_signed() as f64,
            (_, true) => bits as f64,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// The length of a page, which is as long as one that is packed well may be.
    const PAGE_BYTES: u64 = 16 << 20;

    /// A page of one empty text, with zeros behind it.
    fn page() -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; PAGE_BYTES as usize]).unwrap();
        let packed = encoder.finish().unwrap();
        // Fields 1 to 3 and 5 of the header are integers in zigzag encoding, the last one a structure.
        let mut bytes = vec![0x15, 0];
        for number in [PAGE_BYTES, packed.len() as u64] {
            bytes.push(0x15);
            let mut rest = number << 1;
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        bytes.extend([0x2c, 0x15, 1 << 1, 0x15, 0, 0, 0]);
        bytes.extend(packed);
        bytes
    }

    #[test]
    fn pages_together_are_in_proportion_to_their_size() {
        let leaf = Leaf { chunk: 0, kind: PhysicalType::Text, is_optional: false, is_unsigned: false };
        let chunk = Chunk { codec: 2, ..Chunk::default() };
        let page = page();
        let values = |pages: usize| Values::read(&page.repeat(pages), leaf, &chunk, pages);
        assert_eq!(values(2).unwrap().text(1), Some(""));
        let problem = values(5).unwrap_err();
        assert_eq!(
            problem,
            format!("pages of {} bytes would be unpacked to {}", 5 * page.len(), 5 * PAGE_BYTES)
        );
    }
}
