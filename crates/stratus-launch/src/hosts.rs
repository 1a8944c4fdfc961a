//! A list of machines: repetitions are shared out among them. One that waits goes to the next machine that
//! has nothing to do, as do those of a machine that is lost.
//!
//! Each machine has a job folder of its own, by its name, so that machines which share a folder do not meet.
//! The record here says which machine has which repetition. Who changes that, first takes the repetition
//! from the machine that had it, then writes the record, then starts it elsewhere: wherever that is cut,
//! nothing is trained twice by a machine that can be reached, and nothing is forgotten.

use crate::job::{Job, Record, Repetition, State, Status};
use crate::shell::Shell;
use crate::target::{Link, Machine, Needs, Prepared, Target};
use crate::{Error, Fetched, Result, restore};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A machine of the list.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) machine: Machine<Box<dyn Shell>>,
}

pub(crate) struct Hosts {
    /// The target.
    pub(crate) name: String,
    pub(crate) hosts: Vec<Host>,
    /// How long a machine may not be reached before its repetitions go to others.
    pub(crate) patience: Duration,
    /// Since when machines cannot be reached.
    pub(crate) lost: Mutex<BTreeMap<String, Instant>>,
}

/// How a machine of the list stands.
struct Stands {
    state: State,
    /// Whether it has a folder of the launch.
    is_there: bool,
}

/// The job's name on a machine.
fn id_on(id: &str, host: &str) -> String {
    let plain: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    format!("{id}.{plain}")
}

fn on(record: &Record, host: &str) -> Record {
    Record { id: id_on(&record.id, host), ..record.clone() }
}

impl Hosts {
    fn host(&self, name: &str) -> Result<&Host> {
        let none = || {
            let known: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
            let problem = format!("{}: the host {name} is not in its list any more", self.name);
            Error::usage(problem, format!("it has {}", known.join(", ")))
        };
        self.hosts.iter().find(|host| host.name == name).ok_or_else(none)
    }

    /// The machine that has a repetition, counted from 1.
    fn of(&self, record: &Record, repetition: usize) -> Result<&Host> {
        self.host(record.hosts.get(repetition - 1).map_or("", String::as_str))
    }

    /// The machines of a launch, and how each stands. One that was never given a repetition has no folder of
    /// it, and nor has one that lost its disk: either stands as if nothing was begun.
    fn states(&self, record: &Record) -> Vec<(&Host, Result<Stands>)> {
        let ready = self.hosts.iter().filter(|host| record.ready.contains(&host.name));
        let stands = |host: &Host| {
            let found = host.machine.stands(&on(record, &host.name))?;
            let is_there = found.is_some();
            Ok(Stands { state: found.unwrap_or_else(|| State::waiting(record.runs.len())), is_there })
        };
        ready.map(|host| (host, stands(host))).collect()
    }

    /// Whether a machine has been out of reach for so long that it is given up.
    fn is_lost(&self, host: &str, is_reached: bool, patience: Duration) -> bool {
        let Ok(mut lost) = self.lost.lock() else { return false };
        if is_reached {
            lost.remove(host);
            return false;
        }
        lost.entry(host.to_owned()).or_insert_with(Instant::now).elapsed() >= patience
    }

    fn start(&self, host: &Host, record: &Record, job: &Job, only: Vec<usize>) -> Result<()> {
        let job = Job { id: id_on(&record.id, &host.name), only: Some(only), ..job.clone() };
        host.machine.submit(&record.root, &job)
    }
}

impl Target for Hosts {
    fn files(&self, job: &Job) -> Vec<(String, String)> {
        job.files()
    }

    fn prepare(&self, needs: &Needs<'_>) -> Result<Prepared> {
        let mut all: Option<Prepared> = None;
        let mut notes = Vec::new();
        let mut first_error = None;
        for host in &self.hosts {
            let prepared = match host.machine.prepare(needs) {
                Ok(prepared) => prepared,
                Err(error) => {
                    notes.push(format!("{error}: it is left out"));
                    first_error.get_or_insert(error);
                    continue;
                }
            };
            let Some(all) = all.as_mut() else {
                all = Some(Prepared { hosts: vec![host.name.clone()], ..prepared });
                continue;
            };
            if prepared.root != all.root {
                let problem = format!(
                    "{}: the folder is {} on {} and {} on {}",
                    self.name, all.root, all.hosts[0], prepared.root, host.name
                );
                return Err(Error::target(problem, "name a `folder` that has one path on all of them"));
            }
            if prepared.processor != all.processor {
                let (theirs, ours) = (&prepared.processor, &all.processor);
                let what =
                    format!("{} has another processor, {theirs}, than {}, {ours}", host.name, all.hosts[0]);
                if needs.same_kind {
                    notes.push(format!("{what}: it is left out"));
                    continue;
                }
                notes.push(format!("{what}: its kernels may differ, and with them the last bits"));
            }
            all.hosts.push(host.name.clone());
            all.files += prepared.files;
            all.bytes += prepared.bytes;
        }
        let none = || Error::usage(format!("{}: the list of hosts is empty", self.name), "");
        let all = all.ok_or_else(|| first_error.unwrap_or_else(none))?;
        Ok(Prepared { notes, ..all })
    }

    fn link(&self, program: &str) -> Result<Link> {
        // The first that answers; the slowest would have to be waited for.
        let mut error = None;
        for host in &self.hosts {
            match host.machine.link(program) {
                Ok(link) => return Ok(link),
                Err(other) => error = Some(other),
            }
        }
        Err(error.unwrap_or_else(|| Error::usage(format!("{}: the list of hosts is empty", self.name), "")))
    }

    fn submit(&self, root: &str, job: &Job) -> Result<()> {
        let mut error = None;
        for host in &self.hosts {
            let numbers = (1..).zip(&job.hosts).filter(|(_, name)| **name == host.name);
            let only: Vec<usize> = numbers.map(|(number, _)| number).collect();
            if only.is_empty() {
                continue;
            }
            let job = Job { id: id_on(&job.id, &host.name), only: Some(only), ..job.clone() };
            if let Err(other) = host.machine.submit(root, &job) {
                error = Some(other);
            }
        }
        error.map_or(Ok(()), Err)
    }

    fn state(&self, launch: &Record) -> Result<State> {
        let mut states = self.states(launch);
        if states.iter().all(|(_, state)| state.is_err())
            && let Some((_, Err(error))) = states.pop()
        {
            return Err(error);
        }
        let mut merged = State::waiting(0);
        let mut owners = Vec::new();
        for (at, name) in launch.hosts.iter().enumerate() {
            let found = states.iter().find(|(host, _)| host.name == *name);
            let one = match found {
                Some((_, Ok(stands))) => stands.state.repetitions.get(at).cloned(),
                Some((_, Err(_))) | None => None,
            };
            let mut one = one.unwrap_or_else(|| Repetition::new(at + 1, Status::Unknown));
            // What is here needs nobody who tells of it.
            if launch.done.contains(&one.repetition) {
                one.status = Status::Completed;
            }
            if let Some((_, Err(error))) = found {
                one.last = stratus_base::printable(&error.to_string());
            }
            one.queue = Some(name.clone());
            merged.alive |= matches!(one.status, Status::Running | Status::Unknown);
            merged.repetitions.push(one);
        }
        for (host, stands) in &states {
            let Ok(Stands { state, .. }) = stands else { continue };
            merged.alive |= state.alive;
            merged.stopped |= state.stopped;
            if state.alive {
                merged.heartbeat_s = merged.heartbeat_s.max(state.heartbeat_s);
                owners.push(format!("{} ({})", host.name, state.owner));
            }
        }
        merged.owner = owners.join("; ");
        Ok(merged)
    }

    fn tend(
        &self,
        record: &mut Record,
        job: &Job,
        again: bool,
        keep: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Vec<String>> {
        let mut said = Vec::new();
        let patience = if again { Duration::ZERO } else { self.patience };
        let states = self.states(record);
        // Somebody stopped the launch, and not all of it is done.
        let is_stopped = states.iter().any(|(host, stands)| {
            let mine = |one: &&Repetition| record.hosts.get(one.repetition - 1) == Some(&host.name);
            stands.as_ref().is_ok_and(|Stands { state, .. }| {
                state.stopped && state.repetitions.iter().filter(mine).any(|one| one.is_open(false, true))
            })
        });
        // What is open, by whether its machine can still have it.
        let mut free: Vec<&Host> = Vec::new();
        let mut own: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut orphans: Vec<usize> = Vec::new();
        let mut waiting: Vec<(usize, &Host)> = Vec::new();
        for (host, stands) in &states {
            let is_lost = self.is_lost(&host.name, stands.is_ok(), patience);
            let mine = (1..).zip(&record.hosts).filter(|(_, name)| **name == host.name);
            let open = mine.map(|(number, _)| number).filter(|number: &usize| !record.done.contains(number));
            for number in open {
                match stands {
                    Err(_) if is_lost && (again || !is_stopped) => orphans.push(number),
                    Err(_) => {}
                    // Where it was lost with its folder, it goes on from what is here.
                    Ok(stands) if !stands.is_there && (again || !is_stopped) => orphans.push(number),
                    Ok(Stands { state, .. }) => {
                        let Some(one) = state.repetitions.get(number - 1) else { continue };
                        if !one.is_open(state.stopped, again) {
                            continue;
                        }
                        if state.alive {
                            if one.status == Status::Waiting {
                                waiting.push((number, *host));
                            }
                        } else {
                            own.entry(host.name.as_str()).or_default().push(number);
                        }
                    }
                }
            }
            if matches!(stands, Ok(Stands { state, .. }) if !state.alive && (again || !state.stopped)) {
                free.push(host);
            }
        }
        // A machine that comes back may still train what another has: it is not asked to go on.
        for (host, stands) in &states {
            let Ok(Stands { state, .. }) = stands else { continue };
            let others = state
                .repetitions
                .iter()
                .filter(|one| record.hosts.get(one.repetition - 1).is_some_and(|name| *name != host.name));
            for one in others.filter(|one| one.status == Status::Running) {
                said.push(format!("{}: repetition {} is another's now: it stops", host.name, one.repetition));
                host.machine.revoke(&record.root, &id_on(&record.id, &host.name))?;
            }
        }
        for host in free {
            if let Some(numbers) = own.remove(host.name.as_str()) {
                self.start(host, record, job, numbers.clone())?;
                said.push(format!("{}: goes on with {}", host.name, named(&numbers)));
                continue;
            }
            let next = match orphans.is_empty() {
                false => Some((orphans.remove(0), None)),
                // The last that waits would be the last to begin.
                true => waiting.pop().map(|(number, from)| (number, Some(from))),
            };
            let Some((number, from)) = next else { continue };
            if let Some(from) = from
                && !from.machine.claim(&record.root, &id_on(&record.id, &from.name), number)?
            {
                continue;
            }
            let had = std::mem::replace(&mut record.hosts[number - 1], host.name.clone());
            keep(record)?;
            let run = record.runs[number - 1].clone();
            let bytes = match from {
                Some(_) => 0,
                None => restore::restore(&host.machine.shell, &on(record, &host.name), number, &run)?,
            };
            self.start(host, record, job, vec![number])?;
            let with = if bytes > 0 { ", from the checkpoint that is here" } else { "" };
            let why = if from.is_some() { "has nothing to do and takes" } else { "takes" };
            said.push(format!("{} {why} repetition {number} of {had}{with}", host.name));
        }
        Ok(said)
    }

    fn logs(&self, launch: &Record, repetition: usize, from: u64, out: &mut dyn Write) -> Result<u64> {
        let host = self.of(launch, repetition)?;
        host.machine.logs(&on(launch, &host.name), repetition, from, out)
    }

    fn fetch(&self, launch: &Record, repetition: usize, into: &Path) -> Result<Fetched> {
        let host = self.of(launch, repetition)?;
        host.machine.fetch(&on(launch, &host.name), repetition, into)
    }

    fn stop(&self, launch: &Record) -> Result<bool> {
        let (mut asked, mut error) = (false, None);
        // Also one whose repetition is another's now, which it may not know yet.
        for host in self.hosts.iter().filter(|host| launch.ready.contains(&host.name)) {
            match host.machine.stop(&on(launch, &host.name)) {
                Ok(one) => asked |= one,
                Err(other) if launch.hosts.contains(&host.name) => error = Some(other),
                Err(_) => {}
            }
        }
        error.map_or(Ok(asked), Err)
    }

    fn release(&self) {
        self.hosts.iter().for_each(|host| host.machine.release());
    }
}

fn named(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    match &numbers[..] {
        [one] => format!("repetition {one}"),
        all => format!("repetitions {}", all.join(", ")),
    }
}

#[cfg(test)]
mod tests;
