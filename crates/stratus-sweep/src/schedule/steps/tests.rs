use super::*;
use crate::schedule::tests::{ASYNCHRONOUS, FakeTrainer, HALVED, RANDOM, SWEEP, create, table, tpe};
use crate::schedule::{RowOutcome, Trainer};
use std::path::Path;

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Trains the rows of a step until an epoch.
fn train(sweep: &Sweep, step: Step, until_epoch: Option<u64>, trainer: &mut FakeTrainer) {
    for at in sweep.rows_of(step) {
        let row = &sweep.rows()[at];
        let experiment = sweep.definition.cells[row.cell - 1].repetition(row.repetition);
        trainer.train(&experiment, &sweep.run_path(row), until_epoch);
    }
}

/// Trains a sweep on several machines, which end their steps in the order of `seed`. Before each decision,
/// more epochs of the other machines may be known, and the sweep may be killed. Returns the trained epochs.
fn train_on(machines: usize, folder: &Path, text: &str, seed: u64, disturbances: Option<u64>) -> usize {
    let mut sweep = Some(create(folder, text));
    let (mut order, mut disturbances) = (Numbers(seed), disturbances.map(Numbers));
    let mut trainer = FakeTrainer::new(usize::MAX);
    let mut running: Vec<Step> = Vec::new();
    loop {
        let mut opened = sweep.take().unwrap();
        while running.len() < machines
            && let Some(step) = opened.next_step(&running).unwrap()
        {
            assert!(running.iter().all(|other| other.cell != step.cell), "{step:?}");
            for at in opened.rows_of(step) {
                opened.record_start(at).unwrap();
            }
            running.push(step);
        }
        if running.is_empty() {
            assert!(opened.rows().iter().all(|row| row.status.is_settled()), "{}", table(folder));
            assert!(opened.next_step(&[]).unwrap().is_none());
            return trainer.trained.values().sum();
        }
        if let Some(numbers) = &mut disturbances {
            for step in &running {
                let end = opened.definition.cells[step.cell - 1].experiment.train.epochs;
                let epoch = numbers.below(step.until_epoch.unwrap_or(end) as usize + 1) as u64;
                train(&opened, *step, Some(epoch), &mut trainer);
            }
            if numbers.below(3) == 0 {
                drop(opened);
                opened = Sweep::open(folder).unwrap();
            }
        }
        let step = running.remove(order.below(running.len()));
        let rows = opened.rows_of(step);
        train(&opened, step, step.until_epoch, &mut trainer);
        // Rows whose epochs were known before have nothing left to train.
        for at in 0..opened.rows().len() {
            let row = &opened.rows()[at];
            if row.cell != step.cell || row.status.is_settled() {
                continue;
            }
            opened.record_outcome(at, RowOutcome::Succeeded, step.until_epoch).unwrap();
        }
        assert!(rows.len() <= opened.definition.repetitions);
        sweep = Some(opened);
    }
}

fn every_kind() -> [String; 6] {
    [
        SWEEP.to_owned(),
        format!("{SWEEP}{HALVED}"),
        format!("{SWEEP}{ASYNCHRONOUS}"),
        tpe(),
        format!("{RANDOM}{ASYNCHRONOUS}"),
        format!("{}{ASYNCHRONOUS}", tpe()),
    ]
}

#[test]
fn one_machine_has_the_table_of_a_local_sweep() {
    for text in every_kind() {
        let local = tempfile::tempdir().unwrap();
        let mut trainer = FakeTrainer::new(usize::MAX);
        create(local.path(), &text).train(&mut trainer).unwrap();
        let remote = tempfile::tempdir().unwrap();
        let epochs = train_on(1, remote.path(), &text, 0, None);
        assert_eq!(table(remote.path()), table(local.path()));
        assert_eq!(epochs, trainer.trained.values().sum::<usize>());
    }
}

#[test]
fn cells_depend_only_on_the_order_of_results() {
    for text in every_kind() {
        let mut tables = Vec::new();
        for seed in 1..3 {
            let quiet = tempfile::tempdir().unwrap();
            let epochs = train_on(3, quiet.path(), &text, seed, None);
            for disturbances in 1..3 {
                let disturbed = tempfile::tempdir().unwrap();
                let again = train_on(3, disturbed.path(), &text, seed, Some(disturbances));
                assert_eq!(table(disturbed.path()), table(quiet.path()), "{seed}, {disturbances}");
                assert_eq!(again, epochs, "no epoch twice");
            }
            tables.push(table(quiet.path()));
        }
        let searches_by_results = text.contains("\"tpe\"") || text.contains(ASYNCHRONOUS);
        let is_same = tables.iter().all(|table| *table == tables[0]);
        assert!(is_same || searches_by_results, "{tables:?}");
    }
}

#[test]
fn waits_for_cells_that_are_compared_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &format!("{SWEEP}{HALVED}"));
    let mut running = Vec::new();
    while let Some(step) = sweep.next_step(&running).unwrap() {
        running.push(step);
    }
    let steps: Vec<Step> = (1..=5).map(|cell| Step { cell, until_epoch: Some(2) }).collect();
    assert_eq!(running, steps);
}

#[test]
fn tpe_does_not_wait_for_running_cells() {
    let folder = tempfile::tempdir().unwrap();
    let mut sweep = create(folder.path(), &tpe());
    let mut running = Vec::new();
    while let Some(step) = sweep.next_step(&running).unwrap() {
        running.push(step);
    }
    assert_eq!(running.len(), 14);
    assert_eq!(sweep.rows().len(), 14);
    let row = sweep.row_at(&folder.path().join("runs/14/1")).unwrap();
    assert_eq!(sweep.rows()[row].cell, 14);
    assert_eq!(sweep.row_at(&folder.path().join("runs/15/1")), None);
}
