//! Counter-based random numbers: every draw is a function of (seed, purpose, indices).
