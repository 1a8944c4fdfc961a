//! Starts workers by `mpiexec`, and waits for them.

use super::hosts::{HostRequirements, WorkerHosts};
use super::monitor::{HeartbeatMonitor, connect_timeout};
use super::relay::{RELAY_VAR, Relay};
use super::{
    CONNECT_TIMEOUT_VAR, HEARTBEAT_FOLDER_VAR, HEARTBEAT_INTERVAL, LAUNCHER_FILE, MPIEXEC_VAR, POLL_INTERVAL,
    STOP_FILE, THIS_MACHINE, WorkersError,
};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use stratus_exchange::ExchangeError;
use stratus_exchange::mpi::SEARCH;

/// Settings of Open MPI's launcher, for several versions: more workers than CPUs are allowed, and Open MPI
/// binds no worker to CPUs, as workers bind themselves.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];

/// The end of all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkersOutcome {
    /// They have finished.
    Finished,
    /// One has printed an error and failed, with this exit code if it is known.
    Failed(Option<i32>),
}

/// Starts `count` workers, processes of this program with the same `arguments`, on `hosts` or on this
/// machine, and waits for them. When `stop` is set, they are asked to stop, and `stopping` is called.
///
/// # Errors
/// If MPI is not found, a host cannot run workers, or a worker was killed or hangs; workers print their own
/// errors.
pub fn run_workers(
    count: usize,
    hosts: Option<&WorkerHosts>,
    arguments: impl Iterator<Item = OsString>,
    stop: &AtomicBool,
    stopping: &dyn Fn(),
) -> Result<WorkersOutcome, WorkersError> {
    if !count.is_power_of_two() {
        return Err(WorkersError::Count(ExchangeError::NotPowerOfTwo(count)));
    }
    let mpiexec = Mpiexec::find()?;
    let timeout = connect_timeout(std::env::var_os(CONNECT_TIMEOUT_VAR).as_deref())?;
    let mut heartbeats = HeartbeatMonitor::new()?;
    heartbeats.connect_timeout = timeout;
    let this_program = std::env::current_exe().map_err(WorkersError::ThisProgram)?;
    let mut command = Command::new(&mpiexec.program);
    match hosts {
        Some(hosts) => mpiexec.use_hosts(&mut command, hosts, (count, &this_program), &heartbeats)?,
        None => {
            command.env(HEARTBEAT_FOLDER_VAR, &heartbeats.folder).env_remove(RELAY_VAR);
        }
    }
    let Mpiexec { program, library } = mpiexec;
    let host_of = |rank| hosts.and_then(|hosts| hosts.host_of(rank)).unwrap_or(THIS_MACHINE).to_owned();
    command.arg("-n").arg(count.to_string()).arg(this_program).args(arguments);
    // A new process group, so that Ctrl-C reaches only this process, which stops the workers.
    command.stdin(Stdio::null()).process_group(0);
    if let Some(library) = &library {
        command.env(SEARCH.environment, library);
    }
    for (name, value) in OPEN_MPI {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let mut child =
        command.spawn().map_err(|source| WorkersError::Start { program: program.clone(), source })?;
    heartbeats.note_start();
    let cannot_wait = |source| WorkersError::Wait { program: program.clone(), source };
    let (mut is_stopping, mut last_heartbeat_at) = (false, Instant::now());
    loop {
        if let Some(status) = child.try_wait().map_err(cannot_wait)? {
            heartbeats.wait_for_exits();
            let (code, failed, killed) =
                (status.code(), heartbeats.first_exit_code(count), heartbeats.first_killed());
            drop(heartbeats);
            return match (code, failed, killed) {
                (Some(0), ..) => Ok(WorkersOutcome::Finished),
                // The worker has printed its error. mpiexec returns the code of a worker that it killed.
                (_, Some(code), _) => Ok(WorkersOutcome::Failed(Some(code.into()))),
                (.., Some((rank, iteration))) => {
                    Err(WorkersError::Lost { rank, host: host_of(rank), iteration, reason: "was killed" })
                }
                (code, ..) => Ok(WorkersOutcome::Failed(code)),
            };
        }
        if last_heartbeat_at.elapsed() > HEARTBEAT_INTERVAL {
            heartbeats.write_marker(LAUNCHER_FILE);
            last_heartbeat_at = Instant::now();
        }
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_stopping, true) {
            heartbeats.write_marker(STOP_FILE);
            stopping();
        }
        if let Some((rank, iteration)) = heartbeats.first_silent(count) {
            kill(&mut child);
            let reason = "has had no heartbeat for 20 s";
            return Err(WorkersError::Lost { rank, host: host_of(rank), iteration, reason });
        }
        if let Some(rank) = heartbeats.first_missing(count) {
            kill(&mut child);
            return Err(WorkersError::NotConnected { rank, host: host_of(rank), seconds: timeout.as_secs() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills `mpiexec`, which ends its workers.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The launcher, and the MPI library that it belongs to, if known.
struct Mpiexec {
    program: PathBuf,
    library: Option<PathBuf>,
}

impl Mpiexec {
    /// Finds the launcher: `STRATUS_MPIEXEC`, next to the MPI library, or in `PATH`.
    fn find() -> Result<Self, WorkersError> {
        SEARCH.check_named()?;
        let path_in =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let library = path_in(SEARCH.environment);
        if let Some(program) = path_in(MPIEXEC_VAR) {
            return Ok(Self { program, library });
        }
        for library in SEARCH.candidates() {
            let launcher = library.parent().and_then(Path::parent).map(|root| root.join("bin/mpiexec"));
            if let Some(program) = launcher.filter(|program| library.is_file() && program.is_file()) {
                return Ok(Self { program, library: Some(library) });
            }
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|folder| folder.join("mpiexec")).find(|file| file.is_file());
        found.map(|program| Self { program, library }).ok_or(WorkersError::NoLauncher)
    }

    /// Checks the hosts, and adds the options and variables with which this launcher, MPICH's, starts `count`
    /// workers there. Their heartbeats go to `monitor`.
    fn use_hosts(
        &self,
        command: &mut Command,
        hosts: &WorkerHosts,
        (count, this_program): (usize, &Path),
        monitor: &HeartbeatMonitor,
    ) -> Result<(), WorkersError> {
        let not_started = |source| WorkersError::Start { program: self.program.clone(), source };
        let described = Command::new(&self.program).arg("--version").stdin(Stdio::null()).output();
        if !String::from_utf8_lossy(&described.map_err(not_started)?.stdout).contains("HYDRA") {
            return Err(WorkersError::NotHydra { program: self.program.clone() });
        }
        let proxy = self.program.with_file_name("hydra_pmi_proxy");
        let files = [self.library.clone(), Some(proxy)];
        let files = files.into_iter().flatten().filter(|file| file.is_absolute() && file.is_file());
        let addresses = hosts.check(&HostRequirements { program: this_program, files: files.collect() })?;
        let relay = Relay::start(monitor, count)?;
        command.env(RELAY_VAR, relay.variable(&addresses)).env_remove(HEARTBEAT_FOLDER_VAR);
        command.args(["-launcher", "ssh", "-hosts", &hosts.launcher_list()]);
        let ssh = stratus_base::ssh::program();
        if ssh != "ssh" {
            command.arg("-launcher-exec").arg(ssh);
        }
        // The address by which the hosts reach this machine; its name may mean another one to them. There is
        // no such address if they are in different networks: each then looks up the name, the default.
        if let [address] = addresses[..] {
            command.args(["-localhost", &address.to_string()]);
        }
        Ok(())
    }
}
