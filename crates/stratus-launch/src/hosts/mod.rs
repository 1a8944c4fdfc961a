//! The kind `ssh` with several hosts, among which repetitions are distributed. An idle host takes over
//! waiting repetitions of others, and the repetitions of lost hosts.
//!
//! Each host has a separate job folder, named after it, so that hosts may share a file system. The local
//! record assigns each repetition to a host. A reassignment claims the repetition from the old host, writes
//! the record, and starts it on the new host, in this order: if it is interrupted, no repetition is lost, and
//! reachable hosts train none twice.

use crate::job::{Job, LaunchRecord, LaunchState, RepetitionState, RepetitionStatus};
use crate::lease::LinkMeasurement;
use crate::target::{PrepareOptions, PreparedTarget, ShellTarget, Target};
use crate::{Error, FetchStats, Result, restore};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A host of the target.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) target: ShellTarget,
}

pub(crate) struct HostsTarget {
    /// The name of the target.
    pub(crate) name: String,
    pub(crate) hosts: Vec<Host>,
    /// The time after which the repetitions of an unreachable host are reassigned.
    pub(crate) lost_after: Duration,
    /// The time since which each unreachable host has been unreachable.
    pub(crate) unreachable_since: Mutex<BTreeMap<String, Instant>>,
}

/// The state of a launch on one host.
struct HostState {
    state: LaunchState,
    /// True if the host has a folder of the launch.
    has_folder: bool,
}

/// The job's name on a host.
fn job_id_on_host(id: &str, host: &str) -> String {
    let safe_name: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    format!("{id}.{safe_name}")
}

/// The record of the job on a host.
fn record_on_host(record: &LaunchRecord, host: &str) -> LaunchRecord {
    LaunchRecord { id: job_id_on_host(&record.id, host), ..record.clone() }
}

impl HostsTarget {
    fn host(&self, name: &str) -> Result<&Host> {
        let not_found = || {
            let known: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let problem = format!("{}: host {name} is no longer in `hosts`", self.name);
            Error::usage(problem, format!("known hosts: {}", known.join(", ")))
        };
        self.hosts.iter().find(|host| host.name == name).ok_or_else(not_found)
    }

    /// The host of a repetition, counted from 1.
    fn host_of(&self, record: &LaunchRecord, repetition: usize) -> Result<&Host> {
        self.host(record.host_by_repetition.get(repetition - 1).map_or("", String::as_str))
    }

    /// The hosts of a launch and their states. A host without a folder of the launch, because it never had a
    /// repetition or lost its disk, has the state of a launch that was not started.
    fn states(&self, record: &LaunchRecord) -> Vec<(&Host, Result<HostState>)> {
        let ready = self.hosts.iter().filter(|host| record.prepared_hosts.contains(&host.name));
        let query = |host: &Host| {
            let found = host.target.query_state(&record_on_host(record, &host.name))?;
            let has_folder = found.is_some();
            Ok(HostState {
                state: found.unwrap_or_else(|| LaunchState::all_waiting(record.runs.len())),
                has_folder,
            })
        };
        ready.map(|host| (host, query(host))).collect()
    }

    /// Returns whether a host has been unreachable for at least `lost_after`.
    fn is_lost(&self, host: &str, is_reachable: bool, lost_after: Duration) -> bool {
        let Ok(mut since) = self.unreachable_since.lock() else { return false };
        if is_reachable {
            since.remove(host);
            return false;
        }
        since.entry(host.to_owned()).or_insert_with(Instant::now).elapsed() >= lost_after
    }

    fn start(&self, host: &Host, record: &LaunchRecord, job: &Job, selected: Vec<usize>) -> Result<()> {
        let job = Job { id: job_id_on_host(&record.id, &host.name), selected: Some(selected), ..job.clone() };
        host.target.submit(&record.root, &job)
    }
}

impl Target for HostsTarget {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files()
    }

    fn prepare(&self, options: &PrepareOptions<'_>) -> Result<PreparedTarget> {
        let mut all: Option<PreparedTarget> = None;
        let mut notes = Vec::new();
        let mut first_error = None;
        for host in &self.hosts {
            let prepared = match host.target.prepare(options) {
                Ok(prepared) => prepared,
                Err(error) => {
                    notes.push(format!("{error}: skipped"));
                    first_error.get_or_insert(error);
                    continue;
                }
            };
            let Some(all) = all.as_mut() else {
                all = Some(PreparedTarget { hosts: vec![host.name.clone()], ..prepared });
                continue;
            };
            if prepared.root != all.root {
                let problem = format!(
                    "{}: the folder is {} on {} and {} on {}",
                    self.name, all.root, all.hosts[0], prepared.root, host.name
                );
                return Err(Error::target(problem, "set `folder` to a path that is the same on all hosts"));
            }
            if prepared.cpu_model != all.cpu_model {
                let (theirs, ours) = (&prepared.cpu_model, &all.cpu_model);
                let difference =
                    format!("{} has a different CPU ({theirs}) from {} ({ours})", host.name, all.hosts[0]);
                if options.same_cpu_only {
                    notes.push(format!("{difference}: skipped"));
                    continue;
                }
                notes.push(format!("{difference}: its kernels and the last bits of results may differ"));
            }
            all.hosts.push(host.name.clone());
            all.files += prepared.files;
            all.bytes += prepared.bytes;
        }
        let no_hosts = || Error::usage(format!("{}: `hosts` is empty", self.name), "");
        let all = all.ok_or_else(|| first_error.unwrap_or_else(no_hosts))?;
        Ok(PreparedTarget { notes, ..all })
    }

    fn measure_link(&self, program: &str) -> Result<LinkMeasurement> {
        // Measuring all hosts would take too long, so the first reachable one stands for them.
        let mut error = None;
        for host in &self.hosts {
            match host.target.measure_link(program) {
                Ok(link) => return Ok(link),
                Err(other) => error = Some(other),
            }
        }
        Err(error.unwrap_or_else(|| Error::usage(format!("{}: `hosts` is empty", self.name), "")))
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let mut error = None;
        for host in &self.hosts {
            let numbers = (1..).zip(&job.host_by_repetition).filter(|(_, name)| **name == host.name);
            let selected: Vec<usize> = numbers.map(|(number, _)| number).collect();
            if selected.is_empty() {
                continue;
            }
            let job =
                Job { id: job_id_on_host(&job.id, &host.name), selected: Some(selected), ..job.clone() };
            if let Err(other) = host.target.submit(root, &job) {
                error = Some(other);
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn slots(&self) -> usize {
        self.hosts.len()
    }

    fn state(&self, launch: &LaunchRecord) -> Result<LaunchState> {
        let mut states = self.states(launch);
        if states.iter().all(|(_, state)| state.is_err())
            && let Some((_, Err(error))) = states.pop()
        {
            return Err(error);
        }
        let mut merged = LaunchState::all_waiting(0);
        let mut owners = Vec::new();
        for (at, name) in launch.host_by_repetition.iter().enumerate() {
            let found = states.iter().find(|(host, _)| host.name == *name);
            let known = match found {
                Some((_, Ok(found))) => found.state.repetitions.get(at).cloned(),
                Some((_, Err(_))) | None => None,
            };
            let mut one = known.unwrap_or_else(|| RepetitionState::new(at + 1, RepetitionStatus::Unknown));
            // A fetched repetition is completed, even if the host no longer knows it.
            if launch.done.contains(&one.repetition) {
                one.status = RepetitionStatus::Completed;
            }
            if let Some((_, Err(error))) = found {
                one.last_line = stratus_base::printable(&error.to_string());
            }
            one.queue = Some(name.clone());
            merged.is_running |= matches!(one.status, RepetitionStatus::Running | RepetitionStatus::Unknown);
            merged.repetitions.push(one);
        }
        for (host, found) in &states {
            let Ok(HostState { state, .. }) = found else { continue };
            merged.is_running |= state.is_running;
            merged.stopped |= state.stopped;
            if state.is_running {
                merged.heartbeat_s = merged.heartbeat_s.max(state.heartbeat_s);
                owners.push(format!("{} ({})", host.name, state.owner));
            }
        }
        merged.owner = owners.join("; ");
        Ok(merged)
    }

    fn reschedule(
        &self,
        record: &mut LaunchRecord,
        job: &Job,
        retry_stopped: bool,
        save_record: &mut dyn FnMut(&LaunchRecord) -> Result<()>,
    ) -> Result<Vec<String>> {
        let mut messages = Vec::new();
        let lost_after = if retry_stopped { Duration::ZERO } else { self.lost_after };
        let mut states = self.states(record);
        if retry_stopped {
            for (host, found) in &mut states {
                let Ok(HostState { state, .. }) = found else { continue };
                if state.stopped && !state.is_running {
                    host.target.withdraw_stop(&record.root, &job_id_on_host(&record.id, &host.name))?;
                    state.stopped = false;
                }
            }
        }
        let states = states;
        // True if the launch was stopped while a repetition was unfinished.
        let is_stopped = states.iter().any(|(host, found)| {
            let is_assigned = |one: &&RepetitionState| {
                record.host_by_repetition.get(one.repetition - 1) == Some(&host.name)
            };
            found.as_ref().is_ok_and(|HostState { state, .. }| {
                state.stopped
                    && state.repetitions.iter().filter(is_assigned).any(|one| one.needs_training(false, true))
            })
        });
        // Idle hosts and their unfinished repetitions, and repetitions that another host can take over.
        let mut idle: Vec<&Host> = Vec::new();
        let mut unfinished: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut lost: Vec<usize> = Vec::new();
        let mut waiting: Vec<(usize, &Host)> = Vec::new();
        for (host, found) in &states {
            let is_lost = self.is_lost(&host.name, found.is_ok(), lost_after);
            let assigned = (1..).zip(&record.host_by_repetition).filter(|(_, name)| **name == host.name);
            let open =
                assigned.map(|(number, _)| number).filter(|number: &usize| !record.done.contains(number));
            for number in open {
                match found {
                    Err(_) if is_lost && (retry_stopped || !is_stopped) => lost.push(number),
                    Err(_) => {}
                    // A repetition lost with its folder resumes from the local run.
                    Ok(found) if !found.has_folder && (retry_stopped || !is_stopped) => lost.push(number),
                    Ok(HostState { state, .. }) => {
                        let Some(one) = state.repetitions.get(number - 1) else { continue };
                        if !one.needs_training(state.stopped, retry_stopped) {
                            continue;
                        }
                        if state.is_running {
                            if one.status == RepetitionStatus::Waiting {
                                waiting.push((number, *host));
                            }
                        } else {
                            unfinished.entry(host.name.as_str()).or_default().push(number);
                        }
                    }
                }
            }
            let is_idle = |state: &LaunchState| !state.is_running && (retry_stopped || !state.stopped);
            if matches!(found, Ok(HostState { state, .. }) if is_idle(state)) {
                idle.push(host);
            }
        }
        // A host that is reachable again may still be training a reassigned repetition; it must stop.
        for (host, found) in &states {
            let Ok(HostState { state, .. }) = found else { continue };
            let reassigned = state.repetitions.iter().filter(|one| {
                record.host_by_repetition.get(one.repetition - 1).is_some_and(|name| *name != host.name)
            });
            for one in reassigned.filter(|one| one.status == RepetitionStatus::Running) {
                messages.push(format!(
                    "{}: repetition {} now runs elsewhere; stopping it",
                    host.name, one.repetition
                ));
                host.target.revoke(&record.root, &job_id_on_host(&record.id, &host.name))?;
            }
        }
        for host in idle {
            if let Some(numbers) = unfinished.remove(host.name.as_str()) {
                // A search may continue a repetition on another host than before.
                for number in &numbers {
                    let run = &record.runs[number - 1];
                    if restore::is_ahead(run, epochs_on(&states, host, *number)) {
                        let on_host = record_on_host(record, &host.name);
                        restore::restore(&*host.target.shell, &on_host, *number, run)?;
                    }
                }
                self.start(host, record, job, numbers.clone())?;
                messages.push(format!("{}: resumes {}", host.name, describe_repetitions(&numbers)));
                continue;
            }
            let next = match lost.is_empty() {
                false => Some((lost.remove(0), None)),
                // The last waiting repetition would start last.
                true => waiting.pop().map(|(number, from)| (number, Some(from))),
            };
            let Some((number, from)) = next else { continue };
            if let Some(from) = from
                && !from.target.claim(&record.root, &job_id_on_host(&record.id, &from.name), number)?
            {
                continue;
            }
            let previous = std::mem::replace(&mut record.host_by_repetition[number - 1], host.name.clone());
            save_record(record)?;
            let run = record.runs[number - 1].clone();
            let bytes = match from {
                Some(_) => 0,
                None => {
                    restore::restore(&*host.target.shell, &record_on_host(record, &host.name), number, &run)?
                }
            };
            self.start(host, record, job, vec![number])?;
            let origin = if bytes > 0 { ", from the local checkpoint" } else { "" };
            let verb = if from.is_some() { "is idle and takes over" } else { "takes over" };
            messages.push(format!("{} {verb} repetition {number} of {previous}{origin}", host.name));
        }
        Ok(messages)
    }

    fn logs(&self, launch: &LaunchRecord, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let host = self.host_of(launch, repetition)?;
        host.target.logs(&record_on_host(launch, &host.name), repetition, from, out)
    }

    fn fetch(&self, launch: &LaunchRecord, repetition: usize, into: &Path) -> Result<FetchStats> {
        let host = self.host_of(launch, repetition)?;
        host.target.fetch(&record_on_host(launch, &host.name), repetition, into)
    }

    fn stop(&self, launch: &LaunchRecord) -> Result<bool> {
        let (mut was_running, mut error) = (false, None);
        // Also stops hosts whose repetitions were reassigned.
        for host in self.hosts.iter().filter(|host| launch.prepared_hosts.contains(&host.name)) {
            match host.target.stop(&record_on_host(launch, &host.name)) {
                Ok(running) => was_running |= running,
                Err(other) if launch.host_by_repetition.contains(&host.name) => error = Some(other),
                Err(_) => {}
            }
        }
        error.map_or(Ok(was_running), Err)
    }

    fn release(&self) {
        self.hosts.iter().for_each(|host| host.target.release());
    }
}

/// The completed epochs of a repetition on a host.
fn epochs_on(states: &[(&Host, Result<HostState>)], host: &Host, repetition: usize) -> Option<u64> {
    let (_, found) = states.iter().find(|(other, _)| other.name == host.name)?;
    found.as_ref().ok()?.state.repetitions.get(repetition - 1)?.epochs
}

fn describe_repetitions(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [one] => format!("repetition {one}"),
        all => format!("repetitions {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests;
