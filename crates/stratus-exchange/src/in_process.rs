//! Workers that are threads of one process, for tests.

use crate::{ExchangeError, Message, Pending, Transport};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// What is sent: its tag, where it has one, and the bytes.
type Sent = (Option<u16>, Vec<u8>);

struct Way {
    to: Sender<Sent>,
    from: Receiver<Sent>,
    /// What came before somebody wanted it.
    early: VecDeque<Sent>,
}

impl Way {
    /// The next of a kind that is there; `Err` where the other is gone.
    fn next(&mut self, tag: Option<u16>, waits: bool) -> Result<Option<Vec<u8>>, ()> {
        if let Some(at) = self.early.iter().position(|(found, _)| *found == tag) {
            return Ok(self.early.remove(at).map(|(_, bytes)| bytes));
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
            self.early.push_back(received);
        }
    }
}

/// A worker among threads.
pub struct InProcess {
    rank: usize,
    /// To each worker, and from each.
    ways: Vec<Way>,
    sent: VecDeque<Message>,
    /// What is to be received: from whom, which, into what.
    wanted: Vec<(usize, u16, Vec<u8>)>,
}

/// The ends of `size` workers.
#[must_use]
pub fn workers(size: usize) -> Vec<InProcess> {
    let mut senders: Vec<Vec<Sender<Sent>>> = (0..size).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver<Sent>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let way = |(to, from)| Way { to, from, early: VecDeque::new() };
    let ends = senders.into_iter().zip(receivers).enumerate();
    ends.map(|(rank, (to, from))| InProcess {
        rank,
        ways: to.into_iter().zip(from).map(way).collect(),
        sent: VecDeque::new(),
        wanted: Vec::new(),
    })
    .collect()
}

fn gone(peer: usize) -> ExchangeError {
    ExchangeError::Ended(format!("worker {peer} is gone"))
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ways.len()
    }

    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        let way = self.ways.get_mut(peer).ok_or_else(|| gone(peer))?;
        way.to.send((None, send.to_vec())).map_err(|_| gone(peer))?;
        let received = way.next(None, true).map_err(|()| gone(peer))?.unwrap_or_default();
        if received.len() != receive.len() {
            let (theirs, ours) = (received.len(), receive.len());
            return Err(ExchangeError::Sizes { peer, theirs, ours });
        }
        receive.copy_from_slice(&received);
        Ok(())
    }

    fn start_send(&mut self, peer: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        let way = self.ways.get(peer).ok_or_else(|| gone(peer))?;
        way.to.send((Some(tag), bytes.clone())).map_err(|_| gone(peer))?;
        self.sent.push_back(Message { peer, tag, received: false, bytes });
        Ok(())
    }

    fn start_receive(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) -> Result<(), ExchangeError> {
        self.wanted.push((peer, tag, buffer));
        Ok(())
    }

    fn progress(&mut self) -> Result<Option<Message>, ExchangeError> {
        if let Some(message) = self.sent.pop_front() {
            return Ok(Some(message));
        }
        for at in 0..self.wanted.len() {
            let (peer, tag, ref buffer) = self.wanted[at];
            let way = self.ways.get_mut(peer).ok_or_else(|| gone(peer))?;
            if let Some(bytes) = way.next(Some(tag), false).map_err(|()| gone(peer))? {
                let (theirs, ours) = (bytes.len(), buffer.len());
                if theirs != ours {
                    return Err(ExchangeError::Sizes { peer, theirs, ours });
                }
                self.wanted.remove(at);
                return Ok(Some(Message { peer, tag, received: true, bytes }));
            }
        }
        Ok(None)
    }

    fn pending(&self) -> Pending {
        match (self.sent.is_empty(), self.wanted.is_empty()) {
            (false, _) => Pending::Moving,
            (true, false) => Pending::Waiting,
            (true, true) => Pending::Nothing,
        }
    }
}
