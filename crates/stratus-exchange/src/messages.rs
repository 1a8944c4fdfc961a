//! Buffers and state of recurring messages between workers.

use std::collections::HashMap;

/// The maximum number of messages of one kind in flight to one worker; the sender then waits.
const MAX_IN_FLIGHT: usize = 2;

/// Messages by peer and tag, in both directions.
#[derive(Default)]
pub(crate) struct MessagePool {
    sent: HashMap<(usize, u16), SendState>,
    received: HashMap<(usize, u16), ReceiveState>,
}

#[derive(Default)]
struct SendState {
    in_flight: usize,
    /// Buffers that are free.
    free: Vec<Vec<u8>>,
}

/// The state of a message to be received.
#[derive(Default)]
enum ReceiveState {
    /// Not requested yet.
    #[default]
    Idle,
    Free(Vec<u8>),
    InFlight,
    Arrived(Vec<u8>),
}

impl MessagePool {
    /// Returns a buffer for another message; `None` while [`MAX_IN_FLIGHT`] are in flight.
    pub fn acquire_send_buffer(&mut self, peer: usize, tag: u16) -> Option<Vec<u8>> {
        let sent = self.sent.entry((peer, tag)).or_default();
        if sent.in_flight >= MAX_IN_FLIGHT {
            return None;
        }
        sent.in_flight += 1;
        Some(sent.free.pop().unwrap_or_default())
    }

    /// Returns a buffer for the next message of a kind; `None` while one is in flight or has arrived.
    pub fn acquire_receive_buffer(&mut self, peer: usize, tag: u16, length: usize) -> Option<Vec<u8>> {
        let received = self.received.entry((peer, tag)).or_default();
        if matches!(received, ReceiveState::InFlight | ReceiveState::Arrived(_)) {
            return None;
        }
        let mut buffer = match std::mem::replace(received, ReceiveState::InFlight) {
            ReceiveState::Free(buffer) => buffer,
            _ => Vec::new(),
        };
        buffer.resize(length, 0);
        Some(buffer)
    }

    /// Takes a message that has arrived; [`Self::release_receive_buffer`] returns its buffer.
    pub fn take_arrived(&mut self, peer: usize, tag: u16) -> Option<Vec<u8>> {
        let received = self.received.get_mut(&(peer, tag))?;
        match std::mem::take(received) {
            ReceiveState::Arrived(bytes) => Some(bytes),
            other => {
                *received = other;
                None
            }
        }
    }

    /// Gives back the buffer of a message that was read.
    pub fn release_receive_buffer(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) {
        self.received.insert((peer, tag), ReceiveState::Free(buffer));
    }

    /// Records that a message was sent or has arrived.
    pub fn complete(&mut self, message: crate::Message) {
        let crate::Message { peer, tag, received, bytes } = message;
        if received {
            self.received.insert((peer, tag), ReceiveState::Arrived(bytes));
        } else if let Some(sent) = self.sent.get_mut(&(peer, tag)) {
            sent.in_flight -= 1;
            sent.free.push(bytes);
        }
    }
}
