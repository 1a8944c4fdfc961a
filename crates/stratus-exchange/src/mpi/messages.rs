//! Concurrent messages over MPI.

use super::library::Library;
use super::{MAX_MESSAGE_BYTES, Mpi};
use crate::{ExchangeError, Message, TransferState};

/// The tag of the first kind of message; each kind has two tags, one for its length and one for its bytes.
const FIRST_TAG: i32 = 16;

/// A message in flight. The library's pointers refer to the heap memory of the box and the vector, which
/// stays in place until both requests have completed.
pub(super) struct PendingMessage {
    peer: usize,
    tag: u16,
    received: bool,
    length: Box<[u8; 8]>,
    bytes: Vec<u8>,
    /// The requests of the length and of the bytes.
    requests: [usize; 2],
    done: [bool; 2],
}

impl PendingMessage {
    fn start(
        library: &Library,
        peer: usize,
        tag: u16,
        bytes: Vec<u8>,
        received: bool,
    ) -> Result<Self, ExchangeError> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            let reason = format!("a message of {} bytes is too large", bytes.len());
            return Err(ExchangeError::Call { call: "MPI_Isend", reason });
        }
        let length = Box::new(if received { [0; 8] } else { (bytes.len() as u64).to_le_bytes() });
        let mut message = Self { peer, tag, received, length, bytes, requests: [0; 2], done: [false; 2] };
        let tags = [0, 1].map(|part| FIRST_TAG + 2 * i32::from(tag) + part);
        let Self { length, bytes, requests, .. } = &mut message;
        // SAFETY: both buffers are on the heap and kept until `poll` has seen both requests complete; an
        // error ends the process's use of MPI.
        *requests = unsafe {
            match received {
                true => {
                    [library.receive(length.as_mut(), peer, tags[0])?, library.receive(bytes, peer, tags[1])?]
                }
                false => [library.send(length.as_ref(), peer, tags[0])?, library.send(bytes, peer, tags[1])?],
            }
        };
        Ok(message)
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
        let message = PendingMessage::start(&self.library, peer, tag, bytes, received)?;
        self.pending.push(message);
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Result<Option<Message>, ExchangeError> {
        for at in 0..self.pending.len() {
            let PendingMessage { peer, received, length, bytes, requests, done, .. } = &mut self.pending[at];
            for (request, done) in requests.iter_mut().zip(done.iter_mut()) {
                *done = *done || self.library.test(request)?;
            }
            if *received && done[0] {
                let (theirs, ours) = (u64::from_le_bytes(**length) as usize, bytes.len());
                if theirs != ours {
                    return Err(ExchangeError::LengthMismatch { peer: *peer, theirs, ours });
                }
            }
            if *done == [true; 2] {
                let PendingMessage { peer, tag, received, bytes, .. } = self.pending.remove(at);
                return Ok(Some(Message { peer, tag, received, bytes }));
            }
        }
        Ok(None)
    }

    pub(super) fn pending_state(&self) -> TransferState {
        match self.pending.iter().any(|message| !message.received || message.done[0]) {
            true => TransferState::Transferring,
            false if self.pending.is_empty() => TransferState::Idle,
            false => TransferState::Waiting,
        }
    }
}

impl Drop for Mpi {
    /// Leaks the buffers in flight, since the library may still write to them.
    fn drop(&mut self) {
        self.pending.drain(..).for_each(std::mem::forget);
    }
}
