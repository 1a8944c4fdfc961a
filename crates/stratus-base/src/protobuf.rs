//! An encoder of the wire format of Protocol Buffers, for ONNX models, Perfetto traces and TensorBoard
//! events.
//!
//! Source: the encoding guide, protobuf.dev.

/// Appends an unsigned integer in groups of seven bits, the lowest first (LEB128).
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A message under construction, valid after every field.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn key(&mut self, number: u32, kind: u32) {
        write_varint(&mut self.0, u64::from(number << 3 | kind));
    }

    /// Appends an integer. Negative integers take ten bytes.
    #[must_use]
    pub fn int(self, number: u32, value: i64) -> Self {
        self.unsigned(number, value as u64)
    }

    /// Appends an unsigned integer.
    #[must_use]
    pub fn unsigned(mut self, number: u32, value: u64) -> Self {
        self.key(number, 0);
        write_varint(&mut self.0, value);
        self
    }

    /// Appends a 32-bit floating-point number.
    #[must_use]
    pub fn float(mut self, number: u32, value: f32) -> Self {
        self.key(number, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a 64-bit floating-point number.
    #[must_use]
    pub fn double(mut self, number: u32, value: f64) -> Self {
        self.key(number, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends bytes, a string, or a message.
    #[must_use]
    pub fn bytes(mut self, number: u32, value: &[u8]) -> Self {
        self = self.length_prefix(number, value.len() as u64);
        self.0.extend(value);
        self
    }

    /// Appends the key and length of a field whose `length` bytes the caller writes.
    #[must_use]
    pub fn length_prefix(mut self, number: u32, length: u64) -> Self {
        self.key(number, 2);
        write_varint(&mut self.0, length);
        self
    }
}
