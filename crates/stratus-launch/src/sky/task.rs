//! What SkyPilot is handed: a task file for each repetition, and the script that it runs.

use super::{Sky, job_name};
use crate::Resources;
use crate::job::Job;
use crate::targets::MOUNT;
use stratus_base::text::quoted;

/// What trains a repetition.
const SCRIPT: &str = concat!(
    include_str!("../scripts/repetition.sh"),
    include_str!("../scripts/train.sh"),
    include_str!("../scripts/sky.sh")
);
/// How many seconds pass between two looks at what is new, on a folder of one path and on a mounted bucket.
const PAUSE: [u64; 2] = [2, 10];

/// The files of a job: for each repetition its task file, its script and its experiment. `submitted` numbers
/// the starts of the launch.
pub(super) fn files(sky: &Sky, job: &Job, submitted: u64) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (number, experiment) in (1..).zip(&job.experiments) {
        files.push((format!("{number}.yaml"), task(sky, job, number)));
        files.push((format!("{number}/train.sh"), script(sky, job, number, submitted)));
        files.push((format!("{number}/experiment.toml"), experiment.clone()));
    }
    files
}

/// A text as YAML has it: as JSON has it.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// Lines as a block of YAML, whose indentation is said: the first line may be further in than others.
fn block(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("|2\n{lines}")
}

/// The task file of a repetition.
pub(super) fn task(sky: &Sky, job: &Job, number: usize) -> String {
    let settings = &sky.settings;
    let mut file = format!("name: {}\n\nresources:\n", text(&job_name(&job.id, number)));
    let Resources { memory_bytes, cpus, .. } = job.resources;
    // What the forecast says is the least.
    let memory = memory_bytes.map(|bytes| format!("{}+", bytes.div_ceil(1_000_000_000).max(1)));
    let cpus = cpus.map(|cpus| format!("{cpus}+"));
    let is_free = settings.instance.is_none();
    for (key, value) in [
        ("infra", settings.infra.clone()),
        ("accelerators", settings.gpus.clone()),
        ("instance_type", settings.instance.clone()),
        ("cpus", settings.cpus.clone().or(cpus.filter(|_| is_free))),
        ("memory", settings.memory.clone().or(memory.filter(|_| is_free))),
        ("image_id", settings.image.clone()),
    ] {
        if let Some(value) = value {
            file += &format!("  {key}: {}\n", text(&value));
        }
    }
    if let Some(disk) = settings.disk_gb {
        file += &format!("  disk_size: {disk}\n");
    }
    if let Some(cost) = settings.max_hourly_cost {
        file += &format!("  max_hourly_cost: {cost}\n");
    }
    file += &format!("  use_spot: {}\n", settings.spot);
    // A machine that is taken away asks its training for a checkpoint, which ends with this code.
    file += "  job_recovery:\n    max_restarts_on_errors: 0\n    recover_on_exit_codes: [75]\n";
    if !settings.is_path() {
        let source = text(&settings.bucket);
        file += &format!("\nfile_mounts:\n  {MOUNT}:\n    source: {source}\n    mode: MOUNT_CACHED\n");
    }
    if !settings.setup.trim().is_empty() {
        file += &format!("\nsetup: {}", block(settings.setup.trim_end()));
    }
    // The whole script is read before it runs: another start writes it anew.
    let path = format!("{}/jobs/{}/{number}/train.sh", settings.root(), job.id);
    file += &format!("\nrun: {}", block(&format!("exec sh -c \"$(cat {})\" stratus", quoted(&path))));
    file
}

/// The script of a repetition.
fn script(sky: &Sky, job: &Job, number: usize, submitted: u64) -> String {
    let root = quoted(&sky.settings.root());
    let folder = match sky.folder.strip_prefix('~') {
        Some(rest) => format!("\"$HOME\"{}", quoted(rest)),
        None => quoted(&sky.folder),
    };
    let pause = PAUSE[usize::from(!sky.settings.is_path())];
    format!(
        "{}root={root}\nn={number}\nsubmitted={submitted}\nfolder={folder}\npause={pause}\n{SCRIPT}",
        job.preamble()
    )
}
