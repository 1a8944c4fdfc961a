//! Workers that are threads of one process: for tests.

use crate::{ExchangeError, Transport};
use std::sync::mpsc::{Receiver, Sender, channel};

type Way = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

/// A worker among threads.
pub struct InProcess {
    rank: usize,
    /// To each worker, and from each.
    ways: Vec<Way>,
}

/// The ends of `size` workers.
#[must_use]
pub fn workers(size: usize) -> Vec<InProcess> {
    let mut senders: Vec<Vec<Sender<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    let mut receivers: Vec<Vec<Receiver<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let ends = senders.into_iter().zip(receivers).enumerate();
    ends.map(|(rank, (to, from))| InProcess { rank, ways: to.into_iter().zip(from).collect() }).collect()
}

impl Transport for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ways.len()
    }

    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        let gone = || ExchangeError::Ended(format!("worker {peer} is gone"));
        let (to, from) = self.ways.get(peer).ok_or_else(gone)?;
        to.send(send.to_vec()).map_err(|_| gone())?;
        let received = from.recv().map_err(|_| gone())?;
        if received.len() != receive.len() {
            let (theirs, ours) = (received.len(), receive.len());
            return Err(ExchangeError::Sizes { peer, theirs, ours });
        }
        receive.copy_from_slice(&received);
        Ok(())
    }
}
