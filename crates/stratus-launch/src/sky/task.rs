//! The task file of each repetition for SkyPilot, and the script that it runs.

use super::{SkyTarget, job_name};
use crate::SkySettings;
use crate::job::Job;
use crate::targets::{MOUNT, NodeWorkers};
use stratus_base::exit_code::INTERRUPTED;
use stratus_base::text::shell_quoted;
use stratus_run::layout::EXPERIMENT;

/// The script that trains a repetition.
const SCRIPT: &str = concat!(
    include_str!("../scripts/repetition.sh"),
    include_str!("../scripts/train.sh"),
    include_str!("../scripts/sky-nodes.sh"),
    include_str!("../scripts/sky.sh")
);
/// The seconds between two polls of a shared folder and of a mounted bucket.
const POLL_INTERVAL_S: [u64; 2] = [2, 10];

/// The files of a job: the task file, the script and the experiment of each repetition. `submitted` is the
/// number of this start.
pub(super) fn job_files(sky: &SkyTarget, job: &Job, submitted: u64) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for (number, experiment) in (1..).zip(&job.experiments) {
        files.push((format!("{number}.yaml"), task_file(sky, job, number)));
        files.push((format!("{number}/train.sh"), job_script(sky, job, number, submitted)));
        files.push((format!("{number}/{EXPERIMENT}"), experiment.clone()));
    }
    files
}

/// Quotes a string for YAML, as in JSON.
fn yaml_string(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// Formats lines as a YAML block with explicit indentation, since the first line may be indented further.
fn yaml_block(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("|2\n{lines}")
}

/// The workers of a run; one on one machine unless they are set.
fn workers(settings: &SkySettings) -> NodeWorkers {
    settings.workers.clone().unwrap_or(NodeWorkers { nodes: [1, 1], per_node: 1, mpi: None })
}

/// The task file of a repetition.
pub(super) fn task_file(sky: &SkyTarget, job: &Job, number: usize) -> String {
    let settings = &sky.settings;
    let mut file = format!("name: {}\n\n", yaml_string(&job_name(&job.id, number)));
    let NodeWorkers { nodes: [_, nodes], per_node, .. } = workers(settings);
    if nodes > 1 {
        file += &format!("num_nodes: {nodes}\n\n");
    }
    file += "resources:\n";
    // The forecast is that of one process, and more memory than a worker needs, since it has a part of each
    // batch. Machines with several GPUs have few sizes: one with as many CPUs as are wished may not exist.
    let is_sized_by_gpus = settings.gpus.is_some() && per_node > 1;
    let for_node = |amount: u64| amount.saturating_mul(per_node);
    let memory_bytes = job.resources.memory_bytes.filter(|_| !is_sized_by_gpus).map(for_node);
    let cpus = job.resources.cpus.filter(|_| !is_sized_by_gpus).map(for_node);
    // The forecast is a minimum.
    let memory = memory_bytes.map(|bytes| format!("{}+", bytes.div_ceil(1_000_000_000).max(1)));
    let cpus = cpus.map(|cpus| format!("{cpus}+"));
    let has_instance = settings.instance.is_some();
    for (key, value) in [
        ("infra", settings.infra.clone()),
        ("accelerators", settings.gpus.clone()),
        ("instance_type", settings.instance.clone()),
        ("cpus", settings.cpus.clone().or(cpus.filter(|_| !has_instance))),
        ("memory", settings.memory.clone().or(memory.filter(|_| !has_instance))),
        ("image_id", settings.image.clone()),
    ] {
        if let Some(value) = value {
            file += &format!("  {key}: {}\n", yaml_string(&value));
        }
    }
    if let Some(disk) = settings.disk_gb {
        file += &format!("  disk_size: {disk}\n");
    }
    if let Some(cost) = settings.max_hourly_cost {
        file += &format!("  max_hourly_cost: {cost}\n");
    }
    file += &format!("  use_spot: {}\n", settings.spot);
    // On a preempted machine, training saves a checkpoint and exits with this code.
    file += "  job_recovery:\n    max_restarts_on_errors: 0\n";
    file += &format!("    recover_on_exit_codes: [{INTERRUPTED}]\n");
    if !settings.is_path() {
        let source = yaml_string(&settings.bucket);
        file += &format!("\nfile_mounts:\n  {MOUNT}:\n    source: {source}\n    mode: MOUNT_CACHED\n");
    }
    if !settings.setup.trim().is_empty() {
        file += &format!("\nsetup: {}", yaml_block(settings.setup.trim_end()));
    }
    // The script is read completely before it runs, because another start overwrites it.
    let path = format!("{}/jobs/{}/{number}/train.sh", settings.root(), job.id);
    file +=
        &format!("\nrun: {}", yaml_block(&format!("exec sh -c \"$(cat {})\" stratus", shell_quoted(&path))));
    file
}

/// The script of a repetition.
fn job_script(sky: &SkyTarget, job: &Job, number: usize, submitted: u64) -> String {
    let root = shell_quoted(&sky.settings.root());
    let folder = match sky.folder.strip_prefix('~') {
        Some(rest) => format!("\"$HOME\"{}", shell_quoted(rest)),
        None => shell_quoted(&sky.folder),
    };
    let pause = POLL_INTERVAL_S[usize::from(!sky.settings.is_path())];
    let NodeWorkers { nodes: [_, nodes], per_node, .. } = workers(&sky.settings);
    format!(
        "{}root={root}\nn={number}\nsubmitted={submitted}\nfolder={folder}\npause={pause}\n\
         nodes={nodes}\nworkers_per_node={per_node}\n{SCRIPT}",
        job.preamble()
    )
}
