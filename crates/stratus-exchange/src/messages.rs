//! Messages from worker to worker, of which each kind comes again and again: their memory, and where each is.

use std::collections::HashMap;

/// Messages of one kind to one worker that may be on their way: the sender waits with more.
const ON_THEIR_WAY: usize = 2;

/// The messages of each kind to and from each worker.
#[derive(Default)]
pub(crate) struct Messages {
    sent: HashMap<(usize, u16), Sent>,
    received: HashMap<(usize, u16), Received>,
}

#[derive(Default)]
struct Sent {
    on_their_way: usize,
    /// Memory that is free.
    free: Vec<Vec<u8>>,
}

/// Where a message that is to be received is.
#[derive(Default)]
enum Received {
    /// Nobody has asked for it; its memory, once it had some.
    #[default]
    Idle,
    Free(Vec<u8>),
    Begun,
    Arrived(Vec<u8>),
}

impl Messages {
    /// Memory for a message, where another one may be sent.
    pub fn memory_to_send(&mut self, peer: usize, tag: u16) -> Option<Vec<u8>> {
        let sent = self.sent.entry((peer, tag)).or_default();
        if sent.on_their_way >= ON_THEIR_WAY {
            return None;
        }
        sent.on_their_way += 1;
        Some(sent.free.pop().unwrap_or_default())
    }

    /// Memory for the next message of a kind, where none was begun.
    pub fn memory_to_receive(&mut self, peer: usize, tag: u16, length: usize) -> Option<Vec<u8>> {
        let received = self.received.entry((peer, tag)).or_default();
        if matches!(received, Received::Begun | Received::Arrived(_)) {
            return None;
        }
        let mut memory = match std::mem::replace(received, Received::Begun) {
            Received::Free(memory) => memory,
            _ => Vec::new(),
        };
        memory.resize(length, 0);
        Some(memory)
    }

    /// A message that has arrived; its memory is given back by [`Self::read`].
    pub fn arrived(&mut self, peer: usize, tag: u16) -> Option<Vec<u8>> {
        let received = self.received.get_mut(&(peer, tag))?;
        match std::mem::take(received) {
            Received::Arrived(bytes) => Some(bytes),
            other => {
                *received = other;
                None
            }
        }
    }

    /// Takes the memory of a message that was read.
    pub fn read(&mut self, peer: usize, tag: u16, memory: Vec<u8>) {
        self.received.insert((peer, tag), Received::Free(memory));
    }

    /// A message is done.
    pub fn done(&mut self, message: crate::Message) {
        let crate::Message { peer, tag, received, bytes } = message;
        if received {
            self.received.insert((peer, tag), Received::Arrived(bytes));
        } else if let Some(sent) = self.sent.get_mut(&(peer, tag)) {
            sent.on_their_way -= 1;
            sent.free.push(bytes);
        }
    }
}
