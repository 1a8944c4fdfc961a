//! Answers of a target: the state of jobs, queues, lists of files, framed output.

use super::Target;
use crate::seeds;

pub const TARGET: Target = Target {
    name: "launch_answers",
    run,
    seeds: seeds::launch_answers,
    dictionary: &[
        "queue=",
        "account=",
        "repetition",
        "heartbeat_s=",
        "12_[1-9999]",
        "RUNNING",
        "stratus-token-begins\\x0a",
        "stratus-token-ended 0",
        "[{\"job_name\":\"",
        "\"job_id\":1",
        "\"status\":\"RUNNING\"",
        "./",
        "../",
    ],
    max_bytes: 65536,
};

fn run(data: &[u8]) {
    stratus_launch::fuzzing::framed_output(data);
    stratus_launch::fuzzing::answers(&String::from_utf8_lossy(data));
}
