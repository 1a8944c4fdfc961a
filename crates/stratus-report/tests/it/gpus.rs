//! GPUs that heat or power throttled, on made-up samples: suggestions, page, tables and JSON document.

use std::fs;

use stratus_report::report::Report;
use stratus_report::{markdown, page};
use stratus_run::RunDir;
use stratus_run::machine::{Device, Machine};

use crate::page::{HOSTILE, PLAIN, drawn, make};

/// The columns of an earlier version, and those of this one.
const OLD_HEADER: &str = "elapsed_s,cpu_percent,rss_bytes,disk_read_bytes,disk_write_bytes,net_bytes,\
                          gpu_percent,gpu_memory_bytes,gpu_watts,cpu_watts";
const ADDED: &str = "gpu_mhz,gpu_celsius,gpu_throttling";

/// Writes a file of samples, one per second: the clock, the temperature and the reasons.
fn write(folder: &RunDir, samples: impl IntoIterator<Item = (u64, u64, &'static str)>) {
    let mut text = format!("{OLD_HEADER},{ADDED}\n");
    for (second, (mhz, celsius, reasons)) in samples.into_iter().enumerate() {
        text +=
            &format!("{}.000,50.0,1000,,,,97.0,2000000000,310.5,,{mhz},{celsius},{reasons}\n", second + 1);
    }
    fs::write(folder.usage(), text).unwrap();
}

fn read(run: &RunDir) -> Report {
    Report::read(&[run.path().to_owned()], None, None)
}

#[test]
fn hot_gpu_is_in_suggestions_page_and_tables() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::open(&make(root.path(), &PLAIN)).unwrap();
    let device = Device { kind: "cuda".to_owned(), name: HOSTILE.to_owned(), ..Device::default() };
    Machine { devices: vec![device], ..Machine::default() }.write(&run.machine()).unwrap();
    write(&run, (0..100).map(|second| if second < 60 { (1980, 70, "no") } else { (1485, 88, "heat") }));
    let report = read(&run);
    let line = format!(
        "The GPU ({HOSTILE}) was throttled by heat for 40 s, 40 % of the time, at 1485 MHz on average \
         instead of up to 1980 MHz: improve its cooling (airflow, dust, the temperature of the room)."
    );
    // The share of the time that the lower clock took at most: less than that of waiting for data.
    assert!(report.runs[0].advice[0].starts_with("Training waits for data 37.5 %"));
    assert_eq!(report.runs[0].advice[1], line);
    let page = page::render(&report);
    assert_eq!(page.matches("<script").count(), 2, "injected script");
    for text in ["Clock of the GPU, MHz", "time throttled, %", "<h4>GPU</h4>", "<td>of the run</td>"] {
        assert!(page.contains(text), "{text}");
    }
    let usage = drawn(&page)["runs"][0]["usage"].clone();
    assert_eq!((&usage["gpu_mhz"][59], &usage["gpu_mhz"][60]), (&1980.0.into(), &1485.0.into()));
    assert_eq!((&usage["gpu_celsius"][99], &usage["gpu_heat_percent"][99]), (&88.0.into(), &100.0.into()));
    assert_eq!((&usage["gpu_heat_percent"][0], &usage["gpu_power_percent"][99]), (&0.0.into(), &0.0.into()));
    assert_eq!((&usage["gpu_percent"][0], &usage["gpu_watts"][0]), (&97.0.into(), &310.5.into()));
    let json = serde_json::to_value(&report).unwrap();
    let gpu = &json["runs"][0]["usage"]["gpus"][0];
    assert_eq!(
        (&gpu["worker"], &gpu["max_celsius"], &gpu["max_mhz"]),
        (&().into(), &88.into(), &1980.into())
    );
    assert_eq!((&gpu["throttled"]["seconds"], &gpu["throttled"]["percent"]), (&40.0.into(), &40.0.into()));
    let text = markdown::markdown(&report);
    assert!(text.contains("was throttled by heat for 40 s") && !text.contains("<script"), "{text}");
}

#[test]
fn each_worker_has_a_row_and_a_suggestion() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::open(&make(root.path(), &PLAIN)).unwrap();
    write(&run, (0..50).map(|_| (1980, 60, "no")));
    write(&run.worker(1).unwrap(), (0..50).map(|second| (1500 + second, 91, "heat+power")));
    // The folder of a worker on a CPU of another machine, and one whose file is damaged.
    fs::write(run.worker(2).unwrap().usage(), format!("{OLD_HEADER}\n1.000,50.0,1000,,,,,,,\n")).unwrap();
    let damaged = format!("{OLD_HEADER},{ADDED}\n1.000,50.0,1000,,,,,,,,1,2,<script>alert(1)</script>\n");
    fs::write(run.worker(3).unwrap().usage(), damaged).unwrap();
    let report = read(&run);
    let gpus = &report.runs[0].usage.as_ref().unwrap().gpus;
    assert_eq!(gpus.iter().map(|gpu| gpu.worker).collect::<Vec<_>>(), [Some(0), Some(1)]);
    let found = report.runs[0].advice.iter().find(|line| line.contains("throttled")).unwrap();
    assert!(
        found.starts_with("The GPU of worker 1 was throttled by heat and power for 50 s, 100 %"),
        "{found}"
    );
    let damaged: Vec<&str> = report.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert!(damaged.contains(&"utilisation of worker 3"), "{damaged:?}");
    let page = page::render(&report);
    assert!(page.contains("<h4>Per GPU</h4>") && page.contains(">worker 1</td>"));
    assert!(!page.contains("<script>alert"), "injected script");
}

#[test]
fn files_of_earlier_versions_and_cool_gpus_have_no_suggestion() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::open(&make(root.path(), &PLAIN)).unwrap();
    let text =
        format!("{OLD_HEADER}\n1.000,50.0,1000,,,,97.0,,310.5,9.0\n2.000,50.0,1000,,,,97.0,,310.5,9.0\n");
    fs::write(run.usage(), text).unwrap();
    let report = read(&run);
    let usage = report.runs[0].usage.as_ref().unwrap();
    assert_eq!((usage.gpu.watts[1], usage.gpu.mhz[1], usage.cpu_watts[1]), (Some(310.5), None, Some(9.0)));
    assert_eq!((usage.gpus.len(), usage.gpus[0].throttled), (1, None));
    let html = page::render(&report);
    assert!(!html.contains("Clock of the GPU") && !html.contains("<h4>GPU</h4>"));
    assert!(html.contains("Power of CPU and GPU, W"));
    write(&run, (0..1000).map(|second| (1980, 60, if second < 40 { "power" } else { "no" })));
    let report = read(&run);
    assert!(report.runs[0].advice.iter().all(|line| !line.contains("throttled")), "4 % of the time");
    assert!(page::render(&report).contains("Clock of the GPU, MHz"));
}
