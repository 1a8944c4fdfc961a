//! `stratus collect` and `stratus report` on a run whose GPU was throttled, with made-up samples.

use crate::common::TestDir;
use serde_json::{Value, json};
use std::fs;

const HEADER: &str = "elapsed_s,cpu_percent,rss_bytes,disk_read_bytes,disk_write_bytes,net_bytes,gpu_percent,\
                      gpu_memory_bytes,gpu_watts,cpu_watts,gpu_mhz,gpu_celsius,gpu_throttling";

#[test]
fn gpu_that_was_throttled_is_named() {
    let dir = TestDir::new();
    dir.train("run", 1, &[]).expect(0);
    let plain = dir.run(&["collect", "run"]).expect(0);
    assert!(!plain.out.contains("throttled"), "{}", plain.out);
    let row = |second: u64, clock: &str| format!("{second}.000,50.0,1000,,,,97.0,,310.5,,{clock}\n");
    let rows = (1..=100).map(|second| row(second, if second <= 75 { "1980,70,no" } else { "1485,60,power" }));
    fs::write(dir.path("run/usage.csv"), format!("{HEADER}\n{}", rows.collect::<String>())).unwrap();
    let path = dir.path("run/machine.json");
    let mut machine: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    machine["devices"] = json!([{ "kind": "cuda", "name": "X\u{1b}[2J\n<script>", "memory_bytes": null,
                                  "driver": null, "uuid": null }]);
    fs::write(&path, machine.to_string()).unwrap();
    // The file of another worker is damaged.
    fs::create_dir_all(dir.path("run/workers/1")).unwrap();
    fs::write(dir.path("run/workers/1/usage.csv"), format!("{HEADER}\n1.000,,,\n")).unwrap();
    let ran = dir.run(&["collect", "run"]).expect(0);
    assert!(
        ran.out
            .contains("The GPU of worker 0 (X\u{fffd}[2J\u{fffd}<script>) was throttled by power for 25 s")
    );
    assert!(
        ran.out.contains("25 % of the time, at 1485 MHz on average instead of up to 1980 MHz"),
        "{}",
        ran.out
    );
    assert!(
        ran.err.contains("cannot show utilisation of worker 1") && ran.err.contains("line 2"),
        "{}",
        ran.err
    );
    let report = dir.run(&["report", "run", "--format", "md", "--out", "-"]).expect(0);
    assert!(report.out.contains("was throttled by power for 25 s") && !report.out.contains("<script>"));
    assert!(!report.out.contains('\u{1b}'), "{}", report.out);
}
