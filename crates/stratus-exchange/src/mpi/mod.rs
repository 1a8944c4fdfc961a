//! Workers that are processes, over MPI.
//!
//! The library is loaded at run time, whatever its binary interface: the standard one of MPI 5 (MPI Forum,
//! "MPI: A Message-Passing Interface Standard", version 5.0, 2025, chapter 20), MPICH's, which Intel's,
//! Cray's and MVAPICH's have too, or Open MPI's. A few point-to-point functions are all that is used: sums
//! are ours, so that their order is.
#![allow(unsafe_code)] // The one room for calls into MPI; each block says why it is sound.

mod abi;
mod library;
mod messages;

use crate::{ExchangeError, Launched, Message, Pending, Transport};
use library::Library;
use messages::Begun;
use std::time::Duration;
use stratus_base::library::LibrarySearch;

/// Where the library is looked for. The standard interface comes first, as MPICH's wheel has it.
pub const SEARCH: LibrarySearch = LibrarySearch {
    name: "MPI",
    environment: "STRATUS_MPI",
    files: &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpi.so.40", "libmpich.so.12"],
    dependency_folder: ".deps/mpich/lib",
    homebrew_folder: "/opt/homebrew/lib",
};

/// How long a worker that waits for another looks again and again, before it sleeps in between.
const LOOKS: u32 = 200;
/// And how long it sleeps.
const SLEEP: Duration = Duration::from_micros(50);
/// More bytes than this are sent in several messages: MPI counts in 32 bits.
const MOST_BYTES: usize = 1 << 30;

/// This process among those that `mpiexec` started.
pub struct Mpi {
    library: Library,
    rank: usize,
    size: usize,
    /// Messages that are on their way.
    begun: Vec<Begun>,
}

impl Mpi {
    /// Loads the library and joins the others. The thread that calls this alone may use it.
    ///
    /// # Errors
    /// Where there is no library, or it is not the launcher's.
    pub fn join(launched: Launched) -> Result<Self, ExchangeError> {
        let library = SEARCH.load_first(Library::load, library::is_absent)?;
        library.init()?;
        let (rank, size) = (library.rank()?, library.size()?);
        if size != launched.size {
            let Launched { launcher, size: expected, .. } = launched;
            return Err(ExchangeError::OtherLauncher {
                launcher,
                library: library.version(),
                expected,
                found: size,
            });
        }
        Ok(Self { library, rank, size, begun: Vec::new() })
    }

    /// The library, in its own words.
    #[must_use]
    pub fn describe(&self) -> String {
        self.library.version()
    }

    /// Adds up values by the library's own all-reduce, to compare with: its order is its own.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn all_reduce(&mut self, values: &[f32], sums: &mut [f32]) -> Result<(), ExchangeError> {
        self.library.all_reduce(values, sums)
    }

    /// Waits until `done` says so: at first at once, then with a sleep in between, so that the processor is
    /// there for those who compute.
    fn wait(&self, requests: &mut [usize], sleeps: bool) -> Result<(), ExchangeError> {
        let mut looks = 0;
        for request in requests {
            while !self.library.test(request)? {
                looks += 1;
                match sleeps && looks > LOOKS {
                    true => std::thread::sleep(SLEEP),
                    false if looks % 16 == 0 => std::thread::yield_now(),
                    false => std::hint::spin_loop(),
                }
            }
        }
        Ok(())
    }
}

/// Tags of the messages that two workers meet with.
const MEET: i32 = 1;
const DATA: i32 = 2;

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        // The two meet first, and say how much they send. Who comes early sleeps; the bytes then move while
        // both look after them.
        let lengths = (send.len() as u64).to_le_bytes();
        let mut theirs = [0; 8];
        // SAFETY: both buffers outlive the requests, which are waited for before anything else happens to
        // them; an error ends the process's use of MPI.
        let mut requests = unsafe {
            [self.library.receive(&mut theirs, peer, MEET)?, self.library.send(&lengths, peer, MEET)?]
        };
        self.wait(&mut requests, true)?;
        let theirs = u64::from_le_bytes(theirs) as usize;
        if theirs != receive.len() {
            return Err(ExchangeError::Sizes { peer, theirs, ours: receive.len() });
        }
        let mut sent = send.chunks(MOST_BYTES);
        let mut received = receive.chunks_mut(MOST_BYTES);
        loop {
            let (out, into) = (sent.next(), received.next());
            if out.is_none() && into.is_none() {
                return Ok(());
            }
            if let Some(into) = into {
                // SAFETY: as above.
                let mut request = unsafe { [self.library.receive(into, peer, DATA)?] };
                if let Some(out) = out {
                    // SAFETY: as above.
                    let mut sending = unsafe { [self.library.send(out, peer, DATA)?] };
                    self.wait(&mut sending, false)?;
                }
                self.wait(&mut request, false)?;
            } else if let Some(out) = out {
                // SAFETY: as above.
                let mut sending = unsafe { [self.library.send(out, peer, DATA)?] };
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
        self.one_done()
    }

    fn pending(&self) -> Pending {
        self.how_far()
    }

    fn leave(&mut self) {
        // There is nobody to tell of a failure.
        let _ = self.library.finalize();
    }
}
