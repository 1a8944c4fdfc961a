//! The crate by its public items.

mod table;
