//! The kind `ssh`: a machine behind the system's `ssh`, with its configuration, agent and known hosts.
//!
//! One connection is shared by all commands of a while (`ControlMaster`), by a socket in a folder that nobody
//! else can enter. Nothing is asked for (`BatchMode`), and a host whose key is not known is never trusted.

use crate::shell::Shell;
use crate::{Error, Result, SshSettings};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use stratus_base::printable;

/// The exit code by which `ssh` says that it did not get there.
const NOT_THERE: i32 = 255;
/// The longest path of a socket, less what `ssh` puts behind it while it makes one.
const LONGEST_SOCKET: usize = 108 - 18;
/// The bytes of a socket's name: `%C` is a SHA-1 in hexadecimal digits.
const SOCKET_NAME: usize = 41;

pub(crate) struct Ssh {
    pub(crate) name: String,
    pub(crate) settings: SshSettings,
    /// The private folder of sockets.
    pub(crate) sockets: PathBuf,
}

impl Ssh {
    fn base(&self) -> Result<Command> {
        let mut command = Command::new("ssh");
        if let Some(config) = &self.settings.config {
            command.arg("-F").arg(config);
        }
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "ConnectTimeout=15",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=4",
            "ClearAllForwardings=yes",
            "ForwardAgent=no",
            "ForwardX11=no",
            "PermitLocalCommand=no",
            "RequestTTY=no",
        ] {
            command.args(["-o", option]);
        }
        let path = self.sockets.as_os_str().len();
        if path + SOCKET_NAME <= LONGEST_SOCKET {
            self.make_private()?;
            let path = format!("ControlPath={}/%C", self.sockets.display());
            for option in ["ControlMaster=auto", "ControlPersist=60", &path] {
                command.args(["-o", option]);
            }
        }
        if let Some(port) = self.settings.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &self.settings.user {
            command.args(["-l", user]);
        }
        Ok(command)
    }

    #[cfg(unix)]
    fn make_private(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(&self.sockets).map_err(Error::file("make", &self.sockets))?;
        // Who does not own the folder cannot do this.
        fs::set_permissions(&self.sockets, fs::Permissions::from_mode(0o700))
            .map_err(Error::file("make private", &self.sockets))
    }

    #[cfg(not(unix))]
    fn make_private(&self) -> Result<()> {
        fs::create_dir_all(&self.sockets).map_err(Error::file("make", &self.sockets))
    }
}

impl Shell for Ssh {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = self.base()?;
        command.args(["--", &self.settings.host, line]);
        Ok(command)
    }

    fn unreachable(&self, code: Option<i32>, said: &str) -> Option<Error> {
        if code != Some(NOT_THERE) {
            return None;
        }
        let (name, host) = (&self.name, &self.settings.host);
        let has = |text: &str| said.contains(text);
        let (problem, hint) = if has("IDENTIFICATION HAS CHANGED") {
            let problem = format!("{name}: the key of {host} is not the one that is known");
            (problem, "ask who runs it; it may be another machine. Nothing was sent".to_owned())
        } else if has("Host key verification failed") || has("host key is known") {
            let problem = format!("{name}: the key of {host} is not known");
            (problem, format!("connect once with `ssh {host}` and compare its fingerprint"))
        } else if has("Permission denied") {
            let problem = format!("{name}: {host} does not let this user in");
            (problem, "no password is ever asked for: add your key to the agent, `ssh-add`".to_owned())
        } else {
            let last = printable(said.trim().lines().last().unwrap_or("no reason was given"));
            let problem = format!("{name}: cannot reach {host}: {last}");
            (problem, format!("see that `ssh {host}` works. What was started there goes on"))
        };
        Some(Error::target(problem, hint))
    }

    fn close(&self) {
        let Ok(mut command) = self.base() else { return };
        command.args(["-O", "exit", "--", &self.settings.host]);
        // Where there is no shared connection there is nothing to close.
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
