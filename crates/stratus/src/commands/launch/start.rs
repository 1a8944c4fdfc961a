//! Starting a launch, or showing what it would do.

use super::work::Work;
use super::{LaunchArguments, RUNS, bring, cost, lease, now, open};
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_launch::{Job, Kind, Needs, Parcel, Program, Record, Resources, Settings};

/// What `stratus launch TARGET EXPERIMENT` reports.
#[derive(Serialize)]
struct Launched<'a> {
    id: &'a str,
    target: &'a str,
    folder: &'a str,
    runs: &'a [PathBuf],
    /// The sweep that they make.
    sweep: Option<PathBuf>,
    sent_files: usize,
    sent_bytes: u64,
}

/// Everything that a target is given.
struct Goods {
    program: Program,
    /// MPI, where several workers need it: its folder, the variable that names its library, where that is.
    mpi: Option<(Parcel, &'static str, String)>,
    /// The files of each cell.
    named: Vec<bring::Named>,
}

impl Goods {
    /// What is brought beside the program, each once.
    fn parcels(&self) -> Vec<Parcel> {
        let mut all: Vec<Parcel> = Vec::new();
        let named = self.named.iter().flatten().map(|(_, parcel)| parcel);
        for parcel in self.mpi.iter().map(|(parcel, ..)| parcel).chain(named) {
            if !all.contains(parcel) {
                all.push(parcel.clone());
            }
        }
        all
    }

    /// The job of a launch, where everything lies below `root`.
    fn job(&self, settings: &Settings, id: &str, work: &Work, resources: Resources, root: &str) -> Job {
        let mut environment = settings.environment.clone();
        let folder = format!("{root}/{}", self.program.parcel.folder());
        let libraries =
            self.program.libraries.iter().map(|(variable, path)| (*variable, format!("{folder}/{path}")));
        let mpi = self
            .mpi
            .iter()
            .map(|(parcel, variable, path)| (*variable, format!("{root}/{}/{path}", parcel.folder())));
        for (variable, path) in libraries.chain(mpi) {
            environment.entry(variable.to_owned()).or_insert(path);
        }
        let mut experiments = Vec::new();
        for (cell, named) in work.cells.iter().zip(&self.named) {
            let there = bring::there(cell, named, root);
            experiments.extend((0..work.repetitions).map(|number| {
                let mut experiment = there.clone();
                experiment.train.seed = experiment.train.seed.wrapping_add(number);
                experiment.to_toml()
            }));
        }
        Job {
            id: id.to_owned(),
            program: format!("{folder}/stratus"),
            environment,
            experiments,
            resources,
            workers: None,
            stop: None,
            notify: settings.notify.clone(),
            hosts: Vec::new(),
            only: None,
        }
    }
}

/// Starts a launch.
///
/// # Errors
/// Where anything of it is wrong, or the target cannot be reached or used.
pub(super) fn launch(
    settings: &Settings,
    work: &Work,
    arguments: &LaunchArguments,
    output: &Output,
) -> Result {
    let mut files = bring::Files::default();
    let named: Vec<bring::Named> =
        work.cells.iter().map(|cell| files.of(cell, arguments.data_there)).collect::<Result<_>>()?;
    work.check()?;
    let end = arguments.until.as_deref().map(lease::until).transpose()?;
    let limits = (end.map(lease::left_s), arguments.anyway);
    let cost = cost::of(settings, work, limits, output)?;
    let workers = arguments.workers.filter(|workers| *workers > 1);
    if workers.is_some() && matches!(settings.kind, Kind::Sky(_)) {
        return Err(Failure::usage(format!(
            "{}: several workers in a cloud are not supported",
            settings.name
        ))
        .hint("train.parts on one process gives the same bits; on `ssh` and `slurm` there are workers"));
    }
    let mpi = if workers.is_some() { bring::mpi()? } else { None };
    let goods = Goods { program: bring::program()?, mpi, named };
    let now = now();
    let plain: String = work.name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    let id = format!("{}-{now:x}-{:x}", plain.to_lowercase(), std::process::id());
    if arguments.dry_run {
        let job = Job { workers, ..goods.job(settings, &id, work, cost.resources, &settings.root()) };
        return show(settings, &goods, &job, output);
    }
    let target = open(settings);
    output.message(&format!("{}: checking, and bringing what is not there yet", settings.name));
    let parcels = goods.parcels();
    let runs = usize::try_from(work.runs()).unwrap_or(usize::MAX);
    let (resources, same_kind) = (cost.resources, arguments.same_kind);
    let needs = Needs { program: &goods.program, parcels: &parcels, repetitions: runs, resources, same_kind };
    let prepared = target.prepare(&needs)?;
    prepared.notes.iter().for_each(|note| output.message(note));
    let sent = match prepared.files {
        0 => "everything was there".to_owned(),
        files => format!("{files} files were sent, {}", bytes(prepared.bytes)),
    };
    output.message(&format!("{}: {sent}", settings.name));
    let mut run_bytes = 0;
    for cell in &work.cells {
        run_bytes = lease::run_bytes(cell)?.max(run_bytes);
    }
    let mut job = Job { workers, ..goods.job(settings, &id, work, resources, &prepared.root) };
    let leased = match end {
        None => None,
        Some(end) => {
            let come = run_bytes.saturating_mul(work.runs());
            Some(lease::lease(end, target.link(&job.program)?, come, &settings.name, output)?)
        }
    };
    job.stop = leased.map(|lease| lease.stop);
    if !prepared.hosts.is_empty() {
        job.hosts = prepared.hosts.iter().cycle().take(runs).cloned().collect();
    }
    let (runs, sweep) = work.make_directories()?;
    let record = Record {
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
        expected_s: cost.expected_s,
        released: None,
        done: Vec::new(),
        hosts: job.hosts.clone(),
        ready: prepared.hosts.clone(),
    };
    // Before the start: what was started is known here, whatever happens.
    record.write(Path::new(RUNS))?;
    target.submit(&prepared.root, &job)?;
    let launched = Launched {
        id: &id,
        target: &settings.name,
        folder: &prepared.root,
        runs: &record.runs,
        sweep,
        sent_files: prepared.files,
        sent_bytes: prepared.bytes,
    };
    output.result(&launched, || {
        let brings = match &launched.sweep {
            Some(sweep) => format!(
                "the runs of {0}; when they are here,\n      `stratus sweep {0}` compares them",
                sweep.display()
            ),
            None => {
                let runs: Vec<String> = record.runs.iter().map(|run| run.display().to_string()).collect();
                runs.join(", ")
            }
        };
        format!(
            "launched {id} on {}; it outlives this connection\nnext: `stratus launch logs -f {id}`,\n      \
             `stratus launch fetch {id}`, which brings {brings}\n",
            settings.name
        )
    })
}

/// What would be sent and started.
fn show(settings: &Settings, goods: &Goods, job: &Job, output: &Output) -> Result {
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
    let parcels = goods.parcels();
    let all = std::iter::once(&goods.program.parcel).chain(&parcels);
    let files = all.flat_map(|parcel| {
        parcel.items.iter().map(move |item| File {
            path: format!("{}/{}", parcel.folder(), item.path),
            from: &item.source,
            bytes: item.size,
            sha256: &item.hash,
        })
    });
    let of_job = open(settings).files(job);
    let planned = Planned { target: &settings.name, folder: root, files: files.collect(), job: of_job };
    output.document(&planned, || {
        let machine = settings.kind.machine();
        let mut text =
            format!("{}: {machine}, in {root}\n\nfiles, where they are not there yet:\n", settings.name);
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
