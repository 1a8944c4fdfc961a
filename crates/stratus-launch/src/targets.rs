//! `targets.toml`: the machines that experiments can be launched on.

mod sky;
mod slurm;

pub(crate) use sky::MOUNT;
pub use sky::SkySettings;
pub use slurm::SlurmSettings;

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_base::{did_you_mean, nearest};
use toml::{Table, Value};

/// The file's name, in the project's folder.
pub const FILE: &str = "targets.toml";
/// The target that is there without a file.
const LOCAL: &str = "local";
/// The most bytes of the file.
const LARGEST: u64 = 1 << 20;
/// Names that are the command's own.
const TAKEN: [&str; 7] = ["status", "logs", "fetch", "stop", "resume", "release", "list"];
/// The keys of every kind.
const COMMON: [&str; 6] = ["kind", "folder", "environment", "machine", "notify", "release"];
/// The keys of the kind `ssh`, and of a machine behind it.
const OF_SSH: [&str; 4] = ["host", "user", "port", "config"];
/// The keys of the kind `ssh` with several machines.
const OF_HOSTS: [&str; 2] = ["hosts", "lost_after_seconds"];
/// The most machines of a target.
const MOST_HOSTS: usize = 256;
/// Parts of names of keys that hold secrets.
const SECRETS: [&str; 10] = [
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

/// A target, as its file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// What it is, and how to get there.
    pub kind: Kind,
    /// The folder there that everything is below; `~/` is the user's.
    pub folder: String,
    /// Environment variables of the training.
    pub environment: BTreeMap<String, String>,
    /// What forecasts call the machine.
    pub machine: Option<String>,
    /// A command that runs there when a repetition starts, ends, fails or is requeued.
    pub notify: Option<String>,
    /// A command that runs here when everything came back and the machine is not needed any more.
    pub release: Option<String>,
}

impl Settings {
    /// The folder of launches as the training there sees it, as far as that is known here.
    #[must_use]
    pub fn root(&self) -> String {
        match &self.kind {
            Kind::Sky(sky) => sky.root(),
            Kind::Local | Kind::Ssh(_) | Kind::Hosts(_) | Kind::Slurm(_) => self.folder.clone(),
        }
    }
}

/// What a target is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// This machine.
    Local,
    /// A machine behind `ssh`.
    Ssh(SshSettings),
    /// Several machines behind `ssh`, which share the repetitions.
    Hosts(HostsSettings),
    /// A cluster of Slurm.
    Slurm(Box<SlurmSettings>),
    /// Machines of clouds, through SkyPilot.
    Sky(Box<SkySettings>),
}

impl Kind {
    /// The machine that is spoken to.
    #[must_use]
    pub fn machine(&self) -> String {
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
                let infra = sky.infra.as_deref().unwrap_or("wherever it is cheapest");
                format!("SkyPilot, {infra}, {}", sky.bucket)
            }
        }
    }
}

/// How a machine is reached by `ssh`. What is not said, its own configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct SshSettings {
    /// The host, or its name in the configuration of `ssh`.
    pub host: String,
    /// The user there.
    pub user: Option<String>,
    /// The port.
    pub port: Option<u16>,
    /// A configuration file of `ssh`, instead of the user's.
    pub config: Option<String>,
}

/// Several machines, which share the repetitions.
#[derive(Clone, Debug, PartialEq)]
pub struct HostsSettings {
    /// How each is reached. Its host is its name.
    pub hosts: Vec<SshSettings>,
    /// How long one may not be reached before its repetitions go to others, in seconds.
    pub lost_after_s: u64,
}

/// The user's file.
#[must_use]
pub fn user_file() -> Option<PathBuf> {
    let configuration =
        std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = configuration.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")))?;
    Some(folder.join("stratus").join(FILE))
}

/// The target of a name: from the first of the files that has it. `local` is there without a file.
///
/// # Errors
/// Where no file has it, or one of the files is wrong or holds a secret.
pub fn find(name: &str, files: &[PathBuf]) -> Result<Settings> {
    let mut names = vec![LOCAL.to_owned()];
    for path in files {
        let Some(table) = read(path)? else { continue };
        if let Some(value) = table.get(name) {
            return target(name, value, path);
        }
        names.extend(table.keys().cloned());
    }
    if name == LOCAL {
        return Ok(Settings {
            name: LOCAL.to_owned(),
            kind: Kind::Local,
            folder: "~/.stratus".to_owned(),
            environment: BTreeMap::new(),
            machine: None,
            notify: None,
            release: None,
        });
    }
    let near = nearest(name, names.iter().map(String::as_str));
    let problem = format!("no target is named `{name}`{}", did_you_mean(near));
    Err(Error::usage(problem, format!("there are {}; {FILE} lists others", names.join(", "))))
}

fn read(path: &Path) -> Result<Option<Table>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > LARGEST => {
            return Err(Error::usage(format!("{} is no list of targets: too large", path.display()), ""));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", path)(error)),
    }
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    if text.contains("-----BEGIN ") {
        return Err(secret(path, "a private key"));
    }
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        // The parser would show the line, which may be what nobody should see.
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
        if !value.is_table() && SECRETS.iter().any(|secret| lower.contains(secret)) {
            return Err(secret(path, &format!("`{name}`")));
        }
        if let Value::Table(table) = value {
            search_secrets(path, &name, table)?;
        }
    }
    Ok(())
}

fn secret(path: &Path, what: &str) -> Error {
    Error::usage(
        format!("{}: {what} looks like a secret, which is nothing for this file", path.display()),
        "keys belong to ssh: `ssh-add`, or IdentityFile in ~/.ssh/config; other secrets to the environment \
         of the machine that needs them",
    )
}

/// A section, and where it stands.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    path: &'a Path,
    table: &'a Table,
}

/// Characters of names.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// Characters of options: none that ends a word, or that Slurm reads otherwise.
fn is_option(c: char) -> bool {
    c.is_ascii_graphic() && !"\"'\\#".contains(c)
}

impl Section<'_> {
    fn wrong(&self, problem: impl std::fmt::Display) -> Error {
        Error::usage(format!("{}: [{}]: {problem}", self.path.display(), self.name), "")
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && !text.contains('\0') => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong(format!("`{key}` is a text"))),
        }
    }

    /// A text of such characters, which no command takes for an option.
    fn word(&self, key: &str, good: impl Fn(char) -> bool) -> Result<Option<String>> {
        match self.text(key)? {
            Some(text) if text.starts_with('-') || !text.chars().all(good) => {
                Err(self.wrong(format!("`{key}` cannot be {text:?}")))
            }
            found => Ok(found),
        }
    }

    fn number(&self, key: &str, most: i64) -> Result<Option<u64>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if (1..=most).contains(number) => Ok(u64::try_from(*number).ok()),
            Some(_) => Err(self.wrong(format!("`{key}` is a number from 1 to {most}"))),
        }
    }

    fn ssh(&self) -> Result<Option<SshSettings>> {
        let word = |key| self.word(key, |c| is_plain(c) || ":%".contains(c));
        let Some(host) = word("host")? else {
            if let Some(key) = OF_SSH.iter().find(|key| self.table.contains_key(**key)) {
                return Err(self.wrong(format!("`{key}` is for a `host`, which is missing")));
            }
            return Ok(None);
        };
        let port = self.number("port", 65535)?.and_then(|port| u16::try_from(port).ok());
        Ok(Some(SshSettings { host, user: word("user")?, port, config: self.text("config")? }))
    }

    fn hosts(&self) -> Result<HostsSettings> {
        if self.table.contains_key("host") {
            return Err(self.wrong("`host` or `hosts`, not both"));
        }
        let list = self.table.get("hosts").and_then(Value::as_array);
        let list = list.filter(|list| (1..=MOST_HOSTS).contains(&list.len()));
        let list = list.ok_or_else(|| self.wrong(format!("`hosts` is a list of 1 to {MOST_HOSTS} texts")))?;
        let mut hosts: Vec<SshSettings> = Vec::new();
        for value in list {
            // Each as if it stood alone.
            let mut table = self.table.clone();
            table.remove("hosts");
            table.insert("host".to_owned(), value.clone());
            let alone = Section { table: &table, ..*self };
            let host = alone.ssh()?.ok_or_else(|| self.wrong("`hosts` has one without a name"))?;
            if hosts.iter().any(|other| other.host == host.host) {
                return Err(self.wrong(format!("`hosts` has {} twice", host.host)));
            }
            hosts.push(host);
        }
        let lost_after_s = self.number("lost_after_seconds", 86_400)?.unwrap_or(300);
        Ok(HostsSettings { hosts, lost_after_s })
    }

    fn environment(&self) -> Result<BTreeMap<String, String>> {
        let mut environment = BTreeMap::new();
        let Some(value) = self.table.get("environment") else { return Ok(environment) };
        let table = value.as_table().ok_or_else(|| self.wrong("`environment` is a section"))?;
        for (key, value) in table {
            let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !key.starts_with(|c: char| c.is_ascii_digit());
            let value = value.as_str().filter(|value| is_name && !value.contains('\0'));
            let value =
                value.ok_or_else(|| self.wrong(format!("`environment.{key}` is no variable with a text")))?;
            environment.insert(key.clone(), value.to_owned());
        }
        Ok(environment)
    }
}

fn target(name: &str, value: &Value, path: &Path) -> Result<Settings> {
    let section = |table| Section { name, path, table };
    let empty = Table::new();
    if TAKEN.contains(&name) || !name.chars().all(is_plain) {
        return Err(section(&empty).wrong("no target can have this name"));
    }
    let Value::Table(table) = value else {
        return Err(section(&empty).wrong("a target is a section: [name] with kind = \"ssh\""));
    };
    let section = section(table);
    let kinds = [LOCAL, "ssh", "slurm", "sky"];
    let kind =
        section.text("kind")?.ok_or_else(|| section.wrong("`kind` is missing: local, ssh, slurm or sky"))?;
    let keys: Vec<&str> = match kind.as_str() {
        LOCAL => Vec::new(),
        "ssh" => [&OF_SSH[..], &OF_HOSTS[..]].concat(),
        "slurm" => [&OF_SSH[..], &slurm::KEYS[..]].concat(),
        "sky" => [&sky::KEYS[..], &[sky::SETUP]].concat(),
        _ => {
            let near = did_you_mean(nearest(&kind, kinds));
            return Err(section.wrong(format!("no kind of target is named `{kind}`{near}")));
        }
    };
    let known: Vec<&str> = COMMON.into_iter().chain(keys).collect();
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        let near = did_you_mean(nearest(key, known.iter().copied()));
        return Err(section.wrong(format!("a target of kind {kind} has no key `{key}`{near}")));
    }
    let kind = match kind.as_str() {
        "ssh" if table.contains_key("hosts") => Kind::Hosts(section.hosts()?),
        "ssh" => Kind::Ssh(section.ssh()?.ok_or_else(|| section.wrong("`host` is missing"))?),
        "slurm" => Kind::Slurm(Box::new(section.slurm()?)),
        "sky" => Kind::Sky(Box::new(section.sky()?)),
        _ => Kind::Local,
    };
    let folder = section.text("folder")?.unwrap_or_else(|| "~/.stratus".to_owned());
    if !(folder.starts_with('/') || folder == "~" || folder.starts_with("~/")) {
        return Err(section.wrong("`folder` begins with / or ~/"));
    }
    Ok(Settings {
        name: name.to_owned(),
        kind,
        folder,
        environment: section.environment()?,
        machine: section.text("machine")?,
        notify: section.text("notify")?,
        release: section.text("release")?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, find};
    use std::fs;

    fn of(text: &str, name: &str) -> Result<super::Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("targets.toml");
        fs::write(&path, text).unwrap();
        find(name, &[folder.path().join("none.toml"), path]).map_err(|error| error.to_string())
    }

    #[test]
    fn a_target_is_read_and_local_needs_no_file() {
        let text =
            "[lab]\nkind = \"ssh\"\nhost = \"lab.example.org\"\nport = 2222\nfolder = \"/scratch/me\"\n";
        let lab = of(text, "lab").unwrap();
        assert!(matches!(&lab.kind, Kind::Ssh(ssh) if ssh.port == Some(2222) && ssh.user.is_none()));
        assert_eq!(lab.folder, "/scratch/me");
        assert_eq!(of(text, "local").unwrap().kind, Kind::Local);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let lab = "[lab]\nkind = \"ssh\"\nhost = \"lab\"\n";
        for (text, name, part) in [
            (lab, "lba", "did you mean `lab`?"),
            ("[lab]\nkind = \"shh\"\n", "lab", "did you mean `ssh`?"),
            ("[lab]\nkind = \"ssh\"\nhst = \"a\"\n", "lab", "no key `hst`, did you mean `host`?"),
            ("[lab]\nkind = \"ssh\"\n", "lab", "`host` is missing"),
            ("[lab]\nkind = \"ssh\"\nhosts = []\n", "lab", "`hosts` is a list of 1 to 256 texts"),
            ("[lab]\nkind = \"ssh\"\nhosts = [\"a\", \"a\"]\n", "lab", "`hosts` has a twice"),
            ("[lab]\nkind = \"ssh\"\nhosts = [\"a\", \"-x\"]\n", "lab", "`host` cannot be \"-x\""),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\nhosts = [\"a\"]\n", "lab", "not both"),
            ("[lab]\nkind = \"ssh\"\nhost = \"-oProxyCommand=x\"\n", "lab", "`host` cannot be"),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\nport = 0\n", "lab", "`port` is a number"),
            ("[lab]\nkind = \"local\"\nfolder = \"x\"\n", "lab", "`folder` begins with"),
            ("[list]\nkind = \"local\"\n", "list", "no target can have this name"),
            ("[lab]\nkind = \"slurm\"\nuser = \"me\"\n", "lab", "`user` is for a `host`"),
            ("[lab]\nkind = \"slurm\"\ntime = \"1h\"\n", "lab", "`time` cannot be \"1h\""),
            ("[lab]\nkind = \"slurm\"\nmemory = \"8 G\"\n", "lab", "`memory` cannot be"),
            ("[lab]\nkind = \"slurm\"\ngres = \"gpu\\n#SBATCH --x\"\n", "lab", "`gres` cannot be"),
            ("[lab]\nkind = \"slurm\"\nqos = \"--x\"\n", "lab", "`qos` cannot be"),
            ("[lab]\nkind = \"slurm\"\noptions = [\"--arr=1\"]\n", "lab", "--arr is what a launch says"),
            ("[lab]\nkind = \"slurm\"\noptions = [\"-x\"]\n", "lab", "is no option"),
            ("[lab]\nkind = \"slurm\"\nsignal_seconds = 0\n", "lab", "`signal_seconds` is a number"),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\ngres = \"b\"\n", "lab", "no key `gres`"),
            ("[lab]\nkind = \"sky\"\n", "lab", "`bucket` is missing"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://\"\n", "lab", "`bucket` is s3://bucket/folder"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a/../b\"\n", "lab", "`bucket` is s3://bucket/folder"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\ngpus = \"A100 1\"\n", "lab", "`gpus` cannot be"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nmemory = \"32GB\"\n", "lab", "`memory` cannot"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nmax_hourly_cost = 0\n", "lab", "an amount of USD"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nspot = 1\n", "lab", "`spot` is true or false"),
            ("[lab]\nkind = \"sky\"\nbucket = \"s3://a\"\nhost = \"b\"\n", "lab", "no key `host`"),
            ("[lab\nkind", "lab", "targets.toml:1: "),
        ] {
            let error = of(text, name).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn secrets_are_refused_and_not_shown() {
        for line in [
            "password = \"hunter2\"",
            "environment = { AWS_SECRET_ACCESS_KEY = \"hunter2\" }",
            "api-key = \"hunter2\"",
            "key = \"\"\"-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\"\"\"",
        ] {
            // Another target's secret counts too.
            let error = of(&format!("[other]\nkind = \"ssh\"\n{line}\n"), "local").unwrap_err();
            assert!(error.contains("looks like a secret") && !error.contains("hunter2"), "{error}");
        }
        let error = of("[lab]\npassword = hunter2\n", "lab").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
