//! Losses of the reference backend against PyTorch.

use crate::reference::one_step;
use stratus_engine::DType;
use stratus_engine::ops::{
    DistillationFunction, DistillationLoss, FULL_SHARE, MIXED_LABEL_LEN, SoftmaxCrossEntropy,
};

/// Runs the loss on given logits.
fn metrics(logits: &[f64], classes: usize, labels: &[f64]) -> Result<Vec<f64>, String> {
    let batch = labels.len();
    let inputs =
        [("logits", &[batch, classes][..], DType::F64, logits), ("labels", &[batch], DType::I32, labels)];
    let outputs = [("metrics", &[4][..], DType::F64, &[0.0; 4][..])];
    one_step(SoftmaxCrossEntropy::default(), &inputs, &[], &outputs).map(|mut results| results.swap_remove(0))
}

fn assert_close(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    let difference =
        got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-8, "{got:?} is not {expected:?}");
}

/// Expected values are those of PyTorch 2.15 in double precision, with temperature 2 and weight 0.25: `0.75 *
/// cross_entropy(z, y) + 0.25 * 4 * kl_div(log_softmax(z[m] / 2, 1), log_softmax(t[m] / 2, 1),
/// reduction="batchmean", log_target=True)` of the samples `m` with a label, and its gradient.
#[test]
fn distillation_matches_pytorch() {
    let student = [1.0, -2.0, 0.5, 0.25, 0.0, -1.0, 9.0, 9.0, 9.0];
    let teacher = [0.0, 3.0, -1.0, 2.0, -0.5, 1.5, 1.0, 2.0, 3.0];
    let labels = [2.0, 0.0, -100.0];
    let logits = ("logits", &[3, 3][..], DType::F64, &student[..]);
    let labels = ("labels", &[3][..], DType::I32, &labels[..]);
    let main = SoftmaxCrossEntropy { main_weight: Some(0.75), ..SoftmaxCrossEntropy::default() };
    let outputs =
        [("metrics", &[4][..], DType::F64, &[0.0; 4][..]), ("dlogits", &[3, 3], DType::F64, &[0.0; 9])];
    let before = one_step(main, &[logits, labels], &[], &outputs).unwrap();
    assert_close(&before[0], &[0.75 * 0.864_937_549_201_822_5, 2.0, 1.0, 2.0]);
    let loss = DistillationLoss {
        function: DistillationFunction::Softmax,
        weight: 0.25,
        temperature: 2.0,
        mixed_labels: false,
        loss_scaled: false,
        partial: false,
    };
    let inputs = [logits, ("teacher", &[3, 3], DType::F64, &teacher[..]), labels];
    let updates =
        [("metrics", &[4][..], DType::F64, &before[0][..]), ("dlogits", &[3, 3], DType::F64, &before[1][..])];
    let after = one_step(loss, &inputs, &updates, &[]).unwrap();
    assert_close(&after[0], &[1.255_769_199_085_598_6, 2.0, 1.0, 2.0]);
    let gradient = [
        0.310_222_361_602_766_45,
        -0.144_894_730_477_007,
        -0.165_327_631_125_759,
        -0.211_074_701_712_754_33,
        0.197_978_671_910_383_15,
        0.013_096_029_802_371_213,
        0.0,
        0.0,
        0.0,
    ];
    assert_close(&after[1], &gradient);
}

/// Expected values are those of PyTorch 2.15 in double precision: `cross_entropy(logits, labels,
/// label_smoothing=0.1)` and its gradient.
#[test]
fn label_smoothing_matches_pytorch() {
    let logits = [0.5, -1.25, 2.0, 0.25, 3.0, 1.5, -0.5, 0.0, 0.0, 0.0, 1.0, -2.0];
    let inputs =
        [("logits", &[3, 4][..], DType::F64, &logits[..]), ("labels", &[3], DType::I32, &[2.0, 3.0, 1.0])];
    let outputs =
        [("metrics", &[4][..], DType::F64, &[0.0; 4][..]), ("dlogits", &[3, 4], DType::F64, &[0.0; 12])];
    // An f32, like the configured value.
    let loss = SoftmaxCrossEntropy { smoothing: 0.1, ..SoftmaxCrossEntropy::default() };
    let results = one_step(loss, &inputs, &[], &outputs).unwrap();
    let expected = [
        0.043_472_645_386,
        0.000_669_195_883,
        -0.076_155_044_730,
        0.032_013_203_461,
        0.247_464_069_504,
        0.048_742_782_127,
        -0.000_608_921_081,
        -0.295_597_930_550,
        0.060_343_969_730,
        -0.239_656_030_270,
        0.178_350_931_611,
        0.000_961_128_929,
    ];
    assert_close(&results[0], &[1.764_539_635_315_921_5, 3.0, 1.0, 3.0]);
    assert_close(&results[1], &expected);
}

/// Expected values are those of PyTorch 2.15 in double precision: `cross_entropy(logits, target,
/// label_smoothing=0.1)` and its gradient, where `target` contains the shares of both classes.
#[test]
fn mixed_samples_match_pytorch() {
    let logits = [0.5, -1.25, 2.0, 0.25, 3.0, 1.5, -0.5, 0.0, 0.0, 0.0, 1.0, -2.0];
    let share = |fraction: f64| fraction * f64::from(FULL_SHARE);
    let labels = [2.0, 0.0, share(0.25), 3.0, 2.0, share(0.75), 1.0, 1.0, share(0.5)];
    let inputs = [
        ("logits", &[3, 4][..], DType::F64, &logits[..]),
        ("labels", &[3, MIXED_LABEL_LEN], DType::I32, &labels),
    ];
    let outputs =
        [("metrics", &[4][..], DType::F64, &[0.0; 4][..]), ("dlogits", &[3, 4], DType::F64, &[0.0; 12])];
    let loss = SoftmaxCrossEntropy { smoothing: 0.1, mixed_labels: true, ..SoftmaxCrossEntropy::default() };
    let results = one_step(loss, &inputs, &[], &outputs).unwrap();
    let expected = [
        -0.031_527_354_614,
        0.000_669_195_883,
        -0.001_155_044_730,
        0.032_013_203_461,
        0.247_464_069_504,
        0.048_742_782_127,
        -0.225_608_921_081,
        -0.070_597_930_550,
        0.060_343_969_730,
        -0.239_656_030_270,
        0.178_350_931_611,
        0.000_961_128_929,
    ];
    assert_close(&results[0], &[1.989_539_635_315_921, 3.0, 1.0, 3.0]);
    assert_close(&results[1], &expected);
}

/// Expected values are those of PyTorch 2.15 in double precision: `cross_entropy(logits, target, weight,
/// label_smoothing=…)` and its gradient, for one class and for the shares of both classes. The first is
/// divided by the weights of the labels, the second by samples.
#[test]
fn class_weights_match_pytorch() {
    let logits = [0.5, -1.25, 2.0, 0.25, 3.0, 1.5, -0.5, 0.0, 0.0, 0.0, 1.0, -2.0];
    let weights = [0.5, 2.0, 1.25, 0.75];
    let share = |fraction: f64| fraction * f64::from(FULL_SHARE);
    let mixed = [2.0, 0.0, share(0.25), 3.0, 2.0, share(0.75), 1.0, 1.0, share(0.5)];
    let run_loss = |labels: &[f64], smoothing: f32| {
        let mixed = labels.len() > 3;
        let shape = [3, MIXED_LABEL_LEN];
        let inputs = [
            ("logits", &[3, 4][..], DType::F64, &logits[..]),
            ("labels", &shape[..1 + usize::from(mixed)], DType::I32, labels),
            ("class_weights", &[4], DType::F64, &weights),
        ];
        let outputs =
            [("metrics", &[4][..], DType::F64, &[0.0; 4][..]), ("dlogits", &[3, 4], DType::F64, &[0.0; 12])];
        let loss = SoftmaxCrossEntropy {
            smoothing,
            mixed_labels: mixed,
            class_weighted: true,
            ..SoftmaxCrossEntropy::default()
        };
        one_step(loss, &inputs, &[], &outputs).unwrap()
    };
    let check = |results: Vec<Vec<f64>>, loss: f64, top1: f64, gradient: [f64; 12]| {
        assert_close(&results[0], &[loss, 3.0, top1, 3.0]);
        assert_close(&results[1], &gradient);
    };
    check(
        run_loss(&[2.0, 3.0, 1.0], 0.0),
        1.515_015_793_170,
        1.0,
        [
            0.048_568_105_049,
            0.008_439_871_140,
            -0.094_832_854_434,
            0.037_824_878_245,
            0.143_886_039_096,
            0.032_105_314_947,
            0.004_344_981_892,
            -0.180_336_335_934,
            0.103_015_954_595,
            -0.396_984_045_405,
            0.280_026_397_417,
            0.013_941_693_393,
        ],
    );
    check(
        run_loss(&[2.0, 3.0, 1.0], 0.1),
        1.540_795_683_467,
        1.0,
        [
            0.044_957_423_945,
            -0.004_144_527_759,
            -0.073_572_025_573,
            0.032_759_129_387,
            0.147_955_341_111,
            0.021_210_580_532,
            -0.003_250_269_127,
            -0.165_915_652_516,
            0.095_384_006_468,
            -0.363_990_992_927,
            0.259_962_742_231,
            0.008_644_244_228,
        ],
    );
    check(
        run_loss(&mixed, 0.0),
        2.624_263_375_074,
        1.0,
        [
            0.013_377_185_722,
            0.009_565_187_292,
            -0.065_810_568_359,
            0.042_868_195_344,
            0.287_772_078_192,
            0.064_210_629_893,
            -0.303_810_036_217,
            -0.048_172_671_869,
            0.137_354_606_127,
            -0.529_312_060_540,
            0.373_368_529_889,
            0.018_588_924_524,
        ],
    );
    check(
        run_loss(&mixed, 0.1),
        2.598_212_329_485,
        1.0,
        [
            0.013_700_973_094,
            -0.007_045_213_814,
            -0.043_526_120_389,
            0.036_870_361_109,
            0.283_605_411_463,
            0.047_543_962_978,
            -0.282_976_702_573,
            -0.048_172_671_869,
            0.127_178_675_290,
            -0.485_321_323_903,
            0.346_616_989_641,
            0.011_525_658_971,
        ],
    );
    // Samples whose classes have weight 0 have no effect.
    let inputs = [
        ("logits", &[2, 2][..], DType::F64, &[1.0, f64::NEG_INFINITY, 3.0, 1.0][..]),
        ("labels", &[2], DType::I32, &[1.0, -1.0]),
        ("class_weights", &[2], DType::F64, &[1.0, 0.0]),
    ];
    let outputs =
        [("metrics", &[4][..], DType::F64, &[9.0; 4][..]), ("dlogits", &[2, 2], DType::F64, &[9.0; 4])];
    let loss = SoftmaxCrossEntropy { class_weighted: true, ..SoftmaxCrossEntropy::default() };
    assert_eq!(one_step(loss, &inputs, &[], &outputs).unwrap(), [vec![0.0, 1.0, 0.0, 1.0], vec![0.0; 4]]);
}

/// A hit is the class with the larger share, the first if both are equal.
#[test]
fn mixed_samples_count_as_the_class_with_the_larger_share() {
    let hits = |share: i32| {
        let inputs = [
            ("logits", &[1, 3][..], DType::F64, &[0.0, 1.0, 0.5][..]),
            ("labels", &[1, MIXED_LABEL_LEN], DType::I32, &[1.0, 2.0, f64::from(share)]),
        ];
        let loss = SoftmaxCrossEntropy { mixed_labels: true, ..SoftmaxCrossEntropy::default() };
        one_step(loss, &inputs, &[], &[("metrics", &[4], DType::F64, &[0.0; 4])]).map(|results| results[0][2])
    };
    let half = FULL_SHARE / 2;
    assert_eq!([0, half, half + 1, FULL_SHARE].map(|share| hits(share).unwrap()), [1.0, 1.0, 0.0, 0.0]);
    assert!(hits(FULL_SHARE + 1).unwrap_err().contains("sample 0: mixing share 1.0000000"));
    assert!(hits(-1).is_err());
}

#[test]
fn loss_counts_hits_and_ignores_negative_labels() {
    // Among equal logits the smaller index ranks first, so that label 0 is a hit and label 5 is not among
    // five.
    assert_eq!(metrics(&[0.0; 12], 6, &[0.0, 5.0]).unwrap()[1..], [2.0, 1.0, 1.0]);
    let loss = metrics(&[0.0; 12], 6, &[0.0, 5.0]).unwrap()[0];
    assert!((loss - 6f64.ln()).abs() < 1e-12);
    assert_eq!(metrics(&[1.0, 0.0, 0.0, 1.0], 2, &[0.0, -1.0]).unwrap()[1..], [1.0, 1.0, 1.0]);
    assert_eq!(metrics(&[1.0, 0.0], 2, &[-1.0]).unwrap(), [0.0; 4]);
    // A diverged network has no hits.
    let diverged = metrics(&[f64::NAN; 8], 8, &[3.0]).unwrap();
    assert!(diverged[0].is_nan());
    assert_eq!(diverged[1..], [1.0, 0.0, 0.0]);
    assert_eq!(
        metrics(&[0.0; 6], 3, &[1.0, 3.0]).unwrap_err().to_string(),
        "softmax_cross_entropy of layer `step` failed: \
         sample 1: label 3 is out of range for 3 classes"
    );
}
