//! The names of stored metrics.

use stratus_measures::{
    BoundaryScore, BoundaryWorkspace, ClassificationMetrics, ConfusionMatrix, MetricError,
    SegmentationMetrics,
};

#[test]
fn stores_segmentation_metrics_by_the_documented_names() {
    let (labels, predictions) = ([0, 0, 1, -1], [0u8, 0, 0, 1]);
    let mut pixels = ConfusionMatrix::new(3);
    pixels.add(&labels, &predictions).unwrap();
    let mut boundaries = BoundaryScore::new(3);
    boundaries.add(&labels, &predictions, [2, 2], &mut BoundaryWorkspace::default()).unwrap();
    let name = |class: usize| ["sky", "road", "car"][class].to_owned();
    let metrics = SegmentationMetrics::new(&pixels, Some(&boundaries), name).unwrap();
    let found = serde_json::to_value(&metrics).unwrap();
    let two_thirds = 2.0 / 3.0;
    let (accuracy, bf) = (found["accuracy"].as_f64().unwrap(), found["classes"][0]["bf"].as_f64().unwrap());
    assert!((accuracy - two_thirds).abs() < 1e-12);
    // The precision is 2/3, the recall 1.
    assert!((bf - 0.8).abs() < 1e-9);
    assert_eq!(found["mean_accuracy"], 0.5);
    assert_eq!(found["miou"], two_thirds / 2.0);
    assert!(found["weighted_iou"].is_f64() && found["bf"].is_f64());
    assert_eq!(
        serde_json::to_string(&metrics.classes[1..]).unwrap(),
        r#"[{"class":1,"name":"road","samples":1,"accuracy":0.0,"iou":0.0,"bf":0.0},"#.to_owned()
            + r#"{"class":2,"name":"car","samples":0,"accuracy":null,"iou":null,"bf":null}]"#
    );
    assert_eq!(serde_json::from_value::<SegmentationMetrics>(found).unwrap(), metrics);
    let without = SegmentationMetrics::new(&pixels, None, name).unwrap();
    assert_eq!((without.bf, without.classes[0].bf), (None, None));
    let other = SegmentationMetrics::new(&pixels, Some(&BoundaryScore::new(2)), name);
    assert_eq!(other, Err(MetricError::ClassCountMismatch { classes: 3, found: 2 }));
}

#[test]
fn classification_metrics_have_no_boundary_scores() {
    let mut images = ConfusionMatrix::new(2);
    images.add(&[0, 0, 1, 1], &[0u8, 1, 1, 1]).unwrap();
    let metrics = ClassificationMetrics::new(&images, Some(4), |class| format!("class {class}"));
    assert_eq!((metrics.top1, metrics.top5, metrics.mean_accuracy), (Some(0.75), Some(1.0), Some(0.75)));
    assert_eq!(metrics.classes[0].accuracy, Some(0.5));
    assert_eq!(metrics.classes[0].bf, None);
    let empty = ClassificationMetrics::new(&ConfusionMatrix::new(1), Some(0), |_| String::new());
    assert_eq!((empty.top1, empty.top5, empty.mean_accuracy), (None, None, None));
    assert_eq!(ClassificationMetrics::new(&images, None, |_| String::new()).top5, None);
}
