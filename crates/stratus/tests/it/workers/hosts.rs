//! Workers on several machines. In most tests, a script in place of `ssh` runs the commands for a host on
//! this machine; one test starts real SSH servers in network namespaces.

use super::kills::{
    EXIT_TIMEOUT, failures, iterations, print_times, rank_of, signal, wait_until, workers_of,
};
use super::{PARTS, has_mpi, mpiexec, train};
use crate::common::{CommandOutput, RunResult, TestDir, train_arguments};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Makes a script the program that is run as `ssh`. In the script, `$host` is the host and `$line` the
/// command.
pub fn replace_ssh(dir: &mut TestDir, script: &str) {
    let path = dir.path("ssh");
    let arguments =
        "while :; do case $1 in -o) shift 2 ;; --) shift; break ;; -*) shift ;; *) break ;; esac; done";
    let text = format!("#!/bin/sh\n{arguments}\nhost=$1\nshift\nline=$*\n{script}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    dir.variables.retain(|(name, _)| *name != "STRATUS_SSH");
    dir.variables.push(("STRATUS_SSH", path.into()));
}

/// Returns whether MPI is installed, with the launcher that `--hosts` needs.
pub fn has_mpich() -> bool {
    if !has_mpi() {
        return false;
    }
    let described = Command::new(mpiexec()).arg("--version").output().unwrap();
    let is_hydra = String::from_utf8_lossy(&described.stdout).contains("HYDRA");
    if !is_hydra {
        eprintln!("SKIPPED: --hosts needs the mpiexec of MPICH");
    }
    is_hydra
}

/// Runs the command for a host on this machine.
const RUN_HERE: &str = "exec sh -c \"$line\"";

#[test]
fn workers_on_hosts_give_the_same_bits() {
    if !has_mpich() {
        return;
    }
    let mut dir = TestDir::new();
    let asked = dir.path("asked");
    replace_ssh(&mut dir, &format!("echo \"$host\" >> '{}'\n{RUN_HERE}", asked.display()));
    train(&dir, "alone", 2, &[]).expect(0);
    let ran = train(&dir, "hosts", 2, &["--workers", "4", "--hosts", "localhost:1,other:3"]).expect(0);
    assert_eq!(ran.err.matches("4 processes, each with").count(), 1, "{}", ran.err);
    assert_eq!(RunResult::read(&dir.path("hosts")), RunResult::read(&dir.path("alone")));
    // Once for the check, once by `mpiexec`; this machine needs no connection.
    assert_eq!(fs::read_to_string(asked).unwrap(), "other\nother\n");
    let left: Vec<_> =
        fs::read_dir(dir.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(".stratus-hosts-")), "{left:?}");

    // An error is printed once, by the first worker.
    let ran = train(&dir, "many", 1, &["--workers", "8", "--hosts", "localhost,other"]).expect(2);
    assert_eq!(ran.err.matches("8 workers exceed train.parts = 4").count(), 1, "{}", ran.err);
}

#[test]
fn lost_worker_is_named_with_its_host_and_a_stop_reaches_all() {
    const EPOCHS: u32 = 30;
    if !has_mpich() {
        return;
    }
    let mut dir = TestDir::new();
    replace_ssh(&mut dir, RUN_HERE);
    let start = |arguments: &[String]| -> Child {
        let mut command = dir.command(&[]);
        command.args(arguments).args(["--workers", "4", "--hosts", "localhost:1,other:3"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let end = |child: Child| CommandOutput::new(child.wait_with_output().unwrap());
    let run = dir.path("run");
    let mut child = start(&train_arguments("run", EPOCHS, &PARTS));
    assert!(wait_until(&mut child, || iterations(&run) > 30), "{}", end(child).err);
    let is_chosen = |pid: &u32| rank_of(*pid) == Some(2);
    let worker = workers_of(child.id()).into_iter().find(is_chosen).unwrap();
    // The system closes it first, and nothing keeps it open: the launching process sees the end of this
    // worker before `mpiexec` ends the others of its host.
    let files = fs::read_dir(format!("/proc/{worker}/fd")).unwrap().flatten();
    let files: Vec<_> =
        files.filter_map(|file| Some((file.file_name(), fs::read_link(file.path()).ok()?))).collect();
    let socket = &files.iter().find(|(number, _)| number == "0").unwrap().1;
    assert!(socket.to_string_lossy().starts_with("socket:"), "{}", socket.display());
    assert_eq!(files.iter().filter(|(_, file)| file == socket).count(), 1, "{files:?}");
    signal(worker, "KILL");
    let message = end(child).expect(75).err;
    assert!(message.contains("worker 2 on other was killed after iteration "), "{message}");

    let mut child = start(&["train".to_owned(), "run".to_owned()]);
    let before = iterations(&run);
    assert!(wait_until(&mut child, || iterations(&run) > before + 60), "{}", end(child).err);
    signal(child.id(), "TERM");
    let message = end(child).expect(75).err;
    assert!(message.contains("stopping after this iteration, with a checkpoint"), "{message}");

    // One host less, then one process.
    let more = ["train", "run", "--workers", "2", "--hosts", "other", "--until-epoch", "20"];
    dir.run(&more).expect(0);
    dir.run(&["train", "run"]).expect(0);
    train(&dir, "alone", EPOCHS, &[]).expect(0);
    assert_eq!(RunResult::read(&run), RunResult::read(&dir.path("alone")));
}

#[test]
fn hosts_that_cannot_run_workers_are_named_before_anything_starts() {
    if !has_mpich() {
        return;
    }
    let mut dir = TestDir::without_kernel_cache();
    replace_ssh(&mut dir, "exit 9");
    let rejected = |dir: &TestDir, hosts: &str, workers: &str, code: i32| {
        let ran = train(dir, "run", 1, &["--workers", workers, "--hosts", hosts]).expect(code);
        assert!(!dir.path("run").exists());
        assert!(!ran.err.contains('\u{1b}'), "{}", ran.err);
        ran.err
    };
    for (hosts, workers, problem) in [
        ("a,a", "2", "--hosts: a is named twice"),
        ("a:1,b:2", "4", "--hosts: 4 workers exceed 3 slots"),
        ("a,b,c", "2", "--hosts: no worker is left for c"),
        ("a,<script>", "2", "--hosts: \"<script>\" is not the name of a host"),
        ("", "2", "--hosts: \"\" is not the name of a host"),
        ("a,b", "1", "--hosts needs at least two workers"),
    ] {
        let message = rejected(&dir, hosts, workers, 2);
        assert!(message.contains(problem), "{hosts}: {message}");
    }
    let message = dir.run(&["train", "digits", "--hosts", "a"]).expect(2).err;
    assert!(message.contains("--workers"), "{message}");

    let path = |name: &str| dir.folder.path().join(name).display().to_string();
    let (here, program) = (path(""), env!("CARGO_BIN_EXE_stratus"));
    let other = path("other");
    fs::write(&other, "#!/bin/sh\necho stratus 9.9\n").unwrap();
    fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).unwrap();
    let changed = |from: &str, to: &str| {
        format!("[ \"$host\" = b ] && line=$(printf %s \"$line\" | sed 's#{from}#{to}#')\n{RUN_HERE}")
    };
    for (script, problem, hint) in [
        (
            "printf 'motd\\nssh: connect to host %s port 22: \\033[2Jrefused\\n' \"$host\" >&2\nexit 255"
                .to_owned(),
            "host a cannot be reached: ssh: connect to host a port 22: ",
            "without a password",
        ),
        ("exit 127".to_owned(), "host a cannot be checked: no reason given", "must be able to run `sh`"),
        ("exit 0".to_owned(), "host a gave no answer to the check", "`.bashrc` and similar files"),
        (
            changed("hydra_pmi_proxy", "none"),
            "host b has no file ",
            "install Stratus and MPI there at the same path",
        ),
        (changed(program, "/none"), "host b has no file ", "at the same path"),
        (
            changed(program, &other),
            "host b has stratus 9.9, but this machine has stratus ",
            "install the same version",
        ),
        // The working folder.
        (
            changed(&format!("{0}\\(.*\\){0}", here.trim_end_matches('/')), "/\\1/nowhere"),
            "host b has no folder /nowhere",
            "shared",
        ),
        // The folder of the run, which only the first host must see.
        (
            changed(here.trim_end_matches('/'), "/nowhere").replace("= b", "= a"),
            "host a does not see the folder /nowhere",
            "the first host writes the run",
        ),
    ] {
        replace_ssh(&mut dir, &script);
        let message = rejected(&dir, "a,b", "2", 1);
        assert!(message.contains(problem) && message.contains(hint), "{script}: {message}");
    }

    // Options of another launcher are unknown.
    let launcher = dir.path("mpiexec");
    fs::write(&launcher, "#!/bin/sh\necho mpirun 4.1.4\n").unwrap();
    fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).unwrap();
    dir.variables.push(("STRATUS_MPIEXEC", launcher.into()));
    let message = rejected(&dir, "a,b", "2", 1);
    assert!(message.contains("--hosts needs the mpiexec of MPICH"), "{message}");
}

/// The addresses of the simulated machines; they are reserved for documentation (RFC 5737).
const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const LAUNCHER: &str = "192.0.2.254";

/// Three network namespaces with a bridge: two with an SSH server, and one that starts workers.
struct Network {
    namespaces: [String; 3],
    servers: Vec<Child>,
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status().unwrap();
    assert!(done.success(), "ip {arguments:?}");
}

impl Network {
    fn start(dir: &mut TestDir) -> Self {
        let folder = dir.path("server");
        fs::create_dir(&folder).unwrap();
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            let done = command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key)).status();
            assert!(done.unwrap().success());
        }
        // The folder of the server's privileges exists only after its service has run.
        fs::create_dir_all("/run/sshd").unwrap();
        let name = |end: &str| format!("stratus-{}-{end}", std::process::id());
        let mut network = Self { namespaces: [name("a"), name("b"), name("l")], servers: Vec::new() };
        for namespace in &network.namespaces {
            ip(&["netns", "add", namespace]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        let [a, b, launcher] = network.namespaces.clone();
        ip(&["-n", &launcher, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &launcher, "address", "add", &format!("{LAUNCHER}/24"), "dev", "bridge"]);
        ip(&["-n", &launcher, "link", "set", "bridge", "up"]);
        let mut known = String::new();
        for (namespace, address) in [a, b].iter().zip(HOSTS) {
            let port = format!("port{}", address.len() + known.len());
            ip(&[
                "-n", &launcher, "link", "add", &port, "type", "veth", "peer", "name", "wire", "netns",
                namespace,
            ]);
            ip(&["-n", &launcher, "link", "set", &port, "master", "bridge", "up"]);
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", "wire"]);
            ip(&["-n", namespace, "link", "set", "wire", "up"]);
            let folder = folder.display();
            let server = format!(
                "Port 22\nListenAddress {address}\nHostKey {folder}/host\n\
                 AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n\
                 PasswordAuthentication no\nPermitRootLogin prohibit-password\n\
                 PidFile none\n"
            );
            let path = dir.path("server").join(address);
            fs::write(&path, server).unwrap();
            known += &format!("{address} {}", fs::read_to_string(dir.path("server/host.pub")).unwrap());
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, "/usr/sbin/sshd", "-D", "-e", "-f"]).arg(path);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            network.servers.push(quiet.spawn().unwrap());
        }
        fs::write(folder.join("known"), known).unwrap();
        let config = format!(
            "Host *\nUser root\nIdentityFile {0}/user\nIdentitiesOnly yes\nIdentityAgent none\n\
             UserKnownHostsFile {0}/known\nGlobalKnownHostsFile /dev/null\n",
            folder.display()
        );
        fs::write(folder.join("config"), config).unwrap();
        let script = dir.path("ssh");
        let text = format!("#!/bin/sh\nexec ssh -F '{}/config' \"$@\"\n", folder.display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        dir.variables.push(("STRATUS_SSH", script.clone().into()));
        // All are on one machine, which UCX would detect; this makes it use the network.
        for (name, value) in
            [("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "wire"), ("MPIR_CVAR_NOLOCAL", "1")]
        {
            dir.variables.push((name, value.into()));
        }
        for host in HOSTS {
            let start = Instant::now();
            loop {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &network.namespaces[2]]).arg(&script);
                let reached =
                    command.args(["-o", "BatchMode=yes", host, "true"]).stderr(Stdio::null()).status();
                if reached.unwrap().success() {
                    break;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "{host} does not answer");
                sleep(Duration::from_millis(100));
            }
        }
        network
    }

    /// Starts the program in the namespace of the launcher.
    fn start_program(&self, dir: &TestDir, arguments: &[&str]) -> Child {
        let single = dir.command(arguments);
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespaces[2]])
            .arg(single.get_program())
            .args(single.get_args());
        command.envs(single.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(dir.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Kills all processes of a namespace.
    fn kill_all(namespace: &str) {
        Self::kill_if(namespace, |_| true);
    }

    /// Kills the processes of a namespace with certain names.
    fn kill_if(namespace: &str, is_killed: impl Fn(&str) -> bool) {
        let Ok(found) = Command::new("ip").args(["netns", "pids", namespace]).output() else { return };
        for process in String::from_utf8_lossy(&found.stdout).split_whitespace() {
            let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            if is_killed(name.trim()) {
                let _ = Command::new("kill").args(["-9", process]).stderr(Stdio::null()).status();
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            Self::kill_all(namespace);
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
        for server in &mut self.servers {
            let _ = server.wait();
        }
    }
}

/// Four workers on both machines.
const ON_BOTH: [&str; 4] = ["--workers", "4", "--hosts", "192.0.2.1,192.0.2.2"];

/// Waits for a program and returns its output.
fn end(child: Child) -> CommandOutput {
    CommandOutput::new(child.wait_with_output().unwrap())
}

#[test]
#[ignore = "needs root, network namespaces and sshd: scripts/store-servers.sh install"]
fn lost_machine_ends_the_run_resumably_on_the_others() {
    const EPOCHS: u32 = 60;
    if crate::launch::should_skip("workers on several machines") || !has_mpich() {
        return;
    }
    let mut dir = TestDir::new();
    let network = Network::start(&mut dir);
    let run = dir.path("run");
    let first = train_arguments("run", EPOCHS, &PARTS);
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    let is_running = |child: &mut Child, path: &Path, more: u64| {
        let before = iterations(path);
        wait_until(child, || iterations(path) > before + more)
    };
    // All processes of a machine are killed: the system closes their connections.
    let mut child = network.start_program(&dir, &[&first[..], &ON_BOTH].concat());
    assert!(is_running(&mut child, &run, 60), "{}", end(child).err);
    Network::kill_all(&network.namespaces[1]);
    let message = end(child).expect(75).err;
    assert!(message.contains(" on 192.0.2.2 was killed after iteration "), "{message}");

    // The machine is gone.
    let child = network.start_program(&dir, &[&["train", "run"], &ON_BOTH[..]].concat());
    let message = end(child).expect(1).err;
    assert!(message.contains("host 192.0.2.2 cannot be reached: "), "{message}");

    // The first machine alone, which then loses its connection: nobody closes it.
    let one = ["train", "run", "--workers", "2", "--hosts", "192.0.2.1"];
    let mut child = network.start_program(&dir, &one);
    assert!(is_running(&mut child, &run, 60), "{}", end(child).err);
    ip(&["-n", &network.namespaces[0], "link", "set", "wire", "down"]);
    let message = end(child).expect(75).err;
    assert!(message.contains(" on 192.0.2.1 has had no heartbeat for 20 s after iteration "), "{message}");
    drop(network);
    dir.variables.clear();

    dir.run(&["train", "run", "--workers", "2"]).expect(0);
    train(&dir, "alone", EPOCHS, &[]).expect(0);
    assert_eq!(RunResult::read(&run), RunResult::read(&dir.path("alone")));
}

/// The connection to one of two machines is cut again and again, which closes nothing. `STRATUS_KILLS` is the
/// number of cuts.
#[test]
#[ignore = "needs root, network namespaces and sshd: scripts/store-servers.sh install"]
fn cut_link_is_noticed_and_the_run_resumes() {
    const EPOCHS: u32 = 60;
    if crate::launch::should_skip("workers on several machines") || !has_mpich() {
        return;
    }
    let mut dir = TestDir::new();
    let network = Network::start(&mut dir);
    let run = dir.path("run");
    let first = train_arguments("run", EPOCHS, &PARTS);
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    let mut times = Vec::new();
    for number in 0..failures() {
        let start = if number == 0 { &first[..] } else { &["train", "run"] };
        let mut child = network.start_program(&dir, &[start, &ON_BOTH].concat());
        let before = iterations(&run);
        assert!(wait_until(&mut child, || iterations(&run) > before + 20), "{}", end(child).err);
        // Each machine in turn: the first one writes the run, here to a folder that stays.
        let host = (number % 2) as usize;
        let namespace = &network.namespaces[host];
        ip(&["-n", namespace, "link", "set", "wire", "down"]);
        let cut = Instant::now();
        let message = end(child).expect(75).err;
        times.push(cut.elapsed());
        assert!(cut.elapsed() < EXIT_TIMEOUT, "{:?}", cut.elapsed());
        let named = [0, 1].map(|worker| {
            format!(
                "worker {} on {} has had no heartbeat for 20 s after iteration ",
                2 * host + worker,
                HOSTS[host]
            )
        });
        assert!(named.iter().any(|named| message.contains(named)), "{message}");
        // The machine stays, and what it still runs would end by itself after two minutes.
        Network::kill_if(namespace, |name| name == "stratus" || name.starts_with("hydra"));
        ip(&["-n", namespace, "link", "set", "wire", "up"]);
    }
    print_times("a cut link", times);
    drop(network);
    dir.variables.clear();
    dir.run(&["train", "run", "--workers", "2"]).expect(0);
    train(&dir, "alone", EPOCHS, &[]).expect(0);
    assert_eq!(RunResult::read(&run), RunResult::read(&dir.path("alone")));
}
