//! `report --diff` on generated timelines: significant changes, noise, other networks and batch sizes.

use std::path::{Path, PathBuf};

use stratus_report::report::{Diff, Report, TimeUnit};
use stratus_report::{markdown, page};
use stratus_run::timeline::{Phase, Program, Purpose, Slot, TimelineWriter};
use stratus_run::{RunDir, atomic};

/// A step: layers joined by `+`, phase, microseconds.
type Step<'a> = (&'a str, Phase, u64);

const PLAIN: [Step<'static>; 6] = [
    ("", Phase::DataWait, 500),
    ("conv1", Phase::Forward, 1000),
    ("fc", Phase::Forward, 2000),
    ("fc", Phase::BackwardWeights, 3000),
    ("conv1", Phase::BackwardWeights, 4000),
    ("conv1", Phase::Update, 100),
];

/// A run with the times of `steps`, plus or minus 1 %; every fourth iteration is a smaller last batch with a
/// third of the times.
fn make(root: &Path, seed: u64, batch: u64, iterations: u64, steps: &[Step]) -> PathBuf {
    let run = RunDir::create(root, "digits").unwrap();
    atomic::write(&run.experiment(), b"[model]\nname = \"digits\"\n").unwrap();
    run.prepare().unwrap();
    let slot = |(layers, phase, _): &Step| {
        let layers = layers.split('+').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Slot { layers, kind: "conv2d".into(), phase: *phase, device: "cpu".into() }
    };
    let program = |name: &str, batch_size| Program {
        name: name.into(),
        purpose: Purpose::Train,
        batch_size,
        slots: steps.iter().map(slot).collect(),
    };
    let mut timeline = TimelineWriter::open(&run.timeline()).unwrap();
    let whole = timeline.register(&program("train", batch)).unwrap();
    let tail = timeline.register(&program("train_tail", batch / 2)).unwrap();
    let mut state = seed;
    for iteration in 1..=iterations {
        let (id, part) = if iteration % 4 == 0 { (tail, 3) } else { (whole, 1) };
        let ns: Vec<u64> = steps
            .iter()
            .map(|(.., us)| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                us * (990 + (state >> 33) % 21) / part
            })
            .collect();
        timeline.append(id, 1, iteration, ns.iter().sum::<u64>() + 50, &ns).unwrap();
    }
    run.path().to_owned()
}

fn diff(before: &Path, after: &Path) -> (Report, Diff) {
    let mut report = Report::read(&[before.to_owned(), after.to_owned()], None, None);
    report.compare_times(None);
    let diff = report.diff.clone().unwrap();
    (report, diff)
}

#[test]
fn separates_significant_changes_from_noise() {
    let root = tempfile::tempdir().unwrap();
    let before = make(root.path(), 1, 32, 80, &PLAIN);
    let mut steps = PLAIN;
    steps[1].2 = 1500;
    steps[4].2 = 3000;
    let after = make(root.path(), 2, 32, 80, &steps);
    let (report, diff) = diff(&before, &after);
    assert_eq!((diff.per, diff.batch_size, diff.blocks), (TimeUnit::PerIteration, [32, 32], [20, 20]));
    // Four of the eighty iterations are skipped, one of them a last batch; nineteen others are last batches.
    assert_eq!((diff.skipped, diff.iterations), ([4, 4], [57, 57]));
    let [conv, fc] = &diff.layers[..] else { panic!("{:?}", diff.layers) };
    assert_eq!((conv.layer.as_str(), fc.layer.as_str()), ("conv1", "fc"));
    assert_eq!(conv.forward.verdict(), Some("slower"));
    assert_eq!(conv.backward_weights.verdict(), Some("faster"));
    assert_eq!(conv.update.verdict(), Some("within the spread"));
    assert_eq!(conv.backward_data, stratus_report::report::Change::default());
    assert_eq!(fc.total.verdict(), Some("within the spread"));
    assert!((conv.forward.difference_ms.unwrap() - 0.5).abs() < 0.01, "{conv:?}");
    assert!((conv.backward_weights.percent.unwrap() + 25.0).abs() < 1.0, "{conv:?}");
    assert!((diff.wall.difference_ms.unwrap() + 0.5).abs() < 0.02, "{:?}", diff.wall);
    // The rows sum to the wall time in both runs.
    for side in [0, 1] {
        let ms = |change: &stratus_report::report::Change| [change.before_ms, change.after_ms][side];
        let layers = diff.layers.iter().filter_map(|layer| ms(&layer.total));
        let rest = diff.phases.iter().filter_map(|row| ms(&row.change));
        let sum: f64 = layers.chain(rest).chain(ms(&diff.unattributed)).sum();
        assert!((sum - ms(&diff.wall).unwrap()).abs() < 1e-9, "{sum}");
    }
    assert!(diff.headline.starts_with("digits/2 takes 10."), "{}", diff.headline);
    assert!(diff.headline.contains("% less, beyond the spread of iterations. Mostly due to: conv1 -0."));

    let html = page::render(&report);
    for text in ["Time differences", "within the spread", "All layers and phases", "Welch"] {
        assert!(html.contains(text), "{text}");
    }
    let csv = markdown::to_csv(&report);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "layer,kind,phase,per,before_ms,after_ms,difference_ms,percent,p,verdict");
    assert!(lines[1].starts_with("conv1,conv2d,forward,iteration,1.") && lines[1].ends_with(",slower"));
    assert_eq!(lines.len(), 1 + 4 + 3 + 3, "{csv}");
    let text = markdown::markdown(&report);
    assert!(text.starts_with("# Time differences\n\ndigits/2 takes 10."), "{text}");
    assert!(text.contains("| conv1 | backward weights | 4."), "{text}");
    let svg = page::diff_svg(&diff);
    assert!(svg.contains("class=\"slower\"") && svg.contains("class=\"faster\""), "{svg}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["diff"]["layers"][0]["forward"]["differs"], true);
    assert_eq!(json["diff"]["per"], "iteration");
}

#[test]
fn repetitions_rarely_differ_significantly() {
    let root = tempfile::tempdir().unwrap();
    let runs: Vec<PathBuf> = (0..12).map(|seed| make(root.path(), seed, 32, 80, &PLAIN)).collect();
    let differ = runs.windows(2).filter(|pair| {
        let (_, diff) = diff(&pair[0], &pair[1]);
        let layers = diff.layers.iter().flat_map(|layer| layer.phases().map(|(_, change)| change.differs));
        let all = layers.chain(diff.phases.iter().map(|row| row.change.differs)).chain([diff.wall.differs]);
        all.flatten().any(|differs| differs)
    });
    // At most one pair in twenty has a significant difference by chance.
    let differ = differ.count();
    assert!(differ <= 1, "{differ} of 11");
}

#[test]
fn compares_the_common_layers_of_different_networks_and_batches() {
    let root = tempfile::tempdir().unwrap();
    let before = make(root.path(), 1, 32, 40, &PLAIN);
    // Twice the images in 1.5 times the time; conv1 is fused with the following layer, and one layer is new.
    let steps = [
        ("", Phase::DataWait, 750),
        ("conv1+relu1", Phase::Forward, 1500),
        ("fc", Phase::Forward, 3000),
        ("extra", Phase::Forward, 100),
        ("fc", Phase::BackwardWeights, 4500),
        ("conv1", Phase::BackwardWeights, 6000),
        ("conv1", Phase::Update, 150),
    ];
    let after = make(root.path(), 2, 64, 40, &steps);
    let (report, diff) = diff(&before, &after);
    assert_eq!((diff.per, diff.batch_size), (TimeUnit::PerImage, [32, 64]));
    let names: Vec<&str> = diff.layers.iter().map(|layer| layer.layer.as_str()).collect();
    assert_eq!(names, ["conv1+relu1", "fc", "extra"]);
    assert_eq!(diff.only, [vec![], vec!["extra".to_owned()]]);
    for layer in &diff.layers[..2] {
        assert!((layer.total.percent.unwrap() + 25.0).abs() < 1.0, "{layer:?}");
    }
    assert_eq!(diff.layers[2].total.verdict(), Some("only after"));
    assert_eq!(diff.layers[2].total.difference_ms, None);
    assert!((diff.wall.before_ms.unwrap() - 10.6 / 32.0).abs() < 0.01, "{:?}", diff.wall);
    let html = page::render(&report);
    assert!(html.contains("Only in digits/2: extra.") && html.contains("µs per image"));
    assert!(markdown::to_csv(&report).contains(",forward,image,"));
}

#[test]
fn handles_short_and_missing_timelines() {
    let root = tempfile::tempdir().unwrap();
    let one = make(root.path(), 1, 32, 1, &PLAIN);
    let none = make(root.path(), 1, 32, 0, &PLAIN);
    let (_, single) = diff(&one, &one);
    assert_eq!((single.wall.differs, single.wall.difference_ms), (None, Some(0.0)));
    let (_, empty) = diff(&one, &none);
    assert_eq!(empty.headline, "digits/2 has no iteration to compare.");
    let mut report = Report::read(&[one.clone(), none.clone()], None, None);
    std::fs::remove_dir_all(none.join("timeline")).unwrap();
    report.compare_times(None);
    assert!(report.diff.is_none());
    assert!(report.problems.iter().any(|problem| problem.what == "time differences"));
}
