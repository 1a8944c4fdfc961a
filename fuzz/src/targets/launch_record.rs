//! Records of launches.

use crate::scratch;
use stratus_launch::LaunchRecord;

use super::Target;

pub const TARGET: Target =
    Target { name: "launch_record", run, seeds: Vec::new, dictionary: &[], max_bytes: 65536 };

fn run(data: &[u8]) {
    scratch::file("runs/.launches/a.toml", data);
    let _ = LaunchRecord::all(&scratch::folder().join("runs"));
}
