//! What every kind of target can do, and how one that has a shell does it.

use crate::hosts::{Host, Hosts};
use crate::job::{self, Job, Record, State};
use crate::local::Local;
use crate::parcel::{Item, Parcel};
use crate::shell::frame::token;
use crate::shell::{self, Ended, Shell};
use crate::sky::Sky;
use crate::slurm::Slurm;
use crate::ssh::Ssh;
use crate::{
    Error, Fetched, Kind, Program, Resources, Result, Settings, SshSettings, fetch, notices, program,
};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stratus_base::printable;

/// Files of so many bytes are sent by themselves, so that a cut one is gone on with.
const LARGE: u64 = 4 << 20;
/// Smaller ones are sent together, so many bytes at a time.
const TOGETHER: u64 = 16 << 20;
/// So many bytes measure a connection.
const MEASURED: u64 = 4 << 20;
/// What is left free on the target's disk.
const SPARE: u64 = 256 << 20;

/// What a launch needs of a target.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// The program.
    pub program: &'a Program,
    /// What else is brought.
    pub parcels: &'a [Parcel],
    /// How many repetitions are trained.
    pub repetitions: usize,
    /// What one takes.
    pub resources: Resources,
    /// Whether machines with another processor than the first are left out.
    pub same_kind: bool,
}

/// A target that has everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Its folder.
    pub root: String,
    /// The folder of the program and of each parcel, within it.
    pub folders: Vec<String>,
    /// Files that were sent.
    pub files: usize,
    /// Bytes that were sent.
    pub bytes: u64,
    /// The model of its processor.
    pub processor: String,
    /// Of a list of machines, those that have everything.
    pub hosts: Vec<String>,
    /// What should be known of it.
    pub notes: Vec<String>,
}

/// The way to a target, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// By how many seconds its clock is ahead of the one here.
    pub ahead_s: i64,
    /// Bytes a second that come from there.
    pub bytes_per_s: f64,
}

/// A kind of target.
pub trait Target {
    /// The files of a job there.
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files()
    }

    /// Checks the target first, and brings what it has not yet.
    ///
    /// # Errors
    /// Where it cannot be reached or used, or what is sent does not arrive. What arrived stays.
    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared>;

    /// Measures the way there, by the program that was brought.
    ///
    /// # Errors
    /// Where the target cannot be reached.
    fn link(&self, program: &str) -> Result<Link>;

    /// Starts a job, or goes on with it, so that it outlives the connection.
    ///
    /// # Errors
    /// Where somebody has it, who is named.
    fn submit(&self, root: &str, job: &Job) -> Result<()>;

    /// Goes on with what nobody trains though nobody stopped it, where it was or elsewhere; `again` also what
    /// was stopped, or failed. `keep` writes the record before anything of it is started. Returns what was
    /// done: nothing where the target's own queue does that.
    ///
    /// # Errors
    /// Where the target cannot be reached.
    fn tend(
        &self,
        _record: &mut Record,
        _job: &Job,
        _again: bool,
        _keep: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// How a job stands.
    ///
    /// # Errors
    /// Where the target cannot be reached.
    fn state(&self, launch: &Record) -> Result<State>;

    /// Writes what a repetition said behind the first `from` bytes, and returns how many there are then.
    ///
    /// # Errors
    /// Where the target cannot be reached.
    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64>;

    /// Brings a repetition's run directory, or what is new of it.
    ///
    /// # Errors
    /// Where the target cannot be reached; what has come stays, and is gone on with.
    fn fetch(&self, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched>;

    /// Asks a job to stop, with a checkpoint. Returns whether something was there to stop.
    ///
    /// # Errors
    /// Where the target cannot be reached.
    fn stop(&self, launch: &Record) -> Result<bool>;

    /// Gives back what the target holds of us, but files.
    fn release(&self);
}

/// The target of its settings. `private` is a folder for sockets that nobody else can enter.
#[must_use]
pub fn open(settings: &Settings, private: &Path) -> Box<dyn Target> {
    let folder = settings.folder.clone();
    let shell = |ssh: Option<&SshSettings>| -> Box<dyn Shell> {
        let name = settings.name.clone();
        match ssh {
            None => Box::new(Local { name }),
            Some(ssh) => Box::new(Ssh { name, settings: ssh.clone(), sockets: private.to_owned() }),
        }
    };
    match &settings.kind {
        Kind::Local => Box::new(Machine { shell: shell(None), folder }),
        Kind::Ssh(ssh) => Box::new(Machine { shell: shell(Some(ssh)), folder }),
        Kind::Hosts(hosts) => {
            let host = |ssh: &SshSettings| Host {
                name: ssh.host.clone(),
                machine: Machine { shell: shell(Some(ssh)), folder: folder.clone() },
            };
            Box::new(Hosts {
                name: settings.name.clone(),
                hosts: hosts.hosts.iter().map(host).collect(),
                patience: Duration::from_secs(hosts.lost_after_s),
                lost: Mutex::default(),
            })
        }
        Kind::Slurm(slurm) => {
            let machine = Machine { shell: shell(slurm.ssh.as_ref()), folder };
            Box::new(Slurm { machine, settings: slurm.clone() })
        }
        Kind::Sky(sky) => Box::new(Sky {
            name: settings.name.clone(),
            folder,
            settings: sky.clone(),
            private: private.to_owned(),
        }),
    }
}

/// A target that is one machine with a shell.
pub(crate) struct Machine<S> {
    pub(crate) shell: S,
    pub(crate) folder: String,
}

/// What `check.sh` says.
#[derive(Default)]
struct Facts {
    root: String,
    free_bytes: Option<u64>,
    processor: String,
}

impl<S: Shell> Machine<S> {
    /// What a script answers that is to `what`.
    pub(crate) fn text(&self, what: &str, script: &str, arguments: &[&str], input: &str) -> Result<String> {
        let (ended, text) = shell::text(&self.shell, script, arguments, input.as_bytes())?;
        if ended.code == Some(0) { Ok(text) } else { Err(ended.error(&self.shell, what)) }
    }

    /// Runs a script that takes a text and files as tar behind it, and hears what it answers.
    pub(crate) fn hand(
        &self,
        script: &str,
        arguments: &[&str],
        (before, files): (&str, &[(String, String)]),
    ) -> Result<(Ended, String)> {
        let send = |out: &mut dyn Write| {
            out.write_all(before.as_bytes())?;
            let mut tar = tar::Builder::new(out);
            for (path, text) in files {
                append(&mut tar, path, text.len() as u64, text.as_bytes())?;
            }
            tar.finish()
        };
        let read = |from: &mut dyn Read| {
            let mut text = Vec::new();
            // What is not heard is not shown.
            let _ = from.take(4096).read_to_end(&mut text);
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        shell::run(&self.shell, script, arguments, send, read)
    }

    /// Takes a repetition that waits from the script that trains: whether it was not begun.
    pub(crate) fn claim(&self, root: &str, id: &str, repetition: usize) -> Result<bool> {
        let arguments = [root, id, &repetition.to_string()];
        let script = include_str!("scripts/claim.sh");
        Ok(self.text("take a repetition", script, &arguments, "")?.trim() == "claimed")
    }

    /// Ends a training that is another machine's now.
    pub(crate) fn revoke(&self, root: &str, id: &str) -> Result<()> {
        self.text("end a training", include_str!("scripts/revoke.sh"), &[root, id], "").map(drop)
    }

    /// What a state script says of a launch's repetitions; none where its folder is not there.
    pub(crate) fn state_text(&self, launch: &Record, script: &str) -> Result<Option<String>> {
        let numbers: Vec<String> = (1..=launch.runs.len()).map(|number| number.to_string()).collect();
        let mut arguments = vec![launch.root.as_str(), launch.id.as_str()];
        arguments.extend(numbers.iter().map(String::as_str));
        let (ended, text) = shell::text(&self.shell, script, &arguments, b"")?;
        match ended.code {
            Some(0) => Ok(Some(text)),
            Some(16) => Ok(None),
            _ => Err(ended.error(&self.shell, "see the job")),
        }
    }

    /// How a launch stands; none where its folder is not there.
    pub(crate) fn stands(&self, launch: &Record) -> Result<Option<State>> {
        let script = concat!(include_str!("scripts/repetition.sh"), include_str!("scripts/state.sh"));
        Ok(self.state_text(launch, script)?.map(|text| State::parse(&text)))
    }

    /// The error of a launch whose folder is not there.
    pub(crate) fn gone(&self, launch: &Record) -> Error {
        let (name, Record { id, root, .. }) = (self.shell.name(), launch);
        Error::target(
            format!("{name}: {root}/jobs/{id} is not there any more"),
            "launch it anew; what was fetched is here: model.weights=RUN begins with its weights",
        )
    }

    fn check(&self, program: &Program) -> Result<Facts> {
        let script = include_str!("scripts/check.sh");
        let what = format!("use the folder {}", self.folder);
        let text = self.text(&what, script, &[&self.folder], "")?;
        let fact = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().trim()
        };
        let name = self.shell.name();
        let wrong = |problem: String, hint: &str| Err(Error::target(format!("{name}: {problem}"), hint));
        if !fact("missing").is_empty() {
            let missing = printable(fact("missing"));
            return wrong(
                format!("these programs are missing: {missing}"),
                "install coreutils, util-linux, tar",
            );
        }
        let machine = (fact("system"), fact("architecture"));
        let meant = ("Linux", program.architecture);
        if machine != meant && (machine.0 != meant.0 || machine.1.replace("arm64", "aarch64") != meant.1) {
            return wrong(
                format!(
                    "the machine is {} on {}, the program is for Linux on {}",
                    printable(machine.0),
                    printable(machine.1),
                    meant.1
                ),
                "launch from a program that was built for such a machine",
            );
        }
        let there = fact("glibc").rsplit(' ').next().and_then(program::version);
        if let Some((major, minor)) = program.glibc.filter(|needed| there.is_none_or(|there| there < *needed))
        {
            let there = there.map_or("none".to_owned(), |(major, minor)| format!("{major}.{minor}"));
            return wrong(
                format!("glibc there is {there}, the program needs {major}.{minor}"),
                "build the program on a system as old as the target's",
            );
        }
        let root = fact("root").to_owned();
        if !root.starts_with('/') || root.chars().any(char::is_control) {
            return wrong(format!("its folder {} is no path", printable(&root)), "name another `folder`");
        }
        let free_bytes = fact("free_kib").parse().ok().map(|kib: u64| kib.saturating_mul(1024));
        Ok(Facts { root, free_bytes, processor: printable(fact("processor")) })
    }

    /// Brings the items that are not there: how many, how many bytes.
    fn ship(&self, facts: &Facts, items: &[&Item]) -> Result<(usize, u64)> {
        let root = &facts.root;
        let hashes: String = items.iter().map(|item| format!("{}\n", item.hash)).collect();
        let text = self.text("see what is there", include_str!("scripts/missing.sh"), &[root], &hashes)?;
        let mut missing: Vec<(&Item, u64)> = Vec::new();
        for line in text.lines() {
            let Some((hash, bytes)) = line.split_once(' ') else { continue };
            let item = items.iter().find(|item| item.hash == hash);
            let begun = bytes.trim().parse().unwrap_or(0);
            if let Some(item) = item.filter(|item| missing.iter().all(|(other, _)| other.hash != item.hash)) {
                missing.push((item, begun));
            }
        }
        let bytes: u64 = missing.iter().map(|(item, begun)| item.size.saturating_sub(*begun)).sum();
        if let Some(free) = facts.free_bytes.filter(|free| bytes.saturating_add(SPARE) > *free) {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            return Err(Error::target(
                format!(
                    "{}: {} MiB are to be sent, and {} MiB left free; there are {} MiB",
                    self.shell.name(),
                    mib(bytes),
                    mib(SPARE),
                    mib(free)
                ),
                format!("make room there, or name another `folder` than {root}"),
            ));
        }
        let mut batch: Vec<&Item> = Vec::new();
        for (item, begun) in &missing {
            if item.size >= LARGE {
                self.ship_large(root, item, *begun)?;
                continue;
            }
            batch.push(item);
            if batch.iter().map(|item| item.size + 512).sum::<u64>() >= TOGETHER {
                self.ship_together(root, &std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.ship_together(root, &batch)?;
        }
        Ok((missing.len(), bytes))
    }

    fn ship_large(&self, root: &str, item: &Item, begun: u64) -> Result<()> {
        let begun = if begun > item.size { 0 } else { begun };
        let arguments = [root, &item.hash, &begun.to_string(), &item.size.to_string()];
        let send = |out: &mut dyn Write| {
            let mut file = File::open(&item.source)?;
            file.seek(SeekFrom::Start(begun))?;
            io::copy(&mut file.take(item.size - begun), out).map(drop)
        };
        let (ended, ()) =
            shell::run(&self.shell, include_str!("scripts/large.sh"), &arguments, send, shell::drain)?;
        match ended.code {
            Some(0) => Ok(()),
            Some(15) => Err(Error::target(
                format!("{}: {} arrived with other bytes", self.shell.name(), item.source.display()),
                "leave the file as it is while it is sent, and launch again",
            )),
            _ => Err(ended.error(&self.shell, &format!("take {}", item.source.display()))),
        }
    }

    fn ship_together(&self, root: &str, items: &[&Item]) -> Result<()> {
        let send = |out: &mut dyn Write| {
            let mut tar = tar::Builder::new(out);
            for item in items {
                let file = File::open(&item.source)?;
                append(&mut tar, &item.hash, item.size, file.take(item.size))?;
            }
            tar.finish()
        };
        let (ended, ()) =
            shell::run(&self.shell, include_str!("scripts/small.sh"), &[root], send, shell::drain)?;
        if ended.code == Some(0) { Ok(()) } else { Err(ended.error(&self.shell, "take files")) }
    }
}

fn append(tar: &mut tar::Builder<&mut dyn Write>, path: &str, size: u64, bytes: impl Read) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    tar.append_data(&mut header, path, bytes)
}

impl<S: Shell> Target for Machine<S> {
    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared> {
        let facts = self.check(needs.program)?;
        let parcels: Vec<&Parcel> = std::iter::once(&needs.program.parcel).chain(needs.parcels).collect();
        let items: Vec<&Item> = parcels.iter().flat_map(|parcel| &parcel.items).collect();
        let (files, bytes) = self.ship(&facts, &items)?;
        let mut folders = Vec::new();
        for parcel in parcels {
            let folder = parcel.folder();
            let lines: String =
                parcel.items.iter().map(|item| format!("{} {}\n", item.hash, item.path)).collect();
            self.text("make a folder", include_str!("scripts/link.sh"), &[&facts.root, &folder], &lines)?;
            folders.push(folder);
        }
        let Facts { root, processor, .. } = facts;
        Ok(Prepared { root, folders, files, bytes, processor, hosts: Vec::new(), notes: Vec::new() })
    }

    fn link(&self, program: &str) -> Result<Link> {
        let began = Instant::now();
        let read = |from: &mut dyn Read| {
            let (mut from, mut time) = (io::BufReader::new(from), String::new());
            // What does not come whole, the checks below refuse.
            let _ = io::BufRead::read_line(&mut Read::take(&mut from, 32), &mut time);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            Ok((time, now, io::copy(&mut from, &mut io::sink()).unwrap_or(0)))
        };
        let arguments = [program, &MEASURED.to_string()];
        let script = include_str!("scripts/pace.sh");
        let (ended, (time, now, bytes)) = shell::run(&self.shell, script, &arguments, |_| Ok(()), read)?;
        let there = time.trim().parse::<u64>();
        match (ended.code, there, bytes) {
            (Some(0), Ok(there), 1..) => {
                let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
                let ahead_s = signed(there).saturating_sub(signed(now));
                Ok(Link { ahead_s, bytes_per_s: bytes as f64 / began.elapsed().as_secs_f64().max(1e-3) })
            }
            _ => Err(ended.error(&self.shell, "measure the connection")),
        }
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let token = token();
        let script = include_str!("scripts/submit.sh");
        // What nobody may read goes through no file and no argument.
        let webhook = format!("{}\n", notices::webhook()?);
        let (ended, said) = self.hand(script, &[root, &job.id, &token], (&webhook, &job.files()))?;
        match ended.code {
            Some(0) => Ok(()),
            Some(20) => {
                let who = Some(job::owner(&said)).filter(|who| !who.is_empty());
                let who = who.unwrap_or_else(|| "a process that just starts".to_owned());
                Err(taken(self.shell.name(), &job.id, &who))
            }
            _ => Err(ended.error(&self.shell, "start the job")),
        }
    }

    fn tend(
        &self,
        record: &mut Record,
        job: &Job,
        again: bool,
        _: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Vec<String>> {
        let state = self.state(record)?;
        if state.alive || !state.repetitions.iter().any(|one| one.is_open(state.stopped, again)) {
            return Ok(Vec::new());
        }
        self.submit(&record.root, job)?;
        Ok(vec![format!("{}: what trained is gone; it goes on", self.shell.name())])
    }

    fn state(&self, launch: &Record) -> Result<State> {
        self.stands(launch)?.ok_or_else(|| self.gone(launch))
    }

    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let arguments = [&launch.root, &launch.id, &repetition.to_string(), &from.to_string()];
        let arguments = arguments.map(String::as_str);
        let script = include_str!("scripts/logs.sh");
        let copy = |input: &mut dyn Read| Ok(shell::show(input, out));
        let (ended, bytes) = shell::run(&self.shell, script, &arguments, |_| Ok(()), copy)?;
        if ended.code == Some(0) { Ok(from + bytes) } else { Err(ended.error(&self.shell, "read the log")) }
    }

    fn fetch(&self, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched> {
        fetch::fetch(&self.shell, launch, repetition, into)
    }

    fn stop(&self, launch: &Record) -> Result<bool> {
        let arguments = [launch.root.as_str(), launch.id.as_str()];
        let text = self.text("stop the job", include_str!("scripts/stop.sh"), &arguments, "")?;
        Ok(text.trim() == "asked")
    }

    fn release(&self) {
        self.shell.close();
    }
}

/// Nobody else may have what somebody trains.
pub(crate) fn taken(name: &str, id: &str, who: &str) -> Error {
    Error::target(
        format!("{name}: {id} is being trained already, by {who}"),
        format!("`stratus launch status {id}` shows it, `stratus launch stop {id}` stops it"),
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
