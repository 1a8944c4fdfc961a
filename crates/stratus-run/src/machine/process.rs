//! Resource usage of a process, as counted by Linux: memory, disk, network.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Maximum number of bytes to read of a file: enough for the counters of a thousand network interfaces.
const MAX_PROC_FILE_BYTES: usize = 1 << 17;

/// Reads the counters of this process. Reading does not allocate.
#[derive(Debug)]
pub struct ProcessMeter {
    status: Option<File>,
    io: Option<File>,
    net: Option<File>,
    text: Vec<u8>,
}

/// Counters of a process; `None` if the system does not provide one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Current resident memory of the process.
    pub rss_bytes: Option<u64>,
    /// Bytes read from disks for the process since it started, without reads from the system's cache.
    pub disk_read_bytes: Option<u64>,
    /// Bytes written to disks for the process since it started, including pending writes.
    pub disk_write_bytes: Option<u64>,
    /// Bytes that the machine has received and sent over all interfaces except the loopback. Linux does not
    /// count them per process.
    pub net_bytes: Option<u64>,
}

impl ProcessMeter {
    /// Opens the counters of this process.
    #[must_use]
    pub fn open() -> Self {
        Self::under(Path::new("/proc/self"))
    }

    fn under(folder: &Path) -> Self {
        let open = |name: &str| File::open(folder.join(name)).ok();
        Self {
            status: open("status"),
            io: open("io"),
            net: open("net/dev"),
            text: vec![0; MAX_PROC_FILE_BYTES],
        }
    }

    /// Reads the current counters.
    pub fn counts(&mut self) -> ProcessCounts {
        let Self { status, io, net, text } = self;
        let rss_bytes =
            content(status.as_mut(), text).and_then(|text| value(text, b"VmRSS:")?.checked_mul(1024));
        let io = content(io.as_mut(), text);
        let [disk_read_bytes, disk_write_bytes] =
            [&b"read_bytes:"[..], b"write_bytes:"].map(|key| io.and_then(|text| value(text, key)));
        let net_bytes = content(net.as_mut(), text).map(interfaces);
        ProcessCounts { rss_bytes, disk_read_bytes, disk_write_bytes, net_bytes }
    }
}

/// The current content of a file, truncated to the length of `text`.
pub(super) fn content<'a>(file: Option<&mut File>, text: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = file?;
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut length = 0;
    while length < text.len() {
        match file.read(&mut text[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(_) => return None,
        }
    }
    Some(&text[..length])
}

/// The number after a key at the start of a line.
fn value(text: &[u8], key: &[u8]) -> Option<u64> {
    let rest = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
    number(words(rest).next()?)
}

/// The total bytes received and sent, from lines such as `eth0: 10 1 0 0 0 0 0 0 20 …`.
fn interfaces(text: &[u8]) -> u64 {
    let mut sum = 0_u64;
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        if line[..colon].trim_ascii() == b"lo" {
            continue;
        }
        let columns = words(&line[colon + 1..]).enumerate();
        // Received and sent bytes are the first of eight columns each.
        let bytes =
            columns.filter(|(column, _)| [0, 8].contains(column)).filter_map(|(_, word)| number(word));
        sum = bytes.fold(sum, u64::saturating_add);
    }
    sum
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reads_current_counters_repeatedly() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("net")).unwrap();
        let put = |rss: u64, read: u64, received: u64| {
            let status = format!("Name:\tx\nVmHWM:\t  999 kB\nVmRSS:\t  {rss} kB\nThreads:\t3\n");
            fs::write(root.path().join("status"), status).unwrap();
            let io = format!("rchar: 5\nread_bytes: {read}\nwrite_bytes: 7\ncancelled_write_bytes: 0\n");
            fs::write(root.path().join("io"), io).unwrap();
            let net = format!(
                "Inter-|   Receive\n face |bytes    packets\n    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n  \
                 eth0:{received} 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n wlan0: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n"
            );
            fs::write(root.path().join("net/dev"), net).unwrap();
        };
        put(2, 100, 10);
        let mut meter = ProcessMeter::under(root.path());
        let counts = |rss: u64, read: u64, net: u64| ProcessCounts {
            rss_bytes: Some(rss * 1024),
            disk_read_bytes: Some(read),
            disk_write_bytes: Some(7),
            net_bytes: Some(net),
        };
        assert_eq!(meter.counts(), counts(2, 100, 33));
        put(30, 200, 110);
        assert_eq!(meter.counts(), counts(30, 200, 133));
        let mut absent = ProcessMeter::under(&root.path().join("none"));
        assert_eq!(absent.counts(), ProcessCounts::default());
        fs::write(root.path().join("status"), "VmRSS: much\n").unwrap();
        fs::write(root.path().join("io"), "read_bytes\n").unwrap();
        fs::write(root.path().join("net/dev"), "nothing\n: :\n").unwrap();
        assert_eq!(meter.counts(), ProcessCounts { net_bytes: Some(0), ..ProcessCounts::default() });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn resident_memory_of_this_process_is_known() {
        assert!(ProcessMeter::open().counts().rss_bytes.unwrap() > 100_000);
    }
}
