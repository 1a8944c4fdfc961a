//! The caches of the processor, where the system says what they are.

use std::path::Path;

/// What a core's second-level cache holds where the system does not say: the least of today's processors.
const LEVEL_2: usize = 1 << 20;

/// Bytes of a core's second-level cache.
pub(crate) fn level_2() -> usize {
    from_system(Path::new("/sys/devices/system/cpu/cpu0/cache")).unwrap_or(LEVEL_2)
}

/// Reads what Linux exports: a folder per cache, in it its level and size (`2048K`).
fn from_system(caches: &Path) -> Option<usize> {
    std::fs::read_dir(caches).ok()?.flatten().find_map(|cache| {
        let read = |name: &str| std::fs::read_to_string(cache.path().join(name)).ok();
        let level_2 = read("level")?.trim() == "2";
        let size = read("size")?;
        let kib: usize = size.trim().strip_suffix('K')?.parse().ok()?;
        (level_2 && kib > 0).then_some(kib << 10)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_level_is_read_and_nonsense_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(from_system(&folder.path().join("none")), None);
        for (index, level, size) in
            [(0, "1", "48K"), (1, "2", "lots"), (2, "2", "2048K"), (3, "3", "107520K")]
        {
            let cache = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&cache).unwrap();
            std::fs::write(cache.join("level"), format!("{level}\n")).unwrap();
            std::fs::write(cache.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(from_system(folder.path()), Some(2 << 20));
    }
}
