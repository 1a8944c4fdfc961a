//! `train.exchange_type`: gradients that are sent as bf16.

use super::{PARTS, has_mpi, train};
use crate::common::{RunResult, TestDir, digits, json, last_epoch};

const BF16: [&str; 2] = ["--set", "train.exchange_type=bf16"];
const TWO: [&str; 2] = ["--workers", "2"];

/// Two equal runs, and one that is interrupted, have the same bits; they differ from those of f32. Another
/// number of workers is allowed, with a warning.
#[test]
fn rounded_gradients_train_repeatably() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let settings = [&BF16[..], &TWO].concat();
    train(&dir, "exact", 2, &TWO).expect(0);
    let note = "gradients are sent as bf16: results depend on the number of workers";
    for name in ["first", "second"] {
        let ran = train(&dir, name, 2, &settings).expect(0);
        assert_eq!(ran.err.matches(note).count(), 1, "{}", ran.err);
        assert!(!ran.err.contains("has no effect"), "{}", ran.err);
    }
    let first = RunResult::read(&dir.path("first"));
    assert!(RunResult::read(&dir.path("second")) == first);
    assert!(RunResult::read(&dir.path("exact")).weights != first.weights);
    let [exact, rounded] = ["exact", "first"].map(|run| last_epoch(&dir.path(run), "val_top1"));
    assert!(rounded > 0.8 && (exact - rounded).abs() < 0.03, "{rounded} instead of {exact}");
    let recorded = std::fs::read_to_string(dir.path("first/experiment.toml")).unwrap();
    assert!(recorded.contains("exchange_type = \"bf16\""), "{recorded}");

    train(&dir, "resumed", 2, &[&settings[..], &["--until-epoch", "1"]].concat()).expect(0);
    let ran = dir.run(&["train", "resumed", "--workers", "2"]).expect(0);
    assert!(!ran.err.contains("not bit-identical"), "{}", ran.err);
    assert!(RunResult::read(&dir.path("resumed")) == first);

    train(&dir, "moved", 2, &[&settings[..], &["--until-epoch", "1"]].concat()).expect(0);
    let ran = dir.run(&["train", "moved", "--workers", "4"]).expect(0);
    let warning = "resuming with 4 workers instead of 2: with train.exchange_type = \"bf16\" results depend \
                   on this number";
    assert_eq!(ran.err.matches(warning).count(), 1, "{}", ran.err);
    assert!(RunResult::read(&dir.path("moved")) != first);
}

/// With one worker nothing is sent: the key is ignored, with a warning.
#[test]
fn one_worker_rounds_nothing() {
    let dir = TestDir::new();
    let ran = train(&dir, "plain", 1, &[]).expect(0);
    assert!(!ran.err.contains("exchange_type"), "{}", ran.err);
    let ran = train(&dir, "ignored", 1, &BF16).expect(0);
    let warning = "train.exchange_type = \"bf16\" has no effect with one worker";
    assert_eq!(ran.err.matches(warning).count(), 1, "{}", ran.err);
    assert!(!ran.err.contains("results depend"), "{}", ran.err);
    assert!(RunResult::read(&dir.path("ignored")) == RunResult::read(&dir.path("plain")));
    let refused = train(&dir, "refused", 1, &["--set", "train.exchange_type=\u{1b}[2Jint8"]).expect(2);
    assert!(
        refused.err.contains("train.exchange_type") && !refused.err.contains('\u{1b}'),
        "{}",
        refused.err
    );
}

/// The plan counts the bytes that are sent: half of those of the gradients, and all of the others.
#[test]
fn plan_counts_half_of_the_bytes() {
    let dir = TestDir::new();
    let data = format!("data.path={}", digits().display());
    let plan = |more: &[&str]| {
        let arguments =
            [&["plan", "digits", "--set", "data.verify=false", "--set", &data][..], &PARTS, more].concat();
        dir.run(&arguments).expect(0)
    };
    let shared = |more: &[&str]| json(&plan(&[more, &["--json"]].concat()).out)["shared"].clone();
    let exact = shared(&TWO);
    let rounded = shared(&[&BF16[..], &TWO].concat());
    let bytes = |shared: &serde_json::Value, key: &str| shared[key].as_u64().unwrap();
    assert_eq!((&exact["exchange_type"], &rounded["exchange_type"]), (&json("\"f32\""), &json("\"bf16\"")));
    for key in ["exchanged_bytes", "sent_bytes"] {
        let ratio = bytes(&rounded, key) as f64 / bytes(&exact, key) as f64;
        // Metrics, counts and running statistics are sent as they are.
        assert!((0.5..0.52).contains(&ratio), "{key}: {ratio}");
    }
    let ran = plan(&[&BF16[..], &TWO].concat());
    assert!(ran.out.contains("gradients are sent as bf16"), "{}", ran.out);
    let alone = plan(&BF16);
    assert_eq!(alone.err.matches("has no effect with one worker").count(), 1, "{}", alone.err);
}
