//! Messages over MPI that go beside each other and beside what is computed.

use super::library::Library;
use super::{MOST_BYTES, Mpi};
use crate::{ExchangeError, Message, Pending};

/// The tag of the first kind of messages; each kind has two: of its length and of its bytes.
const FIRST_TAG: i32 = 16;

/// A message that was begun. What the library knows of lies behind the box and the vector, and stays there
/// until its requests are done.
pub(super) struct Begun {
    peer: usize,
    tag: u16,
    received: bool,
    length: Box<[u8; 8]>,
    bytes: Vec<u8>,
    /// Of the length and of the bytes.
    requests: [usize; 2],
    done: [bool; 2],
}

impl Begun {
    fn start(
        library: &Library,
        peer: usize,
        tag: u16,
        bytes: Vec<u8>,
        received: bool,
    ) -> Result<Self, ExchangeError> {
        if bytes.len() > MOST_BYTES {
            let reason = format!("a message of {} bytes is too large", bytes.len());
            return Err(ExchangeError::Call { call: "MPI_Isend", reason });
        }
        let length = Box::new(if received { [0; 8] } else { (bytes.len() as u64).to_le_bytes() });
        let mut begun = Self { peer, tag, received, length, bytes, requests: [0; 2], done: [false; 2] };
        let tags = [0, 1].map(|part| FIRST_TAG + 2 * i32::from(tag) + part);
        let Self { length, bytes, requests, .. } = &mut begun;
        // SAFETY: both buffers are on the heap, and kept until `one_done` has seen both requests done; an
        // error ends the process's use of MPI.
        *requests = unsafe {
            match received {
                true => {
                    [library.receive(length.as_mut(), peer, tags[0])?, library.receive(bytes, peer, tags[1])?]
                }
                false => [library.send(length.as_ref(), peer, tags[0])?, library.send(bytes, peer, tags[1])?],
            }
        };
        Ok(begun)
    }
}

impl Mpi {
    pub(super) fn start(
        &mut self,
        peer: usize,
        tag: u16,
        bytes: Vec<u8>,
        received: bool,
    ) -> Result<(), ExchangeError> {
        let begun = Begun::start(&self.library, peer, tag, bytes, received)?;
        self.begun.push(begun);
        Ok(())
    }

    pub(super) fn one_done(&mut self) -> Result<Option<Message>, ExchangeError> {
        for at in 0..self.begun.len() {
            let Begun { peer, received, length, bytes, requests, done, .. } = &mut self.begun[at];
            for (request, done) in requests.iter_mut().zip(done.iter_mut()) {
                *done = *done || self.library.test(request)?;
            }
            if *received && done[0] {
                let (theirs, ours) = (u64::from_le_bytes(**length) as usize, bytes.len());
                if theirs != ours {
                    return Err(ExchangeError::Sizes { peer: *peer, theirs, ours });
                }
            }
            if *done == [true; 2] {
                let Begun { peer, tag, received, bytes, .. } = self.begun.remove(at);
                return Ok(Some(Message { peer, tag, received, bytes }));
            }
        }
        Ok(None)
    }

    pub(super) fn how_far(&self) -> Pending {
        match self.begun.iter().any(|begun| !begun.received || begun.done[0]) {
            true => Pending::Moving,
            false if self.begun.is_empty() => Pending::Nothing,
            false => Pending::Waiting,
        }
    }
}

impl Drop for Mpi {
    /// The library may still write to what was begun.
    fn drop(&mut self) {
        self.begun.drain(..).for_each(std::mem::forget);
    }
}
