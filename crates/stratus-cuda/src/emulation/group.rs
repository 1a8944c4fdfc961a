//! NCCL of the emulation: GPUs of processes or threads of one machine that exchange bytes through sockets.

use super::memory;
use crate::exchange::{DeviceRange, Group};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use stratus_engine::DType;
use stratus_engine::exchange::{DeviceGroup, GROUP_ID_BYTES};

/// The variable with the version of the emulated NCCL. Without it, there is none.
const VERSION_VAR: &str = "STRATUS_EMULATED_NCCL";

/// The variable with the rank of the member that cannot join.
const FAILURE_VAR: &str = "STRATUS_EMULATED_NCCL_FAILURE";

/// The file that a member which cannot join leaves in the folder.
const FAILED_FILE: &str = "failed";

/// The time in which all members must join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The version of the emulated library.
///
/// # Errors
/// If there is none.
pub(crate) fn version() -> Result<String, String> {
    std::env::var(VERSION_VAR).map_err(|_| "NCCL was not found".to_owned())
}

/// The identity of a new group: the path of an empty folder, in which its members meet.
///
/// # Errors
/// If the folder cannot be created.
pub(crate) fn new_id() -> Result<Vec<u8>, String> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("stratus-gpus-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut id = folder.to_string_lossy().into_owned().into_bytes();
    if id.len() > GROUP_ID_BYTES {
        return Err(format!("the path {} is too long", folder.display()));
    }
    id.resize(GROUP_ID_BYTES, 0);
    Ok(id)
}

/// The membership of an emulated GPU in a group.
pub(crate) struct EmulatedGroup {
    rank: usize,
    /// The connection to each member, by rank; none to itself.
    connections: Vec<Option<Mutex<UnixStream>>>,
    failure: Mutex<Option<String>>,
}

impl EmulatedGroup {
    /// Joins a group; returns when all its members have joined.
    ///
    /// # Errors
    /// If a member does not join in time.
    pub fn join(group: &DeviceGroup) -> Result<Self, String> {
        let end = group.id.iter().position(|byte| *byte == 0).unwrap_or(group.id.len());
        let folder = PathBuf::from(String::from_utf8_lossy(&group.id[..end]).into_owned());
        let failed = |error: io::Error| format!("cannot join the GPUs of {}: {error}", folder.display());
        if std::env::var(FAILURE_VAR).is_ok_and(|rank| rank == group.rank.to_string()) {
            std::fs::write(folder.join(FAILED_FILE), []).map_err(failed)?;
            return Err("this GPU cannot join others".to_owned());
        }
        let connections = connect(&folder, group.rank, group.size).map_err(failed)?;
        let made = Self {
            rank: group.rank,
            connections: connections.into_iter().map(|stream| stream.map(Mutex::new)).collect(),
            failure: Mutex::default(),
        };
        // All have connected when all have passed this round; nobody needs the folder then.
        for distance in 1..group.size {
            made.exchange(group.rank ^ distance, &[1], 1)?;
        }
        if group.rank == 0 {
            let _ = std::fs::remove_dir_all(&folder);
        }
        Ok(made)
    }

    /// Sends bytes to a member, and receives bytes from it.
    fn exchange(&self, peer: usize, send: &[u8], receive: usize) -> Result<Vec<u8>, String> {
        let connection = self.connections.get(peer).and_then(Option::as_ref);
        let connection = connection.ok_or_else(|| format!("GPU {peer} is not in the group"))?;
        let mut stream = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |error: io::Error| format!("GPU {peer} of the group has failed: {error}");
        let mut writer = stream.try_clone().map_err(failed)?;
        let mut received = vec![0; receive];
        std::thread::scope(|scope| {
            let sent = scope.spawn(move || writer.write_all(send));
            let read = stream.read_exact(&mut received);
            let sent = sent.join().unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
            read.and(sent).map_err(failed)
        })?;
        Ok(received)
    }

    /// Exchanges ranges of memory with a member, unless the group has failed.
    pub fn send_receive(&self, peer: usize, send: DeviceRange, receive: DeviceRange) {
        if self.check().is_err() {
            return;
        }
        let mut own = vec![0; send.bytes];
        memory::copy_from(send.address, &mut own);
        match self.exchange(peer, &own, receive.bytes) {
            Ok(received) => memory::copy_to(&received, receive.address),
            Err(reason) => self.fail(&reason),
        }
    }

    /// Sums values over all members in place, from the last rank to the first: not along the tree.
    pub fn all_reduce(&self, values: DeviceRange, dtype: DType) {
        if self.check().is_err() {
            return;
        }
        let mut own = vec![0; values.bytes];
        memory::copy_from(values.address, &mut own);
        let members = self.connections.len();
        let mut all: Vec<(usize, Vec<u8>)> = vec![(self.rank, own.clone())];
        for distance in 1..members {
            let peer = self.rank ^ distance;
            match self.exchange(peer, &own, own.len()) {
                Ok(received) => all.push((peer, received)),
                Err(reason) => return self.fail(&reason),
            }
        }
        all.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        let mut sums = all.remove(0).1;
        all.iter().for_each(|(_, values)| add(&mut sums, values, dtype));
        memory::copy_to(&sums, values.address);
    }
}

/// Adds values to sums, each rounded to its type.
fn add(sums: &mut [u8], values: &[u8], dtype: DType) {
    match dtype {
        DType::F64 => {
            let sums = sums.as_chunks_mut().0.iter_mut();
            sums.zip(values.as_chunks().0).for_each(|(sum, value)| {
                *sum = (f64::from_le_bytes(*sum) + f64::from_le_bytes(*value)).to_le_bytes();
            });
        }
        DType::Bf16 => {
            let widen = |bits: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16);
            let sums = sums.as_chunks_mut().0.iter_mut();
            sums.zip(values.as_chunks().0).for_each(|(sum, value)| {
                let exact = (widen(*sum) + widen(*value)).to_bits();
                let nearest = exact.wrapping_add(0x7fff + ((exact >> 16) & 1)) >> 16;
                let is_nan = exact & 0x7fff_ffff > 0x7f80_0000;
                let nearest = if is_nan { 0x7fff } else { nearest };
                *sum = (nearest as u16).to_le_bytes();
            });
        }
        _ => {
            let sums = sums.as_chunks_mut().0.iter_mut();
            sums.zip(values.as_chunks().0).for_each(|(sum, value)| {
                *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*value)).to_le_bytes();
            });
        }
    }
}

impl Group for EmulatedGroup {
    fn check(&self) -> Result<(), String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    fn fail(&self, reason: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| reason.to_owned());
    }
}

/// Connects a member with all others: it accepts those of higher ranks, and asks those of lower ones.
fn connect(folder: &Path, rank: usize, size: usize) -> io::Result<Vec<Option<UnixStream>>> {
    let socket = |rank: usize| folder.join(rank.to_string());
    let listener = UnixListener::bind(socket(rank))?;
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let mut connections: Vec<Option<UnixStream>> = (0..size).map(|_| None).collect();
    for (lower, connection) in connections.iter_mut().enumerate().take(rank) {
        let mut stream = until(deadline, folder, || UnixStream::connect(socket(lower)))?;
        stream.write_all(&(rank as u64).to_le_bytes())?;
        *connection = Some(stream);
    }
    listener.set_nonblocking(true)?;
    for _ in rank + 1..size {
        let (mut stream, _) = until(deadline, folder, || listener.accept())?;
        stream.set_nonblocking(false)?;
        let mut higher = [0; 8];
        stream.read_exact(&mut higher)?;
        let place = usize::try_from(u64::from_le_bytes(higher)).ok().and_then(|at| connections.get_mut(at));
        *place.ok_or_else(|| io::Error::other("an unknown member"))? = Some(stream);
    }
    Ok(connections)
}

/// Tries something until it succeeds, a member has failed, or the deadline is reached.
fn until<T>(deadline: Instant, folder: &Path, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(_) if folder.join(FAILED_FILE).exists() => {
                return Err(io::Error::other("another GPU cannot join"));
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            outcome => return outcome,
        }
    }
}
