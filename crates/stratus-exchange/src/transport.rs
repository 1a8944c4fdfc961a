//! The interface by which two workers exchange bytes.

use crate::ExchangeError;

/// A message that was sent or has arrived.
#[derive(Debug)]
pub struct Message {
    /// The other worker.
    pub peer: usize,
    /// The kind of message.
    pub tag: u16,
    /// True if it was received, false if it was sent.
    pub received: bool,
    /// Its content; for a sent message, the buffer to reuse.
    pub bytes: Vec<u8>,
}

/// The state of all messages in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// None is in flight.
    Idle,
    /// All wait for their peer.
    Waiting,
    /// At least one is being transferred.
    Transferring,
}

/// One worker's connections to all others; used by a single thread.
pub trait Transport {
    /// The rank of this worker, from 0.
    fn rank(&self) -> usize;

    /// The number of workers.
    fn size(&self) -> usize;

    /// Sends `send` to a worker and fills `receive` with bytes from it, both at the same time.
    ///
    /// # Errors
    /// If the peer has disconnected, or sends a different number of bytes.
    fn send_receive(&mut self, peer: usize, send: &[u8], receive: &mut [u8]) -> Result<(), ExchangeError>;

    /// Starts to send a message to a worker. Messages with the same tag arrive in order.
    ///
    /// # Errors
    /// If the message exceeds the transport's limit, or the peer has disconnected.
    fn start_send(&mut self, peer: usize, tag: u16, bytes: Vec<u8>) -> Result<(), ExchangeError>;

    /// Starts to receive a message of exactly the buffer's length; at most one at a time per peer and tag.
    ///
    /// # Errors
    /// See [`Self::start_send`].
    fn start_receive(&mut self, peer: usize, tag: u16, buffer: Vec<u8>) -> Result<(), ExchangeError>;

    /// Makes progress on the messages in flight, and returns one that has completed.
    ///
    /// # Errors
    /// If the peer has disconnected, or a message has a different length.
    fn progress(&mut self) -> Result<Option<Message>, ExchangeError>;

    /// The state of the messages in flight.
    fn transfer_state(&self) -> TransferState;

    /// Shuts down; all workers call it. A worker that ends without it counts as failed.
    fn leave(&mut self) {}
}
