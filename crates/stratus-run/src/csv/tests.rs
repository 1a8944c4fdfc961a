use super::*;
use proptest::prelude::*;

const TASK: Task = Task::Classification;

fn row(iteration: u64) -> IterationRow {
    IterationRow {
        epoch: 1,
        iteration,
        loss: 0.1 + 0.2,
        accuracy: Some(0.5),
        learning_rate: 3e-3,
        data_s: 1e-4,
        ..Default::default()
    }
}

fn sample(path: &Path, rows: u64) -> Vec<u64> {
    let mut writer = CsvWriter::open(path, TASK).unwrap();
    let mut ends = vec![writer.position()];
    for i in 1..=rows {
        writer.append(&row(i)).unwrap();
        ends.push(writer.position());
    }
    ends
}

#[test]
fn writes_the_documented_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iterations.csv");
    sample(&path, 1);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        "epoch,iteration,loss,top1,top5,learning_rate,data_s,train_s,unattributed_s\n\
         1,1,0.30000000000000004,0.5,,0.003,0.000100,0.000000,0.000000\n"
    );
    let path = folder.path().join("epochs.csv");
    let mut writer = CsvWriter::open(&path, TASK).unwrap();
    writer
        .append(&EpochRow { epoch: 2, val_accuracy: Some(0.25), elapsed_s: 1.5, ..Default::default() })
        .unwrap();
    writer.sync().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        "epoch,train_loss,train_top1,val_loss,val_top1,val_top5,train_s,val_s,elapsed_s\n\
         2,0.0,0.0,,0.25,,0.000000,0.000000,1.500000\n"
    );
}

/// A row of each task, with different values in all fields.
#[test]
fn reader_detects_the_task_from_the_columns() {
    let folder = tempfile::tempdir().unwrap();
    for (name, task) in ["c", "s", "l", "n"].into_iter().zip(Task::ALL) {
        let (iterations, epochs) = (folder.path().join(name), folder.path().join(format!("{name}e")));
        let written = IterationRow { top5: (task == TASK).then_some(0.75), ..row(7) };
        let mut writer = CsvWriter::open(&iterations, task).unwrap();
        writer.append(&written).unwrap();
        writer.sync().unwrap();
        assert_eq!(CsvReader::<IterationRow>::open(&iterations).unwrap().task(), task);
        assert_eq!(read::<IterationRow>(&iterations).unwrap(), [written]);
        let segmentation = |value: f64| (task == Task::Segmentation).then_some(value);
        let written = EpochRow {
            epoch: 3,
            train_loss: 0.5,
            train_accuracy: 0.25,
            val_loss: Some(0.125),
            val_accuracy: Some(0.75),
            val_top5: (task == TASK).then_some(0.875),
            val_mean_accuracy: segmentation(0.625),
            val_miou: segmentation(0.375),
            val_bf: None,
            labels: match task {
                Task::MultiLabel => LabelColumns {
                    val_map: Some(0.5),
                    val_exact_match: Some(0.25),
                    ..LabelColumns::default()
                },
                _ => LabelColumns::default(),
            },
            numbers: match task {
                Task::Regression => NumberColumns { val_mae: Some(31.5), val_rmse: None },
                _ => NumberColumns::default(),
            },
            train_s: 1.0,
            val_s: 2.0,
            elapsed_s: 3.0,
        };
        let mut writer = CsvWriter::open(&epochs, task).unwrap();
        writer.append(&written).unwrap();
        writer.sync().unwrap();
        assert_eq!(read::<EpochRow>(&epochs).unwrap(), [written]);
    }
    let text = std::fs::read_to_string(folder.path().join("se")).unwrap();
    assert_eq!(
        text,
        "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_mean_accuracy,val_miou,val_bf,train_s,\
         val_s,elapsed_s\n3,0.5,0.25,0.125,0.75,0.625,0.375,,1.000000,2.000000,3.000000\n"
    );
    let header = |name: &str| {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        text.lines().next().unwrap().replace(",train_s,val_s,elapsed_s", "")
    };
    let labels = "epoch,train_loss,train_label_accuracy,val_loss,val_label_accuracy,val_map,val_auc,val_f1,\
                  val_exact_match";
    assert_eq!(header("le"), labels);
    assert_eq!(header("ne"), "epoch,train_loss,train_r2,val_loss,val_r2,val_mae,val_rmse");
}

#[test]
fn line_beyond_the_limit_is_refused_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iterations.csv");
    sample(&path, 1);
    let whole = std::fs::read_to_string(&path).unwrap();
    // The longest line, of a field that no version has.
    let row = whole.lines().nth(1).unwrap();
    let longest = format!("{row},{}", "7".repeat(MAX_LINE_BYTES as usize - row.len() - 2));
    std::fs::write(&path, format!("{whole}{longest}\n")).unwrap();
    assert_eq!(read::<IterationRow>(&path).unwrap().len(), 2);
    std::fs::write(&path, format!("{whole}{longest}7\n")).unwrap();
    let error = read::<IterationRow>(&path).unwrap_err().to_string();
    assert!(error.contains("iterations.csv is damaged: line 3 is longer than 64 KiB"), "{error}");
}

#[test]
fn truncated_file_keeps_complete_rows_and_can_be_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iterations.csv");
    let ends = sample(&path, 4);
    let bytes = std::fs::read(&path).unwrap();
    for length in 0..=bytes.len() {
        let cut = folder.path().join("cut.csv");
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let whole = ends.iter().skip(1).filter(|&&end| end <= length as u64).count();
        assert_eq!(read::<IterationRow>(&cut).unwrap().len(), whole, "cut to {length}");
        CsvWriter::open(&cut, TASK).unwrap().append(&row(9)).unwrap();
        assert_eq!(read::<IterationRow>(&cut).unwrap().len(), whole + 1, "appended after {length}");
    }
}

#[test]
fn rewriting_after_truncation_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iterations.csv");
    let ends = sample(&path, 5);
    let bytes = std::fs::read(&path).unwrap();
    for (kept, &end) in ends.iter().enumerate() {
        let mut writer = CsvWriter::resume_at(&path, TASK, end).unwrap();
        for i in kept as u64 + 1..=5 {
            writer.append(&row(i)).unwrap();
        }
        drop(writer);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    CsvWriter::<IterationRow>::resume_at(&path, TASK, 0).unwrap();
    assert!(read::<IterationRow>(&path).unwrap().is_empty());
    let beyond = CsvWriter::<IterationRow>::resume_at(&path, TASK, 10_000).unwrap_err().to_string();
    assert!(beyond.contains("checkpoint recorded 10000"), "{beyond}");
}

#[test]
fn finds_columns_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.csv");
    let header = "extra,elapsed_s,val_s,train_s,val_top5,val_top1,val_loss,train_top1,train_loss,epoch\n";
    std::fs::write(&path, format!("{header}x,9,8,7,6,5,4,3,2,1\n")).unwrap();
    let rows = read::<EpochRow>(&path).unwrap();
    assert_eq!((rows[0].epoch, rows[0].elapsed_s, rows[0].val_loss), (1, 9.0, Some(4.0)));
    std::fs::write(&path, format!("{header}x,9,8,7,6,5,4,3,2,1\nx,9,bad,7,6,5,4,3,2,1\n")).unwrap();
    let error = read::<EpochRow>(&path).unwrap_err().to_string();
    assert!(error.contains("line 3: invalid val_s"), "{error}");
}

/// A run of an earlier version, whose epochs had no boundary F1 or top-5 accuracy yet.
#[test]
fn file_without_new_columns_is_read_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epochs.csv");
    let header = "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_mean_accuracy,val_miou,train_s,\
                  val_s,elapsed_s\n";
    let text = format!("{header}1,0.5,0.25,0.125,0.75,0.625,0.375,1.000000,2.000000,3.000000\n");
    std::fs::write(&path, &text).unwrap();
    let reader = CsvReader::<EpochRow>::open(&path).unwrap();
    assert_eq!(reader.task(), Task::Segmentation);
    let rows: Vec<EpochRow> = reader.collect::<Result<_>>().unwrap();
    assert_eq!((rows[0].val_miou, rows[0].val_bf, rows[0].train_s), (Some(0.375), None, 1.0));
    let next = EpochRow { epoch: 2, val_bf: Some(0.5), ..rows[0] };
    let mut writer = CsvWriter::open(&path, Task::Segmentation).unwrap();
    writer.append(&next).unwrap();
    writer.sync().unwrap();
    let row = "2,0.5,0.25,0.125,0.75,0.625,0.375,1.000000,2.000000,3.000000\n";
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{text}{row}"));
    assert_eq!(read::<EpochRow>(&path).unwrap(), [rows[0], EpochRow { val_bf: None, ..next }]);

    let path = folder.path().join("iterations.csv");
    let header = "epoch,iteration,loss,top1,learning_rate,data_s,train_s,unattributed_s\n";
    std::fs::write(&path, format!("{header}1,1,0.5,0.25,0.1,0,0,0\n")).unwrap();
    let found = read::<IterationRow>(&path).unwrap();
    assert_eq!((found[0].accuracy, found[0].top5, found[0].learning_rate), (Some(0.25), None, 0.1));
    // A column that every version has written must be there.
    std::fs::write(&path, "epoch,iteration,top1,learning_rate,data_s,train_s,unattributed_s\n").unwrap();
    let error = read::<IterationRow>(&path).unwrap_err().to_string();
    assert!(error.contains("no column loss"), "{error}");
}

/// A run of a later version, which has a column that this one does not know.
#[test]
fn file_with_an_unknown_column_is_continued_with_empty_fields() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iterations.csv");
    let header = "epoch,iteration,loss,grad_norm,top1,top5,learning_rate,data_s,train_s,unattributed_s\n";
    std::fs::write(&path, format!("{header}1,1,0.5,9.9,0.25,,0.1,0,0,0\n")).unwrap();
    let mut writer = CsvWriter::open(&path, TASK).unwrap();
    writer.append(&row(2)).unwrap();
    writer.sync().unwrap();
    let last = std::fs::read_to_string(&path).unwrap().lines().last().unwrap().to_owned();
    assert_eq!(last, "1,2,0.30000000000000004,,0.5,,0.003,0.000100,0.000000,0.000000");
    assert_eq!(read::<IterationRow>(&path).unwrap()[1], row(2));
}

proptest! {
    #[test]
    fn rows_survive_a_round_trip_bit_identically(
        loss: u64, accuracy: Option<f64>, top5: Option<f64>, epoch: u32, iteration: u64,
    ) {
        let loss = f64::from_bits(loss);
        let written = IterationRow { epoch, iteration, loss, accuracy, top5, ..Default::default() };
        let mut line = Vec::new();
        written.write(TASK, &mut line);
        let text = String::from_utf8(line).unwrap();
        let fields: Vec<&str> = text.split(',').collect();
        let back = IterationRow::parse(TASK, &fields).unwrap();
        let bits = (back.epoch, back.iteration, back.accuracy.map(f64::to_bits));
        prop_assert_eq!(bits, (epoch, iteration, accuracy.map(f64::to_bits)));
        prop_assert_eq!(back.top5.map(f64::to_bits), top5.map(f64::to_bits));
        prop_assert!(back.loss.to_bits() == loss.to_bits() || (loss.is_nan() && back.loss.is_nan()));
    }

    #[test]
    fn reader_never_panics(bytes: Vec<u8>, with_header: bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any.csv");
        let header = format!("{}\n", EpochRow::columns(TASK).join(","));
        let prefix: &[u8] = if with_header { header.as_bytes() } else { b"" };
        std::fs::write(&path, [prefix, &bytes].concat()).unwrap();
        let _ = read::<EpochRow>(&path);
        let _ = CsvWriter::<EpochRow>::open(&path, TASK);
    }
}
