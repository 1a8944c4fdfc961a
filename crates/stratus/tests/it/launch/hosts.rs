//! Launches on several hosts, each a real `sshd` on this machine.

use super::{Server, key, launch, listen, should_skip, status, target, text, train_locally};
use crate::common::{RunResult, TestDir};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A host with its server, which can be restarted.
pub struct Host {
    pub name: &'static str,
    folder: PathBuf,
    port: u16,
    server: Option<Server>,
}

impl Host {
    pub fn start(&mut self) {
        self.server = Some(listen(&self.folder, self.port));
    }

    /// Stops the server and its sessions. Started jobs continue.
    pub fn cut(&mut self) {
        let Some(server) = self.server.take() else { return };
        let sessions = descendants(server.0.id());
        drop(server);
        for process in sessions {
            // The session may have ended with its server.
            let _ = Command::new("kill")
                .args(["-9", &process.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}

/// All descendants of a process.
fn descendants(process: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (number, parent)));
    }
    let mut found = vec![process];
    let mut at = 0;
    while at < found.len() {
        let parent_id = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == parent_id).map(|(number, _)| *number));
        at += 1;
    }
    found.split_off(1)
}

/// Starts hosts and adds the target `lab` with them.
pub fn hosts(dir: &TestDir, names: &[&'static str], more: &str) -> Vec<Host> {
    let folder = dir.path("ssh");
    fs::create_dir(&folder).unwrap();
    key(&folder.join("user"));
    let (mut hosts, mut client) = (Vec::new(), String::new());
    let mut known = String::new();
    for &name in names {
        let host_folder = folder.join(name);
        fs::create_dir(&host_folder).unwrap();
        key(&host_folder.join("host"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nAuthorizedKeysFile {1}/user.pub\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
             PidFile none\n",
            host_folder.display(),
            folder.display()
        );
        fs::write(host_folder.join("sshd_config"), server).unwrap();
        known += &format!("[127.0.0.1]:{port} {}", fs::read_to_string(host_folder.join("host.pub")).unwrap());
        client += &format!(
            "Host {name}\nHostName 127.0.0.1\nPort {port}\nIdentityFile {0}/user\nIdentitiesOnly yes\n\
             IdentityAgent none\nUserKnownHostsFile {0}/known\nGlobalKnownHostsFile /dev/null\n\n",
            folder.display()
        );
        let mut host = Host { name, folder: host_folder, port, server: None };
        host.start();
        hosts.push(host);
    }
    fs::write(folder.join("known"), known).unwrap();
    fs::write(folder.join("config"), client).unwrap();
    let config = folder.join("config");
    target(dir, "lab", &format!("kind = \"ssh\"\nhosts = {names:?}\nconfig = {config:?}\n{more}"), "there");
    hosts
}

/// The folder of a launch on a host.
pub fn folder(dir: &TestDir, id: &str, host: &str) -> PathBuf {
    dir.path(&format!("there/jobs/{id}.{host}"))
}

/// Kills the training process of a job folder, if it is still running.
pub fn kill_training(job: &Path) {
    let owner = fs::read_to_string(job.join("owner")).unwrap_or_default();
    let trained = fs::read_to_string(job.join("pid")).unwrap_or_default();
    for process in [owner.split(' ').nth(2).unwrap_or_default(), trained.trim()] {
        if !process.is_empty() {
            let _ = Command::new("kill").args(["-9", process]).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs sshd: scripts/store-servers.sh install"]
fn lost_host_repetitions_move_to_idle_hosts() {
    if should_skip("launching on several hosts") {
        return;
    }
    let dir = TestDir::new();
    let mut all = hosts(&dir, &["a", "b"], "lost_after_seconds = 1");
    let first = launch(&dir, "lab", 2, &["--repetitions", "3"]);
    assert!(first["sent_files"].as_u64().unwrap() >= 6, "{first}");
    let state = status(&dir);
    let on =
        |state: &serde_json::Value, at: usize| text(&state["state"]["repetitions"][at], "queue").to_owned();
    assert_eq!([0, 1, 2].map(|at| on(&state, at)), ["a", "b", "a"]);
    dir.run(&["launch", "fetch", "-f"]).expect(0);
    for repetition in 1..=3 {
        let run = dir.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(RunResult::read(&run), train_locally(&dir, &format!("near{seed}"), 2, seed));
    }

    // Existing files are not sent again. A lost host costs only the work since its last fetched checkpoint.
    let second = launch(&dir, "lab", 6, &["--repetitions", "2"]);
    assert_eq!((second["sent_files"].as_u64(), second["sent_bytes"].as_u64()), (Some(0), Some(0)));
    let job = folder(&dir, text(&second, "id"), "a");
    wait_until("it is trained", || job.join("1/run/epochs.csv").exists());
    dir.run(&["launch", "fetch"]).expect(0);
    all[0].cut();
    kill_training(&job);
    let message = dir.run(&["launch", "fetch", "-f"]).expect(0).err;
    assert!(message.contains("b takes over repetition 1 of a, from the local checkpoint"), "{message}");
    for (run, seed) in [(4, 7), (5, 8)] {
        let fetched = RunResult::read(&dir.path(&format!("runs/digits/{run}")));
        assert_eq!(fetched, train_locally(&dir, &format!("longer{seed}"), 6, seed));
    }
    assert_eq!(all[1].name, "b");
}
