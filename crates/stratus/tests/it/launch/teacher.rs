//! The teacher of a launched run is uploaded with it.

use super::{launch, target, wait_for_end};
use crate::common::{RunResult, TestDir};

#[test]
fn a_launched_run_learns_from_its_teacher() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let teacher = ["--set", "train.teacher=teacher"];
    let missing = dir.run(&[&["launch", "here", "digits"], &teacher[..]].concat()).expect(2).err;
    assert!(missing.contains("train.teacher: teacher not found"), "{missing}");
    dir.train("teacher", 1, &[]).expect(0);
    launch(&dir, "here", 1, &teacher);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    dir.run(&["launch", "fetch"]).expect(0);
    dir.train("near", 1, &[&teacher[..], &["--set", "train.seed=7"]].concat()).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), RunResult::read(&dir.path("near")));
}
