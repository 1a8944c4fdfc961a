//! The server through real HTTP requests, on generated runs.

mod common;
mod guard;
mod live;
mod many;
mod pages;
