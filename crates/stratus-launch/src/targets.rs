//! `targets.toml`: the machines that experiments can be launched on.

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
const TAKEN: [&str; 6] = ["status", "logs", "fetch", "stop", "resume", "list"];
/// The keys of every kind.
const COMMON: [&str; 3] = ["kind", "folder", "environment"];
/// The keys of the kind `ssh`.
const OF_SSH: [&str; 4] = ["host", "user", "port", "config"];
/// Parts of names of keys that hold secrets.
const SECRETS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "api_key",
    "access_key",
    "private_key",
    "credential",
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
}

/// What a target is.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// This machine.
    Local,
    /// A machine behind `ssh`.
    Ssh(SshSettings),
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

fn target(name: &str, value: &Value, path: &Path) -> Result<Settings> {
    let wrong = |problem: String| Error::usage(format!("{}: [{name}]: {problem}", path.display()), "");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if TAKEN.contains(&name) || !name.chars().all(plain) {
        return Err(wrong("no target can have this name".to_owned()));
    }
    let Value::Table(table) = value else {
        return Err(wrong(format!("a target is a section: [{name}] with kind = \"ssh\"")));
    };
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() && !text.contains('\0') => Ok(Some(text.clone())),
        Some(_) => Err(wrong(format!("`{key}` is a text"))),
    };
    let kinds = [LOCAL, "ssh"];
    let kind = text("kind")?.ok_or_else(|| wrong("`kind` is missing: local or ssh".to_owned()))?;
    if !kinds.contains(&kind.as_str()) {
        let near = did_you_mean(nearest(&kind, kinds));
        return Err(wrong(format!("no kind of target is named `{kind}`{near}")));
    }
    let is_ssh = kind == "ssh";
    let known: Vec<&str> = COMMON.into_iter().chain(OF_SSH.into_iter().filter(|_| is_ssh)).collect();
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        let near = did_you_mean(nearest(key, known.iter().copied()));
        return Err(wrong(format!("a target of kind {kind} has no key `{key}`{near}")));
    }
    let word = |key: &'static str| -> Result<Option<String>> {
        let found = text(key)?;
        let good =
            |text: &String| !text.starts_with('-') && text.chars().all(|c| plain(c) || ":%".contains(c));
        match found {
            Some(text) if !good(&text) => Err(wrong(format!("`{key}` cannot be {text:?}"))),
            found => Ok(found),
        }
    };
    let kind = if is_ssh {
        let port = match table.get("port") {
            None => None,
            Some(Value::Integer(port)) if (1..=65535).contains(port) => u16::try_from(*port).ok(),
            Some(_) => return Err(wrong("`port` is a number from 1 to 65535".to_owned())),
        };
        let host = word("host")?.ok_or_else(|| wrong("`host` is missing".to_owned()))?;
        Kind::Ssh(SshSettings { host, user: word("user")?, port, config: text("config")? })
    } else {
        Kind::Local
    };
    let mut environment = BTreeMap::new();
    if let Some(value) = table.get("environment") {
        let table = value.as_table().ok_or_else(|| wrong("`environment` is a section".to_owned()))?;
        for (key, value) in table {
            let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !key.starts_with(|c: char| c.is_ascii_digit());
            let value = value.as_str().filter(|value| is_name && !value.contains('\0'));
            let value =
                value.ok_or_else(|| wrong(format!("`environment.{key}` is no variable with a text")))?;
            environment.insert(key.clone(), value.to_owned());
        }
    }
    let folder = text("folder")?.unwrap_or_else(|| "~/.stratus".to_owned());
    if !(folder.starts_with('/') || folder == "~" || folder.starts_with("~/")) {
        return Err(wrong("`folder` begins with / or ~/".to_owned()));
    }
    Ok(Settings { name: name.to_owned(), kind, folder, environment })
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
            ("[lab]\nkind = \"ssh\"\nhost = \"-oProxyCommand=x\"\n", "lab", "`host` cannot be"),
            ("[lab]\nkind = \"ssh\"\nhost = \"a\"\nport = 0\n", "lab", "`port` is a number"),
            ("[lab]\nkind = \"local\"\nfolder = \"x\"\n", "lab", "`folder` begins with"),
            ("[list]\nkind = \"local\"\n", "list", "no target can have this name"),
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
