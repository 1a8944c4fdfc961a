//! `targets.toml`: the targets of launches.

mod section;
mod sky;
mod slurm;

pub use section::{HostsSettings, SshSettings};
pub(crate) use sky::MOUNT;
pub use sky::SkySettings;
pub use slurm::{NodeWorkers, SlurmSettings};

use crate::{Error, Result};
use section::{HOSTS_KEYS, SSH_KEYS, TargetSection, is_plain};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::{did_you_mean, nearest, read_text_at_most};
use toml::{Table, Value};

/// The name of the file, in the project's folder.
pub const TARGETS_FILE: &str = "targets.toml";
/// The target that needs no file.
const LOCAL: &str = "local";
/// The maximum size of the file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Names of subcommands, which no target may have.
const RESERVED_NAMES: [&str; 7] = ["status", "logs", "fetch", "stop", "resume", "release", "list"];
/// The keys of every kind.
const COMMON_KEYS: [&str; 6] = ["kind", "folder", "environment", "machine", "notify", "release"];
/// Parts of key names that suggest a secret.
const SECRET_KEY_PARTS: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "api_key",
    "access_key",
    "private_key",
    "credential",
    "webhook",
];

/// The settings of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetSettings {
    /// The name.
    pub name: String,
    /// The kind and its settings.
    pub kind: TargetKind,
    /// The folder on the target that contains everything; `~/` is the user's home.
    pub folder: String,
    /// Environment variables of the training processes.
    pub environment: BTreeMap<String, String>,
    /// The name of the machine in forecasts.
    pub machine: Option<String>,
    /// A command that runs on the target when a repetition starts, ends, fails or is requeued.
    pub notify: Option<String>,
    /// A local command that runs when everything is fetched and the machine is no longer needed.
    pub release: Option<String>,
}

impl TargetSettings {
    /// The folder of launches on the target, as configured.
    #[must_use]
    pub fn root(&self) -> String {
        match &self.kind {
            TargetKind::Sky(sky) => sky.root(),
            TargetKind::Local | TargetKind::Ssh(_) | TargetKind::Hosts(_) | TargetKind::Slurm(_) => {
                self.folder.clone()
            }
        }
    }
}

/// The kind of a target.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetKind {
    /// This machine.
    Local,
    /// A host that is reached by `ssh`.
    Ssh(SshSettings),
    /// Several hosts that are reached by `ssh`.
    Hosts(HostsSettings),
    /// A Slurm cluster.
    Slurm(Box<SlurmSettings>),
    /// Cloud machines, through SkyPilot.
    Sky(Box<SkySettings>),
}

impl TargetKind {
    /// The workers of a run on nodes of the target, if they are set.
    #[must_use]
    pub fn node_workers(&self) -> Option<&NodeWorkers> {
        match self {
            Self::Slurm(slurm) => slurm.workers.as_ref(),
            Self::Sky(sky) => sky.workers.as_ref(),
            Self::Local | Self::Ssh(_) | Self::Hosts(_) => None,
        }
    }

    /// A description for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let machine = |ssh: Option<&SshSettings>| match ssh {
            None => "this machine".to_owned(),
            Some(ssh) => format!("ssh {}", ssh.host),
        };
        match self {
            Self::Local => machine(None),
            Self::Ssh(ssh) => machine(Some(ssh)),
            Self::Hosts(hosts) => {
                let hosts: Vec<&str> = hosts.hosts.iter().map(|ssh| ssh.host.as_str()).collect();
                format!("ssh {}", hosts.join(", "))
            }
            Self::Slurm(slurm) => format!("Slurm, {}", machine(slurm.ssh.as_ref())),
            Self::Sky(sky) => {
                let infra = sky.infra.as_deref().unwrap_or("cheapest machine");
                format!("SkyPilot, {infra}, {}", sky.bucket)
            }
        }
    }
}

/// The path of the user's `targets.toml`.
#[must_use]
pub fn user_targets_file() -> Option<PathBuf> {
    let configuration =
        std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = configuration.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(folder.join("stratus").join(TARGETS_FILE))
}

/// Returns the target with this name, from the first file that has it. `local` needs no file.
///
/// # Errors
/// If no file has the target, or a file is invalid or contains a secret.
pub fn find_target(name: &str, files: &[PathBuf]) -> Result<TargetSettings> {
    let mut names = vec![LOCAL.to_owned()];
    for path in files {
        let Some(table) = read(path)? else { continue };
        if let Some(value) = table.get(name) {
            return parse_target(name, value, path);
        }
        names.extend(table.keys().cloned());
    }
    if name == LOCAL {
        return Ok(TargetSettings {
            name: LOCAL.to_owned(),
            kind: TargetKind::Local,
            folder: "~/.stratus".to_owned(),
            environment: BTreeMap::new(),
            machine: None,
            notify: None,
            release: None,
        });
    }
    let similar = nearest(name, names.iter().map(String::as_str));
    let problem = format!("no target is named `{name}`{}", did_you_mean(similar));
    Err(Error::usage(problem, format!("known targets: {}; add others to {TARGETS_FILE}", names.join(", "))))
}

/// The names of all targets, `local` first. Files that are missing or invalid have none.
#[must_use]
pub fn target_names(files: &[PathBuf]) -> Vec<String> {
    let tables = files.iter().filter_map(|path| read(path).ok().flatten());
    let mut names = vec![LOCAL.to_owned()];
    for name in tables.flat_map(|table| table.keys().cloned().collect::<Vec<_>>()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn read(path: &Path) -> Result<Option<Table>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => {
            return Err(Error::usage(format!("{}: the file is larger than 1 MiB", path.display()), ""));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", path)(error)),
    }
    let text = read_text_at_most(path, MAX_FILE_BYTES).map_err(Error::file("read", path))?;
    if text.contains("-----BEGIN ") {
        return Err(secret_error(path, "a private key"));
    }
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // The parser's own message quotes the line, which may contain a secret.
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count());
        Error::usage(format!("{}:{}: {}", path.display(), line + 1, error.message()), "")
    })?;
    search_secrets(path, "", &table)?;
    Ok(Some(table))
}

fn search_secrets(path: &Path, above: &str, table: &Table) -> Result<()> {
    for (key, value) in table {
        let name = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        let lower = key.to_lowercase().replace('-', "_");
        if !value.is_table() && SECRET_KEY_PARTS.iter().any(|secret| lower.contains(secret)) {
            return Err(secret_error(path, &format!("`{name}`")));
        }
        if let Value::Table(table) = value {
            search_secrets(path, &name, table)?;
        }
    }
    Ok(())
}

fn secret_error(path: &Path, what: &str) -> Error {
    Error::usage(
        format!("{}: {what} looks like a secret, which must not be in this file", path.display()),
        "add keys with `ssh-add` or IdentityFile in ~/.ssh/config; set other secrets in the environment of \
         the machine that needs them",
    )
}

fn parse_target(name: &str, value: &Value, path: &Path) -> Result<TargetSettings> {
    let section = |table| TargetSection { name, path, table };
    let empty = Table::new();
    if RESERVED_NAMES.contains(&name) || !name.chars().all(is_plain) {
        return Err(section(&empty).error("this name is reserved or invalid"));
    }
    let Value::Table(table) = value else {
        return Err(section(&empty).error("a target must be a section: [name] with kind = \"ssh\""));
    };
    let section = section(table);
    let kinds = [LOCAL, "ssh", "slurm", "sky"];
    let kind = section
        .string("kind")?
        .ok_or_else(|| section.error("`kind` is missing: use local, ssh, slurm or sky"))?;
    let keys: Vec<&str> = match kind.as_str() {
        LOCAL => Vec::new(),
        "ssh" => [&SSH_KEYS[..], &HOSTS_KEYS[..]].concat(),
        "slurm" => [&SSH_KEYS[..], &slurm::KEYS[..]].concat(),
        "sky" => [&sky::KEYS[..], &[sky::SETUP]].concat(),
        _ => {
            let suggestion = did_you_mean(nearest(&kind, kinds));
            return Err(section.error(format!("unknown kind `{kind}`{suggestion}")));
        }
    };
    let known: Vec<&str> = COMMON_KEYS.into_iter().chain(keys).collect();
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        let suggestion = did_you_mean(nearest(key, known.iter().copied()));
        return Err(section.error(format!("unknown key `{key}` for kind {kind}{suggestion}")));
    }
    let kind = match kind.as_str() {
        "ssh" if table.contains_key("hosts") => TargetKind::Hosts(section.hosts()?),
        "ssh" => TargetKind::Ssh(section.ssh()?.ok_or_else(|| section.error("`host` is missing"))?),
        "slurm" => TargetKind::Slurm(Box::new(section.slurm()?)),
        "sky" => TargetKind::Sky(Box::new(section.sky()?)),
        _ => TargetKind::Local,
    };
    let folder = section.string("folder")?.unwrap_or_else(|| "~/.stratus".to_owned());
    if !(folder.starts_with('/') || folder == "~" || folder.starts_with("~/")) {
        return Err(section.error("`folder` must start with / or ~/"));
    }
    Ok(TargetSettings {
        name: name.to_owned(),
        kind,
        folder,
        environment: section.environment()?,
        machine: section.string("machine")?,
        notify: section.string("notify")?,
        release: section.string("release")?,
    })
}

#[cfg(test)]
mod tests {
    use super::{MAX_FILE_BYTES, TARGETS_FILE, TargetKind, find_target, read};
    use std::fs;

    fn find_in(text: &str, name: &str) -> Result<super::TargetSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.toml");
        fs::write(&path, text).unwrap();
        find_target(name, &[folder.path().join("none.toml"), path]).map_err(|error| error.to_string())
    }

    #[test]
    fn targets_are_read_and_local_needs_no_file() {
        let text =
            "[lab]\nkind = \"ssh\"\nhost = \"lab.example.org\"\nport = 2222\nfolder = \"/scratch/me\"\n";
        let lab = find_in(text, "lab").unwrap();
        assert!(matches!(&lab.kind, TargetKind::Ssh(ssh) if ssh.port == Some(2222) && ssh.user.is_none()));
        assert_eq!(lab.folder, "/scratch/me");
        assert_eq!(find_in(text, "local").unwrap().kind, TargetKind::Local);
    }

    #[test]
    fn workers_on_nodes_of_slurm_are_a_number_or_a_range() {
        let workers = |keys: &str| {
            let target = find_in(&format!("[lab]\nkind = \"slurm\"\n{keys}"), "lab").unwrap();
            let TargetKind::Slurm(slurm) = target.kind else { panic!("{:?}", target.kind) };
            slurm.workers.map(|workers| (workers.nodes, workers.per_node, workers.max_workers()))
        };
        assert_eq!(workers(""), None);
        assert_eq!(workers("nodes = 4\n"), Some(([4, 4], 1, 4)));
        assert_eq!(workers("workers_per_node = 2\n"), Some(([1, 1], 2, 2)));
        assert_eq!(workers("nodes = \"3-4\"\nworkers_per_node = 8\n"), Some(([3, 4], 8, 32)));
        // Without workers, these are options like others.
        assert_eq!(workers("options = [\"--nodes=1\"]\n"), None);
    }

    #[test]
    fn workers_on_cloud_machines_are_one_per_gpu() {
        let workers = |keys: &str| {
            let target = find_in(&format!("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\n{keys}"), "lab");
            let TargetKind::Sky(sky) = target.unwrap().kind else { panic!("not a cloud") };
            sky.workers.map(|workers| (workers.nodes, workers.per_node))
        };
        assert_eq!(workers("gpus = \"A100:8\"\n"), None);
        assert_eq!(workers("nodes = 2\n"), Some(([2, 2], 1)));
        assert_eq!(workers("nodes = 2\ngpus = \"A100:8\"\n"), Some(([2, 2], 8)));
        assert_eq!(workers("nodes = 1\ngpus = \"A100\"\n"), Some(([1, 1], 1)));
        assert_eq!(workers("nodes = 4\ngpus = \"A100:3\"\nworkers_per_node = 2\n"), Some(([4, 4], 2)));
        assert_eq!(workers("workers_per_node = 4\n"), Some(([1, 1], 4)));
    }

    #[test]
    fn file_beyond_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TARGETS_FILE);
        fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: the file is larger than 1 MiB", path.display()));
    }

    #[test]
    fn errors_name_the_problem() {
        let lab = "[lab]\nkind = \"ssh\"\nhost = \"lab\"\n";
        let sky = |keys: &str| format!("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\n{keys}\n");
        for (text, name, part) in [
            (lab, "lba", "did you mean `lab`?"),
            ("[lab]\nkind = \"shh\"\n", "lab", "did you mean `ssh`?"),
            (
                "[lab]\nkind = \"ssh\"\nhst = \"a\"\n",
                "lab",
                "unknown key `hst` for kind ssh, did you mean `host`?",
            ),
            ("[lab]\nkind = \"ssh\"\n", "lab", "`host` is missing"),
            ("[lab]\nkind = \"ssh\"\nhosts = []\n", "lab", "`hosts` must be a list of 1 to 256 strings"),
            ("[lab]\nkind = \"ssh\"\nhosts = [\"a\", \"a\"]\n", "lab", "`hosts` contains a twice"),
            ("[lab]\nkind = \"ssh\"\nhosts = [\"a\", \"-x\"]\n", "lab", "`host` cannot be \"-x\""),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\nhosts = [\"a\"]\n", "lab", "cannot be used together"),
            ("[lab]\nkind = \"ssh\"\nhost = \"-oProxyCommand=x\"\n", "lab", "`host` cannot be"),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\nport = 0\n", "lab", "`port` must be an integer"),
            ("[lab]\nkind = \"local\"\nfolder = \"x\"\n", "lab", "`folder` must start with"),
            ("[list]\nkind = \"local\"\n", "list", "this name is reserved"),
            ("[lab]\nkind = \"slurm\"\nuser = \"me\"\n", "lab", "`user` requires `host`"),
            ("[lab]\nkind = \"slurm\"\ntime = \"1h\"\n", "lab", "`time` cannot be \"1h\""),
            ("[lab]\nkind = \"slurm\"\nmemory = \"8 G\"\n", "lab", "`memory` cannot be"),
            ("[lab]\nkind = \"slurm\"\ngres = \"gpu\\n#SBATCH --x\"\n", "lab", "`gres` cannot be"),
            ("[lab]\nkind = \"slurm\"\nqos = \"--x\"\n", "lab", "`qos` cannot be"),
            ("[lab]\nkind = \"slurm\"\noptions = [\"--arr=1\"]\n", "lab", "--arr is set by stratus"),
            ("[lab]\nkind = \"slurm\"\noptions = [\"-x\"]\n", "lab", "is not an option"),
            ("[lab]\nkind = \"slurm\"\nsignal_seconds = 0\n", "lab", "`signal_seconds` must be an integer"),
            ("[lab]\nkind = \"slurm\"\nnodes = 3\n", "lab", "`nodes` must be a power of two like 2"),
            ("[lab]\nkind = \"slurm\"\nnodes = \"2-1\"\n", "lab", "`nodes` must be a power of two"),
            ("[lab]\nkind = \"slurm\"\nnodes = \"1-+2\"\n", "lab", "`nodes` must be a power of two"),
            ("[lab]\nkind = \"slurm\"\nnodes = 0\n", "lab", "`nodes` must be a power of two"),
            ("[lab]\nkind = \"slurm\"\nnodes = -2\n", "lab", "`nodes` must be a power of two"),
            ("[lab]\nkind = \"slurm\"\nnodes = [2]\n", "lab", "`nodes` must be a power of two"),
            (
                "[lab]\nkind = \"slurm\"\nworkers_per_node = 3\n",
                "lab",
                "`workers_per_node` must be a power of two",
            ),
            (
                "[lab]\nkind = \"slurm\"\nnodes = 1024\nworkers_per_node = 2\n",
                "lab",
                "1024 nodes with 2 workers each have more than 1024 workers",
            ),
            ("[lab]\nkind = \"slurm\"\nmpi = \"pmi2\"\n", "lab", "`mpi` requires `nodes` or"),
            ("[lab]\nkind = \"slurm\"\nnodes = 2\nmpi = \"a b\"\n", "lab", "`mpi` cannot be"),
            ("[lab]\nkind = \"slurm\"\nnodes = 2\noptions = [\"--nod=3\"]\n", "lab", "--nod is set by"),
            ("[lab]\nkind = \"slurm\"\ngpus_per_node = \"a 1\"\n", "lab", "`gpus_per_node` cannot be"),
            ("[lab]\nkind = \"slurm\"\ngpus_per_node = 0\n", "lab", "`gpus_per_node` must be an integer"),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\ngres = \"b\"\n", "lab", "unknown key `gres`"),
            ("[lab]\nkind = \"sky\"\n", "lab", "`bucket` is missing"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://\"\n", "lab", "`bucket` must be s3://bucket/folder"),
            (
                "[lab]\nkind = \"sky\"\nbucket = \"s3://a/../b\"\n",
                "lab",
                "`bucket` must be s3://bucket/folder",
            ),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\ngpus = \"A100 1\"\n", "lab", "`gpus` cannot be"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nmemory = \"32GB\"\n", "lab", "`memory` cannot"),
            (
                "[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nmax_hourly_cost = 0\n",
                "lab",
                "a positive amount in USD",
            ),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nspot = 1\n", "lab", "`spot` must be true or false"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nhost = \"b\"\n", "lab", "unknown key `host`"),
            (&sky("nodes = 3"), "lab", "`nodes` must be a power of two like 2"),
            (&sky("nodes = \"1-2\""), "lab", "`nodes` must be a power of two like 2"),
            (&sky("nodes = -1"), "lab", "`nodes` must be a power of two like 2"),
            (&sky("nodes = 2048"), "lab", "`nodes` must be a power of two like 2"),
            (&sky("nodes = 2\ngpus = \"A100:3\""), "lab", "`nodes` requires `workers_per_node`"),
            (&sky("nodes = 2\ngpus = \"A100:x\""), "lab", "`nodes` requires `workers_per_node`"),
            (&sky("workers_per_node = 3"), "lab", "`workers_per_node` must be a power of two"),
            (&sky("nodes = 512\nworkers_per_node = 4"), "lab", "have more than 1024 workers"),
            (&sky("nodes = 2\nmpi = \"pmix\""), "lab", "unknown key `mpi`"),
            ("[lab\nkind", "lab", "targets.toml:1: "),
        ] {
            let error = find_in(text, name).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn rejects_secrets_without_printing_them() {
        for line in [
            "password = \"hunter2\"",
            "environment = { AWS_SECRET_ACCESS_KEY = \"hunter2\" }",
            "api-key = \"hunter2\"",
            "key = \"\"\"-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\"\"\"",
        ] {
            // Also a secret of another target is rejected.
            let error = find_in(&format!("[other]\nkind = \"ssh\"\n{line}\n"), "local").unwrap_err();
            assert!(error.contains("looks like a secret") && !error.contains("hunter2"), "{error}");
        }
        let error = find_in("[lab]\npassword = hunter2\n", "lab").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
