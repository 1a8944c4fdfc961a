//! Reports on generated run directories.

use std::fs;
use std::path::Path;

use stratus_report::accounting::{Accounting, AccountingOptions, render};
use stratus_report::collect::{Progress, RunRecord, to_csv};
use stratus_report::{layers, run_table};
use stratus_run::classes::OutputMetrics;
use stratus_run::csv::{CsvWriter, IterationRow, Task};
use stratus_run::forecast::{RunPart, with_total};
use stratus_run::layout::TIMELINE_RECORDS;
use stratus_run::machine::{Device, Machine};
use stratus_run::summary::{Energy, Forecast, LossScaleSummary, Status, Summary, TimeAccount, TimeBreakdown};
use stratus_run::timeline::{Phase, Program, Purpose, Slot, TimelineWriter};
use stratus_run::{RunDir, atomic};

fn slot(layers: &[&str], kind: &str, phase: Phase) -> Slot {
    let layers = layers.iter().map(ToString::to_string).collect();
    Slot { layers, kind: kind.into(), phase, device: "cpu".into() }
}

/// Fused forward steps, separate backward steps, updates, and the intervals between steps.
fn train(name: &str, batch_size: u64) -> Program {
    let slots = vec![
        slot(&[], "", Phase::DataWait),
        slot(&["conv1"], "conv2d", Phase::Forward),
        slot(&["layer1.1", "layer1.2"], "conv2d", Phase::Forward),
        slot(&[], "reorder", Phase::Layout),
        slot(&["fc"], "linear", Phase::Forward),
        slot(&[], "cross_entropy", Phase::Loss),
        slot(&["fc"], "linear", Phase::BackwardData),
        slot(&["fc"], "linear", Phase::BackwardWeights),
        slot(&["layer1.1", "layer1.2"], "conv2d", Phase::BackwardData),
        slot(&["conv1"], "conv2d", Phase::BackwardWeights),
        slot(&["conv1"], "sgd", Phase::Update),
        slot(&["fc"], "sgd", Phase::Update),
        slot(&[], "", Phase::Bookkeeping),
    ];
    Program { name: name.into(), purpose: Purpose::Train, batch_size, slots }
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn new_run(root: &Path) -> RunDir {
    let run = RunDir::create(root, "digits").unwrap();
    atomic::write(&run.experiment(), b"model = \"digits\"\n[train]\nepochs = 2\nrate = 0.003\n").unwrap();
    run.prepare().unwrap();
    run
}

/// A run with irregular times, and with a smaller last batch and a validation every tenth iteration.
fn irregular(root: &Path, iterations: u64) -> (RunDir, Vec<(u64, Vec<u64>)>) {
    let run = new_run(root);
    let mut writer = TimelineWriter::open(&run.timeline()).unwrap();
    let full = writer.register(&train("train", 32)).unwrap();
    let validation = Program { purpose: Purpose::Validation, ..train("validation", 32) };
    let validation = writer.register(&validation).unwrap();
    let mut tail = train("tail", 5);
    tail.slots.truncate(11);
    let tail = writer.register(&tail).unwrap();
    let mut numbers = Numbers(1);
    let mut written = Vec::new();
    for i in 1..=iterations {
        let (id, slots) = if i % 10 == 0 { (tail, 11) } else { (full, 13) };
        let ns: Vec<u64> = (0..slots).map(|_| numbers.next(3_000_000)).collect();
        let wall = ns.iter().sum::<u64>() + numbers.next(5000);
        writer.append(id, 1 + (i / 10) as u32, i, wall, &ns).unwrap();
        if i % 10 == 0 {
            writer.append(validation, 1, i, 1 << 40, &[1 << 35; 13]).unwrap();
        }
        written.push((wall, ns));
    }
    (run, written)
}

#[test]
fn rows_sum_to_the_wall_time_exactly() {
    let root = tempfile::tempdir().unwrap();
    let (run, written) = irregular(root.path(), 137);
    for skip in [None, Some(0), Some(5), Some(136), Some(137), Some(1000)] {
        let accounting = Accounting::for_run(&run, &AccountingOptions { skip }).unwrap();
        let skipped = accounting.skipped as usize;
        assert_eq!(accounting.iterations as usize, 137 - skipped);
        let wall: u64 = written[skipped..].iter().map(|(wall, _)| wall).sum();
        assert_eq!(accounting.wall.total_ns, i128::from(wall));
        for layer in &accounting.layers {
            let parts = [layer.forward, layer.backward_data, layer.backward_weights, layer.update];
            assert_eq!(layer.total.total_ns, parts.iter().map(|cost| cost.total_ns).sum::<i128>());
            assert_eq!(
                layer.backward.total_ns,
                layer.backward_data.total_ns + layer.backward_weights.total_ns
            );
        }
        let rows = accounting.layers.iter().map(|layer| layer.total);
        let rows: Vec<_> = rows
            .chain(accounting.phases.iter().map(|row| row.cost))
            .chain([accounting.unattributed])
            .collect();
        assert_eq!(rows.iter().map(|cost| cost.total_ns).sum::<i128>(), accounting.wall.total_ns);
        let mean: f64 = rows.iter().map(|cost| cost.mean_ms).sum();
        assert!((mean - accounting.wall.mean_ms).abs() <= 1e-12 * mean.abs().max(1.0));
    }
}

/// A run with equal times in all iterations except the first two.
fn regular(root: &Path) -> RunDir {
    let run = new_run(root);
    let mut writer = TimelineWriter::open(&run.timeline()).unwrap();
    let id = writer.register(&train("train", 32)).unwrap();
    let mut rows = CsvWriter::open(&run.iterations(), Task::Classification).unwrap();
    for i in 1..=6u64 {
        let scale = if i <= 2 { 10_000 } else { 1000 };
        let ns: Vec<u64> = (1..=13).map(|k| k * 100 * scale + k).collect();
        writer.append(id, 1, i, ns.iter().sum::<u64>() + 50 * scale, &ns).unwrap();
        let row = IterationRow {
            epoch: 1,
            iteration: i,
            data_s: 0.25,
            train_s: 0.5,
            unattributed_s: 0.25,
            ..Default::default()
        };
        rows.append(&row).unwrap();
    }
    run
}

#[test]
fn renders_the_accounting_table() {
    let root = tempfile::tempdir().unwrap();
    let run = regular(root.path());
    let accounting = Accounting::for_run(&run, &AccountingOptions::default()).unwrap();
    let text = render(&accounting, None, 100);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let expected = "\
Milliseconds per iteration, mean of 4 iterations (first 2 skipped)

layer                            kind           forward backward   update    total   median  share
conv1                            conv2d           0.200    1.000    1.100    2.300    2.300  25.1%
layer1.1+layer1.2                conv2d           0.300    0.900    0.000    1.200    1.200  13.1%
fc                               linear           0.500    1.500    1.200    3.200    3.200  35.0%
all layers                                        1.000    3.400    2.300    6.700           73.2%

loss                                                                         0.600    0.600   6.6%
layout changes                                                               0.400    0.400   4.4%
data wait                                                                    0.100    0.100   1.1%
bookkeeping                                                                  1.300    1.300  14.2%
unattributed                                                                 0.050    0.050   0.5%
iteration                                                                    9.150    9.150 100.0%
";
    assert_eq!(text, expected, "\n{text}");
    let short = render(&accounting, Some(1), 100);
    assert!(short.contains("2 other layers") && !short.contains("conv1"), "{short}");
    let json = serde_json::to_value(&accounting).unwrap();
    assert_eq!(json["layers"][1]["layer"], "layer1.1+layer1.2");
    assert_eq!(json["layers"][1]["layers"], serde_json::json!(["layer1.1", "layer1.2"]));
    assert_eq!(json["phases"][0]["phase"], "loss");
    assert_eq!(serde_json::from_value::<Accounting>(json).unwrap(), accounting);
}

#[test]
fn accounts_for_truncated_timelines() {
    let root = tempfile::tempdir().unwrap();
    let run = regular(root.path());
    let path = run.timeline().join(TIMELINE_RECORDS);
    let bytes = fs::read(&path).unwrap();
    let mut counted = 0;
    for length in 0..=bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let accounting = Accounting::for_run(&run, &AccountingOptions { skip: Some(0) }).unwrap();
        assert!(accounting.iterations >= counted);
        counted = accounting.iterations;
        let _ = render(&accounting, None, 100);
        assert_eq!(layers::write_file(&run, &run.layers()).unwrap(), 3 * counted);
    }
    assert_eq!(counted, 6);
    fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
    let accounting = Accounting::for_run(&run, &AccountingOptions::default()).unwrap();
    assert!(accounting.torn_bytes > 0 && render(&accounting, None, 100).contains("unfinished record"));
    fs::write(&path, b"").unwrap();
    let accounting = Accounting::for_run(&run, &AccountingOptions::default()).unwrap();
    assert_eq!(render(&accounting, None, 100), "No training iteration is recorded yet.\n");
}

#[test]
fn layers_csv_has_exact_times() {
    let root = tempfile::tempdir().unwrap();
    let run = regular(root.path());
    assert_eq!(layers::write_file(&run, &run.layers()).unwrap(), 18);
    let text = fs::read_to_string(run.layers()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "epoch,iteration,layer,kind,device,forward_us,backward_us,update_us");
    assert_eq!(lines[1], "1,1,conv1,conv2d,cpu,2000.002,10000.010,11000.011");
    assert_eq!(lines[2], "1,1,layer1.1+layer1.2,conv2d,cpu,3000.003,9000.009,0.000");
    assert_eq!(lines[18], "1,6,fc,linear,cpu,500.005,1500.015,1200.012");
    let error = layers::write_file(&run, &root.path().join("absent/layers.csv")).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("absent"), "{error}");
}

fn summary() -> Summary {
    let mut summary = Summary {
        status: Status::Completed,
        experiment: "digits".into(),
        model: "digits".into(),
        dataset: "mnist".into(),
        device: "cpu".into(),
        threads: 2,
        precision: "f32".into(),
        batch_size: 32,
        epochs: 1,
        iterations: 6,
        time: TimeBreakdown {
            total_s: 8.0,
            startup_s: 1.0,
            train_s: 4.0,
            validation_s: 0.5,
            data_wait_s: 1.5,
            checkpoint_s: 0.5,
        },
        accounting: TimeAccount::new(6.0, 5.997),
        weights_sha256: Some("ab12".into()),
        resumed: 1,
        ..Default::default()
    };
    summary.images_per_second.median = Some(1234.5);
    summary.final_metrics.val_top1 = Some(0.9876);
    summary.memory.planned_peak_bytes = Some(45_200_000);
    summary
}

#[test]
fn reads_a_run_as_one_row() {
    let root = tempfile::tempdir().unwrap();
    let run = regular(root.path());
    summary().write(&run.summary()).unwrap();
    let mut machine = Machine { host: "lab, room 2".into(), ..Default::default() };
    machine.devices.push(Device { name: "X".into(), ..Default::default() });
    machine.write(&run.machine()).unwrap();
    let experiment = RunRecord::read(&run, Some(1)).unwrap();
    let expected = Progress {
        iterations: 6,
        skipped: 1,
        time_25_s: 1.0,
        time_50_s: 2.0,
        time_75_s: 4.0,
        time_100_s: 5.0,
    };
    assert_eq!(experiment.progress, expected);
    assert_eq!(experiment.unexplained_s, Some(0.5));
    let fields = experiment.fields(true);
    let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!(field("config.train.rate"), Some("0.003"));
    assert_eq!(field("repetition"), Some("1"));
    assert_eq!(field("unexplained_s"), Some("0.500000"));
    assert_eq!(field("gpu_count"), Some("1"));
    assert_eq!(field("val_loss"), Some(""));

    let killed = new_run(root.path());
    Summary { status: Status::Running, ..summary() }.write(&killed.summary()).unwrap();
    fs::write(killed.experiment(), "extra = 1\n").unwrap();
    let second = RunRecord::read(&killed, None).unwrap();
    assert_eq!(second.status, Status::Interrupted, "its writer has ended");
    let lock = killed.lock().unwrap();
    assert_eq!(RunRecord::read(&killed, None).unwrap().status, Status::Running);
    drop(lock);
    let unborn = new_run(root.path());
    let third = RunRecord::read(&unborn, None).unwrap();
    assert_eq!((third.status, third.summary.clone()), (Status::Interrupted, None));

    let csv = to_csv(&[experiment, second, third], false);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("experiment,repetition,path,status,"));
    assert!(lines[0].ends_with(",peaks,config.extra,config.model,config.train.epochs,config.train.rate"));
    assert!(lines[1].contains("\"lab, room 2\"") && lines[1].ends_with(",,digits,2,0.003"));
    assert!(lines[2].ends_with(",1,,,"));
    assert!(to_csv(&[], false).trim().is_empty());

    fs::write(killed.experiment(), "a = = 1").unwrap();
    let error = RunRecord::read(&killed, None).unwrap_err().to_string();
    assert!(error.contains("experiment.toml is damaged"), "{error}");
}

#[test]
fn renders_the_summary_of_a_run() {
    let root = tempfile::tempdir().unwrap();
    let run = new_run(root.path());
    summary().write(&run.summary()).unwrap();
    let expected = format!(
        "\
digits on mnist: completed, resumed once
  device        cpu, 2 threads, f32, batch size 32
  progress      1 epoch, 6 iterations
  images/s      median 1234
  validation    top-1 98.76 %
  seconds       total 8.00, startup 1.00, training 4.00, data wait 1.50,
                validation 0.50, checkpoints 0.50, unattributed 0.50
  accounted for 6.00 of 6.00 s in iterations, 0.050 % unattributed
  memory        planned 43.1 MiB
  weights hash  ab12
  run directory {}
",
        run.path().display()
    );
    let text = run_table::render_run(&run, 80).unwrap();
    assert_eq!(text, expected, "\n{text}");

    // With five classes, top-5 is not shown.
    let with_classes = |count: usize| {
        let class = |class| {
            serde_json::json!({
                "class": class, "name": "a", "samples": 1, "accuracy": null, "iou": null, "bf": null
            })
        };
        let classes = (0..count).map(class).collect();
        let classes = serde_json::from_value(classes).unwrap();
        let outputs = OutputMetrics { classes, ..OutputMetrics::default() };
        let mut some = Summary { outputs, ..summary() };
        some.final_metrics.val_top5 = Some(0.9991);
        some.write(&run.summary()).unwrap();
        run_table::render_run(&run, 80).unwrap()
    };
    assert!(with_classes(5).contains("top-1 98.76 %\n"));
    // More than a hundred classes are not listed.
    for count in [6, 0] {
        assert!(with_classes(count).contains("top-1 98.76 %, top-5 99.91 %\n"));
    }

    // A forecast, and the energy of CPU and GPU.
    let parts = with_total(&[
        (RunPart::Iterations, [3.0, 4.0]),
        (RunPart::DataWait, [0.0, 1.5]),
        (RunPart::Validation, [0.6, 0.5]),
        (RunPart::Checkpoints, [0.25, 0.0]),
    ]);
    let forecast = Forecast { step_s: 0.5, low_s: 0.4, high_s: 0.6, parts, ..Forecast::default() };
    let energy = Energy { energy_wh: Some(1.75), cpu_energy_wh: Some(0.5), gpu_energy_wh: Some(1.25) };
    Summary { forecast: Some(forecast), energy, ..summary() }.write(&run.summary()).unwrap();
    let text = run_table::render_run(&run, 80).unwrap();
    let expected = "
  forecast      step 500.00 ms (400.00 to 600.00), measured –, error –
                total 3.85 s, measured 6.00 s, error -2.15 s (-35.8 %)
                iterations 3.00 s, measured 4.00 s, error -1.00 s (-25.0 %)
                data wait 0.00 s, measured 1.50 s, error -1.50 s (-100.0 %)
                validation 0.60 s, measured 0.50 s, error +0.10 s (+20.0 %)
                checkpoints 0.25 s, measured 0.00 s, error +0.25 s
                largest error: data wait
  energy        1.75 Wh, CPU 0.5000 Wh, GPU 1.25 Wh, including other programs
";
    assert!(text.contains(expected), "{text}");

    // The loss scale of f16.
    let scale = Some(LossScaleSummary { scale: 32768.0, skipped_iterations: 1 });
    let half = Summary { loss_scale: scale, precision: "f16".to_owned(), ..summary() };
    half.write(&run.summary()).unwrap();
    let text = run_table::render_run(&run, 80).unwrap();
    assert!(text.contains("\n  loss scale    32768, 1 iteration skipped\n  validation "), "{text}");
}

/// A comparison reads the times of whole iterations only.
#[test]
fn wall_times_alone_are_those_of_the_accounting() {
    let root = tempfile::tempdir().unwrap();
    let (run, _) = irregular(root.path(), 137);
    for skip in [None, Some(0), Some(7), Some(136), Some(1000)] {
        let options = AccountingOptions { skip };
        let (whole, wall) = (Accounting::for_run(&run, &options), Accounting::wall_for_run(&run, &options));
        let (whole, wall) = (whole.unwrap(), wall.unwrap());
        assert_eq!((wall.iterations, wall.skipped), (whole.iterations, whole.skipped), "{skip:?}");
        assert_eq!(wall.wall, whole.wall, "{skip:?}");
        assert!(wall.layers.is_empty() && wall.phases.is_empty());
    }
    let path = run.timeline().join(TIMELINE_RECORDS);
    let data = fs::read(&path).unwrap();
    fs::write(&path, &data[..data.len() - 3]).unwrap();
    let options = AccountingOptions::default();
    let (whole, wall) = (Accounting::for_run(&run, &options), Accounting::wall_for_run(&run, &options));
    assert_eq!(wall.unwrap().torn_bytes, whole.unwrap().torn_bytes);
}
