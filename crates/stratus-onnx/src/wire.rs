//! A decoder of the protobuf wire format. <https://protobuf.dev/programming-guides/encoding/>
//!
//! A message is decoded field by field and borrows from the file. Nested messages are decoded by their own
//! readers, so there is no recursion.

use crate::error::{Parsed, Problem};

/// The maximum size of a file, which is that of a protobuf message.
pub(crate) const MAX_FILE_BYTES: u64 = (1 << 31) - 1;

/// The encoded value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FieldValue<'a> {
    /// An integer, enumeration or Boolean.
    Varint(u64),
    /// A 64-bit floating-point number.
    Fixed64([u8; 8]),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// A 32-bit floating-point number.
    Fixed32([u8; 4]),
}

impl<'a> FieldValue<'a> {
    /// The bytes of a string, of bytes or of a message.
    pub fn bytes(self) -> Parsed<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Problem::damaged("a field has the wrong wire type, expected bytes")),
        }
    }

    /// The value as a string.
    pub fn text(self) -> Parsed<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Problem::damaged("a name is not UTF-8"))
    }

    /// The value as an integer.
    pub fn int(self) -> Parsed<i64> {
        match self {
            Self::Varint(value) => Ok(value as i64),
            _ => Err(Problem::damaged("a field has the wrong wire type, expected an integer")),
        }
    }

    /// The value as a 32-bit floating-point number.
    pub fn float(self) -> Parsed<f32> {
        match self {
            Self::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(Problem::damaged("a field has the wrong wire type, expected a number")),
        }
    }

    /// Appends the integers of a repeated field, packed or one by one.
    pub fn ints(self, into: &mut Vec<i64>) -> Parsed<()> {
        let Self::Bytes(mut bytes) = self else {
            into.push(self.int()?);
            return Ok(());
        };
        while !bytes.is_empty() {
            into.push(varint(&mut bytes)? as i64);
        }
        Ok(())
    }

    /// Appends the 32-bit numbers of a repeated field, packed or one by one.
    pub fn floats(self, into: &mut Vec<f32>) -> Parsed<()> {
        match self {
            Self::Bytes(bytes) => {
                let (numbers, rest) = bytes.as_chunks();
                into.extend(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)));
                expect_no_rest(rest)
            }
            value => value.float().map(|value| into.push(value)),
        }
    }

    /// Appends the 64-bit numbers of a repeated field, packed or one by one.
    pub fn doubles(self, into: &mut Vec<f64>) -> Parsed<()> {
        match self {
            Self::Bytes(bytes) => {
                let (numbers, rest) = bytes.as_chunks();
                into.extend(numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)));
                expect_no_rest(rest)
            }
            Self::Fixed64(bytes) => {
                into.push(f64::from_le_bytes(bytes));
                Ok(())
            }
            _ => Err(Problem::damaged("a field has the wrong wire type, expected a number")),
        }
    }
}

fn expect_no_rest(rest: &[u8]) -> Parsed<()> {
    if rest.is_empty() { Ok(()) } else { Err(Problem::damaged("truncated list of numbers")) }
}

/// The fields of a message, in order.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn field(&mut self) -> Parsed<(u64, FieldValue<'a>)> {
        let key = varint(&mut self.bytes)?;
        let value = match key & 7 {
            0 => FieldValue::Varint(varint(&mut self.bytes)?),
            1 => FieldValue::Fixed64(fixed(&mut self.bytes)?),
            2 => {
                let length = varint(&mut self.bytes)?;
                FieldValue::Bytes(take(&mut self.bytes, length)?)
            }
            5 => FieldValue::Fixed32(fixed(&mut self.bytes)?),
            kind => return Err(Problem::damaged(format!("unknown wire type {kind}"))),
        };
        match key >> 3 {
            0 => Err(Problem::damaged("invalid field number 0")),
            number => Ok((number, value)),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Parsed<(u64, FieldValue<'a>)>;

    /// The number and value of the next field. Iteration ends after an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.bytes = &[];
        }
        Some(field)
    }
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Parsed<&'a [u8]> {
    let split = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
    let Some((taken, rest)) = split else {
        return Err(Problem::damaged(format!(
            "truncated: a field has {length} bytes, {} are left",
            bytes.len()
        )));
    };
    *bytes = rest;
    Ok(taken)
}

fn fixed<const N: usize>(bytes: &mut &[u8]) -> Parsed<[u8; N]> {
    let taken = take(bytes, N as u64)?;
    taken.try_into().map_err(|_| Problem::damaged("truncated number"))
}

fn varint(bytes: &mut &[u8]) -> Parsed<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err(Problem::damaged("truncated number"));
        };
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Problem::damaged("a number has more than ten bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stratus_base::protobuf::Message;

    fn fields(bytes: &[u8]) -> Vec<(u64, FieldValue<'_>)> {
        Fields::new(bytes).collect::<Parsed<_>>().unwrap()
    }

    #[test]
    fn decodes_the_examples_of_the_specification() {
        // The examples of the encoding guide: 150 as field 1, "testing" as field 2.
        assert_eq!(fields(&[0x08, 0x96, 0x01]), [(1, FieldValue::Varint(150))]);
        let testing = [&[0x12, 0x07][..], b"testing"].concat();
        assert_eq!(fields(&testing), [(2, FieldValue::Bytes(b"testing"))]);
        let mut packed = Vec::new();
        FieldValue::Bytes(&[0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]).ints(&mut packed).unwrap();
        assert_eq!(packed, [3, 270, 86942]);
        assert_eq!(Message::default().int(1, 150).0, [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().bytes(2, b"testing").0, testing);
    }

    #[test]
    fn rejects_truncated_and_overlong_fields() {
        let message = |bytes: &[u8]| Fields::new(bytes).find_map(Result::err).unwrap().to_string();
        assert!(message(&[0x08]).contains("truncated number"));
        assert!(message(&[0xff; 11]).contains("more than ten bytes"));
        assert!(message(&[0x12, 0x05, 1]).contains("a field has 5 bytes, 1 are left"));
        assert!(message(&[0x0b]).contains("unknown wire type 3"));
        assert!(message(&[0x02, 0x00]).contains("number 0"));
        assert!(FieldValue::Bytes(&[0, 0, 0]).floats(&mut Vec::new()).is_err());
        assert!(FieldValue::Varint(1).text().is_err() && FieldValue::Bytes(&[0xff]).text().is_err());
    }

    proptest! {
        #[test]
        fn messages_survive_a_round_trip(
            int in any::<i64>(),
            float in any::<f32>(),
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            number in 1u32..1000,
        ) {
            let message = Message::default().int(number, int).float(2, float).bytes(number, &bytes);
            let read = fields(&message.0);
            prop_assert_eq!(read[0], (u64::from(number), FieldValue::Varint(int as u64)));
            prop_assert_eq!(read[1].1, FieldValue::Fixed32(float.to_le_bytes()));
            prop_assert_eq!(read[2].1.bytes().unwrap(), &bytes[..]);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (_, value) in Fields::new(&bytes).flatten() {
                let _ = (value.text(), value.int(), value.float());
                let _ = value.ints(&mut Vec::new());
                let _ = (value.floats(&mut Vec::new()), value.doubles(&mut Vec::new()));
            }
        }
    }
}
