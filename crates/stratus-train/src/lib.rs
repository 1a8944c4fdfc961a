//! The experiment: configuration, loop, schedules, metrics, checkpointing, resuming.
