//! Launches as processes: fetched runs are bit-identical to local ones, even after kills and interruptions.
//! Tests with SSH start a real `sshd` on this machine; `make test-all` runs them.

#![cfg(target_os = "linux")]

mod accounts;
mod copies;
mod faults;
mod hosts;
mod known;
mod leases;
mod nodes;
mod searches;
mod sky;
mod slurm;
mod sweeps;
mod teacher;

use crate::common::{CommandOutput, RunResult, SETTINGS, TestDir, digits};
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Launches digits with the settings of these tests.
fn launch(dir: &TestDir, target: &str, epochs: u32, more: &[&str]) -> serde_json::Value {
    let data = format!("data.path={}", digits().display());
    let epochs = format!("train.epochs={epochs}");
    let mut arguments = vec!["launch", target, "digits", "--json"];
    for setting in SETTINGS.iter().chain(&[data.as_str(), epochs.as_str(), "train.seed=7"]) {
        arguments.extend(["--set", setting]);
    }
    arguments.extend(more);
    serde_json::from_str(&dir.run(&arguments).expect(0).out).unwrap()
}

/// Trains the same experiment locally.
fn train_locally(dir: &TestDir, out: &str, epochs: u32, seed: u32) -> RunResult {
    dir.train(out, epochs, &["--set", &format!("train.seed={seed}")]).expect(0);
    RunResult::read(&dir.path(out))
}

/// Adds a section to targets.toml. Its cache makes the target use the same kernels as local training.
fn target(dir: &TestDir, name: &str, keys: &str, folder: &str) {
    let cache = dir.path("cache");
    // The plan depends on the number of threads.
    let threads = std::env::var("OMP_NUM_THREADS")
        .unwrap_or_else(|_| std::thread::available_parallelism().unwrap().to_string());
    let text = format!(
        "[{name}]\n{keys}\nfolder = {:?}\n[{name}.environment]\nSTRATUS_CACHE = {cache:?}\n\
         OMP_WAIT_POLICY = \"passive\"\nOMP_NUM_THREADS = \"{threads}\"\n\n",
        dir.path(folder).display().to_string(),
    );
    let path = dir.path("targets.toml");
    let mut file = fs::File::options().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn status(dir: &TestDir) -> serde_json::Value {
    serde_json::from_str(&dir.run(&["launch", "status", "--json"]).expect(0).out).unwrap()
}

/// Waits until the last launch is no longer running and returns the statuses of its repetitions.
fn wait_for_end(dir: &TestDir) -> Vec<String> {
    let start = Instant::now();
    loop {
        let state = status(dir)["state"].take();
        if state["alive"] == false {
            let repetitions = state["repetitions"].as_array().unwrap();
            return repetitions.iter().map(|one| one["status"].as_str().unwrap().to_owned()).collect();
        }
        assert!(start.elapsed() < Duration::from_secs(600), "{state}");
        sleep(Duration::from_millis(300));
    }
}

/// Kills the processes of a launch after some iterations.
fn kill_training(job: &Path) {
    let rows = || fs::read_to_string(job.join("1/run/iterations.csv")).map_or(0, |text| text.lines().count());
    let start = Instant::now();
    while rows() < 70 {
        assert!(start.elapsed() < Duration::from_secs(300), "training did not start");
        sleep(Duration::from_millis(20));
    }
    let owner = fs::read_to_string(job.join("owner")).unwrap();
    let trained = fs::read_to_string(job.join("pid")).unwrap();
    for process in [owner.split(' ').nth(2).unwrap(), trained.trim()] {
        assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
    }
}

/// Puts a script with the name of a program first in the search path.
fn replace_program(dir: &mut TestDir, program: &str, script: &str) {
    let bin = dir.path("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join(program), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(bin.join(program), PermissionsExt::from_mode(0o755)).unwrap();
    dir.variables.retain(|(name, _)| *name != "PATH");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    dir.variables.push(("PATH", path.into()));
}

fn text<'a>(value: &'a serde_json::Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

#[test]
fn killed_launch_resumes_bit_identical() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let launched = launch(&dir, "here", 3, &[]);
    let id = text(&launched, "id");
    assert_eq!(launched["runs"][0], "runs/digits/1");
    // A second start is rejected; the error names the owner.
    let rejected = dir.run(&["launch", "resume", id]).expect(1).err;
    assert!(rejected.contains("is already running on ") && rejected.contains(", process "), "{rejected}");
    kill_training(&dir.path(&format!("there/jobs/{id}")));
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    // An interrupted run can be fetched and inspected.
    dir.run(&["launch", "fetch"]).expect(0);
    dir.run(&["collect", "runs/digits/1"]).expect(0);
    let flag = dir.run(&["launch", "here", "runs/digits/1", "--epochs", "4"]).expect(2).err;
    assert!(flag.contains("--epochs cannot be used when resuming"), "{flag}");
    dir.run(&["launch", "here", "runs/digits/1"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), train_locally(&dir, "near", 3, 7));
    let list = dir.run(&["launch", "list"]).expect(0).out;
    assert!(list.contains(id) && list.contains("completed"), "{list}");
    let logs = dir.run(&["launch", "logs", "-f"]).expect(0).out;
    assert!(logs.contains("epoch"), "{logs}");
}

#[test]
fn stopped_launch_keeps_its_checkpoint_and_dry_run_changes_nothing() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let data = format!("data.path={}", digits().display());
    let dry = dir.run(&["launch", "here", "digits", "--set", &data, "--dry-run", "--repetitions", "2"]);
    let dry = dry.expect(0).out;
    for part in ["/stratus  from ", "libdnnl.so.3", "train-images-idx3-ubyte", "repetitions='1 2'"] {
        assert!(dry.contains(part), "{part}: {dry}");
    }
    assert!(!dir.path("there").exists() && !dir.path("runs").exists());
    let launched = launch(&dir, "here", 2, &["--repetitions", "2"]);
    let job = dir.path(&format!("there/jobs/{}", text(&launched, "id")));
    let start = Instant::now();
    while !job.join("1/run/epochs.csv").exists() {
        assert!(start.elapsed() < Duration::from_secs(300), "training did not start");
        sleep(Duration::from_millis(20));
    }
    dir.run(&["launch", "stop"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["interrupted", "waiting"]);
    assert_eq!(fs::read_to_string(job.join("1/exit")).unwrap().trim(), "75");
}

#[test]
fn short_flags_set_keys_of_a_launch() {
    let dir = TestDir::without_kernel_cache();
    target(&dir, "here", "kind = \"local\"", "there");
    let data = digits().display().to_string();
    let flags = ["--epochs", "3", "--batch", "64", "--lr", "0.25", "--device", "cpu", "--seed", "9"];
    let begin = ["launch", "here", "digits", "--data", &data];
    let dry = dir.run(&[&begin[..], &flags, &["--dry-run"]].concat()).expect(0).out;
    let (_, experiment) = dry.split_once("/1/experiment.toml:\n").unwrap();
    let experiment: toml::Table = experiment.parse().unwrap();
    let train = &experiment["train"];
    assert_eq!(train["epochs"].as_integer(), Some(3));
    assert_eq!(train["batch_size"].as_integer(), Some(64));
    assert_eq!(train["device"].as_str(), Some("cpu"));
    assert_eq!(train["seed"].as_integer(), Some(9));
    assert_eq!(experiment["optimiser"]["learning_rate"].as_float(), Some(0.25));
    // The data are those of the flag, on the target.
    assert!(dry.contains(&format!("from {data}/")), "{dry}");
    let uploaded = experiment["data"]["path"].as_str().unwrap();
    assert!(uploaded.starts_with(&dir.path("there/data").display().to_string()), "{uploaded}");
    for (more, problem) in [
        (["--set", "train.epochs=4"], "`--epochs 3` and `--set train.epochs=4` contradict each other"),
        (["--epochs", "many"], "--epochs"),
    ] {
        let ran = dir.run(&[&begin[..], &["--dry-run"], &flags, &more].concat()).expect(2);
        assert!(ran.err.contains(problem), "{}", ran.err);
    }
    assert!(!dir.path("there").exists() && !dir.path("runs").exists());
}

#[test]
fn invalid_input_is_rejected_before_anything_starts() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("file"), "").unwrap();
    target(&dir, "here", "kind = \"local\"", "file/below");
    let data = format!("data.path={}", digits().display());
    let digits = ["digits", "--set", &data];
    let error_of = |arguments: &[&str], code: i32| {
        let ran = dir.run(&[&["launch"], arguments].concat()).expect(code);
        assert!(ran.out.is_empty(), "{}", ran.out);
        ran.err
    };
    assert!(
        error_of(&[&["hree"], &digits[..]].concat(), 2)
            .contains("no target is named `hree`, did you mean `here`?")
    );
    assert!(
        error_of(&["here", "digits", "--set", "data.path=none"], 2).contains("data.path: none not found")
    );
    let there = ["here", "digits", "--remote-data", "--set", "data.path=relative"];
    assert!(error_of(&there, 2).contains("relative must be an absolute path"));
    assert!(error_of(&["here", "digitss"], 2).contains("did you mean `digits`?"));
    assert!(error_of(&[&["here"], &digits[..]].concat(), 1).contains("here: cannot use the folder"));
    assert!(error_of(&["status"], 2).contains("no launches in this folder"));
    fs::write(dir.path("targets.toml"), "[lab]\nkind = \"ssh\"\npassword = \"hunter2\"\n").unwrap();
    let secret = error_of(&[&["lab"], &digits[..]].concat(), 2);
    assert!(secret.contains("`lab.password` looks like a secret") && !secret.contains("hunter2"), "{secret}");
    assert!(!dir.path("runs").exists());
}

/// An `sshd` process, which is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn key(path: &Path) {
    let status = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(status.expect("OpenSSH is installed: scripts/store-servers.sh install").success());
}

/// Starts `sshd` and adds targets: `lab`, which can connect, and others that must be rejected.
fn serve(dir: &TestDir) -> Server {
    let folder = dir.path("ssh");
    fs::create_dir(&folder).unwrap();
    for name in ["host", "user", "stranger"] {
        key(&folder.join(name));
    }
    fs::copy(folder.join("user.pub"), folder.join("authorized")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = folder.display();
    let server = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
         PidFile none\n"
    );
    fs::write(folder.join("sshd_config"), server).unwrap();
    let public = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    fs::write(folder.join("known"), format!("[127.0.0.1]:{port} {}", public("host.pub"))).unwrap();
    fs::write(folder.join("changed"), format!("[127.0.0.1]:{port} {}", public("stranger.pub"))).unwrap();
    fs::write(folder.join("unknown"), "").unwrap();
    for (name, user, known) in [
        ("lab", "user", "known"),
        ("stranger", "stranger", "known"),
        ("changed", "user", "changed"),
        ("unknown", "user", "unknown"),
    ] {
        // Each target has a separate host, so that none shares a connection.
        let client = format!(
            "Host {name}\nHostName 127.0.0.1\nPort {port}\nIdentityFile {at}/{user}\nIdentitiesOnly yes\n\
             IdentityAgent none\nUserKnownHostsFile {at}/{known}\nGlobalKnownHostsFile /dev/null\n\
             ControlPath none\n"
        );
        let config = folder.join(format!("{name}.config"));
        fs::write(&config, client).unwrap();
        target(dir, name, &format!("kind = \"ssh\"\nhost = \"{name}\"\nconfig = {config:?}"), "there");
    }
    listen(&folder, port)
}

/// Starts `sshd` with the configuration in the folder.
fn listen(folder: &Path, port: u16) -> Server {
    // Debian's sshd needs this folder when root starts it.
    let _ = fs::create_dir("/run/sshd");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(folder.join("sshd_config")).stdin(Stdio::null());
    let log = fs::File::create(folder.join("log")).unwrap();
    let server =
        Server(command.stderr(log).spawn().expect("sshd is installed: scripts/store-servers.sh install"));
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "sshd does not listen");
        sleep(Duration::from_millis(20));
    }
    server
}

/// Returns whether tests with servers are skipped, and prints a note if so.
pub fn should_skip(what: &str) -> bool {
    let none = std::env::var("STRATUS_STORE_SERVERS").is_ok_and(|servers| servers == "none");
    if none {
        // Not captured by the test harness.
        let _ = writeln!(io::stderr(), "\nSKIPPED: {what}: STRATUS_STORE_SERVERS=none\n");
    }
    none
}

#[test]
#[ignore = "needs sshd: scripts/store-servers.sh install"]
fn ssh_launch_is_bit_identical_to_a_local_run() {
    if should_skip("launching over SSH") {
        return;
    }
    let dir = TestDir::new();
    let server = serve(&dir);
    let data = format!("data.path={}", digits().display());
    for (name, problem) in
        [("stranger", "permission denied"), ("changed", "has changed"), ("unknown", "is unknown")]
    {
        let message = dir.run(&["launch", name, "digits", "--set", &data]).expect(1).err;
        assert!(message.contains(problem) && message.contains("hint: "), "{message}");
    }
    assert!(!dir.path("there").exists() && !dir.path("runs").exists(), "nothing was started");

    let first = launch(&dir, "lab", 1, &["--repetitions", "2"]);
    assert!(first["sent_files"].as_u64().unwrap() >= 6, "{first}");
    assert_eq!(wait_for_end(&dir), ["completed", "completed"]);

    // An interrupted fetch reports it, keeps the received bytes and resumes.
    let ssh = dir.path("bin/ssh");
    fs::create_dir(dir.path("bin")).unwrap();
    fs::write(&ssh, "#!/bin/sh\nPATH=${PATH#*:}\nssh \"$@\" | head -c 20000\n").unwrap();
    fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = dir.command(&["launch", "fetch"]);
    let message = CommandOutput::new(command.env("PATH", path).output().unwrap()).expect(1).err;
    assert!(
        message.contains("connection lost while fetching ") && message.contains("fetch again"),
        "{message}"
    );
    let size = |dir: &TestDir| -> u64 {
        let fetched: serde_json::Value =
            serde_json::from_str(&dir.run(&["launch", "fetch", "--json"]).expect(0).out).unwrap();
        fetched.as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).sum()
    };
    assert!(size(&dir) > 0);
    assert_eq!(size(&dir), 0, "everything was fetched");
    for (run, seed) in [(1, 7), (2, 8)] {
        let fetched = RunResult::read(&dir.path(&format!("runs/digits/{run}")));
        assert_eq!(fetched, train_locally(&dir, &format!("near{seed}"), 1, seed));
    }

    // Existing files are not sent again. A killed launch resumes.
    let second = launch(&dir, "lab", 3, &[]);
    assert_eq!((second["sent_files"].as_u64(), second["sent_bytes"].as_u64()), (Some(0), Some(0)));
    let rejected = dir.run(&["launch", "resume"]).expect(1).err;
    assert!(rejected.contains("is already running on "), "{rejected}");
    kill_training(&dir.path(&format!("there/jobs/{}", text(&second, "id"))));
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    dir.run(&["launch", "resume"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/3")), train_locally(&dir, "near3", 3, 7));
    drop(server);
}
