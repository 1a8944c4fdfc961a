//! The caches of the CPU, from `/sys/devices/system/cpu`.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// A cache level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// The level; 1 is innermost.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Bytes of one instance.
    pub bytes: u64,
    /// Number of instances.
    pub count: usize,
}

/// Total bytes of all last-level caches.
#[must_use]
pub fn last_level_bytes(caches: &[Cache]) -> Option<u64> {
    let last = caches.iter().filter(|cache| cache.kind != "Instruction").max_by_key(|cache| cache.level)?;
    last.bytes.checked_mul(last.count as u64)
}

/// Bytes of the L2 cache of a core.
#[must_use]
pub fn l2_bytes_per_core(caches: &[Cache]) -> Option<u64> {
    caches.iter().find(|cache| cache.level == 2 && cache.kind != "Instruction").map(|cache| cache.bytes)
}

/// The caches of the first core, with the number of instances if all cores are alike.
pub(super) fn read(root: &Path, logical: usize) -> Vec<Cache> {
    let folder = root.join("sys/devices/system/cpu/cpu0/cache");
    let mut caches: Vec<Cache> = (0..10)
        .filter_map(|index| {
            let read = |name: &str| {
                fs::read_to_string(folder.join(format!("index{index}")).join(name))
                    .ok()
                    .map(|text| text.trim().to_owned())
            };
            let sharing = read("shared_cpu_list").map_or(1, |list| cpus_in(&list)).max(1);
            Some(Cache {
                level: read("level")?.parse().ok()?,
                kind: read("type")?,
                bytes: size(&read("size")?)?,
                count: logical.div_ceil(sharing).max(1),
            })
        })
        .collect();
    caches.sort_by(|a, b| (a.level, &a.kind).cmp(&(b.level, &b.kind)));
    caches
}

/// Parses a size such as `48K` or `32M`, in bytes.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) if text.ends_with('M') => (number, 1 << 20),
        Some(number) => (number, 1 << 30),
        None => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The number of CPUs in a list such as `0-3,8`.
fn cpus_in(list: &str) -> usize {
    list.split(',')
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_counts_caches() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("index0", "1", "Data", "48K", "0,2"),
            ("index1", "1", "Instruction", "32K", "0,2"),
            ("index3", "3", "Unified", "32M", "0-3"),
        ];
        for (index, level, kind, bytes, shared) in files {
            let folder = root.path().join("sys/devices/system/cpu/cpu0/cache").join(index);
            fs::create_dir_all(&folder).unwrap();
            for (name, value) in
                [("level", level), ("type", kind), ("size", bytes), ("shared_cpu_list", shared)]
            {
                fs::write(folder.join(name), format!("{value}\n")).unwrap();
            }
        }
        let caches = read(root.path(), 8);
        assert_eq!(
            caches.iter().map(|c| (c.level, c.bytes, c.count)).collect::<Vec<_>>(),
            [(1, 48 << 10, 4), (1, 32 << 10, 4), (3, 32 << 20, 2)]
        );
        assert_eq!((l2_bytes_per_core(&caches), last_level_bytes(&caches)), (None, Some(64 << 20)));
        let second = Cache { level: 2, kind: "Unified".into(), bytes: 2 << 20, count: 2 };
        assert_eq!(l2_bytes_per_core(&[caches[0].clone(), second]), Some(2 << 20));
    }

    #[test]
    fn ignores_invalid_sizes_and_lists() {
        assert_eq!(
            ["12", "2G", "", "K", "xK", "99999999999999999999"].map(size),
            [Some(12), Some(2 << 30), None, None, None, None]
        );
        assert_eq!(["", "0", "3-1", "0-18446744073709551615", "1-x"].map(cpus_in), [0, 1, 0, 0, 0]);
    }
}
