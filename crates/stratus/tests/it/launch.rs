//! Launches as processes: what comes back is what a run here would be, bit for bit, whatever is killed or
//! cut. Those through SSH go to a real `sshd` on this machine, which the test starts. `make test-all` runs
//! them.

#![cfg(target_os = "linux")]

mod accounts;
mod faults;
mod hosts;
mod leases;
mod sky;
mod slurm;
mod sweeps;

use crate::common::{Place, Ran, Result, SETTINGS, root};
use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A launch of digits, with what every training of these tests is told.
fn launch(place: &Place, target: &str, epochs: u32, more: &[&str]) -> serde_json::Value {
    let data = format!("data.path={}", root().join("data/mnist").display());
    let epochs = format!("train.epochs={epochs}");
    let mut arguments = vec!["launch", target, "digits", "--json"];
    for setting in SETTINGS.iter().chain(&[data.as_str(), epochs.as_str(), "train.seed=7"]) {
        arguments.extend(["--set", setting]);
    }
    arguments.extend(more);
    serde_json::from_str(&place.run(&arguments).expect(0).out).unwrap()
}

/// The same, trained here.
fn near(place: &Place, out: &str, epochs: u32, seed: u32) -> Result {
    place.train(out, epochs, &["--set", &format!("train.seed={seed}")]).expect(0);
    Result::of(&place.path(out))
}

/// A section of targets.toml: kernels are chosen there as they are here.
fn target(place: &Place, name: &str, how: &str, folder: &str) {
    let cache = place.path("cache");
    // Another number of threads has another plan.
    let threads = std::env::var("OMP_NUM_THREADS")
        .unwrap_or_else(|_| std::thread::available_parallelism().unwrap().to_string());
    let text = format!(
        "[{name}]\n{how}\nfolder = {:?}\n[{name}.environment]\nSTRATUS_CACHE = {cache:?}\n\
         OMP_WAIT_POLICY = \"passive\"\nOMP_NUM_THREADS = \"{threads}\"\n\n",
        place.path(folder).display().to_string(),
    );
    let path = place.path("targets.toml");
    let mut file = fs::File::options().create(true).append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn status(place: &Place) -> serde_json::Value {
    serde_json::from_str(&place.run(&["launch", "status", "--json"]).expect(0).out).unwrap()
}

/// Waits until nothing trains the last launch, and says how its repetitions ended.
fn ended(place: &Place) -> Vec<String> {
    let began = Instant::now();
    loop {
        let state = status(place)["state"].take();
        if state["alive"] == false {
            let repetitions = state["repetitions"].as_array().unwrap();
            return repetitions.iter().map(|one| one["status"].as_str().unwrap().to_owned()).collect();
        }
        assert!(began.elapsed() < Duration::from_secs(600), "{state}");
        sleep(Duration::from_millis(300));
    }
}

/// Kills what trains a launch, when it has done something.
fn kill(job: &Path) {
    let rows = || fs::read_to_string(job.join("1/run/iterations.csv")).map_or(0, |text| text.lines().count());
    let began = Instant::now();
    while rows() < 70 {
        assert!(began.elapsed() < Duration::from_secs(300), "nothing is trained");
        sleep(Duration::from_millis(20));
    }
    let owner = fs::read_to_string(job.join("owner")).unwrap();
    let trained = fs::read_to_string(job.join("pid")).unwrap();
    for process in [owner.split(' ').nth(2).unwrap(), trained.trim()] {
        assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
    }
}

/// A program that says and does this, before all others of its name.
fn instead(place: &mut Place, program: &str, script: &str) {
    let bin = place.path("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join(program), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(bin.join(program), PermissionsExt::from_mode(0o755)).unwrap();
    place.variables.retain(|(name, _)| *name != "PATH");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    place.variables.push(("PATH", path.into()));
}

fn text<'a>(value: &'a serde_json::Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

#[test]
fn a_launch_that_is_killed_goes_on_to_the_same_bits() {
    let place = Place::new();
    target(&place, "here", "kind = \"local\"", "there");
    let launched = launch(&place, "here", 3, &[]);
    let id = text(&launched, "id");
    assert_eq!(launched["runs"][0], "runs/digits/1");
    // Nobody else may have it meanwhile, and who has it is said.
    let refused = place.run(&["launch", "resume", id]).expect(1).err;
    assert!(refused.contains("is being trained already, by ") && refused.contains(", process "), "{refused}");
    kill(&place.path(&format!("there/jobs/{id}")));
    assert_eq!(ended(&place), ["interrupted"]);
    // What there is can be looked at before it goes on.
    place.run(&["launch", "fetch"]).expect(0);
    place.run(&["collect", "runs/digits/1"]).expect(0);
    place.run(&["launch", "here", "runs/digits/1"]).expect(0);
    assert_eq!(ended(&place), ["completed"]);
    place.run(&["launch", "fetch"]).expect(0);
    assert_eq!(Result::of(&place.path("runs/digits/1")), near(&place, "near", 3, 7));
    let list = place.run(&["launch", "list"]).expect(0).out;
    assert!(list.contains(id) && list.contains("completed"), "{list}");
    let logs = place.run(&["launch", "logs", "-f"]).expect(0).out;
    assert!(logs.contains("epoch"), "{logs}");
}

#[test]
fn a_launch_that_is_stopped_keeps_its_checkpoint_and_a_dry_run_touches_nothing() {
    let place = Place::new();
    target(&place, "here", "kind = \"local\"", "there");
    let data = format!("data.path={}", root().join("data/mnist").display());
    let dry = place.run(&["launch", "here", "digits", "--set", &data, "--dry-run", "--repetitions", "2"]);
    let dry = dry.expect(0).out;
    for part in ["/stratus  from ", "libdnnl.so.3", "train-images-idx3-ubyte.gz", "repetitions='1 2'"] {
        assert!(dry.contains(part), "{part}: {dry}");
    }
    assert!(!place.path("there").exists() && !place.path("runs").exists());
    let launched = launch(&place, "here", 2, &["--repetitions", "2"]);
    let job = place.path(&format!("there/jobs/{}", text(&launched, "id")));
    let began = Instant::now();
    while !job.join("1/run/epochs.csv").exists() {
        assert!(began.elapsed() < Duration::from_secs(300), "nothing is trained");
        sleep(Duration::from_millis(20));
    }
    place.run(&["launch", "stop"]).expect(0);
    assert_eq!(ended(&place), ["interrupted", "waiting"]);
    assert_eq!(fs::read_to_string(job.join("1/exit")).unwrap().trim(), "75");
}

#[test]
fn bad_input_is_named_before_anything_is_started() {
    let place = Place::bare();
    fs::write(place.path("file"), "").unwrap();
    target(&place, "here", "kind = \"local\"", "file/below");
    let data = format!("data.path={}", root().join("data/mnist").display());
    let digits = ["digits", "--set", &data];
    let said = |arguments: &[&str], code: i32| {
        let ran = place.run(&[&["launch"], arguments].concat()).expect(code);
        assert!(ran.out.is_empty(), "{}", ran.out);
        ran.err
    };
    assert!(
        said(&[&["hree"], &digits[..]].concat(), 2)
            .contains("no target is named `hree`, did you mean `here`?")
    );
    assert!(said(&["here", "digits", "--set", "data.path=none"], 2).contains("there is nothing at none"));
    let there = ["here", "digits", "--data-there", "--set", "data.path=relative"];
    assert!(said(&there, 2).contains("relative is no path from the root"));
    assert!(said(&["here", "digitss"], 2).contains("did you mean `digits`?"));
    assert!(said(&[&["here"], &digits[..]].concat(), 1).contains("here: cannot use the folder"));
    assert!(said(&["status"], 2).contains("nothing was launched from here"));
    fs::write(place.path("targets.toml"), "[lab]\nkind = \"ssh\"\npassword = \"hunter2\"\n").unwrap();
    let secret = said(&[&["lab"], &digits[..]].concat(), 2);
    assert!(secret.contains("`lab.password` looks like a secret") && !secret.contains("hunter2"), "{secret}");
    assert!(!place.path("runs").exists());
}

/// `sshd`, which ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn key(path: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.expect("OpenSSH is there: scripts/store-servers.sh install").success());
}

/// Starts `sshd` and makes a target for each way to get there: `lab`, and those that must not get in.
fn serve(place: &Place) -> Server {
    let folder = place.path("ssh");
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
        // A host of its own for each: none shares the connection of another.
        let client = format!(
            "Host {name}\nHostName 127.0.0.1\nPort {port}\nIdentityFile {at}/{user}\nIdentitiesOnly yes\n\
             IdentityAgent none\nUserKnownHostsFile {at}/{known}\nGlobalKnownHostsFile /dev/null\n\
             ControlPath none\n"
        );
        let config = folder.join(format!("{name}.config"));
        fs::write(&config, client).unwrap();
        target(place, name, &format!("kind = \"ssh\"\nhost = \"{name}\"\nconfig = {config:?}"), "there");
    }
    listen(&folder, port)
}

/// Starts `sshd` with the configuration in the folder.
fn listen(folder: &Path, port: u16) -> Server {
    // Debian's wants it to be there when root starts it.
    let _ = fs::create_dir("/run/sshd");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(folder.join("sshd_config")).stdin(Stdio::null());
    let log = fs::File::create(folder.join("log")).unwrap();
    let server =
        Server(command.stderr(log).spawn().expect("sshd is there: scripts/store-servers.sh install"));
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < Duration::from_secs(30), "sshd does not listen");
        sleep(Duration::from_millis(20));
    }
    server
}

/// Whether tests with servers are left out, which is told.
fn is_left_out(what: &str) -> bool {
    let none = std::env::var("STRATUS_STORE_SERVERS").is_ok_and(|servers| servers == "none");
    if none {
        // Past the test's captured output: it must be seen.
        let _ = writeln!(io::stderr(), "\n*** {what} WAS NOT RUN: STRATUS_STORE_SERVERS=none ***\n");
    }
    none
}

#[test]
#[ignore = "needs sshd: scripts/store-servers.sh install"]
fn a_launch_over_ssh_ends_as_a_run_here() {
    if is_left_out("launching over SSH") {
        return;
    }
    let place = Place::new();
    let server = serve(&place);
    let data = format!("data.path={}", root().join("data/mnist").display());
    for (name, problem) in [
        ("stranger", "does not let this user in"),
        ("changed", "is not the one that is known"),
        ("unknown", "is not known"),
    ] {
        let said = place.run(&["launch", name, "digits", "--set", &data]).expect(1).err;
        assert!(said.contains(problem) && said.contains("hint: "), "{said}");
    }
    assert!(!place.path("there").exists() && !place.path("runs").exists(), "nothing was started");

    let first = launch(&place, "lab", 1, &["--repetitions", "2"]);
    assert!(first["sent_files"].as_u64().unwrap() >= 6, "{first}");
    assert_eq!(ended(&place), ["completed", "completed"]);

    // A fetch whose connection is cut says so, keeps what came, and goes on.
    let cut = place.path("bin/ssh");
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(&cut, "#!/bin/sh\nPATH=${PATH#*:}\nssh \"$@\" | head -c 20000\n").unwrap();
    fs::set_permissions(&cut, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = place.command(&["launch", "fetch"]);
    let said = Ran::of(command.env("PATH", path).output().unwrap()).expect(1).err;
    assert!(said.contains("the connection ended while ") && said.contains("fetch again"), "{said}");
    let size = |place: &Place| -> u64 {
        let fetched: serde_json::Value =
            serde_json::from_str(&place.run(&["launch", "fetch", "--json"]).expect(0).out).unwrap();
        fetched.as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).sum()
    };
    assert!(size(&place) > 0);
    assert_eq!(size(&place), 0, "all is there");
    for (run, seed) in [(1, 7), (2, 8)] {
        let fetched = Result::of(&place.path(&format!("runs/digits/{run}")));
        assert_eq!(fetched, near(&place, &format!("near{seed}"), 1, seed));
    }

    // What is there is not sent again. Its training outlives the server, and whatever kills it.
    let second = launch(&place, "lab", 3, &[]);
    assert_eq!((second["sent_files"].as_u64(), second["sent_bytes"].as_u64()), (Some(0), Some(0)));
    let refused = place.run(&["launch", "resume"]).expect(1).err;
    assert!(refused.contains("is being trained already, by "), "{refused}");
    kill(&place.path(&format!("there/jobs/{}", text(&second, "id"))));
    assert_eq!(ended(&place), ["interrupted"]);
    place.run(&["launch", "resume"]).expect(0);
    assert_eq!(ended(&place), ["completed"]);
    place.run(&["launch", "fetch"]).expect(0);
    assert_eq!(Result::of(&place.path("runs/digits/3")), near(&place, "near3", 3, 7));
    drop(server);
}
