//! The run directory: its files, their formats, their readers and writers.
