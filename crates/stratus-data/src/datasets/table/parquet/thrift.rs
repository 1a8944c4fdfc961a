//! Thrift's compact protocol, in which Parquet's metadata are written.

/// The maximum depth of nested values.
const MAX_DEPTH: usize = 32;

/// The maximum memory of the elements of a list per byte of the message. An element of a byte in the message
/// may take a hundred in memory.
const MAX_BYTES_PER_BYTE: usize = 16;
/// The memory that short lists may take.
const MAX_SHORT_LIST_BYTES: usize = 4096;

/// Reads values of a message.
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u8);

const TRUE: Kind = Kind(1);
const STRUCT: u8 = 12;

type Result<T> = std::result::Result<T, String>;

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or("the metadata end too early")?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number in the metadata is too long".to_owned())
    }

    /// An integer of any width.
    pub(super) fn int(&mut self) -> Result<i64> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// An integer that must not be negative.
    pub(super) fn count(&mut self) -> Result<u64> {
        let number = self.int()?;
        u64::try_from(number).map_err(|_| format!("a size in the metadata is {number}"))
    }

    /// The value of a boolean field, which is in its type.
    pub(super) fn bool(kind: Kind) -> bool {
        kind == TRUE
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.get(..length));
        let bytes = bytes.ok_or("the metadata end too early")?;
        self.at += length;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a name in the metadata is not UTF-8".to_owned())
    }

    /// The number and the type of the elements of a list.
    fn list_head(&mut self) -> Result<(u64, Kind)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            short => u64::from(short),
        };
        Ok((count, Kind(head & 15)))
    }

    /// Reads the elements of a list.
    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let (count, _) = self.list_head()?;
        let (mut elements, start) = (Vec::new(), self.at);
        for _ in 0..count {
            elements.push(read(self)?);
            let max_bytes = MAX_SHORT_LIST_BYTES + (self.at - start).saturating_mul(MAX_BYTES_PER_BYTE);
            if elements.len().saturating_mul(size_of::<T>()) > max_bytes {
                return Err("a list in the metadata has more elements than its bytes can hold".to_owned());
            }
        }
        Ok(elements)
    }

    /// Reads the fields of a structure: `read` gets the number and type of each, and returns false for those
    /// that it does not read.
    pub(super) fn fields(
        &mut self,
        mut read: impl FnMut(&mut Self, i64, Kind) -> Result<bool>,
    ) -> Result<()> {
        let mut field = 0;
        while let Some(kind) = self.next_field(&mut field)? {
            if !read(self, field, kind)? {
                self.skip(kind, 0)?;
            }
        }
        Ok(())
    }

    /// The type of the next field; `None` at the end of the structure.
    fn next_field(&mut self, field: &mut i64) -> Result<Option<Kind>> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *field = match head >> 4 {
            0 => self.int()?,
            delta => field.saturating_add(i64::from(delta)),
        };
        Ok(Some(Kind(head & 15)))
    }

    fn skip(&mut self, Kind(kind): Kind, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err("the metadata are nested too deeply".to_owned());
        }
        match kind {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.advance(8)?,
            8 => {
                let length = self.varint()?;
                self.advance(length)?;
            }
            9 | 10 => {
                let (count, element) = self.list_head()?;
                for _ in 0..count {
                    self.skip_element(element, depth)?;
                }
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip_element(Kind(kinds >> 4), depth)?;
                    self.skip_element(Kind(kinds & 15), depth)?;
                }
            }
            STRUCT => {
                let mut field = 0;
                while let Some(kind) = self.next_field(&mut field)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            other => return Err(format!("the metadata have a value of the unknown type {other}")),
        }
        Ok(())
    }

    /// Skips an element of a collection, where a boolean takes a byte.
    fn skip_element(&mut self, kind: Kind, depth: usize) -> Result<()> {
        match kind.0 {
            1 | 2 => self.advance(1),
            _ => self.skip(kind, depth + 1),
        }
    }

    fn advance(&mut self, count: u64) -> Result<()> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        self.at = end.filter(|&end| end <= self.bytes.len()).ok_or("the metadata end too early")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists are bounded by the bytes of their elements, which may be empty structures of one byte each.
    #[test]
    fn lists_are_in_proportion_to_their_size() {
        let list = |count: u8| [&[0xfc, count | 0x80, 1][..], &[0; 256]].concat();
        let read = |bytes: &[u8]| {
            Compact::new(bytes).list(|input| input.fields(|_, _, _| Ok(false)).map(|()| [0u8; 64]))
        };
        assert_eq!(read(&[&[0x5c][..], &[0; 5]].concat()).unwrap().len(), 5);
        assert_eq!(
            read(&list(72)).unwrap_err(),
            "a list in the metadata has more elements than its bytes can hold"
        );
    }
}
