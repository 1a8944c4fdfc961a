//! A folder of image files in a tar archive, which is read in place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::index::ByteRange;
use super::parts;
use crate::archive::{Content, FolderId, Found, Node, SparseMap, Tree};
use crate::datasets::files::{is_hidden, within_limit};
use crate::error::DataError;
use crate::images::is_image;

/// An archive that holds a folder.
#[derive(Debug)]
pub(super) struct Packed {
    file: Mutex<File>,
    /// The folder that the archive unpacks to. It is dropped when the index is made.
    tree: Option<Tree>,
    /// The folder in the archive that is read.
    root: FolderId,
    /// Its path in the archive.
    prefix: String,
    /// Samples that are not one range of the archive, by the offset that the index has of them.
    unusual: BTreeMap<u64, Unusual>,
}

#[derive(Debug)]
enum Unusual {
    /// A file with holes.
    Sparse(SparseMap),
    /// A name that leads to no file: the reason.
    Unreadable(String),
}

impl Packed {
    /// Reads the headers of an archive.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        let mut file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut read_at = |offset: u64, out: &mut [u8]| read_at(&mut file, offset, out);
        let tree = Tree::read(&mut read_at, length)
            .map_err(|problem| DataError::Damaged { path: path.to_owned(), problem })?;
        let root = root_of(&tree);
        let prefix = String::from_utf8_lossy(&tree.path(root)).into_owned();
        Ok(Self { file: Mutex::new(file), tree: Some(tree), root, prefix, unusual: BTreeMap::new() })
    }

    /// The path in the archive of the folder that is read.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Follows a path, and links on the way; `None` where nothing is there.
    ///
    /// # Errors
    ///
    /// A link that leads nowhere: the reason.
    pub(super) fn find(&self, path: &str) -> Result<Option<Found>, String> {
        match &self.tree {
            Some(tree) => tree.find(self.root, path.as_bytes()),
            None => Ok(None),
        }
    }

    /// The names in a folder, sorted.
    pub(super) fn names(&self, folder: FolderId) -> impl Iterator<Item = &[u8]> {
        self.tree.iter().flat_map(move |tree| tree.children(folder)).map(|(name, _)| name)
    }

    /// The range of a file for the index. The reason why a path leads to no file is kept until it is read.
    pub(super) fn range(&mut self, path: &str) -> ByteRange {
        let found = match self.find(path) {
            Ok(Some(Found::File(content))) => Ok(content),
            Ok(Some(Found::Folder(_) | Found::Special(_)) | None) => Err("not a file".to_owned()),
            Err(problem) => Err(problem),
        };
        let within = |content: Content| {
            let bytes = within_limit(content.bytes)?;
            u32::try_from(bytes).map(|bytes| (content, bytes)).map_err(|error| error.to_string())
        };
        match found.and_then(within) {
            Ok((Content { offset, map, .. }, bytes)) => {
                self.unusual.extend(map.map(|map| (offset, Unusual::Sparse(map))));
                ByteRange { offset, bytes }
            }
            Err(problem) => {
                // No archive is that long.
                let offset = u64::MAX - self.unusual.len() as u64;
                self.unusual.insert(offset, Unusual::Unreadable(problem));
                ByteRange { offset, bytes: 0 }
            }
        }
    }

    /// Frees the tree, which is needed only to build the index.
    pub(super) fn forget_tree(&mut self) {
        self.tree = None;
    }

    /// Checks that a range of the index is that of a file.
    pub(super) fn expect_file(&self, range: ByteRange) -> Result<(), String> {
        match self.unusual.get(&range.offset) {
            Some(Unusual::Unreadable(problem)) => Err(problem.clone()),
            _ => Ok(()),
        }
    }

    /// Reads at an offset of a file.
    pub(super) fn read_at(&self, range: ByteRange, at: u64, out: &mut [u8]) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        match self.unusual.get(&range.offset) {
            Some(Unusual::Sparse(map)) => {
                map.read_at(&mut |offset, out| read_at(&mut file, offset, out), at, out)
            }
            _ => read_at(&mut file, range.offset + at, out),
        }
    }

    /// Memory in bytes.
    pub(super) fn resident_bytes(&self) -> u64 {
        let of_one = |unusual: &Unusual| match unusual {
            Unusual::Sparse(map) => map.resident_bytes(),
            Unusual::Unreadable(problem) => problem.capacity() as u64,
        };
        self.unusual.values().map(|unusual| size_of::<(u64, Unusual)>() as u64 + of_one(unusual)).sum()
    }
}

fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}

/// The data set's root folder in the archive: the one that holds parts or
/// classes. Archives of a folder begin with the folder itself, or with what is in it.
fn root_of(tree: &Tree) -> FolderId {
    let visible = |folder| tree.children(folder).filter(|(name, _)| !is_hidden(name));
    let leads_to = |folder, name: &[u8]| match tree.find(folder, name) {
        Ok(Some(Found::Folder(inner))) => Some(inner),
        _ => None,
    };
    let is = |name: &[u8], check: fn(&str) -> bool| std::str::from_utf8(name).is_ok_and(check);
    let is_picture = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| is_image(Path::new(name)));
    // Whether a folder holds images, whether one below it does, and whether a part for training is below it.
    let mut about = vec![[false; 3]; tree.folders().len()];
    for (at, folder) in tree.folders().enumerate().rev() {
        for (name, node) in visible(folder) {
            let [direct, below, trained] = match node {
                Node::Folder(inner) => about[inner.index()],
                _ => [false; 3],
            };
            about[at][0] |= !matches!(node, Node::Folder(_)) && is_picture(name);
            about[at][1] |= direct || below;
            about[at][2] |= trained || is(name, parts::is_training) && leads_to(folder, name).is_some();
        }
    }
    let mut root = Tree::ROOT;
    loop {
        let is_root = visible(root).any(|(name, node)| {
            let inner = leads_to(root, name);
            let is_class = |inner: FolderId| node != Node::Folder(inner) && about[inner.index()][0];
            inner.is_some() && is(name, parts::is_part) || inner.is_some_and(is_class)
        });
        let inner: Vec<FolderId> = visible(root)
            .filter_map(|(_, node)| match node {
                Node::Folder(inner) if about[inner.index()][..2].contains(&true) => Some(inner),
                _ => None,
            })
            .collect();
        let trained: Vec<FolderId> = inner.iter().copied().filter(|inner| about[inner.index()][2]).collect();
        root = match (&inner[..], &trained[..]) {
            _ if is_root => return root,
            (&[only], _) if about[only.index()][1] => only,
            (_, &[only]) if !about[only.index()][0] => only,
            _ => return root,
        };
    }
}
