//! Packets of the SSH file transfer protocol, version 3 (draft-ietf-secsh-filexfer-02), which every server
//! supports.

/// Request types, with the numbers of the protocol.
pub(super) mod request {
    pub(in crate::sftp) const INIT: u8 = 1;
    pub(in crate::sftp) const OPEN: u8 = 3;
    pub(in crate::sftp) const CLOSE: u8 = 4;
    pub(in crate::sftp) const READ: u8 = 5;
    pub(in crate::sftp) const WRITE: u8 = 6;
    pub(in crate::sftp) const OPEN_FOLDER: u8 = 11;
    pub(in crate::sftp) const READ_FOLDER: u8 = 12;
    pub(in crate::sftp) const REMOVE: u8 = 13;
    pub(in crate::sftp) const MAKE_FOLDER: u8 = 14;
    pub(in crate::sftp) const STAT: u8 = 17;
    pub(in crate::sftp) const RENAME: u8 = 18;
    pub(in crate::sftp) const EXTENDED: u8 = 200;
}

/// Response types.
pub(super) mod response {
    pub(in crate::sftp) const VERSION: u8 = 2;
    pub(in crate::sftp) const STATUS: u8 = 101;
    pub(in crate::sftp) const HANDLE: u8 = 102;
    pub(in crate::sftp) const DATA: u8 = 103;
    pub(in crate::sftp) const NAME: u8 = 104;
    pub(in crate::sftp) const ATTRIBUTES: u8 = 105;
}

/// Status codes.
pub(super) mod status {
    pub(in crate::sftp) const OK: u32 = 0;
    pub(in crate::sftp) const EOF: u32 = 1;
    pub(in crate::sftp) const NO_SUCH_FILE: u32 = 2;
    pub(in crate::sftp) const PERMISSION_DENIED: u32 = 3;
    pub(in crate::sftp) const UNSUPPORTED: u32 = 8;
}

/// Flags for opening a file.
pub(super) mod mode {
    pub(in crate::sftp) const READ: u32 = 0x1;
    pub(in crate::sftp) const WRITE: u32 = 0x2;
    pub(in crate::sftp) const CREATE: u32 = 0x8;
}

/// The largest accepted packet. Servers send at most 256 KiB.
pub(super) const MAX_PACKET_BYTES: u32 = 1 << 20;

/// A packet under construction.
pub(super) struct Packet(Vec<u8>);

impl Packet {
    /// Starts a packet with four bytes for the length.
    pub(super) fn new(kind: u8) -> Self {
        Self(vec![0, 0, 0, 0, kind])
    }

    pub(super) fn number(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn text(mut self, text: &[u8]) -> Self {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(text);
        self
    }

    /// The bytes to send.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// The unread rest of a packet. Methods return `None` if it ends too early.
pub(super) struct PacketReader<'a>(pub(super) &'a [u8]);

impl<'a> PacketReader<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*number))
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    pub(super) fn attributes(&mut self) -> Option<Attributes> {
        let flags = self.number()?;
        let bytes = if flags & 0x1 != 0 { Some(self.long()?) } else { None };
        if flags & 0x2 != 0 {
            self.long()?;
        }
        let permissions = if flags & 0x4 != 0 { Some(self.number()?) } else { None };
        let mut changed = None;
        if flags & 0x8 != 0 {
            self.number()?;
            changed = Some(self.number()?);
        }
        if flags & 0x8000_0000 != 0 {
            for _ in 0..self.number()? {
                self.text()?;
                self.text()?;
            }
        }
        Some(Attributes { bytes, permissions, changed })
    }
}

/// The attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) bytes: Option<u64>,
    permissions: Option<u32>,
    /// Seconds since 1970.
    pub(super) changed: Option<u32>,
}

/// The type of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileType {
    File,
    Folder,
    Link,
    Other,
}

impl Attributes {
    /// The type in the file type bits of the POSIX mode.
    pub(super) fn file_type(&self) -> FileType {
        match self.permissions.map(|permissions| permissions & 0o170_000) {
            Some(0o100_000) => FileType::File,
            Some(0o040_000) => FileType::Folder,
            Some(0o120_000) => FileType::Link,
            _ => FileType::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_a_round_trip() {
        let packet = Packet::new(request::OPEN).number(7).text("ü".as_bytes()).long(1 << 40).finish();
        assert_eq!(packet[..5], [0, 0, 0, 19, request::OPEN]);
        let mut parts = PacketReader(&packet[4..]);
        assert_eq!((parts.byte(), parts.number()), (Some(request::OPEN), Some(7)));
        assert_eq!((parts.text(), parts.long(), parts.byte()), (Some("ü".as_bytes()), Some(1 << 40), None));
    }

    #[test]
    fn rejects_truncated_packets() {
        let whole =
            Packet::new(0).number(0x8000_000d).long(5).number(0o100_644).number(1).number(2).number(1);
        let whole = whole.text(b"a").text(b"b").finish();
        let attributes = PacketReader(&whole[5..]).attributes().unwrap();
        assert_eq!(attributes, Attributes { bytes: Some(5), permissions: Some(0o100_644), changed: Some(2) });
        assert_eq!(attributes.file_type(), FileType::File);
        for end in 5..whole.len() {
            assert_eq!(PacketReader(&whole[5..end]).attributes(), None, "{end}");
        }
        assert_eq!(PacketReader(&[255, 255, 255, 255, 1]).text(), None);
    }
}
