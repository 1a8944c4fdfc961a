//! The folder tree of an archive: later entries replace earlier ones, and links are resolved.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::entries::{Content, Entries, Entry, Kind};
use super::header::{ReadAt, display_name};
use super::sparse::SparseMap;
use super::zip_member::ZipMember;

/// The maximum number of consecutive links, like on Linux.
const MAX_LINKS: usize = 40;
/// The maximum nesting depth of folders.
const MAX_DEPTH: usize = 128;

/// A folder of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolderId(u32);

impl FolderId {
    /// The index of the folder in its tree.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The type of a name in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Folder(FolderId),
    /// A file by its offset in the archive, and its length.
    File {
        offset: u64,
        bytes: u64,
    },
    /// A symbolic link, by its index in `targets`.
    SymbolicLink(u32),
    /// A hard link whose file is not in the archive before it, by its index in `targets`.
    HardLink(u32),
    /// A special file without content, by its name for messages.
    Special(&'static str),
}

/// The file or folder at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Folder(FolderId),
    File(Content),
    Special(&'static str),
}

/// A name in a folder.
#[derive(Clone, Copy, Debug)]
struct Child {
    folder: FolderId,
    /// The name's range in `names`.
    name: (u32, u32),
    /// The position of the entry in the archive.
    sequence: u32,
    node: Node,
}

#[derive(Debug)]
struct Folder {
    parent: FolderId,
    name: Box<[u8]>,
    children: Range<u32>,
}

/// The folder tree of an archive.
#[derive(Debug)]
pub(crate) struct Tree {
    names: Vec<u8>,
    /// Sorted by folder, then by name.
    children: Vec<Child>,
    folders: Vec<Folder>,
    /// Folders by the index of their parent in four bytes, followed by their name.
    by_name: HashMap<Box<[u8]>, FolderId>,
    /// The targets of links.
    targets: Vec<Box<[u8]>>,
    /// The maps of sparse files, by their offsets.
    maps: BTreeMap<u64, SparseMap>,
    /// The files of a zip archive, by their offsets.
    zip_members: BTreeMap<u64, ZipMember>,
}

impl Tree {
    /// The destination folder.
    pub(crate) const ROOT: FolderId = FolderId(0);

    /// Reads the headers of an archive of `length` bytes.
    ///
    /// # Errors
    ///
    /// If the archive is damaged, or `tar` would not unpack it completely.
    pub(crate) fn read(read_at: ReadAt<'_>, length: u64) -> Result<Self, String> {
        let mut tree = Self::new();
        let mut entries = Entries::new(read_at, 0, length);
        while let Some(Entry { path, kind }) = entries.next()? {
            let node = match kind {
                Kind::Folder => {
                    tree.add_folder(path)?;
                    continue;
                }
                Kind::File(Content { offset, bytes, map, .. }) => {
                    tree.maps.extend(map.map(|map| (offset, map)));
                    Node::File { offset, bytes }
                }
                Kind::SymbolicLink(target) => Node::SymbolicLink(tree.add_target(target)),
                Kind::HardLink(target) => Node::HardLink(tree.add_target(target)),
                Kind::Special(name) => Node::Special(name),
            };
            tree.add_path(path, node)?;
        }
        tree.finish()?;
        Ok(tree)
    }

    /// A tree of the destination folder only.
    pub(super) fn new() -> Self {
        let root = Folder { parent: Self::ROOT, name: Box::default(), children: 0..0 };
        Self {
            names: Vec::new(),
            children: Vec::new(),
            folders: vec![root],
            by_name: HashMap::new(),
            targets: Vec::new(),
            maps: BTreeMap::new(),
            zip_members: BTreeMap::new(),
        }
    }

    /// Adds a node at a path, with the folders above it.
    pub(super) fn add_path(&mut self, path: &[u8], node: Node) -> Result<(), String> {
        let (folder, name) = split(path);
        let folder = self.add_folder(folder)?;
        self.add(folder, name, node)
    }

    /// Records the compression of the file at an offset.
    pub(super) fn add_zip_member(&mut self, offset: u64, member: ZipMember) {
        self.zip_members.insert(offset, member);
    }

    fn add(&mut self, folder: FolderId, name: &[u8], node: Node) -> Result<(), String> {
        let begin = self.names.len();
        self.names.extend_from_slice(name);
        let numbers = [begin, self.names.len(), self.children.len()].map(u32::try_from);
        let [Ok(begin), Ok(end), Ok(sequence)] = numbers else {
            return Err(format!("the archive has more than {} entries or bytes of names", u32::MAX));
        };
        self.children.push(Child { folder, name: (begin, end), sequence, node });
        Ok(())
    }

    /// Adds the folder of a path, with its parents.
    pub(super) fn add_folder(&mut self, path: &[u8]) -> Result<FolderId, String> {
        let (mut folder, mut key) = (Self::ROOT, Vec::new());
        for (depth, name) in parts(path).enumerate() {
            if depth == MAX_DEPTH {
                return Err(format!("{} is nested in more than {MAX_DEPTH} folders", display_name(path)));
            }
            self::key(folder, name, &mut key);
            folder = match self.by_name.get(&*key) {
                Some(&known) => known,
                None => {
                    // Fits, because there are no more folders than bytes of names.
                    let new = FolderId(self.folders.len() as u32);
                    self.folders.push(Folder { parent: folder, name: name.into(), children: 0..0 });
                    self.by_name.insert(key.as_slice().into(), new);
                    self.add(folder, name, Node::Folder(new))?;
                    new
                }
            };
        }
        Ok(folder)
    }

    fn add_target(&mut self, target: &[u8]) -> u32 {
        self.targets.push(target.into());
        // Fits, because there are no more links than entries.
        self.targets.len() as u32 - 1
    }

    /// Sorts the entries, resolves hard links, and keeps the last entry of each name.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let Self { names, children, by_name, targets, .. } = self;
        let name = |child: &Child| &names[child.name.0 as usize..child.name.1 as usize];
        let location = |child: &Child| (child.folder.0, name(child));
        children
            .sort_unstable_by(|a, b| location(a).cmp(&location(b)).then_with(|| a.sequence.cmp(&b.sequence)));
        let mut hard_links: Vec<(u32, usize, u32)> = Vec::new();
        for (at, child) in children.iter().enumerate() {
            if let Node::HardLink(link) = child.node {
                hard_links.push((child.sequence, at, link));
            }
        }
        // A hard link refers to the target at that time, even if it is replaced later.
        hard_links.sort_unstable();
        for (sequence, at, link) in hard_links {
            let (folder, target) = split(&targets[link as usize]);
            let Some(folder) = find_folder(by_name, folder) else { continue };
            let before = |child: &Child| (location(child), child.sequence) < ((folder.0, target), sequence);
            let found = children[..children.partition_point(before)].last();
            if let Some(found) = found.filter(|found| location(found) == (folder.0, target))
                && !matches!(found.node, Node::Folder(_))
            {
                children[at].node = found.node;
            }
        }
        let mut in_conflict = None;
        let is_folder = |child: &Child| matches!(child.node, Node::Folder(_));
        children.dedup_by(|later, earlier| {
            let is_same = location(later) == location(earlier);
            if is_same {
                if is_folder(later) != is_folder(earlier) {
                    in_conflict.get_or_insert(*later);
                }
                *earlier = *later;
            }
            is_same
        });
        if let Some(child) = in_conflict {
            return Err(format!(
                "{} is both a folder and a file or link in the archive; pack it again",
                display_name(&joined(&self.path(child.folder), self.name(&child)))
            ));
        }
        self.children.shrink_to_fit();
        for (at, child) in self.children.iter().enumerate() {
            let range = &mut self.folders[child.folder.0 as usize].children;
            if range.start == range.end {
                range.start = at as u32;
            }
            range.end = at as u32 + 1;
        }
        Ok(())
    }

    /// The path of a folder in the archive.
    pub(crate) fn path(&self, mut folder: FolderId) -> Vec<u8> {
        let mut path = Vec::new();
        while folder != Self::ROOT {
            let Folder { parent, name, .. } = &self.folders[folder.0 as usize];
            path = joined(name, &path);
            folder = *parent;
        }
        path
    }

    /// All folders. Parents come before their children.
    pub(crate) fn folders(&self) -> impl DoubleEndedIterator<Item = FolderId> + ExactSizeIterator {
        (0..self.folders.len() as u32).map(FolderId)
    }

    /// The names in a folder, sorted, with their types.
    pub(crate) fn children(&self, folder: FolderId) -> impl Iterator<Item = (&[u8], Node)> {
        self.in_folder(folder).iter().map(|child| (self.name(child), child.node))
    }

    fn in_folder(&self, folder: FolderId) -> &[Child] {
        let Range { start, end } = self.folders[folder.0 as usize].children;
        &self.children[start as usize..end as usize]
    }

    fn name(&self, child: &Child) -> &[u8] {
        &self.names[child.name.0 as usize..child.name.1 as usize]
    }

    /// Follows a path from a folder, including links; `None` if nothing is there.
    ///
    /// # Errors
    ///
    /// If a link is broken within the archive: its target and the cause.
    pub(crate) fn find(&self, from: FolderId, path: &[u8]) -> Result<Option<Found>, String> {
        let mut folder = from;
        let mut parts: Vec<&[u8]> = path.rsplit(|&byte| byte == b'/').collect();
        let (mut links, mut first) = (0, None);
        let broken = |first: Option<&[u8]>, why: &str| match first {
            None => Ok(None),
            Some(target) => Err(format!(
                "is a broken link to {} ({why}); pack the target instead (`tar -h`) or remove the link",
                display_name(target)
            )),
        };
        while let Some(part) = parts.pop() {
            match part {
                b"" | b"." => continue,
                b".." if folder == Self::ROOT => return broken(first, "outside the archive"),
                b".." => {
                    folder = self.folders[folder.0 as usize].parent;
                    continue;
                }
                _ => {}
            }
            let children = self.in_folder(folder);
            let Ok(at) = children.binary_search_by(|child| self.name(child).cmp(part)) else {
                return broken(first, "not in the archive");
            };
            let is_last = parts.iter().all(|part| part.is_empty());
            match children[at].node {
                Node::Folder(inner) => folder = inner,
                Node::SymbolicLink(link) => {
                    let target = &*self.targets[link as usize];
                    first = first.or(Some(target));
                    links += 1;
                    if links > MAX_LINKS {
                        return broken(first, "too many links");
                    }
                    if target.starts_with(b"/") {
                        return broken(first, "outside the archive");
                    }
                    parts.extend(target.rsplit(|&byte| byte == b'/'));
                }
                _ if !is_last => return broken(first, "a parent is not a folder"),
                Node::File { offset, bytes } => {
                    let map = self.maps.get(&offset).cloned();
                    let zip = self.zip_members.get(&offset).copied();
                    return Ok(Some(Found::File(Content { offset, bytes, map, zip })));
                }
                Node::HardLink(link) => {
                    return Err(format!(
                        "is a hard link to {}, but the archive has no such file before it; pack the file \
                         instead (`tar --hard-dereference`) or remove the link",
                        display_name(&self.targets[link as usize])
                    ));
                }
                Node::Special(name) => return Ok(Some(Found::Special(name))),
            }
        }
        Ok(Some(Found::Folder(folder)))
    }
}

/// Splits a path into its folder and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The components of a path.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
}

/// Sets `key` to the key in `by_name` of the folder `name` below a parent `folder`.
fn key(folder: FolderId, name: &[u8], key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(&folder.0.to_le_bytes());
    key.extend_from_slice(name);
}

/// The folder of a path, without following links.
fn find_folder(by_name: &HashMap<Box<[u8]>, FolderId>, path: &[u8]) -> Option<FolderId> {
    let mut buffer = Vec::new();
    parts(path).try_fold(Tree::ROOT, |folder, name| {
        key(folder, name, &mut buffer);
        by_name.get(&*buffer).copied()
    })
}

/// Joins two paths.
fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    match [folder, name] {
        [b"", only] | [only, b""] => only.to_vec(),
        _ => [folder, b"/", name].concat(),
    }
}
