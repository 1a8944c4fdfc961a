//! How two workers exchange bytes.

use crate::ExchangeError;

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

    /// Leaves the others, when all do: nothing is exchanged any more. Whoever does not is taken for dead.
    fn leave(&mut self) {}
}
