//! Messages between workers: collective operations whose peers send anything.

use stratus_exchange::{ExchangeError, Message, TransferState, Transport, tree};

use super::Target;

pub const TARGET: Target =
    Target { name: "exchange", run, seeds: Vec::new, dictionary: &[], max_bytes: 4096 };

fn run(data: &[u8]) {
    let Some((&ranks, data)) = data.split_first() else { return };
    let (size, rank) = (1 << (ranks & 3), usize::from(ranks >> 2) & ((1 << (ranks & 3)) - 1));
    let mut peers = Peers { size, rank, data };
    let mut values = [1.0f32; 37];
    let _ = tree::all_reduce(&mut peers, &mut values, &mut [0.0; 64]);
    let _ = tree::all_reduce_or(&mut peers, 5);
    let _ = tree::all_gather(&mut peers, b"name");
    let _ = tree::broadcast(&mut peers, b"plan".to_vec());
}

/// Peers that send the input.
struct Peers<'a> {
    size: usize,
    rank: usize,
    data: &'a [u8],
}

impl Transport for Peers<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send_receive(&mut self, peer: usize, _: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError> {
        let (theirs, ours) = (self.data.len(), receive.len());
        let too_short = ExchangeError::LengthMismatch { peer, theirs, ours };
        let (sent, rest) = self.data.split_at_checked(ours).ok_or(too_short)?;
        receive.copy_from_slice(sent);
        self.data = rest;
        Ok(())
    }

    fn start_send(&mut self, _: usize, _: u16, _: Vec<u8>) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn start_receive(&mut self, _: usize, _: u16, _: Vec<u8>) -> Result<(), ExchangeError> {
        Ok(())
    }

    fn progress(&mut self) -> Result<Option<Message>, ExchangeError> {
        Ok(None)
    }

    fn transfer_state(&self) -> TransferState {
        TransferState::Idle
    }
}
