//! A section of `targets.toml`: reading and checking of its keys.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// The keys of a host that is reached by `ssh`.
pub(super) const SSH_KEYS: [&str; 4] = ["host", "user", "port", "config"];
/// The keys of the kind `ssh` with several hosts.
pub(super) const HOSTS_KEYS: [&str; 2] = ["hosts", "lost_after_seconds"];
/// The maximum number of hosts of a target.
const MAX_HOSTS: usize = 256;

/// A host that is reached by `ssh`. Unset values come from the configuration of `ssh`.
#[derive(Clone, Debug, PartialEq)]
pub struct SshSettings {
    /// The host, or its alias in the configuration of `ssh`.
    pub host: String,
    /// The user.
    pub user: Option<String>,
    /// The port.
    pub port: Option<u16>,
    /// A configuration file of `ssh` that replaces the user's.
    pub config: Option<String>,
}

/// Several hosts, among which repetitions are distributed.
#[derive(Clone, Debug, PartialEq)]
pub struct HostsSettings {
    /// The hosts, named by their `host`.
    pub hosts: Vec<SshSettings>,
    /// The time in seconds after which repetitions of an unreachable host are reassigned.
    pub lost_after_s: u64,
}

/// A section of `targets.toml`.
#[derive(Clone, Copy)]
pub(super) struct TargetSection<'a> {
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    pub(super) table: &'a Table,
}

/// Returns whether a character is allowed in names.
pub(super) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// Returns whether a character is allowed in options: not a space, and not special to Slurm.
pub(super) fn is_option(c: char) -> bool {
    c.is_ascii_graphic() && !"\"'\\#".contains(c)
}

impl TargetSection<'_> {
    pub(super) fn error(&self, problem: impl std::fmt::Display) -> Error {
        Error::usage(format!("{}: [{}]: {problem}", self.path.display(), self.name), "")
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<String>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() && !text.contains('\0') => Ok(Some(text.clone())),
            Some(_) => Err(self.error(format!("`{key}` must be a string"))),
        }
    }

    /// A string of allowed characters that no command can mistake for an option.
    pub(super) fn word(&self, key: &str, is_allowed: impl Fn(char) -> bool) -> Result<Option<String>> {
        match self.string(key)? {
            Some(text) if text.starts_with('-') || !text.chars().all(is_allowed) => {
                Err(self.error(format!("`{key}` cannot be {text:?}")))
            }
            found => Ok(found),
        }
    }

    pub(super) fn number(&self, key: &str, max: i64) -> Result<Option<u64>> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if (1..=max).contains(number) => Ok(u64::try_from(*number).ok()),
            Some(_) => Err(self.error(format!("`{key}` must be an integer from 1 to {max}"))),
        }
    }

    pub(super) fn ssh(&self) -> Result<Option<SshSettings>> {
        let word = |key| self.word(key, |c| is_plain(c) || ":%".contains(c));
        let Some(host) = word("host")? else {
            if let Some(key) = SSH_KEYS.iter().find(|key| self.table.contains_key(**key)) {
                return Err(self.error(format!("`{key}` requires `host`")));
            }
            return Ok(None);
        };
        let port = self.number("port", 65535)?.and_then(|port| u16::try_from(port).ok());
        Ok(Some(SshSettings { host, user: word("user")?, port, config: self.string("config")? }))
    }

    pub(super) fn hosts(&self) -> Result<HostsSettings> {
        if self.table.contains_key("host") {
            return Err(self.error("`host` and `hosts` cannot be used together"));
        }
        let list = self.table.get("hosts").and_then(Value::as_array);
        let list = list.filter(|list| (1..=MAX_HOSTS).contains(&list.len()));
        let list =
            list.ok_or_else(|| self.error(format!("`hosts` must be a list of 1 to {MAX_HOSTS} strings")))?;
        let mut hosts: Vec<SshSettings> = Vec::new();
        for value in list {
            // Each host is read as if it were the only one.
            let mut table = self.table.clone();
            table.remove("hosts");
            table.insert("host".to_owned(), value.clone());
            let single = TargetSection { table: &table, ..*self };
            let host = single.ssh()?.ok_or_else(|| self.error("`hosts` contains an empty name"))?;
            if hosts.iter().any(|other| other.host == host.host) {
                return Err(self.error(format!("`hosts` contains {} twice", host.host)));
            }
            hosts.push(host);
        }
        let lost_after_s = self.number("lost_after_seconds", 86_400)?.unwrap_or(300);
        Ok(HostsSettings { hosts, lost_after_s })
    }

    pub(super) fn environment(&self) -> Result<BTreeMap<String, String>> {
        let mut environment = BTreeMap::new();
        let Some(value) = self.table.get("environment") else { return Ok(environment) };
        let table = value.as_table().ok_or_else(|| self.error("`environment` must be a section"))?;
        for (key, value) in table {
            let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !key.starts_with(|c: char| c.is_ascii_digit());
            let value = value.as_str().filter(|value| is_name && !value.contains('\0'));
            let value = value.ok_or_else(|| {
                self.error(format!("`environment.{key}` must be a variable name with a string value"))
            })?;
            environment.insert(key.clone(), value.to_owned());
        }
        Ok(environment)
    }
}
