//! The training loop does not allocate: the allocator counts on the training thread, over the iterations of
//! real epochs.

use std::path::Path;
use stratus_experiment::Experiment;
use stratus_run::machine::Machine;
use stratus_testing::allocator::requests;
use stratus_train::run::{RunOptions, start};
use stratus_train::{EpochResult, Observer, TrainingProgress};

/// Records the allocations between two iterations of one epoch.
#[derive(Default)]
struct Watch {
    last: Option<(u64, u64)>,
    iterations: u32,
    allocations: Vec<(u64, u64)>,
}

impl Observer for Watch {
    fn iteration(&mut self, progress: &TrainingProgress) {
        let count = requests();
        if let Some((epoch, before)) = self.last
            && epoch == progress.epoch
        {
            self.iterations += 1;
            if count != before {
                self.allocations.push((progress.iteration, count - before));
            }
        }
        self.last = Some((progress.epoch, requests()));
    }

    fn epoch(&mut self, _result: &EpochResult) {}
    fn info(&mut self, _text: &str) {}
    fn warn(&mut self, _text: &str) {}
}

#[test]
fn iterations_do_not_allocate() {
    check(&[]);
}

/// With the steps of every setting of a recipe.
#[test]
fn iterations_of_a_full_recipe_do_not_allocate() {
    check(&[("train.clip_norm", "1"), ("train.ema_decay", "0.99"), ("schedule.warmup_epochs", "0.5")]);
}

fn check(more: &[(&str, &str)]) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist");
    let folder = tempfile::tempdir().unwrap();
    let set = [
        ("data.path", data.to_str().unwrap()),
        ("train.epochs", "2"),
        ("train.batch_size", "4096"),
        ("model.width", "2"),
        ("checkpoint.every_seconds", "0"),
    ];
    let set = [&set, more].concat();
    let experiment = Experiment::builtin("digits").unwrap().with_overrides(&set).unwrap();
    let options = RunOptions { out: Some(folder.path().join("run")), ..RunOptions::default() };
    let mut watch = Watch::default();
    let finished = start(&experiment, &options, Machine::probe(), &mut watch).unwrap();
    // 15 iterations per epoch, the last with a smaller batch and its own program.
    assert_eq!(finished.summary.iterations, 30);
    assert_eq!(watch.iterations, 28);
    assert_eq!(watch.allocations, [], "(iteration, allocations)");
}
