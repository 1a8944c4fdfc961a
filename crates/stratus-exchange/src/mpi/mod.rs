//! Transport between processes, over MPI.
//!
//! The MPI library is loaded at run time. It may have any of three binary interfaces: the standard one of
//! MPI 5 (MPI Forum, "MPI: A Message-Passing Interface Standard", version 5.0, 2025, chapter 20), that of
//! MPICH, Intel MPI, Cray MPICH and MVAPICH, or that of Open MPI. Only a few point-to-point functions are
//! used: Stratus computes the sums itself, so that their order is fixed.
#![allow(unsafe_code)] // Calls into MPI are confined to this module; each block states why it is sound.

mod abi;
mod library;
mod messages;

use crate::{ExchangeError, LaunchInfo, Message, TransferState, Transport};
use library::Library;
use messages::PendingMessage;
use std::time::Duration;
use stratus_base::library::LibrarySearch;

/// The files and folders to search for the library. The standard interface comes first, as in MPICH's wheel.
pub const SEARCH: LibrarySearch = LibrarySearch {
    name: "MPI",
    environment: "STRATUS_MPI",
    files: &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpi.so.40", "libmpich.so.12"],
    dependency_folder: ".deps/mpich/lib",
    homebrew_folder: "/opt/homebrew/lib",
};

/// The maximum number of polls without sleeping while waiting for another worker.
const MAX_POLLS: u32 = 200;
/// The time between later polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// The maximum size of a message; longer transfers are split, since MPI counts in 32 bits.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// This process as one of those started by `mpiexec`.
pub struct Mpi {
    library: Library,
    rank: usize,
    size: usize,
    /// Messages in flight.
    pending: Vec<PendingMessage>,
}

impl Mpi {
    /// Loads the library and joins the other processes. Only the calling thread may use the result.
    ///
    /// # Errors
    /// If no library is found, or it does not belong to the launcher.
    pub fn join(launched: LaunchInfo) -> Result<Self, ExchangeError> {
        let library = SEARCH.load_first(Library::load, library::is_absent)?;
        library.init()?;
        let (rank, size) = (library.rank()?, library.size()?);
        if size != launched.size {
            let LaunchInfo { launcher, size: expected, .. } = launched;
            return Err(ExchangeError::LauncherMismatch {
                launcher,
                library: library.version(),
                expected,
                found: size,
            });
        }
        Ok(Self { library, rank, size, pending: Vec::new() })
    }

    /// The library's description of itself.
    #[must_use]
    pub fn describe(&self) -> String {
        self.library.version()
    }

    /// Sums values with `MPI_Allreduce`, in an order that the library chooses; for comparisons.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn all_reduce(&mut self, values: &[f32], sums: &mut [f32]) -> Result<(), ExchangeError> {
        self.library.all_reduce(values, sums)
    }

    /// Waits for all requests. With `sleeps`, the thread sleeps between polls after the first [`MAX_POLLS`],
    /// so that computing threads keep the CPU.
    fn wait(&self, requests: &mut [usize], sleeps: bool) -> Result<(), ExchangeError> {
        let mut polls = 0;
        for request in requests {
            while !self.library.test(request)? {
                polls += 1;
                match sleeps && polls > MAX_POLLS {
                    true => std::thread::sleep(POLL_INTERVAL),
                    false if polls % 16 == 0 => std::thread::yield_now(),
                    false => std::hint::spin_loop(),
                }
            }
        }
        Ok(())
    }
}

/// The tag of the lengths that two workers exchange first.
const LENGTH_TAG: i32 = 1;
/// The tag of the bytes that follow.
const DATA_TAG: i32 = 2;

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        // Lengths are exchanged first, and the worker that is early sleeps. Then both poll while bytes move.
        let lengths = (send.len() as u64).to_le_bytes();
        let mut theirs = [0; 8];
        // SAFETY: both buffers outlive the requests, which are waited for before the buffers are used again;
        // an error ends the process's use of MPI.
        let mut requests = unsafe {
            [
                self.library.receive(&mut theirs, peer, LENGTH_TAG)?,
                self.library.send(&lengths, peer, LENGTH_TAG)?,
            ]
        };
        self.wait(&mut requests, true)?;
        let theirs = u64::from_le_bytes(theirs) as usize;
        if theirs != receive.len() {
            return Err(ExchangeError::LengthMismatch { peer, theirs, ours: receive.len() });
        }
        let mut sent = send.chunks(MAX_MESSAGE_BYTES);
        let mut received = receive.chunks_mut(MAX_MESSAGE_BYTES);
        loop {
            let (out, into) = (sent.next(), received.next());
            if out.is_none() && into.is_none() {
                return Ok(());
            }
            if let Some(into) = into {
                // SAFETY: as above.
                let mut request = unsafe { [self.library.receive(into, peer, DATA_TAG)?] };
                if let Some(out) = out {
                    // SAFETY: as above.
                    let mut sending = unsafe { [self.library.send(out, peer, DATA_TAG)?] };
                    self.wait(&mut sending, false)?;
                }
                self.wait(&mut request, false)?;
            } else if let Some(out) = out {
                // SAFETY: as above.
                let mut sending = unsafe { [self.library.send(out, peer, DATA_TAG)?] };
                self.wait(&mut sending, false)?;
            }
        }
    }

    fn start_send(&mut self, peer: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.start(peer, tag, bytes, false)
    }

    fn start_receive(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) -> Result<(), ExchangeError> {
        self.start(peer, tag, buffer, true)
    }

    fn progress(&mut self) -> Result<Option<Message>, ExchangeError> {
        self.poll()
    }

    fn transfer_state(&self) -> TransferState {
        self.pending_state()
    }

    fn leave(&mut self) {
        // A failure does not matter, since the process is about to exit.
        let _ = self.library.finalize();
    }
}
