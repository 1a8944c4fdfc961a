//! The hosts of workers: the list of `--hosts`, and the checks of each host by SSH before anything starts.

use super::WorkersError;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use stratus_base::text::{counted, shell_quoted};
use stratus_base::{Secret, printable, ssh};
use stratus_run::machine::host_name;

/// The script that checks a host.
const CHECK_SCRIPT: &str = include_str!("check-host.sh");
/// The mark of its answers.
const MARK: &str = "stratus-host ";
/// The exit code of `ssh` if the connection failed.
const CONNECTION_FAILED: i32 = 255;
/// The maximum number of hosts.
const MAX_HOSTS: usize = 256;
/// The maximum number of bytes of a host's answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// The maximum time of the check of a host, in which it may wait for a network file system.
const MAX_CHECK_TIME: Duration = Duration::from_secs(90);

/// A host, and the number of its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WorkerHost {
    name: String,
    workers: usize,
}

/// The hosts on which workers run, in the order of their ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHosts {
    hosts: Vec<WorkerHost>,
    /// The folder in which the run is written, which the first host must see.
    folder: PathBuf,
}

/// The files and the version that every host must have.
pub(super) struct HostRequirements<'a> {
    /// This program.
    pub program: &'a Path,
    /// Files of MPI.
    pub files: Vec<PathBuf>,
}

impl WorkerHosts {
    /// Distributes `workers` workers over the hosts of a list such as `a,b` or `a:2,b:6`. A number is the
    /// host's maximum; without numbers, the hosts have equally many, and the first ones may have one more.
    /// `folder` is an existing folder that the first host must share with this machine.
    ///
    /// # Errors
    /// If the list is invalid, names a host twice, or has too few slots.
    pub fn parse(list: &str, workers: usize, folder: PathBuf) -> Result<Self, WorkersError> {
        let error = |problem: String| Err(WorkersError::HostList { problem });
        let mut slots: Vec<(&str, Option<usize>)> = Vec::new();
        for item in list.split(',').map(str::trim) {
            let (name, limit) = match item.split_once(':') {
                Some((name, limit)) => match limit.parse().ok().filter(|limit| (1..=1024).contains(limit)) {
                    Some(limit) => (name, Some(limit)),
                    None => return error(format!("{item:?} is not a host with a number of workers")),
                },
                None => (item, None),
            };
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
                return error(format!("{name:?} is not the name of a host"));
            }
            if slots.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return error(format!("{name} is named twice"));
            }
            slots.push((name, limit));
        }
        if slots.len() > MAX_HOSTS {
            return error(format!("{} hosts are more than {MAX_HOSTS}", slots.len()));
        }
        let limits: Option<Vec<usize>> = slots.iter().map(|(_, limit)| *limit).collect();
        if limits.is_none() && slots.iter().any(|(_, limit)| limit.is_some()) {
            return error("give a number of workers to every host, or to none".to_owned());
        }
        let hosts = match limits {
            Some(limits) => {
                let places = limits.iter().sum::<usize>();
                if workers > places {
                    return error(format!("{workers} workers exceed {}", counted(places as u64, "slot")));
                }
                let mut left = workers;
                let take = |limit: usize| {
                    let taken = limit.min(left);
                    left -= taken;
                    taken
                };
                limits.into_iter().map(take).collect::<Vec<usize>>()
            }
            None => {
                let (each, more) = (workers / slots.len(), workers % slots.len());
                (0..slots.len()).map(|at| each + usize::from(at < more)).collect()
            }
        };
        let hosts = slots.iter().zip(hosts);
        let hosts = hosts.map(|((name, _), workers)| WorkerHost { name: (*name).to_owned(), workers });
        if let Some(idle) = hosts.clone().find(|host| host.workers == 0) {
            return error(format!("no worker is left for {}: name fewer hosts", idle.name));
        }
        Ok(Self { hosts: hosts.collect(), folder })
    }

    /// The list for the launcher: `a:2,b:2`.
    pub(super) fn launcher_list(&self) -> String {
        let items: Vec<String> =
            self.hosts.iter().map(|host| format!("{}:{}", host.name, host.workers)).collect();
        items.join(",")
    }

    /// The host of a rank; the launcher fills the hosts one after the other.
    pub(super) fn host_of(&self, rank: usize) -> Option<&str> {
        let mut end = 0;
        let mut hosts = self.hosts.iter();
        hosts
            .find(|host| {
                end += host.workers;
                rank < end
            })
            .map(|host| host.name.as_str())
    }

    /// Checks every host that is not this machine by its name, all at the same time. Returns the addresses
    /// by which they reached this machine, without duplicates.
    ///
    /// # Errors
    /// If a host cannot be reached, has no such program or another version of it, lacks MPI or the working
    /// folder, or is the first and does not see the folder of the run.
    pub(super) fn check(&self, requirements: &HostRequirements<'_>) -> Result<Vec<IpAddr>, WorkersError> {
        let this_machine = host_name();
        let is_local = |name: &str| this_machine.as_deref() == Some(name) || is_address_of_this_machine(name);
        let remote: Vec<&str> =
            self.hosts.iter().map(|host| host.name.as_str()).filter(|name| !is_local(name)).collect();
        if remote.is_empty() {
            return Ok(Vec::new());
        }
        let probe = Probe::create(&self.folder)?;
        let version = version_of(requirements.program)?;
        let working_folder = std::env::current_dir()
            .map_err(|source| WorkersError::Folder { path: PathBuf::from("."), source })?;
        let mut words =
            vec![self.folder.as_path(), &working_folder, Path::new(&probe.name), requirements.program];
        words.extend(requirements.files.iter().map(PathBuf::as_path));
        let words: Vec<String> = words.iter().map(|word| shell_quoted(&word.display().to_string())).collect();
        let line = format!("sh -s -- {}", words.join(" "));
        // Worker 0 writes the run, and sends it to workers that do not see it.
        let first = self.hosts.first().map(|host| host.name.as_str());
        let check = |host: &str| {
            let answer = ask_host(host, &line)?;
            parse_answer(host, &answer, &version, Some(host) == first)
        };
        let answers: Vec<Result<Option<IpAddr>, WorkersError>> = std::thread::scope(|scope| {
            let checks: Vec<_> = remote.iter().map(|host| scope.spawn(|| check(host))).collect();
            let joined = checks.into_iter().zip(&remote).map(|(check, host)| {
                check.join().unwrap_or_else(|_| {
                    Err(host_error(host, "cannot be checked: the check ended early", "try again"))
                })
            });
            joined.collect()
        });
        let addresses: BTreeSet<IpAddr> =
            answers.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        Ok(addresses.into_iter().collect())
    }
}

/// Returns whether a name means an address of this machine, where `mpiexec` starts workers without SSH: only
/// such an address can be bound.
fn is_address_of_this_machine(name: &str) -> bool {
    (name, 0).to_socket_addrs().is_ok_and(|mut all| all.any(|address| UdpSocket::bind(address).is_ok()))
}

/// A file in the shared folder that hosts must see; removed on drop.
struct Probe {
    path: PathBuf,
    name: String,
}

impl Probe {
    fn create(folder: &Path) -> Result<Self, WorkersError> {
        let random =
            Secret::random().map_err(|source| WorkersError::Folder { path: folder.to_owned(), source })?;
        let name = format!(".stratus-hosts-{}", random.as_str());
        let path = folder.join(&name);
        let created = std::fs::File::create_new(&path).and_then(|mut file| {
            file.write_all(name.as_bytes())?;
            // So that other machines see it on a network file system.
            file.sync_all()
        });
        let probe = Self { path, name };
        match created {
            Ok(()) => Ok(probe),
            Err(source) => Err(WorkersError::Shared { path: folder.to_owned(), source }),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The first line of `--version` of a program.
fn version_of(program: &Path) -> Result<String, WorkersError> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|source| WorkersError::Start { program: program.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

fn host_error(host: &str, problem: impl Into<String>, hint: impl Into<String>) -> WorkersError {
    WorkersError::Host { host: host.to_owned(), problem: problem.into(), hint: hint.into() }
}

/// Runs the script on a host, and returns its answer.
fn ask_host(host: &str, line: &str) -> Result<String, WorkersError> {
    let program_name = ssh::program().to_string_lossy().into_owned();
    let mut command = ssh::command();
    command.args(["--", host, line]);
    let failed = |error: io::Error| {
        host_error(
            host,
            format!("cannot be checked: {program_name}: {error}"),
            ssh::start_hint(&program_name),
        )
    };
    let answer = run_check(command, MAX_CHECK_TIME).map_err(failed)?;
    let Some(CheckOutput { code, output, errors }) = answer else {
        return Err(host_error(
            host,
            format!("did not answer the check within {} s", MAX_CHECK_TIME.as_secs()),
            "a network file system may hang there: log in and list the folders of the program and the run",
        ));
    };
    let reason = || printable(errors.trim().lines().last().unwrap_or("no reason given"));
    match code {
        Some(0) => Ok(output),
        Some(CONNECTION_FAILED) => {
            let hint = format!("check that `{program_name} {host}` works without a password");
            Err(host_error(host, format!("cannot be reached: {}", reason()), hint))
        }
        _ => Err(host_error(
            host,
            format!("cannot be checked: {}", reason()),
            "its login shell must be able to run `sh`",
        )),
    }
}

/// The output of the command that checks a host, and its exit code.
struct CheckOutput {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// Runs a command with the script as its input; `None` if it takes longer than `limit`.
fn run_check(mut command: Command, limit: Duration) -> io::Result<Option<CheckOutput>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (sender, receiver) = mpsc::channel();
    // Not joined if the command takes too long, since processes that it started may keep its pipes open.
    std::thread::spawn(move || {
        // The script is smaller than the buffer of a pipe; an ended process answers with its exit code.
        if let Some(mut input) = input {
            let _ = input.write_all(CHECK_SCRIPT.as_bytes());
        }
        let errors = std::thread::spawn(move || read_text(errors));
        let output = read_text(output);
        let errors = errors.join().unwrap_or_else(|_| Ok(String::new()));
        let _ = sender.send(output.and_then(|output| Ok((output, errors?))));
    });
    match receiver.recv_timeout(limit) {
        Ok(read) => {
            let (output, errors) = read.inspect_err(|_| kill(&mut child))?;
            Ok(Some(CheckOutput { code: child.wait()?.code(), output, errors }))
        }
        Err(_) => {
            kill(&mut child);
            Ok(None)
        }
    }
}

/// Ends a command that is no longer waited for.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Reads a pipe to its end, and returns the first [`MAX_ANSWER_BYTES`].
fn read_text(pipe: Option<impl Read>) -> io::Result<String> {
    let Some(mut pipe) = pipe else { return Ok(String::new()) };
    let mut text = Vec::new();
    (&mut pipe).take(MAX_ANSWER_BYTES).read_to_end(&mut text)?;
    io::copy(&mut pipe, &mut io::sink())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Evaluates the answer of the script. Returns the address by which the host was reached from this machine,
/// if it tells it. A host other than the first need not see the folder of the run.
fn parse_answer(
    host: &str,
    answer: &str,
    version: &str,
    is_first: bool,
) -> Result<Option<IpAddr>, WorkersError> {
    let mut has_version = false;
    let mut caller = None;
    for line in answer.lines().filter_map(|line| line.strip_prefix(MARK)) {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = printable(value.trim());
        match key {
            "run" if is_first => {
                let hint = "the first host writes the run: name this machine first, or use a shared folder";
                return Err(host_error(
                    host,
                    format!("does not see the folder {value} of this machine"),
                    hint,
                ));
            }
            "folder" => {
                let hint = "create it there, start from another folder, or use a shared folder";
                return Err(host_error(host, format!("has no folder {value}"), hint));
            }
            "missing" => {
                let hint = "install Stratus and MPI there at the same path, or in a shared folder";
                return Err(host_error(host, format!("has no file {value}"), hint));
            }
            "broken" => {
                let hint = "that host may have another architecture or an older glibc";
                return Err(host_error(host, format!("cannot run this program: {value}"), hint));
            }
            "version" if value == printable(version) => has_version = true,
            "version" => {
                let problem = format!("has {value}, but this machine has {}", printable(version));
                return Err(host_error(host, problem, "install the same version on all hosts"));
            }
            "caller" => caller = value.parse().ok(),
            _ => {}
        }
    }
    match has_version {
        true => Ok(caller),
        false => Err(host_error(
            host,
            "gave no answer to the check",
            "`.bashrc` and similar files there must not read standard input or call `exit`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str, workers: usize) -> Result<WorkerHosts, String> {
        WorkerHosts::parse(list, workers, PathBuf::from("/")).map_err(|error| error.to_string())
    }

    #[test]
    fn workers_are_distributed_in_the_order_of_hosts() {
        let list = |text: &str, workers| parse(text, workers).unwrap().launcher_list();
        assert_eq!(list("a,b", 4), "a:2,b:2");
        assert_eq!(list("a, b,c", 8), "a:3,b:3,c:2");
        assert_eq!(list("a:4,b:8", 8), "a:4,b:4");
        let hosts = parse("a,b,c", 4).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|rank| hosts.host_of(rank)),
            [Some("a"), Some("a"), Some("b"), Some("c"), None]
        );
    }

    #[test]
    fn invalid_lists_name_the_problem() {
        let many = (0..300).map(|at| format!("h{at}")).collect::<Vec<_>>().join(",");
        for (list, workers, problem) in [
            ("", 2, "\"\" is not the name of a host"),
            ("a,", 2, "\"\" is not the name of a host"),
            ("a,A", 2, "A is named twice"),
            ("a:1,a:2", 2, "a is named twice"),
            ("a:1,b:2", 4, "4 workers exceed 3 slots"),
            ("a:1,b", 2, "give a number of workers to every host, or to none"),
            ("a:4,b:4", 4, "no worker is left for b"),
            ("a,b,c", 2, "no worker is left for c"),
            ("a:0", 2, "\"a:0\" is not a host with a number of workers"),
            ("a:b", 2, "\"a:b\" is not a host with"),
            ("-oProxyCommand=x", 2, "is not the name of a host"),
            ("a b", 2, "\"a b\" is not the name of a host"),
            ("a\u{1b}[2J", 2, "\"a\\u{1b}[2J\" is not the name"),
            ("$(x)", 2, "is not the name of a host"),
            (&many, 512, "300 hosts are more than 256"),
        ] {
            let error = parse(list, workers).unwrap_err();
            assert!(error.contains(problem), "{list}: {error}");
        }
    }

    #[test]
    fn answer_of_a_host_names_the_problem() {
        let parse_as = |is_first, answer: &str| {
            parse_answer("b", answer, "stratus 1", is_first).map_err(|error| error.to_string())
        };
        let parse = |answer: &str| parse_as(true, answer);
        let ok = "hello\nstratus-host version stratus 1\nstratus-host caller 192.0.2.1\n";
        assert_eq!(parse(ok), Ok("192.0.2.1".parse().ok()));
        assert_eq!(parse("stratus-host version stratus 1\nstratus-host caller \n"), Ok(None));
        for (answer, problem) in [
            ("", "host b gave no answer"),
            ("stratus-host run /a", "host b does not see the folder /a"),
            ("stratus-host folder /a", "host b has no folder /a"),
            ("stratus-host missing /a/mpi\u{1b}", "host b has no file /a/mpi"),
            ("stratus-host broken x", "host b cannot run this program: x"),
            ("stratus-host version stratus 2", "host b has stratus 2, but this machine has stratus 1"),
        ] {
            let error = parse(answer).unwrap_err();
            assert!(error.starts_with(problem) && !error.contains('\u{1b}'), "{error}");
        }
        let without_run = "stratus-host run /a\nstratus-host version stratus 1\n";
        assert_eq!(parse_as(false, without_run), Ok(None));
    }

    #[test]
    fn check_ends_at_its_limit() {
        let command = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let answer = run_check(command("cat; echo problem >&2; exit 7"), MAX_CHECK_TIME).unwrap().unwrap();
        assert_eq!((answer.code, answer.errors.as_str()), (Some(7), "problem\n"));
        assert_eq!(answer.output, CHECK_SCRIPT);
        // The process that keeps the pipes open is not the one that is started.
        let limit = Duration::from_millis(200);
        assert!(run_check(command("sleep 20 & wait"), limit).unwrap().is_none());
    }
}
