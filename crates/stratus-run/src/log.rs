//! `log.txt`: the messages of a run, each with its UTC time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stratus_base::time::timestamp;

use crate::{Error, Result};

/// Appends to `log.txt`; every message is in the file when [`Log::write`] returns.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    line: Vec<u8>,
}

impl Log {
    /// Opens `path`, creating it if absent. An incomplete last line of a killed process is terminated.
    pub fn open(path: &Path) -> Result<Self> {
        let options = OpenOptions::new().read(true).append(true).create(true).open(path);
        let mut file = options.map_err(Error::io("open", path))?;
        let mut last = [b'\n'];
        if file.seek(SeekFrom::End(-1)).is_ok() {
            file.read_exact(&mut last).map_err(Error::io("read", path))?;
        }
        if last != *b"\n" {
            file.write_all(b"\n").map_err(Error::io("write", path))?;
        }
        Ok(Self { file, path: path.to_path_buf(), line: Vec::new() })
    }

    /// Appends a message with the current time. Its further lines are indented.
    pub fn write(&mut self, message: &str) -> Result<()> {
        self.write_at(SystemTime::now(), message)
    }

    /// Appends a message with the given time.
    pub fn write_at(&mut self, time: SystemTime, message: &str) -> Result<()> {
        self.line.clear();
        let stamp = timestamp(time);
        for (i, text) in message.trim_end().split('\n').enumerate() {
            let margin = if i == 0 { stamp.as_str() } else { "                        " };
            self.line.extend_from_slice(margin.as_bytes());
            self.line.push(b' ');
            self.line.extend_from_slice(text.trim_end().as_bytes());
            self.line.push(b'\n');
        }
        self.file.write_all(&self.line).map_err(Error::io("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn appends_lines_and_terminates_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        std::fs::write(&path, "torn").unwrap();
        Log::open(&path).unwrap().write_at(at(0), "one\ntwo\n").unwrap();
        Log::open(&path).unwrap().write_at(at(1), "three").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "torn\n1970-01-01T00:00:00.000Z one\n                         two\n\
             1970-01-01T00:00:01.000Z three\n"
        );
    }
}
