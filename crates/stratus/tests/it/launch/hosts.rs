//! Launches on several hosts: each a real `sshd` on this machine.

use super::{Server, is_left_out, key, launch, listen, near, status, target, text};
use crate::common::{Place, Result};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A host: its server, and what starts it again.
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

    /// Nobody gets there any more, and who was there is thrown out. What was started goes on.
    pub fn cut(&mut self) {
        let Some(server) = self.server.take() else { return };
        let sessions = below(server.0.id());
        drop(server);
        for process in sessions {
            // One that ended with its server needs no end.
            let _ = Command::new("kill")
                .args(["-9", &process.to_string()])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}

/// The processes that a process started, and theirs.
fn below(process: u32) -> Vec<u32> {
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
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(number, _)| *number));
        at += 1;
    }
    found.split_off(1)
}

/// Starts hosts, and makes the target `lab` of them.
pub fn hosts(place: &Place, names: &[&'static str], more: &str) -> Vec<Host> {
    let folder = place.path("ssh");
    fs::create_dir(&folder).unwrap();
    key(&folder.join("user"));
    let (mut hosts, mut client) = (Vec::new(), String::new());
    let mut known = String::new();
    for &name in names {
        let own = folder.join(name);
        fs::create_dir(&own).unwrap();
        key(&own.join("host"));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nAuthorizedKeysFile {1}/user.pub\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
             PidFile none\n",
            own.display(),
            folder.display()
        );
        fs::write(own.join("sshd_config"), server).unwrap();
        known += &format!("[127.0.0.1]:{port} {}", fs::read_to_string(own.join("host.pub")).unwrap());
        client += &format!(
            "Host {name}\nHostName 127.0.0.1\nPort {port}\nIdentityFile {0}/user\nIdentitiesOnly yes\n\
             IdentityAgent none\nUserKnownHostsFile {0}/known\nGlobalKnownHostsFile /dev/null\n\n",
            folder.display()
        );
        let mut host = Host { name, folder: own, port, server: None };
        host.start();
        hosts.push(host);
    }
    fs::write(folder.join("known"), known).unwrap();
    fs::write(folder.join("config"), client).unwrap();
    let config = folder.join("config");
    target(place, "lab", &format!("kind = \"ssh\"\nhosts = {names:?}\nconfig = {config:?}\n{more}"), "there");
    hosts
}

/// The folder of a launch on a host.
pub fn folder(place: &Place, id: &str, host: &str) -> PathBuf {
    place.path(&format!("there/jobs/{id}.{host}"))
}

/// Kills what trains in a folder; it may have ended.
pub fn kill(job: &Path) {
    let owner = fs::read_to_string(job.join("owner")).unwrap_or_default();
    let trained = fs::read_to_string(job.join("pid")).unwrap_or_default();
    for process in [owner.split(' ').nth(2).unwrap_or_default(), trained.trim()] {
        if !process.is_empty() {
            let _ = Command::new("kill").args(["-9", process]).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(300), "{what}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "needs sshd: scripts/store-servers.sh install"]
fn repetitions_go_to_hosts_that_are_free_and_those_of_a_lost_host_to_others() {
    if is_left_out("launching on several hosts") {
        return;
    }
    let place = Place::new();
    let mut all = hosts(&place, &["a", "b"], "lost_after_seconds = 1");
    let first = launch(&place, "lab", 2, &["--repetitions", "3"]);
    assert!(first["sent_files"].as_u64().unwrap() >= 6, "{first}");
    let state = status(&place);
    let on =
        |state: &serde_json::Value, at: usize| text(&state["state"]["repetitions"][at], "queue").to_owned();
    assert_eq!([0, 1, 2].map(|at| on(&state, at)), ["a", "b", "a"]);
    place.run(&["launch", "fetch", "-f"]).expect(0);
    for repetition in 1..=3 {
        let run = place.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(Result::of(&run), near(&place, &format!("near{seed}"), 2, seed));
    }

    // What is there is not sent again. A host that is gone for good costs no more than its last minutes.
    let second = launch(&place, "lab", 6, &["--repetitions", "2"]);
    assert_eq!((second["sent_files"].as_u64(), second["sent_bytes"].as_u64()), (Some(0), Some(0)));
    let job = folder(&place, text(&second, "id"), "a");
    until("it is trained", || job.join("1/run/epochs.csv").exists());
    place.run(&["launch", "fetch"]).expect(0);
    all[0].cut();
    kill(&job);
    let said = place.run(&["launch", "fetch", "-f"]).expect(0).err;
    assert!(said.contains("b takes repetition 1 of a, from the checkpoint that is here"), "{said}");
    for (run, seed) in [(4, 7), (5, 8)] {
        let fetched = Result::of(&place.path(&format!("runs/digits/{run}")));
        assert_eq!(fetched, near(&place, &format!("longer{seed}"), 6, seed));
    }
    assert_eq!(all[1].name, "b");
}
