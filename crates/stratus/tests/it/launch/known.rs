//! The files that `stratus launch` keeps on this machine for programs that do not contact a target.

use super::{launch, target, text, wait_for_end};
use crate::common::TestDir;
use std::fs;
use stratus_launch::{LaunchEventKind, LaunchRecord, RepetitionStatus, SavedState, read_events};

#[test]
fn the_last_state_of_a_launch_and_its_events_are_kept_here() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let launched = launch(&dir, "here", 1, &[]);
    let runs = dir.path("runs");
    let file = LaunchRecord { id: text(&launched, "id").to_owned(), ..LaunchRecord::default() }.file(&runs);
    assert_eq!(SavedState::read(&file).unwrap(), None, "before the first query");
    assert_eq!(wait_for_end(&dir), ["completed"]);
    let saved = SavedState::read(&file).unwrap().unwrap();
    let state = saved.state.unwrap();
    assert_eq!((state.is_running, saved.answered), (false, Some(saved.asked)));
    assert_eq!(state.repetitions[0].status, RepetitionStatus::Completed);
    assert_eq!(state.repetitions[0].epochs, Some(1));
    assert_eq!(read_events(&file).unwrap(), []);
    dir.run(&["launch", "resume"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    let kinds: Vec<_> = read_events(&file).unwrap().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [LaunchEventKind::Resumed]);
    // A target that does not answer keeps the last state.
    let before = SavedState::read(&file).unwrap().unwrap().state;
    fs::remove_dir_all(dir.path("there")).unwrap();
    dir.run(&["launch", "fetch"]).expect(1);
    let saved = SavedState::read(&file).unwrap().unwrap();
    assert!(saved.problem.is_some() && saved.answered.is_some_and(|at| at <= saved.asked), "{saved:?}");
    assert!(before.is_some() && saved.state == before, "{saved:?}");
}
