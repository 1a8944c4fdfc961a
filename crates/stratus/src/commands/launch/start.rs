//! Starts a launch, or shows what it would do.

use super::{LaunchArguments, estimate, now, open_target, search, until, workers, write_labels};
use crate::errors::{Failure, Result};
use crate::output::Output;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_base::text::{bytes, counted, shell_path};
use stratus_exchange::mpi::SEARCH;
use stratus_launch::{
    BundledMpi, Executable, Job, LaunchBundle, LaunchRecord, LaunchSpec, Lease, PrepareOptions, SearchRecord,
    TargetKind, TargetSettings, seconds_left,
};
use stratus_run::layout::RUNS;
use stratus_train::network::check_data_set;
use stratus_train::sizing::max_run_bytes;

/// The result of `stratus launch TARGET EXPERIMENT`.
#[derive(Serialize)]
struct LaunchReport<'a> {
    id: &'a str,
    target: &'a str,
    folder: &'a str,
    runs: &'a [PathBuf],
    /// The directory of the sweep, for a launched sweep.
    sweep: Option<PathBuf>,
    sent_files: usize,
    sent_bytes: u64,
}

/// Starts a launch.
///
/// # Errors
/// If the launch is invalid, or the target cannot be reached or used.
pub(super) fn launch(
    settings: &TargetSettings,
    mut spec: LaunchSpec,
    arguments: &LaunchArguments,
    output: &Output,
) -> Result {
    let on_nodes = workers::on_nodes(settings, &mut spec, arguments.workers.is_some())?;
    let spec = &spec;
    let workers = arguments.workers.filter(|workers| *workers > 1);
    if workers.is_some() && matches!(settings.kind, TargetKind::Sky(_)) {
        return Err(Failure::usage(format!(
            "{}: --workers cannot be used with cloud targets",
            settings.name
        ))
        .with_hint("set `nodes` and `workers_per_node` of the target in targets.toml"));
    }
    if spec.depends_on_results() && matches!(settings.kind, TargetKind::Sky(_)) {
        return Err(Failure::usage(format!(
            "{}: a sweep in which results decide which cells are trained cannot be launched on cloud targets",
            settings.name
        ))
        .with_hint(
            "use an `ssh` or `slurm` target, or launch it without halving and with sweep.search = \"random\"",
        ));
    }
    spec.check_directories()?;
    let labels = arguments.labels.labels_with_commit()?;
    let end = arguments.until.as_deref().map(until::parse_until).transpose()?;
    spec.cells.iter().try_for_each(check_data_set)?;
    let has_workers = workers.is_some() || on_nodes;
    let mpi = has_workers.then(|| BundledMpi::find(SEARCH.environment, SEARCH.candidates())).transpose()?;
    let bundle = LaunchBundle::new(spec, arguments.remote_data, this_program()?, mpi.flatten())?;
    let left_s = end.map(seconds_left);
    let (resources, expected_s) = estimate::estimate_launch(settings, spec, left_s, arguments.force, output)?;
    let now = now();
    let name: String = spec.name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    let id = format!("{}-{now:x}-{:x}", name.to_lowercase(), std::process::id());
    if arguments.dry_run {
        let job = Job { workers, ..bundle.job(settings, &id, spec, resources, &settings.root())? };
        return print_dry_run(settings, &bundle, &job, output);
    }
    let target = open_target(settings);
    output.message(&format!("{}: checking the target, uploading missing files", settings.name));
    let file_sets = bundle.file_sets();
    let runs = usize::try_from(spec.runs()).unwrap_or(usize::MAX);
    let options = PrepareOptions {
        executable: &bundle.program,
        file_sets: &file_sets,
        repetitions: runs,
        resources,
        same_cpu_only: arguments.same_cpu,
    };
    let prepared = target.prepare(&options)?;
    prepared.notes.iter().for_each(|note| output.message(note));
    let uploaded = match prepared.files {
        0 => "all files already present".to_owned(),
        files => format!("uploaded {}, {}", counted(files as u64, "file"), bytes(prepared.bytes)),
    };
    output.message(&format!("{}: {uploaded}", settings.name));
    let mut run_bytes = 0;
    for cell in &spec.cells {
        run_bytes = max_run_bytes(cell)?.max(run_bytes);
    }
    let mut job = Job { workers, ..bundle.job(settings, &id, spec, resources, &prepared.root)? };
    let leased = match end {
        None => None,
        Some(end) => {
            let bytes_to_fetch = run_bytes.saturating_mul(spec.runs());
            let link = target.measure_link(&job.program)?;
            let (lease, explanation) = Lease::plan(end, link, bytes_to_fetch, &settings.name)?;
            output.message(&explanation);
            Some(lease)
        }
    };
    job.stop_at = leased.map(|lease| lease.stop_at);
    if !prepared.hosts.is_empty() {
        job.host_by_repetition = prepared.hosts.iter().cycle().take(runs).cloned().collect();
    }
    let (runs, sweep) = spec.create_directories()?;
    let search = sweep.as_ref().filter(|_| spec.depends_on_results()).map(|sweep| SearchRecord {
        sweep: sweep.clone(),
        until_epochs: Vec::new(),
        uploaded_paths: bundle.uploaded_paths(spec, &prepared.root),
    });
    // The runs of a search get the labels of its sweep when they are added to the record.
    let labelled = search.as_ref().map_or(&runs[..], |search| std::slice::from_ref(&search.sweep));
    write_labels(labelled, &labels)?;
    let mut record = LaunchRecord {
        id: id.clone(),
        target: settings.name.clone(),
        root: prepared.root.clone(),
        launched: now,
        program: job.program.clone(),
        environment: job.environment.clone(),
        runs,
        experiments: job.experiments.clone(),
        resources: job.resources,
        workers,
        lease: leased,
        run_bytes,
        expected_s,
        released: None,
        done: Vec::new(),
        host_by_repetition: job.host_by_repetition.clone(),
        prepared_hosts: prepared.hosts.clone(),
        search,
    };
    if record.search.is_some() {
        // The repetitions are those of the first steps.
        (record.runs, record.experiments, record.host_by_repetition) = Default::default();
        let advance = search::advance(&mut record, target.as_ref(), None, true)?;
        advance.messages.iter().for_each(|line| output.message(line));
        job = record.job(job.notify);
    }
    // Written before the start, so that a started launch is always recorded.
    record.write(Path::new(RUNS))?;
    target.submit(&prepared.root, &job)?;
    let launched = LaunchReport {
        id: &id,
        target: &settings.name,
        folder: &prepared.root,
        runs: &record.runs,
        sweep,
        sent_files: prepared.files,
        sent_bytes: prepared.bytes,
    };
    output.print_wrapped(&launched, || {
        let fetched = match &launched.sweep {
            Some(sweep) => {
                format!("the runs of {0};\n      then `stratus sweep {0}` compares them", shell_path(sweep))
            }
            None => {
                let runs: Vec<String> = record.runs.iter().map(|run| run.display().to_string()).collect();
                runs.join(", ")
            }
        };
        if let (Some(_), Some(sweep)) = (&record.search, &launched.sweep) {
            return format!(
                "launched the first cells of {} as {id} on {}; they keep running when you disconnect\n\
                 next: `stratus launch fetch -f {id}` fetches results and starts the cells that follow from \
                 them,\n      then `stratus sweep {}` compares the runs\n",
                sweep.display(),
                settings.name,
                shell_path(sweep)
            );
        }
        format!(
            "launched {id} on {}; it keeps running when you disconnect\n\
             next: `stratus launch logs -f {id}`,\n      \
             `stratus launch fetch {id}` to fetch {fetched}\n",
            settings.name
        )
    })
}

/// Prints the files that would be uploaded, and the job that would be started.
fn print_dry_run(settings: &TargetSettings, bundle: &LaunchBundle, job: &Job, output: &Output) -> Result {
    #[derive(Serialize)]
    struct File<'a> {
        path: String,
        from: &'a Path,
        bytes: u64,
        sha256: &'a str,
    }
    #[derive(Serialize)]
    struct Planned<'a> {
        target: &'a str,
        folder: &'a str,
        files: Vec<File<'a>>,
        job: Vec<(String, String)>,
    }
    let root = &settings.root();
    let id = &job.id;
    let file_sets = bundle.file_sets();
    let all = std::iter::once(&bundle.program.file_set).chain(&file_sets);
    let files = all.flat_map(|file_set| {
        file_set.files.iter().map(move |item| File {
            path: format!("{}/{}", file_set.remote_folder(), item.path),
            from: &item.source,
            bytes: item.size,
            sha256: &item.hash,
        })
    });
    let job_files = open_target(settings).files(job);
    let planned = Planned { target: &settings.name, folder: root, files: files.collect(), job: job_files };
    output.print_verbatim(&planned, || {
        let machine = settings.kind.describe();
        let mut text = format!("{}: {machine}, in {root}\n\nfiles, uploaded if missing:\n", settings.name);
        for file in &planned.files {
            text.push_str(&format!(
                "{:>10}  {}  from {}\n",
                bytes(file.bytes),
                file.path,
                file.from.display()
            ));
        }
        for (path, content) in &planned.job {
            text.push_str(&format!("\njobs/{id}/{path}:\n{content}"));
        }
        text
    })
}

/// The executable of this process, with its libraries.
fn this_program() -> Result<Executable> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    stratus_onednn::check_named()?;
    stratus_jpeg::check_named()?;
    let libraries = [
        (stratus_onednn::ENVIRONMENT, stratus_onednn::candidates()),
        (stratus_jpeg::LIBRARY_VARIABLE, stratus_jpeg::candidates()),
    ];
    Ok(Executable::new(&path, &libraries)?)
}
