//! Writing messages in the wire format of Protocol Buffers: ONNX models, Perfetto's
//! traces and TensorBoard's events are such.
//!
//! Source: the encoding guide, protobuf.dev.

/// A message that is being written. Its bytes are complete after every field.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn key(&mut self, number: u32, kind: u32) {
        self.raw_varint(u64::from(number << 3 | kind));
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// An integer; negative ones have ten bytes.
    #[must_use]
    pub fn int(self, number: u32, value: i64) -> Self {
        self.unsigned(number, value as u64)
    }

    /// An integer without a sign.
    #[must_use]
    pub fn unsigned(mut self, number: u32, value: u64) -> Self {
        self.key(number, 0);
        self.raw_varint(value);
        self
    }

    /// A 32-bit floating-point number.
    #[must_use]
    pub fn float(mut self, number: u32, value: f32) -> Self {
        self.key(number, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A 64-bit floating-point number.
    #[must_use]
    pub fn double(mut self, number: u32, value: f64) -> Self {
        self.key(number, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Bytes, a text, or a message.
    #[must_use]
    pub fn bytes(mut self, number: u32, value: &[u8]) -> Self {
        self = self.announce(number, value.len() as u64);
        self.0.extend(value);
        self
    }

    /// The head of a field of `length` bytes that follow elsewhere.
    #[must_use]
    pub fn announce(mut self, number: u32, length: u64) -> Self {
        self.key(number, 2);
        self.raw_varint(length);
        self
    }
}
