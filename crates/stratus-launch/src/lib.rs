//! Launches: training experiments on other machines and fetching their runs.
//!
//! ```text
//! targets.toml ──▶ TargetSettings ──▶ Target     one module per kind of target, behind one trait
//! experiment or sweep ──▶ LaunchSpec             the runs to train, and their directories
//! executable, libraries, data ──▶ FileSet        files by SHA-256; the target receives only missing ones
//! LaunchSpec, FileSets ──▶ LaunchBundle          everything that is uploaded
//! LaunchBundle ──▶ Job                           a folder on the target; trains repetitions in order
//! Target, Job ──▶ LaunchRecord                   what was started where; a file next to the runs
//! LaunchRecord ──▶ LaunchState, log, runs        fetched as they grow
//! LaunchRecord, runs of a sweep ──▶ next steps   if results decide which cells are trained
//! ```
//!
//! Everything from a target is untrusted: numbers are parsed, text is escaped, and no path leaves the folder
//! that it is fetched into.

mod bundle;
mod error;
mod estimate;
mod executable;
mod fetch;
mod file_set;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hook;
mod hosts;
mod job;
mod lease;
mod local;
mod local_file;
mod notices;
mod open;
mod restore;
mod saved_state;
mod search;
mod shell;
mod sky;
mod slurm;
mod spec;
mod ssh;
mod target;
mod targets;
mod uploads;

pub use bundle::{BundledMpi, LaunchBundle};
pub use error::{Error, Result};
pub use estimate::{LaunchEstimate, RunForecast};
pub use executable::Executable;
pub use fetch::FetchStats;
pub use file_set::{FileEntry, FileSet};
pub use hook::run_hook;
pub use job::{Job, LaunchRecord, LaunchState, RepetitionState, RepetitionStatus, Resources, is_valid_id};
pub use lease::{Lease, LinkMeasurement, seconds_left};
pub use open::open_target;
pub use saved_state::{
    LaunchEvent, LaunchEventKind, SavedState, events_file, read_events, record_file, state_file,
};
pub use search::{SearchAdvance, SearchRecord};
pub use shell::escape_control_characters;
pub use spec::{LaunchSpec, MAX_RUNS};
pub use target::{PrepareOptions, PreparedTarget, Target};
pub use targets::{
    HostsSettings, NodeWorkers, SkySettings, SlurmSettings, SshSettings, TARGETS_FILE, TargetKind,
    TargetSettings, find_target, target_names, user_targets_file,
};
pub use uploads::UploadedPaths;
