//! Tar and zip archives: their entries, and the folder that they form.
//!
//! A tar archive is read header by header, as the folder that `tar -xf` would create: in the formats v7,
//! ustar, pax and GNU, with long names, links and sparse files. Allocations are bounded independently of
//! header fields, and names cannot leave the folder.
//!
//! The formats: POSIX.1-2017, "pax Interchange Format"; the GNU tar manual, "Tar Internals".

mod entries;
mod header;
mod sparse;
mod tree;
mod zip;
mod zip_member;

#[cfg(test)]
mod tests;

pub(crate) use self::entries::{Content, Entries, Entry, Kind, find_path};
pub(crate) use self::header::{BLOCK, ReadAt};
pub(crate) use self::sparse::SparseMap;
pub(crate) use self::tree::{FolderId, Found, Node, Tree};
pub(crate) use self::zip::is_zip;
pub(crate) use self::zip_member::ZipMember;
