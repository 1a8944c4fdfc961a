//! Answers of an SFTP server, from a program instead of `ssh`: see `scripts/fuzz.sh`.

use std::sync::OnceLock;
use std::time::Duration;
use stratus_store::{RetryPolicy, Store};

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target { name: "sftp", run, seeds: seeds::sftp, dictionary: &[], max_bytes: 4096 };

fn run(data: &[u8]) {
    static STORE: OnceLock<Option<Store>> = OnceLock::new();
    let open = || {
        let policy = RetryPolicy {
            idle_timeout: Duration::from_secs(1),
            give_up_after: Duration::ZERO,
            first_delay: Duration::ZERO,
            max_delay: Duration::ZERO,
        };
        Store::open_with_policy("sftp://host/folder", policy).ok()
    };
    let Some(answer) = std::env::var_os("STRATUS_FUZZ_ANSWER") else { return };
    let Some(store) = STORE.get_or_init(open) else { return };
    let answers = packets(data);
    if std::fs::write(answer, answers).is_ok() {
        let _ = store.list("");
        let _ = store.size("file");
        let _ = store.read("file", 1 << 20);
    }
}

/// Splits the data into packets: each begins with a byte that is its length, so that most are well formed.
fn packets(mut data: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some((&length, rest)) = data.split_first() {
        let (packet, rest) = rest.split_at(rest.len().min(usize::from(length)));
        all.extend(u32::from(length).to_be_bytes());
        all.extend(packet);
        data = rest;
    }
    all
}
