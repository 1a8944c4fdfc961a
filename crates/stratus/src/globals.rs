//! The flags of every command.

use clap::Args;
use stratus_base::text::shell_word;

/// The flags of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Print the result as one JSON document
    #[arg(long, global = true)]
    pub json: bool,
    /// Override a configuration key; repeatable (`stratus config keys` lists the keys)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub set: Vec<(String, String)>,
    /// Print only results, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Globals {
    /// The keys that were set, except those in `without`, as flags to paste: ` --set KEY=VALUE` for each.
    #[must_use]
    pub fn as_set_flags(&self, without: &[&str]) -> String {
        let keys = self.set.iter().filter(|(key, _)| !without.contains(&key.as_str()));
        keys.map(|(key, value)| format!(" --set {}", shell_word(&format!("{key}={value}")))).collect()
    }
}

/// Parses `KEY=VALUE`, the argument of `--set`.
///
/// # Errors
/// If there is no `=`, or no key before it.
pub fn parse_key_value(argument: &str) -> Result<(String, String), String> {
    match argument.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, like train.epochs=3".to_owned()),
    }
}
