//! How two workers exchange bytes.

use crate::ExchangeError;

/// A message that was sent or has arrived.
#[derive(Debug)]
pub struct Message {
    /// The other worker.
    pub peer: usize,
    /// Which kind of message.
    pub tag: u16,
    /// Whether it was received.
    pub received: bool,
    /// What it says; of one that was sent, its memory.
    pub bytes: Vec<u8>,
}

/// How far messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// All are done.
    Nothing,
    /// The other end of each is not there yet.
    Waiting,
    /// Bytes are on their way.
    Moving,
}

/// A worker's end of the ways to all others. One thread calls it.
pub trait Transport {
    /// This worker's number, from 0.
    fn rank(&self) -> usize;

    /// How many workers there are.
    fn size(&self) -> usize;

    /// Sends bytes to a worker and receives as many as `receive` holds from it, both at the same time.
    ///
    /// # Errors
    /// Where the other is gone.
    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError>;

    /// Begins to send a message to a worker. Messages of one tag arrive in their order.
    ///
    /// # Errors
    /// Where it is larger than the transport takes, or the other is gone.
    fn start_send(&mut self, peer: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError>;

    /// Begins to receive a message, of as many bytes as the buffer has. One at a time of each tag of a
    /// worker.
    ///
    /// # Errors
    /// As [`Self::start_send`].
    fn start_receive(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) -> Result<(), ExchangeError>;

    /// Works at what was begun, and returns one message that is done.
    ///
    /// # Errors
    /// Where the other is gone, or a message has another size.
    fn progress(&mut self) -> Result<Option<Message>, ExchangeError>;

    /// How far the messages are that were begun.
    fn pending(&self) -> Pending;

    /// Leaves the others, when all do: nothing is exchanged any more. Whoever does not is taken for dead.
    fn leave(&mut self) {}
}
