//! The exit codes of the program that other programs distinguish.

/// Interrupted, for example by a signal: the run has a checkpoint and can be resumed. It is `EX_TEMPFAIL` of
/// `sysexits.h`. The scripts of launches have it as a number.
pub const INTERRUPTED: u8 = 75;
