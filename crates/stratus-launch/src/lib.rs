//! Launches: experiments that are trained on other machines, and what comes back.
//!
//! ```text
//! targets.toml ──▶ Settings ──▶ Target      a machine, by its kind: a file each behind one trait
//! program, libraries, data ──▶ Parcel       files by SHA-256: what is there already is not sent again
//! experiments ──▶ Job                       a folder there; its repetitions one after the other
//! Target, Job ──▶ Record                    what was started where, kept beside the runs
//! Record ──▶ State, log, run directories    brought back as they grow
//! ```
//!
//! Everything from a target is data: numbers are parsed, text is escaped, and no path from there leaves the
//! folder that it is fetched into.

mod error;
mod fetch;
mod hook;
mod hosts;
mod job;
mod local;
mod notices;
mod parcel;
mod program;
mod restore;
mod shell;
mod sky;
mod slurm;
mod ssh;
mod target;
mod targets;

pub use error::{Error, Result};
pub use fetch::Fetched;
pub use hook::hook;
pub use job::{Job, Lease, Record, Repetition, Resources, State, Status};
pub use parcel::{Item, Parcel};
pub use program::Program;
pub use shell::clean;
pub use target::{Link, Needs, Prepared, Target, open};
pub use targets::{
    FILE, HostsSettings, Kind, Settings, SkySettings, SlurmSettings, SshSettings, find, user_file,
};
