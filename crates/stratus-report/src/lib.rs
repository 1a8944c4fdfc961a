//! Run directories to tables and CSV.
