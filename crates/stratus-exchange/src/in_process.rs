//! Transport between workers that are threads of one process, for tests.

use crate::{ExchangeError, Message, TransferState, Transport};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// The bytes of a message, with its tag if it has one.
type TaggedBytes = (Option<u16>, Vec<u8>);

struct Connection {
    to: Sender<TaggedBytes>,
    from: Receiver<TaggedBytes>,
    /// Messages that have arrived but were not requested yet.
    queued: VecDeque<TaggedBytes>,
}

impl Connection {
    /// The next message with this tag, waiting for it if `waits`; `Err` if the peer has disconnected.
    fn next(&mut self, tag: Option<u16>, waits: bool) -> Result<Option<Vec<u8>>, ()> {
        if let Some(at) = self.queued.iter().position(|(found, _)| *found == tag) {
            return Ok(self.queued.remove(at).map(|(_, bytes)| bytes));
        }
        loop {
            let received = match (waits, self.from.try_recv()) {
                (_, Ok(received)) => received,
                (true, Err(TryRecvError::Empty)) => self.from.recv().map_err(|_| ())?,
                (false, Err(TryRecvError::Empty)) => return Ok(None),
                (_, Err(TryRecvError::Disconnected)) => return Err(()),
            };
            if received.0 == tag {
                return Ok(Some(received.1));
            }
            self.queued.push_back(received);
        }
    }
}

/// The transport of one worker.
pub struct InProcess {
    rank: usize,
    /// The connection to each worker, by rank.
    connections: Vec<Connection>,
    sent: VecDeque<Message>,
    /// Receives in progress: peer, tag, buffer.
    receives: Vec<(usize, u16, Vec<u8>)>,
}

/// Creates connected transports for `size` workers, by rank.
#[must_use]
pub fn transports(size: usize) -> Vec<InProcess> {
    let mut senders: Vec<Vec<Sender<TaggedBytes>>> = (0..size).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver<TaggedBytes>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let connection = |(to, from)| Connection { to, from, queued: VecDeque::new() };
    let ends = senders.into_iter().zip(receivers).enumerate();
    ends.map(|(rank, (to, from))| InProcess {
        rank,
        connections: to.into_iter().zip(from).map(connection).collect(),
        sent: VecDeque::new(),
        receives: Vec::new(),
    })
    .collect()
}

fn disconnected(peer: usize) -> ExchangeError {
    ExchangeError::Disconnected(format!("worker {peer} has disconnected"))
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.connections.len()
    }

    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        let connection = self.connections.get_mut(peer).ok_or_else(|| disconnected(peer))?;
        connection.to.send((None, send.to_vec())).map_err(|_| disconnected(peer))?;
        let received = connection.next(None, true).map_err(|()| disconnected(peer))?.unwrap_or_default();
        if received.len() != receive.len() {
            let (theirs, ours) = (received.len(), receive.len());
            return Err(ExchangeError::LengthMismatch { peer, theirs, ours });
        }
        receive.copy_from_slice(&received);
        Ok(())
    }

    fn start_send(&mut self, peer: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        let connection = self.connections.get(peer).ok_or_else(|| disconnected(peer))?;
        connection.to.send((Some(tag), bytes.clone())).map_err(|_| disconnected(peer))?;
        self.sent.push_back(Message { peer, tag, received: false, bytes });
        Ok(())
    }

    fn start_receive(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) -> Result<(), ExchangeError> {
        self.receives.push((peer, tag, buffer));
        Ok(())
    }

    fn progress(&mut self) -> Result<Option<Message>, ExchangeError> {
        if let Some(message) = self.sent.pop_front() {
            return Ok(Some(message));
        }
        for at in 0..self.receives.len() {
            let (peer, tag, ref buffer) = self.receives[at];
            let connection = self.connections.get_mut(peer).ok_or_else(|| disconnected(peer))?;
            if let Some(bytes) = connection.next(Some(tag), false).map_err(|()| disconnected(peer))? {
                let (theirs, ours) = (bytes.len(), buffer.len());
                if theirs != ours {
                    return Err(ExchangeError::LengthMismatch { peer, theirs, ours });
                }
                self.receives.remove(at);
                return Ok(Some(Message { peer, tag, received: true, bytes }));
            }
        }
        Ok(None)
    }

    fn transfer_state(&self) -> TransferState {
        match (self.sent.is_empty(), self.receives.is_empty()) {
            (false, _) => TransferState::Transferring,
            (true, false) => TransferState::Waiting,
            (true, true) => TransferState::Idle,
        }
    }
}
