//! Messages between workers, as the thread of a worker receives them: pipeline stages, gathered texts.

use std::collections::VecDeque;

use stratus_exchange::{ExchangeError, Message, TransferState, Transport, WorkerGroup};

use super::Target;

pub const TARGET: Target =
    Target { name: "messages", run, seeds: Vec::new, dictionary: &[], max_bytes: 1024 };

fn run(data: &[u8]) {
    let peers = Peers { data: data.to_vec(), read: 0, in_flight: VecDeque::new() };
    let Ok(group) = WorkerGroup::open(move || Ok(peers)) else { return };
    let _ = group.all_gatherv(b"names".to_vec());
    let mut values = [0; 24];
    let _ = group.send_to(1, 3, &[&mut values]);
    for kind in [3, 4] {
        let (first, second) = values.split_at_mut(8);
        let _ = group.receive_from(1, kind, kind == 3, &mut [first, second]);
    }
    let _ = group.all_reduce_or(1);
    let _ = group.broadcast(b"plan".to_vec());
    let _ = group.leave();
}

/// A second worker that sends the input. Its messages have lengths of its choice, and it disconnects at the
/// end of the input.
struct Peers {
    data: Vec<u8>,
    read: usize,
    in_flight: VecDeque<(u16, bool, Vec<u8>)>,
}

impl Peers {
    fn take(&mut self, count: usize) -> Result<&[u8], ExchangeError> {
        let bytes = self.data.get(self.read..).and_then(|rest| rest.get(..count));
        self.read += count;
        bytes.ok_or_else(|| ExchangeError::Disconnected("the input has ended".to_owned()))
    }
}

impl Transport for Peers {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn send_receive(&mut self, _: usize, _: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        receive.copy_from_slice(self.take(receive.len())?);
        Ok(())
    }

    fn start_send(&mut self, _: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.in_flight.push_back((tag, false, bytes));
        Ok(())
    }

    fn start_receive(&mut self, _: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError> {
        self.in_flight.push_back((tag, true, bytes));
        Ok(())
    }

    fn progress(&mut self) -> Result<Option<Message>, ExchangeError> {
        let Some((tag, received, mut bytes)) = self.in_flight.pop_front() else { return Ok(None) };
        if received {
            let length = usize::from(self.take(1)?[0]);
            bytes = self.take(length)?.to_vec();
        }
        Ok(Some(Message { peer: 1, tag, received, bytes }))
    }

    fn transfer_state(&self) -> TransferState {
        if self.in_flight.is_empty() { TransferState::Idle } else { TransferState::Transferring }
    }
}
