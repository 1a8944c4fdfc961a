//! The entries of an archive, header by header, without reading their content.

use std::io;

use super::header::{BLOCK, Header, ReadAt, display_name, normalised_path, parse_number, split_record, text};
use super::sparse::{MAX_MAP_BYTES, SparseMap, parse_sparse_table, to_ranges};
use super::zip_member::ZipMember;

/// The maximum size of a long name, or of a header's extensions.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// The number of bytes after the end of an archive that are searched for another one.
const MAX_PADDING_BYTES: u64 = 64 << 20;
/// The maximum number of header blocks before a file that are searched for its name.
const MAX_HEADER_BLOCKS: u64 = 16;

pub(super) const NOT_AN_ARCHIVE: &str = "not a tar archive: it does not begin with a header";

/// The content of a file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// The offset in the archive; in a tar archive a multiple of the block size.
    pub offset: u64,
    /// The file's length.
    pub bytes: u64,
    /// The stored ranges, if the file is sparse.
    pub map: Option<SparseMap>,
    /// The compression, in a zip archive.
    pub zip: Option<ZipMember>,
}

impl Content {
    /// Checks that a file, which is read whole, is in proportion to its bytes in the archive.
    ///
    /// # Errors
    ///
    /// Both lengths.
    pub(crate) fn check_proportion(&self) -> Result<(), String> {
        self.map.as_ref().map_or(Ok(()), |map| map.check_proportion(self.bytes))?;
        self.zip.map_or(Ok(()), |member| member.check_proportion(self.bytes))
    }

    /// Reads at an offset of the file.
    pub(crate) fn read_at(&self, archive: ReadAt<'_>, at: u64, out: &mut [u8]) -> io::Result<()> {
        match (&self.map, &self.zip) {
            (Some(map), _) => map.read_at(archive, at, out),
            (None, Some(member)) => member.read_at(archive, [self.offset, self.bytes], at, out),
            (None, None) => archive(self.offset + at, out),
        }
    }
}

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    Folder,
    File(Content),
    /// A symbolic link to a path, relative to the link's folder.
    SymbolicLink(&'a [u8]),
    /// A hard link to an earlier entry, by its path in the archive.
    HardLink(&'a [u8]),
    /// A special file without content, by its name for messages.
    Special(&'static str),
}

/// An entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// The normalised path, separated by `/`; empty for the destination folder itself.
    pub path: &'a [u8],
    pub kind: Kind<'a>,
}

/// Iterates over the entries of an archive, up to the first error.
pub(crate) struct Entries<'a> {
    read_at: ReadAt<'a>,
    /// The offset of the next header.
    at: u64,
    /// The archive's length.
    length: u64,
    /// The records of global headers, which apply to all later entries.
    global: Records,
    path: Vec<u8>,
    link: Vec<u8>,
}

/// Extensions that apply to an entry.
#[derive(Clone, Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    /// The name of a sparse file, whose path field is artificial.
    sparse_name: Option<Vec<u8>>,
    /// The length of a sparse file.
    sparse_size: Option<u64>,
    sparse_format: [Option<u64>; 2],
    /// Offsets and lengths of the ranges of a sparse file.
    sparse_ranges: Vec<u64>,
    /// True if the entry is a sparse file in an unsupported format.
    is_unknown_sparse: bool,
}

/// The extension headers before an entry.
#[derive(Default)]
struct Extensions {
    /// `None` without a pax header for this entry.
    records: Option<Records>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl Records {
    /// Applies the records of a header.
    fn add(&mut self, mut records: &[u8]) -> Result<(), String> {
        let decimal = |value: &[u8]| {
            let number = std::str::from_utf8(value).ok().and_then(|value| value.trim().parse().ok());
            number.ok_or_else(|| format!("`{}`, expected a number", display_name(value)))
        };
        // The last block may be padded with zeros.
        while !text(records).is_empty() {
            let (key, value, rest) = split_record(records).ok_or("an invalid pax record")?;
            records = rest;
            // An empty value removes the earlier one.
            let bytes = Some(value.to_vec()).filter(|value| !value.is_empty());
            let number = || if value.is_empty() { Ok(None) } else { decimal(value).map(Some) };
            match key {
                b"path" => self.path = bytes,
                b"linkpath" => self.link = bytes,
                b"size" => self.size = number()?,
                b"GNU.sparse.name" => self.sparse_name = bytes,
                b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse_size = number()?,
                b"GNU.sparse.major" => self.sparse_format[0] = number()?,
                b"GNU.sparse.minor" => self.sparse_format[1] = number()?,
                b"GNU.sparse.numblocks" => self.sparse_ranges.clear(),
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => self.sparse_ranges.extend(number()?),
                b"GNU.sparse.map" => {
                    let numbers = value.split(|&byte| byte == b',').filter(|number| !number.is_empty());
                    self.sparse_ranges = numbers.map(decimal).collect::<Result<_, _>>()?;
                }
                // Records of star.
                b"SCHILY.filetype" => self.is_unknown_sparse = value == b"sparse",
                _ => {}
            }
        }
        Ok(())
    }
}

impl<'a> Entries<'a> {
    /// Iterates over the entries of an archive of `length` bytes, starting with the header at `from`.
    pub(crate) fn new(read_at: ReadAt<'a>, from: u64, length: u64) -> Self {
        Self { read_at, at: from, length, global: Records::default(), path: Vec::new(), link: Vec::new() }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), String> {
        (self.read_at)(offset, out)
            .map_err(|error| format!("cannot read the archive at byte {offset}: {error}"))
    }

    /// The header at an offset; `None` if there is none.
    fn header_at(&mut self, offset: u64) -> Result<Option<Header>, String> {
        if self.length.saturating_sub(offset) < BLOCK {
            return Ok(None);
        }
        let mut header = Header::new();
        self.read(offset, &mut header.0)?;
        Ok((!header.is_zero() && header.is_valid()).then_some(header))
    }

    /// The next entry; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, String> {
        let mut extensions = Extensions::default();
        let mut header = Header::new();
        while self.at < self.length {
            let (at, length) = (self.at, self.length);
            if length - at < BLOCK {
                return Err(match at {
                    0 => NOT_AN_ARCHIVE.to_owned(),
                    _ => format!("the archive ends at byte {length}, inside a header"),
                });
            }
            self.read(at, &mut header.0)?;
            if header.is_zero() {
                self.check_end()?;
                self.at = length;
                break;
            }
            let size = header.size().filter(|_| header.is_valid());
            let Some(size) = size else {
                let is_marked = &header.0[257..262] == b"ustar";
                return Err(match at {
                    0 if !is_marked => NOT_AN_ARCHIVE.to_owned(),
                    _ => format!("invalid tar header at byte {at}"),
                });
            };
            if matches!(header.kind(), b'x' | b'X' | b'g' | b'L' | b'K') {
                self.extend(&header, size, &mut extensions)?;
                continue;
            }
            if header.kind() == b'V' {
                self.at = self.skip(at + BLOCK, size, b"the volume label")?;
                continue;
            }
            return self.entry(&header, size, extensions).map(Some);
        }
        if extensions.records.is_some() || extensions.long_name.is_some() || extensions.long_link.is_some() {
            return Err(format!(
                "the archive ends at byte {}, before the entry of the last header",
                self.length
            ));
        }
        Ok(None)
    }

    /// The offset after `bytes` bytes of padded content, which must be complete: programs that omit the end
    /// marker still pad the last block.
    fn skip(&self, offset: u64, bytes: u64, path: &[u8]) -> Result<u64, String> {
        let end = offset.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(BLOCK));
        end.filter(|&end| end <= self.length)
            .ok_or_else(|| format!("the archive ends at byte {}, inside {}", self.length, display_name(path)))
    }

    /// Reads a header that applies to later entries.
    fn extend(&mut self, header: &Header, size: u64, extensions: &mut Extensions) -> Result<(), String> {
        let at = self.at;
        if size > MAX_EXTENSION_BYTES {
            return Err(format!(
                "the header at byte {at} has {size} bytes of extensions, maximum is {MAX_EXTENSION_BYTES}"
            ));
        }
        let next = self.skip(at + BLOCK, size, b"a header's extensions")?;
        let mut content = vec![0; size as usize];
        self.read(at + BLOCK, &mut content)?;
        let invalid = |problem: String| format!("the header at byte {at} has {problem}");
        match header.kind() {
            b'L' => extensions.long_name = Some(text(&content).to_vec()),
            b'K' => extensions.long_link = Some(text(&content).to_vec()),
            b'g' => self.global.add(&content).map_err(invalid)?,
            _ => {
                let records = extensions.records.get_or_insert_with(|| self.global.clone());
                records.add(&content).map_err(invalid)?;
            }
        }
        self.at = next;
        Ok(())
    }

    /// The entry of a header, with `size` bytes of content unless extensions override it.
    fn entry(&mut self, header: &Header, size: u64, extensions: Extensions) -> Result<Entry<'_>, String> {
        let at = self.at;
        let records = extensions.records.unwrap_or_else(|| self.global.clone());
        let (name, link, pax_path) = (extensions.long_name, extensions.long_link, records.path.clone());
        let path = records.sparse_name.clone().or(pax_path).or(name).unwrap_or_else(|| header.path());
        self.path = normalised_path(&path)?;
        self.link = records.link.clone().or(link).unwrap_or_else(|| header.link().to_vec());
        let size = records.size.unwrap_or(size);
        let (mut next, kind) = (at + BLOCK, header.kind());
        let kind = match kind {
            b'1' => {
                self.link = normalised_path(&self.link)?;
                // The size may be that of the linked file although no content follows.
                if size == 0 || at + BLOCK >= self.length || self.is_header_or_end(at + BLOCK)? {
                    Kind::HardLink(&[])
                } else {
                    next = self.skip(next, size, &path)?;
                    Kind::File(Content { offset: at + BLOCK, bytes: size, map: None, zip: None })
                }
            }
            b'2' => Kind::SymbolicLink(&[]),
            b'3' | b'4' => Kind::Special("a device"),
            b'5' => Kind::Folder,
            b'6' => Kind::Special("a FIFO"),
            b'D' => {
                next = self.skip(next, size, &path)?;
                Kind::Folder
            }
            b'M' | b'N' => {
                return Err(format!(
                    "the header at byte {at} has the type `{}` of a multi-volume archive or an old format; \
                     unpack it and pass the folder",
                    char::from(kind)
                ));
            }
            // Old formats mark folders only by a trailing slash.
            _ if path.ends_with(b"/") => Kind::Folder,
            _ => {
                let content = self.content(header, size, &records, &path)?;
                next = content.1;
                Kind::File(content.0)
            }
        };
        self.at = next;
        if self.path.is_empty() && kind != Kind::Folder {
            return Err(format!("the header at byte {at} has no name"));
        }
        let kind = match kind {
            Kind::SymbolicLink(_) => Kind::SymbolicLink(&self.link),
            Kind::HardLink(_) => Kind::HardLink(&self.link),
            kind => kind,
        };
        Ok(Entry { path: &self.path, kind })
    }

    /// Returns whether a header or the end of the archive is at an offset.
    fn is_header_or_end(&mut self, offset: u64) -> Result<bool, String> {
        let mut header = Header::new();
        if self.length.saturating_sub(offset) < BLOCK {
            return Ok(false);
        }
        self.read(offset, &mut header.0)?;
        Ok(header.is_zero() || header.is_valid())
    }

    /// The content of a file, and the offset of the next header.
    fn content(
        &mut self,
        header: &Header,
        size: u64,
        records: &Records,
        path: &[u8],
    ) -> Result<(Content, u64), String> {
        let sparse = |problem: String| {
            let path = display_name(records.sparse_name.as_deref().unwrap_or(path));
            format!("{path} is an unsupported sparse file: {problem}; pack it with `tar` without -S")
        };
        let mut offset = self.at + BLOCK;
        if records.is_unknown_sparse {
            return Err(sparse("star format".to_owned()));
        }
        let mut ranges = Vec::new();
        let mut bytes = records.sparse_size;
        let is_pax_sparse = bytes.is_some() || !records.sparse_ranges.is_empty();
        if header.kind() == b'S' {
            bytes = bytes.or(parse_number(&header.0[483..495]));
            parse_sparse_table(&header.0[386..482], &mut ranges).map_err(sparse)?;
            let mut is_extended = header.0[482] != 0;
            while is_extended {
                let mut block = [0; BLOCK as usize];
                let next = self.skip(offset, BLOCK, path)?;
                if ranges.len() as u64 * 24 > MAX_MAP_BYTES {
                    return Err(sparse(format!("the map is larger than {MAX_MAP_BYTES} bytes")));
                }
                self.read(offset, &mut block)?;
                parse_sparse_table(&block[..504], &mut ranges).map_err(sparse)?;
                (is_extended, offset) = (block[504] != 0, next);
            }
        }
        let next = self.skip(offset, size, path)?;
        let mut stored = size;
        match records.sparse_format {
            [None | Some(0), _] => {
                if is_pax_sparse && header.kind() != b'S' {
                    ranges = to_ranges(&records.sparse_ranges).map_err(sparse)?;
                }
            }
            [Some(1), Some(0)] => {
                let map_bytes = self.read_map(offset, size, &mut ranges).map_err(sparse)?;
                (offset, stored) = (offset + map_bytes, size - map_bytes);
            }
            [major, minor] => {
                let version = [major, minor].map(Option::unwrap_or_default);
                return Err(sparse(format!("format {}.{}", version[0], version[1])));
            }
        }
        if !is_pax_sparse && header.kind() != b'S' && records.sparse_format[0].is_none() {
            return Ok((Content { offset, bytes: size, map: None, zip: None }, next));
        }
        let bytes = bytes.ok_or_else(|| sparse("missing length".to_owned()))?;
        let map = SparseMap::new(&ranges, bytes, offset, stored).map_err(sparse)?;
        // Without holes it is a regular file.
        let map = Some(map).filter(|_| stored != bytes);
        Ok((Content { offset, bytes, map, zip: None }, next))
    }

    /// Reads the map before the ranges of a file: the number of ranges, then offsets and lengths, one per
    /// line. Returns the size of its blocks in bytes.
    fn read_map(&mut self, offset: u64, size: u64, ranges: &mut Vec<[u64; 2]>) -> Result<u64, String> {
        let invalid = || "invalid map".to_owned();
        let (mut numbers, mut expected, mut digits): (Vec<u64>, u64, Option<u64>) = (Vec::new(), 1, None);
        let mut block = [0; BLOCK as usize];
        let mut done = 0;
        loop {
            if done + BLOCK > size.min(MAX_MAP_BYTES) {
                return Err("truncated map".to_owned());
            }
            self.read(offset + done, &mut block)?;
            done += BLOCK;
            for byte in block {
                match byte {
                    b'0'..=b'9' => {
                        let number = digits.unwrap_or_default().checked_mul(10);
                        let number = number.and_then(|number| number.checked_add(u64::from(byte - b'0')));
                        digits = Some(number.ok_or_else(invalid)?);
                    }
                    b'\n' => {
                        numbers.push(digits.take().ok_or_else(invalid)?);
                        if let [count] = numbers[..] {
                            let all = count.checked_mul(2).and_then(|numbers| numbers.checked_add(1));
                            expected = all.ok_or_else(invalid)?;
                        }
                        if numbers.len() as u64 == expected {
                            *ranges = to_ranges(&numbers[1..])?;
                            return Ok(done);
                        }
                    }
                    _ => return Err(invalid()),
                }
            }
        }
    }

    /// Checks that no other archive follows: programs that unpack the first would skip it.
    fn check_end(&mut self) -> Result<(), String> {
        let end = self.length.min(self.at.saturating_add(MAX_PADDING_BYTES));
        let (mut at, mut chunk) = (self.at, Vec::new());
        while at < end {
            chunk.resize((end - at).min(1 << 16) as usize, 0);
            self.read(at, &mut chunk)?;
            if let Some(found) = chunk.iter().position(|&byte| byte != 0) {
                let block = at + found as u64 / BLOCK * BLOCK;
                return match self.header_at(block)? {
                    Some(_) => Err(format!(
                        "another archive begins at byte {block}, after the end of the first one; join them \
                         with `tar --concatenate`, or unpack them with `tar --ignore-zeros -xf` and pass \
                         the folder"
                    )),
                    None => Ok(()),
                };
            }
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

/// The path of the file whose content is at an offset of an archive; `None` without a matching header.
pub(crate) fn find_path(read_at: ReadAt<'_>, length: u64, offset: u64) -> Option<String> {
    let mut path = None;
    for blocks in 1..=MAX_HEADER_BLOCKS {
        let Some(from) = offset.checked_sub(blocks * BLOCK) else { break };
        // The earliest of several headers has the full name.
        if let Ok(Some(Entry { path: found, kind: Kind::File(content) })) =
            Entries::new(read_at, from, length).next()
            && content.offset == offset
        {
            path = Some(String::from_utf8_lossy(found).into_owned());
        }
    }
    path
}
