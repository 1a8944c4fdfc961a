//! Workers on the reference backend, as threads of one process.

mod training;
