//! Tests of the folder `validation/`.

use super::*;
use stratus_measures::ConfusionMatrix;
use stratus_testing::png::undecodable_png;

fn mistake(file: &str) -> Mistake {
    Mistake { file: file.to_owned(), class: 3, predicted: 5, probability: 0.1 + 0.2 }
}

fn classification(epoch: u32, mistakes: usize) -> ValidationImages {
    let mistakes = vec![mistake("a\"</script>\n\u{1b}[2J,.png"); mistakes];
    let images = TaskImages::Classification { mistake_count: 31, mistakes, samples: Vec::new() };
    ValidationImages { epoch, size: [4, 6], workers: 1, images }
}

#[test]
fn the_index_survives_a_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let folder = ValidationDir::new(root.path().join("validation"));
    assert_eq!(ValidationImages::read(&folder).unwrap(), None);
    folder.create().unwrap();
    let segmentation = ValidationImages {
        epoch: 7,
        size: [4, 6],
        workers: 2,
        images: TaskImages::Segmentation {
            samples: vec!["a.png".to_owned(), "../b.png".to_owned()],
            predictions: vec![
                MaskEpoch { epoch: 5, iou: vec![Some(0.1 + 0.2), None] },
                MaskEpoch { epoch: 7, iou: vec![Some(1.0), None] },
            ],
            colours: vec![[1, 2, 3]],
        },
    };
    for images in [classification(5, 2), segmentation.clone()] {
        images.write(&folder).unwrap();
        assert_eq!(ValidationImages::read(&folder).unwrap(), Some(images));
    }
    assert_eq!(
        segmentation.files(),
        [(PictureFile::Samples, 4, 2), (PictureFile::Epoch(5), 4, 2), (PictureFile::Epoch(7), 4, 2)]
    );
    assert_eq!(segmentation.file_size(4, 2), [8, 12]);
    // Edited or torn files.
    let text = fs::read_to_string(folder.images()).unwrap();
    for (from, to) in
        [("\"epoch\": 7,\n        \"iou", "\"epoch\": 4,\n        \"iou"), ("null\n", "null, 1\n"), ("}", "")]
    {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        fs::write(folder.images(), other).unwrap();
        let error = ValidationImages::read(&folder).unwrap_err().to_string();
        assert!(error.contains("images.json is damaged"), "{error}");
    }
}

#[test]
fn pictures_are_read_only_if_whole_and_of_the_expected_size() {
    let root = tempfile::tempdir().unwrap();
    let folder = ValidationDir::new(root.path().to_owned());
    let images = classification(5, 9);
    assert_eq!(images.files(), [(PictureFile::Epoch(5), 9, 8)]);
    let path = folder.pictures(PictureFile::Epoch(5));
    assert!(path.ends_with("0000000005.png"));
    let file = undecodable_png([8, 48], 3);
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        images.read_pictures(&folder, PictureFile::Epoch(5))
    };
    assert_eq!(read(&file).unwrap(), file);
    for length in 0..file.len() {
        read(&file[..length]).unwrap_err();
        let mut other = file.clone();
        other[length] ^= 1;
        read(&other).unwrap_err();
    }
    read(&[&file[..], b"\0"].concat()).unwrap_err();
    let error = read(&undecodable_png([4, 48], 3)).unwrap_err().to_string();
    assert!(error.contains("it has 4×48 pixels instead of 8×48"), "{error}");
    images.read_pictures(&folder, PictureFile::Samples).unwrap_err();
    images.read_pictures(&folder, PictureFile::Epoch(4)).unwrap_err();
    fs::File::create(&path).unwrap().set_len(MAX_PICTURES_BYTES + 1).unwrap();
    let error = images.read_pictures(&folder, PictureFile::Epoch(5)).unwrap_err().to_string();
    assert!(error.contains("larger than 8 MiB"), "{error}");
}

#[test]
fn only_pictures_of_epochs_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let folder = ValidationDir::new(root.path().to_owned());
    let others = ["samples.png", "5.png", "mine.png", "images.json"];
    for name in others {
        fs::write(root.path().join(name), "").unwrap();
    }
    for epoch in 1..=4 {
        fs::write(folder.pictures(PictureFile::Epoch(epoch)), "").unwrap();
    }
    folder.remove_pictures_except(&classification(3, 1)).unwrap();
    let mut left: Vec<_> = fs::read_dir(root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["0000000003.png", "5.png", "images.json", "mine.png", "samples.png"]);
    folder.remove_index().unwrap();
    assert!(!folder.images().exists() && !folder.pictures(PictureFile::Epoch(3)).exists());
    assert!(folder.pictures(PictureFile::Samples).exists() && root.path().join("mine.png").exists());
    ValidationDir::new(root.path().join("none")).remove_index().unwrap();
}

#[test]
fn kept_validations_are_few_and_what_is_dropped_stays_dropped() {
    let kept = |newest: u64| (1..=newest).filter(|&number| is_kept(number, newest)).collect::<Vec<_>>();
    assert_eq!(kept(1), [1]);
    assert_eq!(kept(19), (1..=19).collect::<Vec<_>>());
    assert_eq!(kept(20), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]);
    for newest in 1..400 {
        let (now, next) = (kept(newest), kept(newest + 1));
        assert!(now.len() as u64 <= MAX_EPOCHS && now[0] == 1 && now.last() == Some(&newest), "{now:?}");
        assert!(next.iter().all(|number| now.contains(number) || *number == newest + 1), "{now:?} {next:?}");
    }
}

#[test]
fn edited_lists_are_limited() {
    let root = tempfile::tempdir().unwrap();
    let folder = ValidationDir::new(root.path().to_owned());
    let segmentation = |samples: usize, epochs: u32, colours: usize| {
        let predictions = (1..=epochs).map(|epoch| MaskEpoch { epoch, iou: vec![None; samples] }).collect();
        let samples = vec!["a.png".to_owned(); samples];
        let images = TaskImages::Segmentation { samples, predictions, colours: vec![[0; 3]; colours] };
        ValidationImages { epoch: epochs, size: [1, 1], workers: 1, images }
    };
    let epochs = MAX_EPOCHS as u32;
    for images in [classification(1, MAX_IMAGES), segmentation(MAX_IMAGES, epochs, MAX_COLOURS)] {
        images.write(&folder).unwrap();
        assert_eq!(ValidationImages::read(&folder).unwrap(), Some(images));
    }
    for (images, reason) in [
        (classification(1, MAX_IMAGES + 1), "too many images"),
        (segmentation(MAX_IMAGES + 1, 1, 1), "too many images"),
        (segmentation(1, epochs + 1, 1), "too many epochs"),
        (segmentation(1, 1, MAX_COLOURS + 1), "too many colours"),
    ] {
        images.write(&folder).unwrap();
        let error = ValidationImages::read(&folder).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    // A file of a version that did not record the workers.
    let text = serde_json::to_string(&classification(1, 1)).unwrap();
    let older = text.replacen("\"workers\":1,", "", 1);
    assert_ne!(older, text);
    fs::write(folder.images(), older).unwrap();
    assert_eq!(ValidationImages::read(&folder).unwrap(), Some(classification(1, 1)));
}

#[test]
fn the_history_of_many_classes_is_thinned() {
    let recorded = |validations: u64, classes: usize| -> Vec<u64> {
        (1..=validations).filter(|&number| is_in_history(number, validations, classes)).collect()
    };
    assert_eq!(recorded(1000, 100), (1..=1000).collect::<Vec<_>>());
    assert_eq!(recorded(8, 40_000), [1, 5, 8]);
    for (validations, classes) in [(1, 1), (300, 1000), (10_000, 1000), (7, 1_000_000)] {
        let numbers = recorded(validations, classes);
        assert!(numbers[0] == 1 && numbers.last() == Some(&validations));
        assert!((numbers.len() as u64 - 1) * classes as u64 <= MAX_CLASS_ROWS + classes as u64);
    }
}

#[test]
fn confusions_survive_a_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(CONFUSION);
    let mut matrix = ConfusionMatrix::new(3);
    matrix.add(&[0, 0, 0, 1, 2, -1], &[0, 0, 2, 1, 1, 1]).unwrap();
    let counts = confusions(&matrix);
    let flat: Vec<_> = counts.iter().map(|found| (found.class, found.predicted, found.count)).collect();
    assert_eq!(flat, [(0, 0, 2), (0, 2, 1), (1, 1, 1), (2, 1, 1)]);
    write_confusion(&path, 4, &counts).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "epoch,class,predicted,count\n4,0,0,2\n4,0,2,1\n4,1,1,1\n4,2,1,1\n");
    assert_eq!(read_confusion(&path).unwrap(), counts);
    assert_eq!(table_epoch(&path), Some(4));
    write_confusion(&path, 4, &[]).unwrap();
    assert_eq!(read_confusion(&path).unwrap(), []);
    assert_eq!(table_epoch(&path), None);
    for damaged in [
        "",
        "epoch,class\n",
        "epoch,class,predicted,count\n1,2,3\n",
        "epoch,class,predicted,count\n1,2,3,-4\n",
    ] {
        fs::write(&path, damaged).unwrap();
        let error = read_confusion(&path).unwrap_err().to_string();
        assert!(error.contains("is damaged: line "), "{error}");
    }
}

#[test]
fn of_many_confusions_the_diagonal_and_the_largest_are_kept() {
    let classes = 150;
    let mut matrix = ConfusionMatrix::new(classes);
    let pairs = (0..classes as i32).flat_map(|class| (0..classes as i32).map(move |other| (class, other)));
    let (labels, predictions): (Vec<i32>, Vec<i32>) = pairs.unzip();
    matrix.add(&labels, &predictions).unwrap();
    matrix.add(&[149, 149], &[148, 148]).unwrap();
    let counts = confusions(&matrix);
    assert_eq!(counts.len(), classes + MAX_CONFUSIONS);
    assert!(counts.contains(&Confusion { class: 149, predicted: 148, count: 3 }));
    assert!(
        (0..classes).all(|class| counts.iter().any(|found| found.class == class && found.predicted == class))
    );
}

#[test]
fn curves_and_points_survive_a_round_trip() {
    let root = tempfile::tempdir().unwrap();
    let folder = ValidationDir::new(root.path().to_owned());
    let (curves, points) = (folder.curves(), folder.points());
    let label = |label, threshold, recall, precision| LabelPoint { label, threshold, recall, precision };
    let target = |target, number, predicted| TargetPoint { target, number, predicted };
    let drawn = [label(0, 0.3, 0.1 + 0.2, 1.0), label(7, 1.0, 0.0, 1.0 / 3.0), label(7, 1e-9, 1.0, 0.0)];
    write_curves(&curves, 4, &drawn).unwrap();
    let text = fs::read_to_string(&curves).unwrap();
    assert_eq!(
        text,
        "epoch,label,threshold,recall,precision\n4,0,0.3,0.30000000000000004,1.0\n\
         4,7,1.0,0.0,0.3333333333333333\n4,7,1e-9,1.0,0.0\n"
    );
    assert_eq!(read_curves(&curves).unwrap(), drawn);
    let predicted = [target(0, -1.5, 0.1), target(0, f32::MAX, f32::MIN_POSITIVE), target(1, -0.0, 3e7)];
    write_points(&points, 5, &predicted).unwrap();
    let read = read_points(&points).unwrap();
    assert_eq!(read, predicted);
    assert!(read[2].number.is_sign_negative());
    assert_eq!((table_epoch(&curves), table_epoch(&points)), (Some(4), Some(5)));
    folder.remove_tables(|epoch| epoch > Some(4)).unwrap();
    assert!(curves.exists() && !points.exists());
    // Nothing could be drawn.
    write_points(&points, 6, &[]).unwrap();
    assert_eq!(fs::read_to_string(&points).unwrap(), "epoch,target,number,predicted\n");
    assert_eq!((read_points(&points).unwrap(), table_epoch(&points)), (vec![], None));
}

#[test]
fn damaged_curves_and_points_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(CURVES);
    let error = |row: &str| {
        fs::write(&path, format!("epoch,label,threshold,recall,precision\n1,0,0.5,0.5,0.5\n{row}")).unwrap();
        read_curves(&path).unwrap_err().to_string()
    };
    for row in [
        "1,0,0.5,0.5",
        "1,0,0.5,0.5,",
        "1,0,0.5,0.5,0.5,0.5",
        "1,-1,0.5,0.5,0.5",
        "1,0,1.5,0.5,0.5",
        "1,0,0.5,-0.1,0.5",
        "1,0,0.5,0.5,NaN",
        "x,0,0.5,0.5,0.5",
        "\n",
    ] {
        let error = error(row);
        assert!(error.contains("curves.csv is damaged: line 3 is not a row"), "{row}: {error}");
    }
    let many = "1,0,0.5,0.5,0.5\n".repeat(MAX_CURVES * MAX_CURVE_POINTS);
    assert!(error(&many).contains("more than 10000 rows"));
    fs::write(&path, "epoch,label\n").unwrap();
    assert!(read_curves(&path).unwrap_err().to_string().contains("line 1 is not epoch,label,threshold"));
    for row in ["1,0,1.0", "1,0,1.0,inf", "1,0,NaN,1.0", "1,0,1.0,1.0,1.0", "1,0,1e39,1.0"] {
        fs::write(&path, format!("epoch,target,number,predicted\n{row}\n")).unwrap();
        let error = read_points(&path).unwrap_err().to_string();
        assert!(error.contains("line 2 is not a row of epoch,target,number,predicted"), "{row}: {error}");
    }
    fs::File::create(&path).unwrap().set_len(5 << 20).unwrap();
    assert!(read_points(&path).unwrap_err().to_string().contains("larger than 4 MiB"));
}
