//! The kind `ssh`: a machine reached by the system's `ssh`, or the program in `STRATUS_SSH`, with its
//! configuration, agent and known hosts.
//!
//! Consecutive commands share one connection (`ControlMaster`), through a socket in a private folder. There
//! are no prompts (`BatchMode`), and a host with an unknown key is never trusted.

use crate::shell::Shell;
use crate::{Error, Result, SshSettings};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use stratus_base::{printable, ssh};

/// The exit code of `ssh` if the connection failed.
const CONNECTION_FAILED: i32 = 255;
/// The maximum length of a socket's path, minus the suffix that `ssh` appends while it creates the socket.
const MAX_SOCKET_PATH_BYTES: usize = 108 - 18;
/// The length of a socket's name with its slash: `%C` is a SHA-1 in hexadecimal digits.
const SOCKET_NAME_BYTES: usize = 41;

pub(crate) struct SshShell {
    pub(crate) name: String,
    pub(crate) settings: SshSettings,
    /// The private folder of sockets.
    pub(crate) sockets: PathBuf,
}

impl SshShell {
    fn ssh_command(&self) -> Result<Command> {
        let mut command = ssh::command();
        if let Some(config) = &self.settings.config {
            command.arg("-F").arg(config);
        }
        let path = self.sockets.as_os_str().len();
        if path + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES {
            self.create_socket_folder()?;
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
    fn create_socket_folder(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(&self.sockets).map_err(Error::file("create", &self.sockets))?;
        // Fails if another user owns the folder.
        fs::set_permissions(&self.sockets, fs::Permissions::from_mode(0o700))
            .map_err(Error::file("make private", &self.sockets))
    }

    #[cfg(not(unix))]
    fn create_socket_folder(&self) -> Result<()> {
        fs::create_dir_all(&self.sockets).map_err(Error::file("create", &self.sockets))
    }
}

impl Shell for SshShell {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, line: &str) -> Result<Command> {
        let mut command = self.ssh_command()?;
        command.args(["--", &self.settings.host, line]);
        Ok(command)
    }

    fn connection_error(&self, code: Option<i32>, stderr: &str) -> Option<Error> {
        if code != Some(CONNECTION_FAILED) {
            return None;
        }
        let (name, host) = (&self.name, &self.settings.host);
        let has = |text: &str| stderr.contains(text);
        let (problem, hint) = if has("IDENTIFICATION HAS CHANGED") {
            let problem = format!("{name}: host key of {host} has changed");
            (problem, "ask its administrator: it may be another machine. Nothing was sent".to_owned())
        } else if has("Host key verification failed") || has("host key is known") {
            let problem = format!("{name}: host key of {host} is unknown");
            (problem, format!("connect once with `ssh {host}` and compare its fingerprint"))
        } else if has("Permission denied") {
            let problem = format!("{name}: {host}: permission denied");
            (problem, "add your key to the agent with `ssh-add`; passwords are not supported".to_owned())
        } else {
            let last = printable(stderr.trim().lines().last().unwrap_or("no reason given"));
            let problem = format!("{name}: cannot reach {host}: {last}");
            (problem, format!("check that `ssh {host}` works. Running training continues there"))
        };
        Some(Error::target(problem, hint))
    }

    fn close(&self) {
        let Ok(mut command) = self.ssh_command() else { return };
        command.args(["-O", "exit", "--", &self.settings.host]);
        // Without a shared connection there is nothing to close.
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
