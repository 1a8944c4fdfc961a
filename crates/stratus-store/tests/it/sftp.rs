//! A local `sshd`, which the test starts and kills. `make test-all` runs this test.
//!
//! The `ssh` program is an environment variable, so the client runs in other processes, which are this
//! program again.

#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::io::{self, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::web::content;
use stratus_store::{Cache, RetryPolicy, Store, StoreError};

const TEST: &str = "sftp::sftp_stores_files";

/// Set for a process started by the test: the folder of the server, and the address of a store.
const SERVER: &str = "STRATUS_STORE_TEST_SSHD";
const ADDRESS: &str = "STRATUS_STORE_TEST_ADDRESS";

fn run(command: &mut Command) {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("OpenSSH is installed: scripts/store-servers.sh install");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn key(path: &Path) {
    run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path));
}

/// Writes host keys, user keys, and the configurations of server and clients.
fn configure(folder: &Path) {
    for name in ["host", "user", "stranger"] {
        key(&folder.join(name));
    }
    fs::copy(folder.join("user.pub"), folder.join("authorized")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    fs::write(folder.join("port"), port.to_string()).unwrap();
    let path = folder.display();
    let server = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host\nAuthorizedKeysFile \
         {path}/authorized\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\nSubsystem \
         sftp internal-sftp\n"
    );
    fs::write(folder.join("sshd_config"), server).unwrap();
    let public = fs::read_to_string(folder.join("host.pub")).unwrap();
    let other = fs::read_to_string(folder.join("stranger.pub")).unwrap();
    fs::write(folder.join("known"), format!("[127.0.0.1]:{port} {public}")).unwrap();
    fs::write(folder.join("changed"), format!("[127.0.0.1]:{port} {other}")).unwrap();
    fs::write(folder.join("unknown"), "").unwrap();
    // One client for each case, with its user key and known hosts.
    for (name, user, known) in [
        ("ssh", "user", "known"),
        ("ssh-stranger", "stranger", "known"),
        ("ssh-changed", "user", "changed"),
        ("ssh-unknown", "user", "unknown"),
    ] {
        let program = folder.join(name);
        let script = format!(
            "#!/bin/sh\nexec ssh -F /dev/null -o IdentityFile={path}/{user} -o IdentitiesOnly=yes \
             -o IdentityAgent=none -o UserKnownHostsFile={path}/{known} \
             -o GlobalKnownHostsFile=/dev/null \"$@\"\n"
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// A running `sshd`, killed on drop.
struct Server(Child);

impl Server {
    fn start(folder: &Path) -> Self {
        // Debian's `sshd` requires this folder when started by root.
        let _ = fs::create_dir("/run/sshd");
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f"]).arg(folder.join("sshd_config")).stdin(Stdio::null());
        let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let server =
            Self(command.stderr(log).spawn().expect("sshd is installed: scripts/store-servers.sh install"));
        let began = Instant::now();
        while TcpStream::connect(format!("127.0.0.1:{}", port(folder))).is_err() {
            let log = || fs::read_to_string(folder.join("log")).unwrap();
            assert!(began.elapsed() < Duration::from_secs(30), "sshd does not listen: {}", log());
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Kills the server and all sessions.
    fn kill(mut self) {
        let mut processes = vec![self.0.id()];
        let mut at = 0;
        while at < processes.len() {
            processes.extend(children(processes[at]));
            at += 1;
        }
        for process in processes {
            let _ = Command::new("kill").args(["-9", &process.to_string()]).stderr(Stdio::null()).status();
        }
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn children(process_id: u32) -> Vec<u32> {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|item| item.ok()?.file_name().to_str()?.parse().ok());
    let parent = |process: &u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in brackets may contain any character; state and parent follow it.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    processes.filter(|process| parent(process) == Some(process_id)).collect()
}

fn port(folder: &Path) -> String {
    fs::read_to_string(folder.join("port")).unwrap()
}

#[test]
#[ignore = "needs sshd: scripts/store-servers.sh install"]
fn sftp_stores_files() {
    if let (Ok(folder), Ok(address)) = (env::var(SERVER), env::var(ADDRESS)) {
        let retry_policy = RetryPolicy { give_up_after: Duration::from_secs(60), ..RetryPolicy::default() };
        let store = Store::open_with_policy(&address, retry_policy).unwrap();
        let is_refused = !env::var("STRATUS_SSH").unwrap().ends_with("/ssh");
        return if is_refused { check_refusal(&store) } else { check_files(Path::new(&folder), &store) };
    }
    if env::var("STRATUS_STORE_SERVERS").is_ok_and(|servers| servers == "none") {
        // Bypass the captured output of the test, so that the message is visible.
        let _ = writeln!(io::stderr(), "\nSKIPPED: {TEST}: STRATUS_STORE_SERVERS=none\n");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    configure(folder);
    fs::create_dir(folder.join("data")).unwrap();
    let address = format!("sftp://127.0.0.1:{}{}/data", port(folder), folder.display());
    let another_process = |program: &str| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", TEST, "--include-ignored", "--nocapture"]);
        command.env(SERVER, folder).env(ADDRESS, &address).env("STRATUS_SSH", folder.join(program));
        assert!(command.status().unwrap().success(), "{program}");
    };
    // This process starts and kills the server itself.
    another_process("ssh");
    let _server = Server::start(folder);
    for program in ["ssh-stranger", "ssh-changed", "ssh-unknown", "ssh-that-is-not-there"] {
        another_process(program);
    }
}

fn check_refusal(store: &Store) {
    let began = Instant::now();
    let error = store.size("a").unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    let program = env::var("STRATUS_SSH").unwrap();
    let expected = match program.rsplit('/').next().unwrap() {
        "ssh-stranger" => "Permission denied",
        "ssh-changed" | "ssh-unknown" => "Host key verification failed",
        _ => "cannot run",
    };
    assert!(error.to_string().contains(expected) && error.to_string().contains(store.address()), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "the error is permanent");
}

fn check_files(folder: &Path, store: &Store) {
    let server = Server::start(folder);
    let data = folder.join("data");
    let small = content(5000);
    for path in ["train/b/2.bin", "train/a.bin", "train-more.bin", "a b/ü+%.bin"] {
        store.upload(path, &mut Cursor::new(&small), 5000).unwrap();
        assert!(fs::read(data.join(path)).unwrap() == small);
    }
    store.upload("train/a.bin", &mut Cursor::new(&small[..7]), 7).unwrap();
    store.upload("empty", &mut io::empty(), 0).unwrap();
    symlink(data.join("train"), data.join("link")).unwrap();
    symlink(data.join("nowhere"), data.join("broken")).unwrap();
    // The temporary file of a killed writer is not listed.
    fs::write(data.join("train/.stratus-1-0.part"), "half").unwrap();
    let listed = |prefix: &str| {
        let list = store.list(prefix).unwrap().into_iter();
        list.map(|entry| format!("{} {}", entry.path, entry.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(listed("train"), ["train-more.bin 5000", "train/a.bin 7", "train/b/2.bin 5000"]);
    assert_eq!(listed("train/"), ["train/a.bin 7", "train/b/2.bin 5000"]);
    assert_eq!(listed("link/"), ["link/a.bin 7", "link/b/2.bin 5000"]);
    assert_eq!(listed("none/"), Vec::<String>::new());
    assert_eq!(listed("").len(), 7);

    assert_eq!(store.size("a b/ü+%.bin").unwrap(), Some(5000));
    assert_eq!(store.size("train").unwrap(), None);
    assert_eq!(store.size("none").unwrap(), None);
    assert_eq!(store.read("empty", 0).unwrap(), b"");
    assert_eq!(store.read("train/b/2.bin", 5000).unwrap(), small);
    let mut part = [0; 1000];
    store.read_at("train/b/2.bin", 3999, &mut part).unwrap();
    assert_eq!(part, small[3999..4999]);
    let error = store.read_at("train/b/2.bin", 4001, &mut part).unwrap_err();
    assert!(matches!(error, StoreError::TooShort { bytes: 5000, .. }), "{error}");
    assert!(matches!(store.read_at("none", 0, &mut part), Err(StoreError::NotFound { .. })));
    // The server rejects reading a folder.
    assert!(matches!(store.read_at("train", 0, &mut part), Err(StoreError::Refused { .. })));

    let large = content(20_000_000);
    let short = store.upload("large.tar", &mut Cursor::new(&large[1..]), 20_000_000).unwrap_err();
    assert!(short.to_string().contains("found 19999999"), "{short}");
    assert!(
        fs::read_dir(&data).unwrap().all(|item| !item
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .contains("part"))
    );
    store.upload("large.tar", &mut Cursor::new(&large), 20_000_000).unwrap();
    assert!(fs::read(data.join("large.tar")).unwrap() == large);

    let mut sink =
        KillingSink { folder: folder.to_owned(), content: Vec::new(), server: Some(server), restarted: None };
    store.download("large.tar", &mut sink, &mut |_| {}).unwrap();
    let server = sink.restarted.expect("the server was killed").join().unwrap();
    assert!(sink.content == large, "other bytes after the server was killed");
    // The pooled connections are dead too.
    server.kill();
    let server = Server::start(folder);
    let cache_folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(cache_folder.path(), 30_000_000).unwrap();
    let found = cache.fetch(store, "large.tar", Some(20_000_000), None).unwrap();
    assert!(fs::read(found.path()).unwrap() == large);
    drop(server);
}

/// Kills the server during a download, and restarts it later.
struct KillingSink {
    folder: PathBuf,
    content: Vec<u8>,
    server: Option<Server>,
    restarted: Option<thread::JoinHandle<Server>>,
}

impl Write for KillingSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.content.extend_from_slice(bytes);
        if self.content.len() > 4_000_000
            && let Some(server) = self.server.take()
        {
            server.kill();
            let folder = self.folder.clone();
            self.restarted = Some(thread::spawn(move || {
                thread::sleep(Duration::from_secs(1));
                Server::start(&folder)
            }));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
