//! Opens a target of any kind.

use crate::hosts::{Host, HostsTarget};
use crate::local::LocalShell;
use crate::shell::Shell;
use crate::sky::SkyTarget;
use crate::slurm::SlurmTarget;
use crate::ssh::SshShell;
use crate::target::{ShellTarget, Target};
use crate::{SshSettings, TargetKind, TargetSettings};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Creates a target from its settings. `private` is a folder for sockets that only the user may enter.
#[must_use]
pub fn open_target(settings: &TargetSettings, private: &Path) -> Box<dyn Target> {
    let folder = settings.folder.clone();
    let shell = |ssh: Option<&SshSettings>| -> Box<dyn Shell> {
        let name = settings.name.clone();
        match ssh {
            None => Box::new(LocalShell { name }),
            Some(ssh) => Box::new(SshShell { name, settings: ssh.clone(), sockets: private.to_owned() }),
        }
    };
    match &settings.kind {
        TargetKind::Local => Box::new(ShellTarget { shell: shell(None), folder }),
        TargetKind::Ssh(ssh) => Box::new(ShellTarget { shell: shell(Some(ssh)), folder }),
        TargetKind::Hosts(hosts) => {
            let host = |ssh: &SshSettings| Host {
                name: ssh.host.clone(),
                target: ShellTarget { shell: shell(Some(ssh)), folder: folder.clone() },
            };
            Box::new(HostsTarget {
                name: settings.name.clone(),
                hosts: hosts.hosts.iter().map(host).collect(),
                lost_after: Duration::from_secs(hosts.lost_after_s),
                unreachable_since: Mutex::default(),
            })
        }
        TargetKind::Slurm(slurm) => {
            let machine = ShellTarget { shell: shell(slurm.ssh.as_ref()), folder };
            Box::new(SlurmTarget { shell_target: machine, settings: slurm.clone() })
        }
        TargetKind::Sky(sky) => Box::new(SkyTarget {
            name: settings.name.clone(),
            folder,
            settings: sky.clone(),
            private: private.to_owned(),
        }),
    }
}
