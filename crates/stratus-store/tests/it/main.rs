//! Stores: local, HTTP, SFTP and object stores.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cache;
mod http;
mod local;
mod services;
mod sftp;
mod swift;
mod web;
