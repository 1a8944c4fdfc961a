//! What every kind of target can do, and how one that has a shell does it.

use crate::job::{self, Job, Record, State};
use crate::local::Local;
use crate::parcel::{Item, Parcel};
use crate::shell::{self, Shell};
use crate::ssh::Ssh;
use crate::{Error, Fetched, Kind, Program, Result, Settings, fetch, program};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use stratus_base::printable;

/// Files of so many bytes are sent by themselves, so that a cut one is gone on with.
const LARGE: u64 = 4 << 20;
/// Smaller ones are sent together, so many bytes at a time.
const TOGETHER: u64 = 16 << 20;
/// What is left free on the target's disk.
const SPARE: u64 = 256 << 20;

/// What a launch needs of a target.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// The program.
    pub program: &'a Program,
    /// What else is brought.
    pub parcels: &'a [Parcel],
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
}

/// A kind of target.
pub trait Target {
    /// Checks the target first, and brings what it has not yet.
    ///
    /// # Errors
    /// Where it cannot be reached or used, or what is sent does not arrive. What arrived stays.
    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared>;

    /// Starts a job, or goes on with it, so that it outlives the connection.
    ///
    /// # Errors
    /// Where somebody has it, who is named.
    fn submit(&self, root: &str, job: &Job) -> Result<()>;

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
pub fn open(settings: &Settings, private: PathBuf) -> Box<dyn Target> {
    let (name, folder) = (settings.name.clone(), settings.folder.clone());
    match &settings.kind {
        Kind::Local => Box::new(Machine { shell: Local { name }, folder }),
        Kind::Ssh(ssh) => {
            let shell = Ssh { name, settings: ssh.clone(), sockets: private };
            Box::new(Machine { shell, folder })
        }
    }
}

/// A target that is one machine with a shell.
struct Machine<S> {
    shell: S,
    folder: String,
}

/// What `check.sh` says.
#[derive(Default)]
struct Facts {
    root: String,
    free_bytes: Option<u64>,
}

impl<S: Shell> Machine<S> {
    fn text(&self, what: &str, script: &str, arguments: &[&str], input: &str) -> Result<String> {
        let (ended, text) = shell::text(&self.shell, script, arguments, input.as_bytes())?;
        if ended.code == Some(0) { Ok(text) } else { Err(ended.error(&self.shell, what)) }
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
        Ok(Facts { root, free_bytes: fact("free_kib").parse().ok().map(|kib: u64| kib.saturating_mul(1024)) })
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
        let (ended, ()) = shell::run(&self.shell, include_str!("scripts/large.sh"), &arguments, send, drain)?;
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
        let (ended, ()) = shell::run(&self.shell, include_str!("scripts/small.sh"), &[root], send, drain)?;
        if ended.code == Some(0) { Ok(()) } else { Err(ended.error(&self.shell, "take files")) }
    }
}

fn append(tar: &mut tar::Builder<&mut dyn Write>, path: &str, size: u64, bytes: impl Read) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    tar.append_data(&mut header, path, bytes)
}

/// Reads what nobody needs.
fn drain(from: &mut dyn Read) -> Result<()> {
    // A connection that breaks here, the script's end tells.
    let _ = io::copy(from, &mut io::sink());
    Ok(())
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
        Ok(Prepared { root: facts.root, folders, files, bytes })
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let token = token();
        let files = job.files();
        let send = |out: &mut dyn Write| {
            let mut tar = tar::Builder::new(out);
            for (path, text) in &files {
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
        let script = include_str!("scripts/submit.sh");
        let (ended, said) = shell::run(&self.shell, script, &[root, &job.id, &token], send, read)?;
        match ended.code {
            Some(0) => Ok(()),
            Some(20) => {
                let who = Some(job::owner(&said)).filter(|who| !who.is_empty());
                let who = who.unwrap_or_else(|| "a process that just starts".to_owned());
                Err(Error::target(
                    format!("{}: {} is being trained already, by {who}", self.shell.name(), job.id),
                    format!(
                        "`stratus launch status {0}` shows it, `stratus launch stop {0}` stops it",
                        job.id
                    ),
                ))
            }
            _ => Err(ended.error(&self.shell, "start the job")),
        }
    }

    fn state(&self, launch: &Record) -> Result<State> {
        let numbers: Vec<String> = (1..=launch.runs.len()).map(|number| number.to_string()).collect();
        let mut arguments = vec![launch.root.as_str(), launch.id.as_str()];
        arguments.extend(numbers.iter().map(String::as_str));
        let text = self.text("see the job", include_str!("scripts/state.sh"), &arguments, "")?;
        Ok(State::parse(&text))
    }

    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let arguments = [&launch.root, &launch.id, &repetition.to_string(), &from.to_string()];
        let arguments = arguments.map(String::as_str);
        let mut bytes = from;
        let copy = |input: &mut dyn Read| {
            let mut buffer = Vec::new();
            let mut input = io::BufReader::new(input);
            // By lines, so that no character is cut.
            while matches!(
                io::BufRead::read_until(&mut Read::take(&mut input, 1 << 16), b'\n', &mut buffer),
                Ok(1..)
            ) {
                bytes += buffer.len() as u64;
                if out.write_all(shell::clean(&String::from_utf8_lossy(&buffer)).as_bytes()).is_err() {
                    break;
                }
                buffer.clear();
            }
            Ok(())
        };
        let script = include_str!("scripts/logs.sh");
        let (ended, ()) = shell::run(&self.shell, script, &arguments, |_| Ok(()), copy)?;
        if ended.code == Some(0) { Ok(bytes) } else { Err(ended.error(&self.shell, "read the log")) }
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

/// A word that no other start has.
fn token() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{:x}-{:x}", now.map_or(0, |now| now.as_nanos()), std::process::id())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{Machine, Needs, Prepared, Target};
    use crate::local::Local;
    use crate::{Job, Parcel, Program};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    fn machine(folder: &Path) -> Machine<Local> {
        Machine { shell: Local { name: "lab".to_owned() }, folder: folder.display().to_string() }
    }

    #[test]
    fn what_is_there_is_not_sent_and_a_cut_file_is_gone_on_with() {
        let place = tempfile::tempdir().unwrap();
        let (there, program) = (place.path().join("the re"), place.path().join("program"));
        fs::write(&program, "no ELF").unwrap();
        let data = place.path().join("data");
        fs::create_dir_all(data.join("a b")).unwrap();
        fs::write(data.join("a b/it's small"), "small").unwrap();
        fs::write(data.join("empty"), "").unwrap();
        let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(data.join("large"), &large).unwrap();
        let program = Program::new(&program, &[]).unwrap();
        let parcels = [Parcel::of_path("data", &data).unwrap()];
        let needs = Needs { program: &program, parcels: &parcels };
        // So much came before the connection was cut.
        let hash = &parcels[0].items.iter().find(|item| item.path == "large").unwrap().hash;
        fs::create_dir_all(there.join("content")).unwrap();
        let part = there.join(format!("content/{hash}.part"));
        fs::write(&part, &large[..3_000_000]).unwrap();
        let target = machine(&there);
        let Prepared { root, folders, files, bytes } = target.prepare(&needs).unwrap();
        assert_eq!((files, bytes), (4, 6 + 5 + 2_000_000));
        let arrived = Path::new(&root).join(&folders[1]);
        assert_eq!(fs::read(arrived.join("large")).unwrap(), large);
        assert_eq!(fs::read_to_string(arrived.join("a b/it's small")).unwrap(), "small");
        assert!(
            arrived.join("empty").exists() && Path::new(&root).join(&folders[0]).join("stratus").exists()
        );
        let again = target.prepare(&needs).unwrap();
        assert_eq!((again.files, again.bytes), (0, 0));

        // What came wrong is sent anew, by the next launch.
        fs::remove_file(there.join(format!("content/{hash}"))).unwrap();
        fs::write(&part, [7; 1000]).unwrap();
        let error = target.prepare(&needs).unwrap_err().to_string();
        assert!(error.contains("arrived with other bytes"), "{error}");
        assert_eq!(target.prepare(&needs).unwrap().bytes, 5_000_000);
    }

    #[test]
    fn another_machine_is_not_met_and_no_program_of_a_newer_system_is_sent() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("program");
        fs::write(&path, "GLIBC_2.999\0").unwrap();
        let mut program = Program::new(&path, &[]).unwrap();
        let target = machine(&place.path().join("there"));
        let error =
            |program: &Program| target.prepare(&Needs { program, parcels: &[] }).unwrap_err().to_string();
        assert!(error(&program).contains("the program needs 2.999"));
        program.architecture = "pdp11";
        assert!(error(&program).contains("the program is for Linux on pdp11"));
        assert_eq!(fs::read_dir(place.path().join("there/content")).unwrap().count(), 0);
    }

    #[test]
    fn a_job_of_another_machine_is_left_alone_until_its_heart_stands_still() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("jobs/a");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("owner"), "token elsewhere 12 1\n").unwrap();
        let target = machine(place.path());
        let root = place.path().display().to_string();
        let job = Job {
            id: "a".to_owned(),
            program: "/bin/true".to_owned(),
            environment: BTreeMap::new(),
            experiments: vec![String::new()],
        };
        let refused = std::thread::scope(|scope| {
            let started = scope.spawn(|| target.submit(&root, &job));
            let mut beat = 0;
            while !started.is_finished() {
                beat += 1;
                // A clock that is far behind.
                fs::write(folder.join("heartbeat"), format!("{beat}\n")).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
            started.join().unwrap().unwrap_err().to_string()
        });
        assert!(refused.contains("by elsewhere, process 12"), "{refused}");
        assert!(!folder.join("launch.sh").exists());
        target.submit(&root, &job).unwrap();
        assert!(!fs::read_to_string(folder.join("owner")).unwrap().contains("elsewhere"));
    }
}
