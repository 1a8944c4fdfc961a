//! A folder of image files in a tar or zip archive, which is read in place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::index::ByteRange;
use super::split_folders;
use crate::archive::{Content, FolderId, Found, Node, SparseMap, Tree, ZipMember, is_zip};
use crate::datasets::files::{is_hidden, within_limit};
use crate::error::DataError;
use crate::images::is_image;

/// An archive that holds a folder.
#[derive(Debug)]
pub(super) struct Packed {
    file: Mutex<File>,
    /// The contents of the archive, which are dropped once the index is built.
    tree: Option<Tree>,
    /// The root folder of the data set in the archive.
    root: FolderId,
    /// Its path in the archive.
    prefix: String,
    /// Samples that are not a single range of the archive, by their offset in the index.
    unusual: BTreeMap<u64, Unusual>,
}

#[derive(Debug)]
enum Unusual {
    /// A file with holes.
    Sparse(SparseMap),
    /// A file of a zip archive.
    Zipped(ZipMember),
    /// A name without a file, with the cause.
    Unreadable(String),
}

impl Packed {
    /// Reads the headers of an archive.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        let mut file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        let mut head = [0; 4];
        if length >= head.len() as u64 {
            read_at(&mut file, 0, &mut head).map_err(unreadable)?;
        }
        let tree = if is_zip(&head) {
            let handle = file.try_clone().map_err(unreadable)?;
            Tree::read_zip(rawzip::FileReader::from(handle), length)
        } else {
            Tree::read(&mut |offset: u64, out: &mut [u8]| read_at(&mut file, offset, out), length)
        };
        let tree = tree.map_err(|problem| DataError::Invalid { path: path.to_owned(), problem })?;
        let root = root_of(&tree);
        let prefix = String::from_utf8_lossy(&tree.path(root)).into_owned();
        Ok(Self { file: Mutex::new(file), tree: Some(tree), root, prefix, unusual: BTreeMap::new() })
    }

    /// The path of the data set's root folder in the archive.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Follows a path, including links; `None` if nothing is there.
    ///
    /// # Errors
    ///
    /// If a link is broken.
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

    /// Reads the beginning of a file; returns the number of bytes.
    pub(super) fn read_head(&self, path: &str, head: &mut [u8]) -> Result<usize, String> {
        let Some(Found::File(content)) = self.find(path)? else { return Err("not a file".to_owned()) };
        let bytes = head.len().min(usize::try_from(content.bytes).unwrap_or(usize::MAX));
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read_at = |offset: u64, out: &mut [u8]| read_at(&mut file, offset, out);
        content.read_at(&mut read_at, 0, &mut head[..bytes]).map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    /// The byte range of a file. If there is no file, the cause is kept until it is read.
    pub(super) fn range(&mut self, path: &str) -> ByteRange {
        let found = match self.find(path) {
            Ok(Some(Found::File(content))) => Ok(content),
            Ok(Some(Found::Special(name))) => Err(format!("not a file that can be read, but {name}")),
            Ok(Some(Found::Folder(_)) | None) => Err("not a file".to_owned()),
            Err(problem) => Err(problem),
        };
        let within = |content: Content| {
            let bytes = within_limit(content.bytes)?;
            content.check_proportion()?;
            u32::try_from(bytes).map(|bytes| (content, bytes)).map_err(|error| error.to_string())
        };
        match found.and_then(within) {
            Ok((Content { offset, map, zip, .. }, bytes)) => {
                self.unusual.extend(map.map(|map| (offset, Unusual::Sparse(map))));
                self.unusual.extend(zip.map(|member| (offset, Unusual::Zipped(member))));
                ByteRange { offset, bytes }
            }
            Err(problem) => {
                // No archive is long enough for this offset.
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

    /// Rejects ranges of unreadable files.
    pub(super) fn check_readable(&self, range: ByteRange) -> Result<(), String> {
        match self.unusual.get(&range.offset) {
            Some(Unusual::Unreadable(problem)) => Err(problem.clone()),
            _ => Ok(()),
        }
    }

    /// Reads at an offset of a file.
    pub(super) fn read_at(&self, range: ByteRange, at: u64, out: &mut [u8]) -> io::Result<()> {
        // Locked for each read, and not while a file is unpacked.
        let mut read = |offset: u64, out: &mut [u8]| {
            read_at(&mut self.file.lock().unwrap_or_else(PoisonError::into_inner), offset, out)
        };
        match self.unusual.get(&range.offset) {
            Some(Unusual::Sparse(map)) => map.read_at(&mut read, at, out),
            Some(Unusual::Zipped(member)) => {
                member.read_at(&mut read, [range.offset, u64::from(range.bytes)], at, out)
            }
            _ => read(range.offset + at, out),
        }
    }

    /// Memory in bytes.
    pub(super) fn resident_bytes(&self) -> u64 {
        let heap_bytes = |unusual: &Unusual| match unusual {
            Unusual::Sparse(map) => map.resident_bytes(),
            Unusual::Zipped(_) => 0,
            Unusual::Unreadable(problem) => problem.capacity() as u64,
        };
        self.unusual.values().map(|unusual| size_of::<(u64, Unusual)>() as u64 + heap_bytes(unusual)).sum()
    }
}

fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}

/// The data set's root folder in the archive: the one that holds split or class folders. Archives begin with
/// the folder itself, or with its content.
fn root_of(tree: &Tree) -> FolderId {
    let visible = |folder| tree.children(folder).filter(|(name, _)| !is_hidden(name));
    let folder_at = |folder, name: &[u8]| match tree.find(folder, name) {
        Ok(Some(Found::Folder(inner))) => Some(inner),
        _ => None,
    };
    let name_matches = |name: &[u8], check: fn(&str) -> bool| std::str::from_utf8(name).is_ok_and(check);
    let is_image_name = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| is_image(Path::new(name)));
    // For each folder: whether it holds images, whether a folder below it does, and whether a training folder
    // is below it.
    let mut contents = vec![[false; 3]; tree.folders().len()];
    for (at, folder) in tree.folders().enumerate().rev() {
        for (name, node) in visible(folder) {
            let [direct, below, has_training] = match node {
                Node::Folder(inner) => contents[inner.index()],
                _ => [false; 3],
            };
            contents[at][0] |= !matches!(node, Node::Folder(_)) && is_image_name(name);
            contents[at][1] |= direct || below;
            contents[at][2] |= has_training
                || name_matches(name, split_folders::is_training_folder) && folder_at(folder, name).is_some();
        }
    }
    let mut root = Tree::ROOT;
    loop {
        let is_root = visible(root).any(|(name, node)| {
            let inner = folder_at(root, name);
            let is_class = |inner: FolderId| node != Node::Folder(inner) && contents[inner.index()][0];
            inner.is_some() && name_matches(name, split_folders::is_split_folder)
                || inner.is_some_and(is_class)
        });
        let inner: Vec<FolderId> = visible(root)
            .filter_map(|(_, node)| match node {
                Node::Folder(inner) if contents[inner.index()][..2].contains(&true) => Some(inner),
                _ => None,
            })
            .collect();
        let with_training: Vec<FolderId> =
            inner.iter().copied().filter(|inner| contents[inner.index()][2]).collect();
        root = match (&inner[..], &with_training[..]) {
            _ if is_root => return root,
            (&[only], _) if contents[only.index()][1] => only,
            (_, &[only]) if !contents[only.index()][0] => only,
            _ => return root,
        };
    }
}
