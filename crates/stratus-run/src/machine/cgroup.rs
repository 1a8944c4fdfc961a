//! The memory limit of the control group of this process, as set by containers and batch systems.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups of both versions.
const MOUNT: &str = "sys/fs/cgroup";

/// The smallest limit of the control group of this process and its ancestors, in bytes; `None` without a
/// limit.
pub(super) fn memory_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join(MOUNT);
    let limits = groups.lines().filter_map(|line| {
        // `hierarchy:controllers:path`; version 2 has a single hierarchy with an empty list.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            min_limit_on_path(&mount, path, "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            min_limit_on_path(&mount.join("memory"), path, "memory.limit_in_bytes")
        } else {
            None
        }
    });
    // If the process sees its own group as the root, the limit is at the root.
    limits.chain(read(&mount, "memory.max")).min()
}

/// The smallest limit on the path from a group to the root.
fn min_limit_on_path(mount: &Path, path: &str, file: &str) -> Option<u64> {
    let mut group = PathBuf::new();
    let folders = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    let groups = std::iter::once(mount.to_owned()).chain(folders.map(|part| {
        group.push(part);
        mount.join(&group)
    }));
    groups.filter_map(|group| read(&group, file)).min()
}

/// The limit of a group. Version 1 uses a huge number for "no limit", which exceeds the memory of any
/// machine.
fn read(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_limit(root.path())
    }

    #[test]
    fn takes_the_smallest_limit_on_the_path_to_the_root() {
        let group = ("proc/self/cgroup", "0::/batch/job_7\n");
        let job = ("sys/fs/cgroup/batch/job_7/memory.max", "max\n");
        let batch = ("sys/fs/cgroup/batch/memory.max", "4096\n");
        let other = ("sys/fs/cgroup/batch/job_8/memory.max", "1024\n");
        assert_eq!(limit(&[group, job, batch, other]), Some(4096));
        assert_eq!(limit(&[group, ("sys/fs/cgroup/batch/job_7/memory.max", "2048\n"), batch]), Some(2048));
        assert_eq!(limit(&[group, job]), None);
    }

    #[test]
    fn reads_both_versions_and_containers() {
        let first = ("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/docker/b\n");
        let bytes = ("sys/fs/cgroup/memory/docker/b/memory.limit_in_bytes", "8192\n");
        assert_eq!(
            limit(&[first, bytes, ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9999\n")]),
            Some(8192)
        );
        let container = ("sys/fs/cgroup/memory.max", "512\n");
        assert_eq!(limit(&[("proc/self/cgroup", "0::/\n"), container]), Some(512));
        assert_eq!(limit(&[("proc/self/cgroup", "0::/../../x\n"), container]), Some(512));
        assert_eq!(limit(&[container]), Some(512));
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[("proc/self/cgroup", "nothing\n::\n0::\n")]), None);
    }
}
